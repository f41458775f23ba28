//! Usual events of a Kineto trace straight into columns; the places of all others are kept for the reader in Python.
//!
//! An event is usual if its columns are certain from its text alone. The reader in Python is the definition of the
//! columns (`readers/kineto/shard.py`); what it would treat in any special way is handed back to it.

use crate::json::{blank, integer, key, more, value, Bad};
use crate::pool::Pool;
use std::collections::TryReserveError;

/// Table of an event, or what else is done with it. The numbers are shared with `perfscope/native/kineto.py`.
#[derive(Clone, Copy, PartialEq)]
pub enum Group {
    Slice = 0,
    Call = 1,
    Kernel = 2,
    Copy = 3,
    Sync = 4,
    Memory = 5,
    Python = 6,
    Mark = 7,
    Dropped = 8,
    Rest = 9,
}

impl Group {
    pub fn of(number: u8) -> Group {
        match number {
            0 => Group::Slice,
            1 => Group::Call,
            2 => Group::Kernel,
            3 => Group::Copy,
            4 => Group::Sync,
            6 => Group::Python,
            7 => Group::Mark,
            8 => Group::Dropped,
            _ => Group::Rest,
        }
    }
}

pub const TABLES: usize = 6;

/// Columns of 64 bits, in the order of their numbers.
pub mod wide {
    pub const PLACE: usize = 0;
    pub const START: usize = 1;
    pub const END: usize = 2;
    pub const EXTERNAL: usize = 3;
    pub const CORRELATION: usize = 4;
    pub const DEVICE: usize = 5;
    pub const STREAM: usize = 6;
    pub const BYTES: usize = 7;
    pub const SEQUENCE: usize = 8;
    pub const FORWARD: usize = 9;
    pub const BLOCKS: usize = 10;
    pub const ADDRESS: usize = 11;
    pub const ALLOCATED: usize = 12;
    pub const RESERVED: usize = 13;
    pub const DEVICE_TYPE: usize = 14;
    pub const COUNT: usize = 15;
}

/// Columns of 32 bits, in the order of their numbers.
pub mod narrow {
    pub const NAME: usize = 0;
    pub const CATEGORY: usize = 1;
    pub const THREAD: usize = 2;
    pub const SHAPES: usize = 3;
    pub const DTYPES: usize = 4;
    pub const STRIDES: usize = 5;
    pub const VALUES: usize = 6;
    pub const THREADS_PER_BLOCK: usize = 7;
    pub const COUNT: usize = 8;
}

const WIDE: [&[usize]; TABLES] = [
    &[wide::PLACE, wide::START, wide::END, wide::EXTERNAL, wide::SEQUENCE, wide::FORWARD],
    &[wide::PLACE, wide::START, wide::END, wide::EXTERNAL, wide::CORRELATION],
    &[
        wide::PLACE, wide::START, wide::END, wide::EXTERNAL, wide::CORRELATION, wide::DEVICE, wide::STREAM,
        wide::BLOCKS,
    ],
    &[wide::PLACE, wide::START, wide::END, wide::EXTERNAL, wide::CORRELATION, wide::DEVICE, wide::STREAM, wide::BYTES],
    &[wide::PLACE, wide::START, wide::END, wide::EXTERNAL, wide::CORRELATION, wide::DEVICE, wide::STREAM],
    &[
        wide::PLACE, wide::START, wide::BYTES, wide::DEVICE, wide::ADDRESS, wide::ALLOCATED, wide::RESERVED,
        wide::DEVICE_TYPE,
    ],
];
const NARROW: [&[usize]; TABLES] = [
    &[
        narrow::NAME, narrow::CATEGORY, narrow::THREAD, narrow::SHAPES, narrow::DTYPES, narrow::STRIDES,
        narrow::VALUES,
    ],
    &[narrow::NAME, narrow::THREAD],
    &[narrow::NAME, narrow::THREADS_PER_BLOCK],
    &[narrow::NAME],
    &[narrow::NAME],
    &[narrow::THREAD],
];

const MISSING: i64 = -1;
const LARGEST_NS: i64 = 1 << 62;
const LONGEST_NS: i64 = 1 << 53;

/// A column that was moved out of its table.
pub enum Column {
    Wide(Vec<i64>),
    Narrow(Vec<i32>),
    Real(Vec<f32>),
}

/// Rows of one table, column by column.
struct Table {
    wide: Vec<Vec<i64>>,
    narrow: Vec<Vec<i32>>,
    occupancy: Vec<f32>,
    rows: usize,
    room: usize,
}

impl Table {
    fn new() -> Table {
        Table {
            wide: (0..wide::COUNT).map(|_| Vec::new()).collect(),
            narrow: (0..narrow::COUNT).map(|_| Vec::new()).collect(),
            occupancy: Vec::new(),
            rows: 0,
            room: 0,
        }
    }

    /// `read`, `left`: bytes of the file so far, and bytes in which as many rows per byte are expected. Room that is
    /// not needed is never touched.
    fn push(&mut self, number: usize, row: &Row, read: usize, left: usize) -> Result<(), TryReserveError> {
        if self.rows == self.room {
            let expected = (self.rows as f64 * left as f64 / read.max(1) as f64 * 1.1) as usize;
            let added = expected.min(7 * self.rows).max(4096);
            for column in WIDE[number] {
                self.wide[*column].try_reserve_exact(added)?;
            }
            for column in NARROW[number] {
                self.narrow[*column].try_reserve_exact(added)?;
            }
            if number == Group::Kernel as usize {
                self.occupancy.try_reserve_exact(added)?;
            }
            self.room += added;
        }
        for column in WIDE[number] {
            self.wide[*column].push(row.wide[*column]);
        }
        for column in NARROW[number] {
            self.narrow[*column].push(row.narrow[*column]);
        }
        if number == Group::Kernel as usize {
            self.occupancy.push(row.occupancy);
        }
        self.rows += 1;
        Ok(())
    }
}

/// Values of one event.
struct Row {
    wide: [i64; wide::COUNT],
    narrow: [i32; narrow::COUNT],
    occupancy: f32,
}

const BLANK: Row =
    Row { wide: [MISSING; wide::COUNT], narrow: [MISSING as i32; narrow::COUNT], occupancy: f32::NAN };

/// Why the scan of an event stopped before a row.
enum Stop {
    /// The text is not JSON as far as this scanner knows it.
    Bad,
    /// The event is for the reader in Python.
    Rest,
    /// No memory is left.
    Memory,
}

impl From<Bad> for Stop {
    fn from(_: Bad) -> Stop {
        Stop::Bad
    }
}

impl From<TryReserveError> for Stop {
    fn from(_: TryReserveError) -> Stop {
        Stop::Memory
    }
}

/// How far a scan came.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// All events that begin before the soft end are read; the position is after the last of them.
    Read(usize),
    /// The event at the position is not JSON as far as this scanner knows it.
    Bad(usize),
    /// No memory is left.
    Memory,
}

/// Where the parts of an event are in the text; 0 means absent, because an event begins with a brace.
#[derive(Default)]
struct Parts {
    seen: u8,
    phase: u8,
    name: (usize, usize),
    category: (usize, usize),
    time: (usize, usize),
    duration: (usize, usize),
    process: (usize, usize),
    thread: (usize, usize),
    args: usize,
    unusual: bool,
}

/// The columns of the events that were scanned.
pub struct Scan {
    tables: Vec<Table>,
    /// Names and raw arguments, as written in the file.
    pub strings: Pool,
    /// Process and thread of an event as `process,thread`.
    pub threads: Pool,
    /// Categories as written in the file.
    pub categories: Pool,
    /// Group of each category code that was met.
    groups: Vec<Group>,
    /// Known categories in lower case, with their groups.
    known: Vec<(Vec<u8>, Group)>,
    /// Process and thread of the last event that had usual ones, and the code of the thread, or -1.
    last: (Vec<u8>, Vec<u8>, i32),
    /// Number of events so far, of either kind.
    pub events: i64,
    /// Where the first event began.
    first: usize,
    /// Three numbers for each event that is left to the reader in Python: first byte, byte after it, and its place.
    pub rest: Vec<i64>,
}

impl Scan {
    pub fn new(known: Vec<(Vec<u8>, Group)>) -> Scan {
        Scan {
            tables: (0..TABLES).map(|_| Table::new()).collect(),
            strings: Pool::default(),
            threads: Pool::default(),
            categories: Pool::default(),
            groups: Vec::new(),
            known,
            last: (Vec::new(), Vec::new(), MISSING as i32),
            events: 0,
            first: 0,
            rest: Vec::new(),
        }
    }

    pub fn rows(&self, table: usize) -> usize {
        self.tables[table].rows
    }

    /// Move a column out: of 64 bits, then of 32 bits, then the occupancy.
    pub fn take(&mut self, table: usize, column: usize) -> Column {
        let table = &mut self.tables[table];
        if column < wide::COUNT {
            Column::Wide(std::mem::take(&mut table.wide[column]))
        } else if column < wide::COUNT + narrow::COUNT {
            Column::Narrow(std::mem::take(&mut table.narrow[column - wide::COUNT]))
        } else {
            Column::Real(std::mem::take(&mut table.occupancy))
        }
    }

    /// Read events of `text` that begin in `from..soft_end`; the text ends with the last event.
    pub fn scan(&mut self, text: &[u8], from: usize, soft_end: usize) -> Outcome {
        let mut at = from;
        while at < text.len() && matches!(text[at], b' ' | b'\n' | b'\t' | b'\r' | b',') {
            at += 1;
        }
        if self.events == 0 {
            self.first = at;
        }
        loop {
            if at >= soft_end || at >= text.len() {
                return Outcome::Read(at);
            }
            match self.event(text, at) {
                Ok(next) => at = next,
                Err(Stop::Rest) => match value(text, at).and_then(|end| Ok((end, following(text, end)?))) {
                    Ok((end, next)) => {
                        if self.rest.try_reserve(3).is_err() {
                            return Outcome::Memory;
                        }
                        self.rest.extend([at as i64, end as i64, self.events]);
                        at = next;
                    }
                    Err(Bad) => return Outcome::Bad(at),
                },
                Err(Stop::Bad) => return Outcome::Bad(at),
                Err(Stop::Memory) => return Outcome::Memory,
            }
            self.events += 1;
        }
    }

    /// Read the event at `at` to its row; return the position of the next one.
    #[inline(always)]
    fn event(&mut self, text: &[u8], at: usize) -> Result<usize, Stop> {
        if text[at] != b'{' {
            return Err(Stop::Bad);
        }
        let mut parts = Parts::default();
        let mut row = BLANK;
        let mut end = blank(text, at + 1);
        if text.get(end) == Some(&b'}') {
            return Err(Stop::Rest);
        }
        let mut group = None;
        loop {
            let start = end;
            let (key_end, begin) = key(text, start)?;
            let name = &text[start + 1..key_end];
            if name == b"args" && group.is_none() {
                group = self.group(text, &parts)?;
            }
            end = match (name, group) {
                (b"args", Some(known)) if text.get(begin) == Some(&b'{') => {
                    parts.once(1 << 7);
                    parts.args = begin;
                    self.arguments(text, begin, known, &mut row)?
                }
                _ => {
                    let end = value(text, begin)?;
                    parts.take(text, name, begin, end)?;
                    end
                }
            };
            match more(text, end, b'}')? {
                (after, true) => end = after,
                (after, false) => {
                    end = after;
                    break;
                }
            }
        }
        let next = following(text, end)?;
        if parts.unusual || !self.knows_identity(text, &parts)? {
            return Err(Stop::Rest);
        }
        let read_late = group.is_none();
        let group = match group {
            Some(known) => known,
            None => self.group(text, &parts)?.ok_or(Stop::Rest)?,
        };
        if read_late && parts.args != 0 {
            self.arguments(text, parts.args, group, &mut row)?;
        }
        self.place(text, &parts, group, row)?;
        Ok(next)
    }

    /// Return the group of an event as far as its parts say it.
    #[inline(always)]
    fn group(&mut self, text: &[u8], parts: &Parts) -> Result<Option<Group>, Stop> {
        match parts.phase {
            b'X' => {}
            b's' | b'f' | b't' | b'M' => return Ok(Some(Group::Dropped)),
            b'i' if parts.name.0 == 0 => return Ok(None),
            b'i' => return Ok(Some(if cut(text, parts.name) == b"\"[memory]\"" { Group::Memory } else { Group::Dropped })),
            0 => return Ok(None),
            _ => return Err(Stop::Rest),
        }
        if parts.category.0 == 0 {
            return Ok(None);
        }
        let category = cut(text, parts.category);
        if parts.unusual {
            return Err(Stop::Rest);
        }
        let code = self.categories.code(category)? as usize;
        if code == self.groups.len() {
            let lowered = category.to_ascii_lowercase();
            let group = self.known.iter().find(|(name, _)| *name == lowered).map_or(Group::Rest, |(_, group)| *group);
            self.groups.try_reserve(1)?;
            self.groups.push(group);
        }
        match self.groups[code] {
            Group::Rest => Err(Stop::Rest),
            group => Ok(Some(group)),
        }
    }

    /// Read the arguments at `at` that the group's columns need; return the position after them.
    #[inline(always)]
    fn arguments(&mut self, text: &[u8], at: usize, group: Group, row: &mut Row) -> Result<usize, Stop> {
        if matches!(group, Group::Python | Group::Mark | Group::Dropped) {
            return Ok(value(text, at)?);
        }
        if group == Group::Memory {
            row.wide[wide::BYTES] = NO_SIZE;
            row.wide[wide::ADDRESS] = 0;
            row.wide[wide::DEVICE_TYPE] = 0;
        }
        let mut old_external = MISSING;
        let mut end = blank(text, at + 1);
        if text.get(end) == Some(&b'}') {
            return Ok(end + 1);
        }
        loop {
            let start = end;
            let (key_end, begin) = key(text, start)?;
            end = value(text, begin)?;
            let name = &text[start + 1..key_end];
            let written = &text[begin..end];
            match group {
                Group::Memory => memory_argument(name, written, row)?,
                Group::Slice => self.slice_argument(name, written, row)?,
                _ => device_argument(name, written, group, row)?,
            }
            match name {
                b"External id" => row.wide[wide::EXTERNAL] = integer(written).ok_or(Stop::Rest)?,
                b"external id" => old_external = integer(written).ok_or(Stop::Rest)?,
                _ => {}
            }
            match more(text, end, b'}')? {
                (after, true) => end = after,
                (after, false) => {
                    end = after;
                    break;
                }
            }
        }
        if row.wide[wide::EXTERNAL] < 0 {
            row.wide[wide::EXTERNAL] = old_external;
        }
        Ok(end)
    }

    #[inline(always)]
    fn slice_argument(&mut self, name: &[u8], written: &[u8], row: &mut Row) -> Result<(), Stop> {
        let column = match name {
            b"Sequence number" => {
                row.wide[wide::SEQUENCE] = integer(written).ok_or(Stop::Rest)?;
                return Ok(());
            }
            b"Fwd thread id" => {
                row.wide[wide::FORWARD] = integer(written).ok_or(Stop::Rest)?;
                return Ok(());
            }
            b"Input Dims" => narrow::SHAPES,
            b"Input type" => narrow::DTYPES,
            b"Input Strides" => narrow::STRIDES,
            b"Concrete Inputs" => narrow::VALUES,
            _ => return Ok(()),
        };
        row.narrow[column] = self.strings.code(written)?;
        Ok(())
    }

    /// Add the row of an event whose parts and arguments are read.
    #[inline(always)]
    fn place(&mut self, text: &[u8], parts: &Parts, group: Group, mut row: Row) -> Result<(), Stop> {
        if group == Group::Dropped && parts.phase != b'X' {
            return Ok(());
        }
        row.wide[wide::PLACE] = self.events;
        let (read, left) = (parts.time.1 - self.first.min(parts.time.1), text.len() - parts.time.1);
        let start = nanoseconds(cut(text, parts.time)).ok_or(Stop::Rest)?;
        row.wide[wide::START] = start;
        if group == Group::Memory {
            if row.wide[wide::BYTES] == NO_SIZE || parts.args == 0 {
                return Err(Stop::Rest);
            }
            row.narrow[narrow::THREAD] = self.thread()?;
            return Ok(self.tables[group as usize].push(group as usize, &row, read, left)?);
        }
        let length = nanoseconds(cut(text, parts.duration)).filter(|length| *length < LONGEST_NS).ok_or(Stop::Rest)?;
        row.wide[wide::END] = start + length;
        if parts.name.0 == 0 {
            return Err(Stop::Rest);
        }
        let name = cut(text, parts.name);
        if group == Group::Dropped {
            return Ok(());
        }
        if group == Group::Mark {
            let is_step = name.starts_with(b"\"perfscope.step") || name.starts_with(b"\"ProfilerStep");
            return if is_step || name.contains(&b'\\') { Err(Stop::Rest) } else { Ok(()) };
        }
        // Sends and receives have their peer among the inputs.
        if group == Group::Slice && (name == b"\"c10d::send\"" || name == b"\"c10d::recv_\"") {
            return Err(Stop::Rest);
        }
        if matches!(group, Group::Kernel | Group::Copy | Group::Sync) {
            for (column, identity) in [(wide::DEVICE, parts.process), (wide::STREAM, parts.thread)] {
                if row.wide[column] == MISSING {
                    row.wide[column] = id(cut(text, identity)).ok_or(Stop::Rest)?;
                }
            }
        } else {
            row.narrow[narrow::THREAD] = self.thread()?;
            if matches!(group, Group::Slice | Group::Python) {
                row.narrow[narrow::CATEGORY] = self.categories.code(cut(text, parts.category))?;
            }
        }
        row.narrow[narrow::NAME] = self.strings.code(name)?;
        let table = if group == Group::Python { Group::Slice } else { group } as usize;
        Ok(self.tables[table].push(table, &row, read, left)?)
    }

    /// Return whether process and thread, if the event has them, have a usual form; note them in `last`.
    #[inline(always)]
    fn knows_identity(&mut self, text: &[u8], parts: &Parts) -> Result<bool, Stop> {
        let (process, thread) = (cut(text, parts.process), cut(text, parts.thread));
        if process == self.last.0 && thread == self.last.1 {
            return Ok(true);
        }
        if ![process, thread].iter().all(|written| written.is_empty() || usual_identity(written)) {
            return Ok(false);
        }
        for (kept, written) in [(&mut self.last.0, process), (&mut self.last.1, thread)] {
            kept.clear();
            kept.try_reserve(written.len())?;
            kept.extend_from_slice(written);
        }
        self.last.2 = MISSING as i32;
        Ok(true)
    }

    /// Return the code of the process and thread in `last`.
    #[inline(always)]
    fn thread(&mut self) -> Result<i32, Stop> {
        if self.last.2 >= 0 {
            return Ok(self.last.2);
        }
        let (process, thread) = (&self.last.0, &self.last.1);
        let mut both = [0; 128];
        let length = process.len() + thread.len() + 1;
        if process.is_empty() || thread.is_empty() || length > both.len() {
            return Err(Stop::Rest);
        }
        both[..process.len()].copy_from_slice(process);
        both[process.len()] = b',';
        both[process.len() + 1..length].copy_from_slice(thread);
        self.last.2 = self.threads.code(&both[..length])?;
        Ok(self.last.2)
    }
}

impl Parts {
    /// Note that a key occurs; an event with a key twice is unusual.
    #[inline(always)]
    fn once(&mut self, bit: u8) {
        self.unusual |= self.seen & bit != 0;
        self.seen |= bit;
    }

    #[inline(always)]
    fn take(&mut self, text: &[u8], key: &[u8], begin: usize, end: usize) -> Result<(), Stop> {
        match key {
            b"ph" => {
                self.once(1);
                self.phase = if end - begin == 3 && text[begin] == b'"' { text[begin + 1] } else { 0xff };
            }
            b"cat" => {
                self.once(2);
                let written = &text[begin..end];
                self.unusual |= written[0] != b'"' || written.contains(&b'\\') || !written.is_ascii();
                self.category = (begin, end);
            }
            b"name" => {
                self.once(4);
                if text[begin] != b'"' {
                    return Err(Stop::Rest);
                }
                self.name = (begin, end);
            }
            b"ts" => {
                self.once(8);
                self.time = (begin, end);
            }
            b"dur" => {
                self.once(16);
                self.duration = (begin, end);
            }
            b"pid" => {
                self.once(32);
                self.process = (begin, end);
            }
            b"tid" => {
                self.once(64);
                self.thread = (begin, end);
            }
            b"args" => {
                self.once(128);
                self.unusual |= text[begin] != b'{';
                self.args = begin;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Return the position of the event that follows one that ends at `end`, or the end of the text.
#[inline(always)]
fn following(text: &[u8], end: usize) -> Result<usize, Bad> {
    let comma = blank(text, end);
    if comma == text.len() {
        return Ok(comma);
    }
    let next = blank(text, comma + 1);
    if text[comma] == b',' && text.get(next) == Some(&b'{') {
        Ok(next)
    } else {
        Err(Bad)
    }
}

/// Return whether a process or thread is a whole number or a plain text.
fn usual_identity(written: &[u8]) -> bool {
    match written[0] {
        b'"' => written.is_ascii() && !written.contains(&b'\\'),
        _ => integer(written).is_some(),
    }
}

#[inline(always)]
fn cut(text: &[u8], (begin, end): (usize, usize)) -> &[u8] {
    &text[begin..end]
}

/// `BYTES` of a memory event without a size; a freed block has a negative one.
const NO_SIZE: i64 = i64::MIN;

#[inline(always)]
fn memory_argument(name: &[u8], written: &[u8], row: &mut Row) -> Result<(), Stop> {
    let column = match name {
        b"Addr" => {
            row.wide[wide::ADDRESS] = address(written).ok_or(Stop::Rest)?;
            return Ok(());
        }
        b"Bytes" => wide::BYTES,
        b"Total Allocated" => wide::ALLOCATED,
        b"Total Reserved" => wide::RESERVED,
        b"Device Type" => wide::DEVICE_TYPE,
        b"Device Id" => wide::DEVICE,
        _ => return Ok(()),
    };
    row.wide[column] = integer(written).ok_or(Stop::Rest)?;
    Ok(())
}

/// Return the 64 bits of an address, written as a number without sign.
fn address(written: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(written).ok()?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse::<u64>().ok().map(|number| number as i64)
}

#[inline(always)]
fn device_argument(name: &[u8], written: &[u8], group: Group, row: &mut Row) -> Result<(), Stop> {
    match name {
        b"correlation" => row.wide[wide::CORRELATION] = integer(written).ok_or(Stop::Rest)?,
        b"device" if group != Group::Call => row.wide[wide::DEVICE] = optional_id(written)?,
        b"stream" if group != Group::Call => row.wide[wide::STREAM] = optional_id(written)?,
        b"bytes" if group == Group::Copy => row.wide[wide::BYTES] = integer(written).ok_or(Stop::Rest)?,
        b"grid" if group == Group::Kernel => row.wide[wide::BLOCKS] = product(written)?,
        b"block" if group == Group::Kernel => {
            let threads = i32::try_from(product(written)?).map_err(|_| Stop::Rest)?;
            row.narrow[narrow::THREADS_PER_BLOCK] = threads;
        }
        b"est. achieved occupancy %" if group == Group::Kernel => row.occupancy = fraction(written)?,
        // Facts of a collective, or of a task of an Ascend device.
        b"Collective name" | b"Task Type" if group == Group::Kernel => return Err(Stop::Rest),
        _ => {}
    }
    Ok(())
}

fn optional_id(written: &[u8]) -> Result<i64, Stop> {
    if written == b"null" {
        return Ok(MISSING);
    }
    match id(written) {
        // -1 would be taken for a missing id.
        Some(number) if number >= 0 => Ok(number),
        _ => Err(Stop::Rest),
    }
}

/// Return a device or stream: a number, or the digits of a text such as "stream 7".
fn id(written: &[u8]) -> Option<i64> {
    if written.first() != Some(&b'"') {
        return integer(written);
    }
    let text = &written[1..written.len() - 1];
    let letters = text.iter().any(u8::is_ascii_alphabetic);
    let usual = text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b' ');
    if !usual || (letters && !text[0].is_ascii_alphabetic()) {
        return None;
    }
    let digits: Vec<u8> = text.iter().copied().filter(u8::is_ascii_digit).collect();
    if !letters && digits.len() != text.len() {
        return None;
    }
    integer(&digits)
}

/// Return the product of a list of whole numbers.
fn product(written: &[u8]) -> Result<i64, Stop> {
    if written == b"null" {
        return Ok(MISSING);
    }
    if written.first() != Some(&b'[') {
        return Err(Stop::Rest);
    }
    let mut total: i64 = 1;
    let mut count = 0;
    for part in written[1..written.len() - 1].split(|byte| *byte == b',') {
        let number = integer(trimmed(part)).ok_or(Stop::Rest)?;
        total = total.checked_mul(number).ok_or(Stop::Rest)?;
        count += 1;
    }
    if count == 0 {
        return Err(Stop::Rest);
    }
    Ok(total)
}

fn trimmed(mut text: &[u8]) -> &[u8] {
    while let Some((b' ' | b'\n' | b'\t' | b'\r', rest)) = text.split_first() {
        text = rest;
    }
    while let Some((b' ' | b'\n' | b'\t' | b'\r', rest)) = text.split_last() {
        text = rest;
    }
    text
}

fn fraction(written: &[u8]) -> Result<f32, Stop> {
    if written == b"null" {
        return Ok(f32::NAN);
    }
    if matches!(written.first(), None | Some(b'"' | b't' | b'f' | b'[' | b'{')) {
        return Err(Stop::Rest);
    }
    let text = std::str::from_utf8(written).map_err(|_| Stop::Rest)?;
    let number: f64 = text.parse().map_err(|_| Stop::Rest)?;
    if number.is_finite() {
        Ok(number as f32)
    } else {
        Err(Stop::Rest)
    }
}

/// Return the nanoseconds of a time in microseconds with at most three decimals; `None` for any other form.
#[inline(always)]
fn nanoseconds(written: &[u8]) -> Option<i64> {
    let mut number: i64 = 0;
    let mut at = 0;
    while at < written.len() && written[at].is_ascii_digit() {
        if at == 16 {
            return None;
        }
        number = number * 10 + (written[at] - b'0') as i64;
        at += 1;
    }
    if at == 0 {
        return None;
    }
    let mut decimals = 0;
    if at < written.len() {
        if written[at] != b'.' {
            return None;
        }
        for byte in &written[at + 1..] {
            if decimals == 3 || !byte.is_ascii_digit() {
                return None;
            }
            number = number.checked_mul(10)?.checked_add((byte - b'0') as i64)?;
            decimals += 1;
        }
    }
    while decimals < 3 {
        number = number.checked_mul(10)?;
        decimals += 1;
    }
    if number < LARGEST_NS {
        Some(number)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Scan {
        let known = vec![(b"\"cpu_op\"".to_vec(), Group::Slice), (b"\"kernel\"".to_vec(), Group::Kernel)];
        let mut scan = Scan::new(known);
        assert_eq!(scan.scan(text.as_bytes(), 0, text.len()), Outcome::Read(text.len()));
        scan
    }

    fn wide(scan: &mut Scan, table: usize, column: usize) -> Vec<i64> {
        match scan.take(table, column) {
            Column::Wide(values) => values,
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_usual_event_is_a_row() {
        let mut scan = scan(
            r#"{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8, "ts": 10.5, "dur": 2.25,
               "args": {"External id": 3, "Sequence number": 4, "Input Dims": [[2, 3], []]}},
               {"name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"grid": [2, 3, 1], "block": [32, 1, 1],
               "stream": "stream 9", "est. achieved occupancy %": 12.5}, "cat": "Kernel", "ph": "X"}"#,
        );
        assert_eq!((scan.rows(0), scan.rows(2), scan.rest.len()), (1, 1, 0));
        assert_eq!((wide(&mut scan, 0, wide::START), wide(&mut scan, 0, wide::END)), (vec![10_500], vec![12_750]));
        assert_eq!((wide(&mut scan, 2, wide::BLOCKS), wide(&mut scan, 2, wide::STREAM)), (vec![6], vec![9]));
        let threads = scan.take(2, wide::COUNT + narrow::THREADS_PER_BLOCK);
        let occupancy = scan.take(2, wide::COUNT + narrow::COUNT);
        assert!(matches!(threads, Column::Narrow(values) if values == [32]));
        assert!(matches!(occupancy, Column::Real(values) if values == [12.5]));
    }

    #[test]
    fn unusual_events_are_left_to_python() {
        for text in [
            r#"{}"#,
            r#"{"ph": "C", "name": "n", "ts": 1}"#,
            r#"{"ph": "X", "cat": "new", "name": "n", "pid": 1, "tid": 1, "ts": 1, "dur": 1}"#,
            r#"{"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": 1.2345, "dur": 1}"#,
            r#"{"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": 1}"#,
            r#"{"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 1, "ts": 1, "ts": 2, "dur": 1}"#,
            r#"{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": "t"}"#,
            r#"{"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1.5, "tid": 1, "ts": 1, "dur": 1}"#,
            r#"{"ph": "X", "cat": "kernel", "name": "n", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {"grid": []}}"#,
        ] {
            let scan = scan(text);
            assert_eq!((scan.rest, scan.events), (vec![0, text.len() as i64, 0], 1), "{}", text);
        }
    }

    #[test]
    fn a_cut_event_is_bad_at_its_first_byte() {
        for text in [r#" {"ph": "M"}, {"ph": "X", "name": "ab"#, r#" {"ph": "M"}, {"ph": "M"} {"ph": "M"}"#] {
            assert_eq!(Scan::new(Vec::new()).scan(text.as_bytes(), 0, text.len()), Outcome::Bad(14));
        }
    }

    #[test]
    fn times_are_exact() {
        assert_eq!(nanoseconds(b"1713887261998877.125"), Some(1_713_887_261_998_877_125));
        assert_eq!(nanoseconds(b"0.5"), Some(500));
        for text in ["-1", "1e3", "1.2345", ".5", "", "12345678901234567", "null"] {
            assert_eq!(nanoseconds(text.as_bytes()), None, "{}", text);
        }
    }

    #[test]
    fn ids_of_texts_are_their_digits() {
        assert_eq!(id(b"\"stream 7\""), Some(7));
        assert_eq!(id(b"\"7\""), Some(7));
        assert_eq!((id(b"\"-7\""), id(b"\"1e3\""), id(b"\"\""), id(b"7.5")), (None, None, None, None));
    }

    #[test]
    fn numbers_are_read_by_the_rules_of_json() {
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!((integer(b"1.0"), integer(b""), integer(b"-")), (None, None, None));
    }
}
