//! CUDA memory snapshots to columns. A snapshot is a pickle, which is followed opcode by opcode without Python's objects.
//!
//! The opcodes are those of protocols 4 and 5 for numbers, texts, lists, dictionaries and pairs of numbers; none of them
//! names, builds or calls anything. For anything else the answer is `Unusual`, and the readers in Python
//! (`readers/pickles.py`, `readers/torch_memory`), which define what is allowed and the columns, decide.

use crate::pool::Pool;
use crate::xspace::Stop;
use std::collections::HashMap;

const MISSING: i32 = -1;
const NONE: u32 = u32::MAX;
const UNKNOWN: i32 = i32::MIN;

/// As in `readers/pickles.py` and `readers/torch_memory/state.py`.
const MOST_CONTAINERS: usize = 32_000_000;
const MOST_ROWS: i32 = 4_000_000;

/// Levels of what is left to Python; a snapshot has ten.
const MOST_DEPTH: usize = 32;

const MARK: u8 = b'(';
const NOTHING: u8 = b'N';
const FLOAT: u8 = b'G';
const TEXT: u8 = b'X';
const DICT: u8 = b'}';
const LIST: u8 = b']';
const APPENDS: u8 = b'e';
const SETITEMS: u8 = b'u';
const GET: u8 = b'j';
const PAIR: u8 = 0x86;
const TRUE: u8 = 0x88;
const FALSE: u8 = 0x89;
const NUMBER: u8 = 0x8A;
const SHORT_TEXT: u8 = 0x8C;
const MEMOIZE: u8 = 0x94;
const FRAME: u8 = 0x95;

type Id = u32;

/// Items of a list, or keys and values in turn, as a chain of chunks.
#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
}

const EMPTY: Chain = Chain { first: NONE, last: NONE };

struct Chunk {
    start: u32,
    length: u32,
    next: u32,
}

#[derive(Clone, Copy)]
enum Value {
    /// Nothing, true or false: its opcode.
    Constant(u8),
    Number(i64),
    Float,
    Text(usize, u32),
    /// Two numbers, this one and the next.
    Pair(Id),
    List(Chain),
    Dict(Chain),
}

/// An array for Python.
pub enum Part {
    Wide(Vec<i64>),
    Narrow(Vec<i32>),
    Bytes(Vec<u8>),
}

fn push<T>(values: &mut Vec<T>, value: T) -> Result<(), Stop> {
    if values.len() == values.capacity() {
        values.try_reserve(1)?;
    }
    values.push(value);
    Ok(())
}

fn extend(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Stop> {
    out.try_reserve(bytes.len())?;
    out.extend_from_slice(bytes);
    Ok(())
}

/// The unpickler: values by number, its stack with marks, and its memo.
struct Pickle<'a> {
    text: &'a [u8],
    at: usize,
    values: Vec<Value>,
    items: Vec<Id>,
    chunks: Vec<Chunk>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Id>,
}

impl<'a> Pickle<'a> {
    fn new(text: &'a [u8]) -> Self {
        let (values, items, chunks, stack) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Pickle { text, at: 2, values, items, chunks, stack, marks: Vec::new(), memo: Vec::new() }
    }

    /// Follow the opcodes to the end; return the only value that is left then.
    fn load(&mut self) -> Result<Id, Stop> {
        if self.text.first() != Some(&0x80) || !matches!(self.text.get(1), Some(4..=5)) {
            return Err(Stop::Unusual);
        }
        let mut numbers = 0; // Numbers on top of the stack that the last opcodes made.
        let mut frame_end = usize::MAX;
        loop {
            if self.at >= frame_end {
                if self.at > frame_end {
                    return Err(Stop::Unusual);
                }
                frame_end = usize::MAX;
            }
            let [code] = self.take()?;
            let before = std::mem::replace(&mut numbers, 0);
            match code {
                b'K' | b'M' | b'J' | NUMBER => {
                    let number = self.read_number(code)?;
                    self.add(Value::Number(number))?;
                    numbers = before + 1;
                }
                PAIR if before >= 2 => {
                    self.stack.truncate(self.stack.len() - 2);
                    self.add(Value::Pair(self.values.len() as Id - 2))?;
                }
                NOTHING | TRUE | FALSE => self.add(Value::Constant(code))?,
                FLOAT => {
                    self.cut(8)?;
                    self.add(Value::Float)?;
                }
                SHORT_TEXT | TEXT => self.add_text(code)?,
                LIST => self.add(Value::List(EMPTY))?,
                DICT => self.add(Value::Dict(EMPTY))?,
                MARK => push(&mut self.marks, self.stack.len())?,
                b'a' => self.fill(self.stack.len().wrapping_sub(1), false)?,
                b's' => self.fill(self.stack.len().wrapping_sub(2), true)?,
                APPENDS | SETITEMS => {
                    let mark = self.marks.pop().ok_or(Stop::Unusual)?;
                    self.fill(mark, code == SETITEMS)?;
                }
                b'h' | GET => {
                    let place = if code == GET { self.unsigned::<4>()? } else { self.unsigned::<1>()? };
                    push(&mut self.stack, *self.memo.get(place as usize).ok_or(Stop::Unusual)?)?;
                }
                MEMOIZE if self.stack.len() > self.floor() => push(&mut self.memo, self.stack[self.stack.len() - 1])?,
                FRAME if frame_end == usize::MAX => {
                    let size = self.unsigned::<8>()?;
                    if size > (self.text.len() - self.at) as u64 {
                        return Err(Stop::Unusual);
                    }
                    frame_end = self.at + size as usize;
                    numbers = before;
                }
                b'.' if self.stack.len() == 1 && self.marks.is_empty() => return Ok(self.stack[0]),
                _ => return Err(Stop::Unusual),
            }
        }
    }

    #[inline(always)]
    fn cut(&mut self, size: usize) -> Result<&'a [u8], Stop> {
        let bytes = self.text.get(self.at..).and_then(|rest| rest.get(..size)).ok_or(Stop::Unusual)?;
        self.at += size;
        Ok(bytes)
    }

    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        self.cut(N)?.try_into().map_err(|_| Stop::Unusual)
    }

    #[inline(always)]
    fn unsigned<const N: usize>(&mut self) -> Result<u64, Stop> {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&self.take::<N>()?);
        Ok(u64::from_le_bytes(bytes))
    }

    #[inline(always)]
    fn read_number(&mut self, code: u8) -> Result<i64, Stop> {
        Ok(match code {
            b'K' => self.unsigned::<1>()? as i64,
            b'M' => self.unsigned::<2>()? as i64,
            b'J' => i32::from_le_bytes(self.take()?) as i64,
            _ => {
                let [size] = self.take()?;
                let bytes = self.cut(size as usize)?;
                let mut number = [if bytes.last() >= Some(&0x80) { 0xFF } else { 0 }; 8];
                number.get_mut(..bytes.len()).ok_or(Stop::Unusual)?.copy_from_slice(bytes);
                i64::from_le_bytes(number)
            }
        })
    }

    #[inline(always)]
    fn add_text(&mut self, code: u8) -> Result<(), Stop> {
        let size = match code {
            SHORT_TEXT => self.unsigned::<1>()?,
            _ => self.unsigned::<4>()?,
        } as u32;
        let start = self.at;
        std::str::from_utf8(self.cut(size as usize)?).map_err(|_| Stop::Unusual)?;
        self.add(Value::Text(start, size))
    }

    #[inline(always)]
    fn add(&mut self, value: Value) -> Result<(), Stop> {
        let id = Id::try_from(self.values.len()).map_err(|_| Stop::Unusual)?;
        push(&mut self.values, value)?;
        push(&mut self.stack, id)
    }

    /// Values below the last mark are not there for an opcode.
    fn floor(&self) -> usize {
        self.marks.last().map_or(0, |mark| *mark)
    }

    /// Move the values from `first` on into the container below them.
    #[inline(always)]
    fn fill(&mut self, first: usize, pairs: bool) -> Result<(), Stop> {
        if first <= self.floor() || first > self.stack.len() {
            return Err(Stop::Unusual);
        }
        let start = self.items.len();
        let given = &self.stack[first..];
        let is_text = |id: &Id| matches!(self.values[*id as usize], Value::Text(..));
        if pairs && !(given.len() % 2 == 0 && given.iter().step_by(2).all(is_text)) {
            return Err(Stop::Unusual);
        }
        let new = u32::try_from(self.chunks.len()).map_err(|_| Stop::Unusual)?;
        let chain = match &mut self.values[self.stack[first - 1] as usize] {
            Value::List(chain) if !pairs => chain,
            Value::Dict(chain) if pairs => chain,
            _ => return Err(Stop::Unusual),
        };
        self.items.try_reserve(given.len())?;
        self.items.extend_from_slice(given);
        if self.items.len() >= NONE as usize {
            return Err(Stop::Unusual);
        }
        push(&mut self.chunks, Chunk { start: start as u32, length: given.len() as u32, next: NONE })?;
        if chain.first == NONE {
            chain.first = new;
        } else {
            self.chunks[chain.last as usize].next = new;
        }
        chain.last = new;
        self.stack.truncate(first);
        Ok(())
    }

    fn value(&self, id: Id) -> Value {
        self.values[id as usize]
    }

    /// A number; `MISSING` for anything else.
    fn number(&self, id: Option<Id>) -> i64 {
        match id.map(|id| self.value(id)) {
            Some(Value::Number(number)) => number,
            _ => MISSING as i64,
        }
    }

    /// A text; the empty one for anything else.
    fn bytes(&self, id: Option<Id>) -> &'a [u8] {
        match id.map(|id| self.value(id)) {
            Some(Value::Text(start, length)) => &self.text[start..start + length as usize],
            _ => &[],
        }
    }

    /// The items of a chain, chunk by chunk.
    fn slices(&self, chain: Chain) -> impl Iterator<Item = &[Id]> {
        let next = move |at: u32| self.chunks.get(at as usize);
        std::iter::successors(next(chain.first), move |chunk| next(chunk.next))
            .map(move |chunk| &self.items[chunk.start as usize..(chunk.start + chunk.length) as usize])
    }

    /// The values of keys of a dictionary. Of equal keys the last counts.
    #[inline(always)]
    fn fields<const N: usize>(&self, id: Id, names: [&[u8]; N]) -> [Option<Id>; N] {
        let mut found = [None; N];
        if let Value::Dict(chain) = self.value(id) {
            for pair in self.slices(chain).flat_map(|slice| slice.chunks_exact(2)) {
                let key = self.bytes(Some(pair[0]));
                if let Some(place) = names.iter().position(|name| *name == key) {
                    found[place] = Some(pair[1]);
                }
            }
        }
        found
    }

    /// The items of a list; `None` for anything else.
    fn list(&self, id: Option<Id>) -> Option<Chain> {
        match id.map(|id| self.value(id)) {
            Some(Value::List(chain)) => Some(chain),
            _ => None,
        }
    }

    /// Write the opcodes of a value. `memo`: places of what was written before.
    fn write(&self, id: Id, depth: usize, memo: &mut HashMap<Id, u32>, out: &mut Vec<u8>) -> Result<(), Stop> {
        if depth == MOST_DEPTH {
            return Err(Stop::Unusual);
        }
        if let Some(place) = memo.get(&id) {
            extend(out, &[GET])?;
            return extend(out, &place.to_le_bytes());
        }
        let (begin, chain, end) = match self.value(id) {
            Value::Constant(code) => return extend(out, &[code]),
            Value::Number(number) => {
                extend(out, &[NUMBER, 8])?;
                return extend(out, &number.to_le_bytes());
            }
            Value::Float => return Err(Stop::Unusual),
            Value::Pair(first) => {
                self.write(first, depth + 1, memo, out)?;
                self.write(first + 1, depth + 1, memo, out)?;
                return extend(out, &[PAIR]);
            }
            Value::Text(..) => (TEXT, None, 0),
            Value::List(chain) => (LIST, Some(chain), APPENDS),
            Value::Dict(chain) => (DICT, Some(chain), SETITEMS),
        };
        memo.try_reserve(1)?;
        memo.insert(id, memo.len() as u32);
        extend(out, &[begin])?;
        match chain {
            None => {
                let text = self.bytes(Some(id));
                extend(out, &(text.len() as u32).to_le_bytes())?;
                extend(out, text)?;
                extend(out, &[MEMOIZE])
            }
            Some(chain) => {
                extend(out, &[MEMOIZE, MARK])?;
                for item in self.slices(chain).flatten() {
                    self.write(*item, depth + 1, memo, out)?;
                }
                extend(out, &[end])
            }
        }
    }
}

/// Frames and stacks, numbered by their first occurrence.
#[derive(Default)]
struct Stacks {
    texts: Pool,
    /// Codes of file, line and code of the name: 12 bytes each.
    frames: Pool,
    /// Row of the caller and number of the frame: 8 bytes each.
    rows: Pool,
    /// By value: the number of a frame, the row of a list.
    known: Vec<i32>,
    list: Vec<Id>,
}

impl Stacks {
    /// The row of a list of frames, the innermost first; `MISSING` for anything else.
    fn row(&mut self, pickle: &Pickle, id: Option<Id>) -> Result<i32, Stop> {
        let (place, chain) = match (id, pickle.list(id)) {
            (Some(id), Some(chain)) => (id as usize, chain),
            _ => return Ok(MISSING),
        };
        if self.known[place] != UNKNOWN {
            return Ok(self.known[place]);
        }
        self.list.clear();
        for slice in pickle.slices(chain) {
            self.list.try_reserve(slice.len())?;
            self.list.extend_from_slice(slice);
        }
        let mut row = MISSING;
        for at in (0..self.list.len()).rev() {
            if let Value::Dict(_) = pickle.value(self.list[at]) {
                let number = self.frame(pickle, self.list[at])?;
                row = self.rows.code(&(row as u32 as u64 | (number as u64) << 32).to_le_bytes())?;
                if row >= MOST_ROWS {
                    return Err(Stop::Unusual);
                }
            }
        }
        self.known[place] = row;
        Ok(row)
    }

    #[inline(always)]
    fn frame(&mut self, pickle: &Pickle, id: Id) -> Result<i32, Stop> {
        if self.known[id as usize] != UNKNOWN {
            return Ok(self.known[id as usize]);
        }
        let [file, line, name] = pickle.fields(id, [b"filename", b"line", b"name"]);
        let line = i32::try_from(pickle.number(line)).ok().filter(|line| *line > 0).unwrap_or(MISSING);
        let (file, name) = (self.texts.code(pickle.bytes(file))?, self.texts.code(pickle.bytes(name))?);
        let mut key = [0; 12];
        for (part, value) in key.chunks_exact_mut(4).zip([file, line, name]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        let number = self.frames.code(&key)?;
        self.known[id as usize] = number;
        Ok(number)
    }
}

/// The history of one device: `addr`, `size`, `stream`, `time_us` and `device_free`, and codes of words.
#[derive(Default)]
struct History {
    numbers: [Vec<i64>; 5],
    codes: [Vec<i32>; 3],
    actions: Pool,
    pools: Pool,
}

impl History {
    fn add(&mut self, pickle: &Pickle, entry: Id, stacks: &mut Stacks) -> Result<(), Stop> {
        let [numbers @ .., action, pool, segment_pool, frames] = pickle.fields(
            entry,
            [
                &b"addr"[..],
                b"size",
                b"stream",
                b"time_us",
                b"device_free",
                b"action",
                b"pool_id",
                b"segment_pool_id",
                b"frames",
            ],
        );
        let numbers: [Option<Id>; 5] = numbers;
        for (column, number) in self.numbers.iter_mut().zip(numbers) {
            push(column, pickle.number(number))?;
        }
        let codes = [
            word(pickle, action, &mut self.actions)?,
            word(pickle, pool.or(segment_pool), &mut self.pools)?,
            stacks.row(pickle, frames)?,
        ];
        for (column, code) in self.codes.iter_mut().zip(codes) {
            push(column, code)?;
        }
        Ok(())
    }
}

/// The code of a text, or of a pair as Python writes it; `MISSING` for anything else.
fn word(pickle: &Pickle, id: Option<Id>, words: &mut Pool) -> Result<i32, Stop> {
    Ok(match id.map(|id| pickle.value(id)) {
        Some(Value::Text(..)) => words.code(pickle.bytes(id))?,
        Some(Value::Pair(first)) => {
            let (one, other) = (pickle.number(Some(first)), pickle.number(Some(first + 1)));
            words.code(format!("({}, {})", one, other).as_bytes())?
        }
        _ => MISSING,
    })
}

/// The parts of a snapshot: texts of frames and their ends, frames, rows, and a pickle of what is left to Python; then of
/// each device the numbers, the codes of actions, pools and frames, texts of actions and their ends, and those of pools.
pub fn read(text: &[u8]) -> Result<Vec<Part>, Stop> {
    if text.iter().filter(|byte| matches!(**byte, LIST | DICT)).count() > MOST_CONTAINERS {
        return Err(Stop::Unusual);
    }
    let mut pickle = Pickle::new(text);
    let root = pickle.load()?;
    let names: [&[u8]; 3] = [b"device_traces", b"segments", b"external_annotations"];
    let [devices, segments, annotations] = pickle.fields(root, names);
    pickle.list(segments).ok_or(Stop::Unusual)?;
    let mut stacks = Stacks::default();
    stacks.known.try_reserve_exact(pickle.values.len())?;
    stacks.known.resize(pickle.values.len(), UNKNOWN);
    let mut histories = Vec::new();
    for device in pickle.slices(pickle.list(devices).unwrap_or(EMPTY)).flatten() {
        if let Some(entries) = pickle.list(Some(*device)) {
            let mut history = History::default();
            for entry in pickle.slices(entries).flatten() {
                history.add(&pickle, *entry, &mut stacks)?;
            }
            push(&mut histories, history)?;
        }
    }
    let (mut rest, mut memo) = (b"\x80\x04}(".to_vec(), HashMap::new());
    for (name, id) in names.iter().zip([None, segments, annotations]) {
        if let Some(id) = id {
            extend(&mut rest, &[SHORT_TEXT, name.len() as u8])?;
            extend(&mut rest, name)?;
            pickle.write(id, 0, &mut memo, &mut rest)?;
        }
    }
    extend(&mut rest, b"u.")?;
    drop(pickle);
    let mut parts = Vec::new();
    parts.extend(words(&stacks.texts));
    parts.extend([stacks.frames, stacks.rows].map(|pool| Part::Bytes(pool.texts().to_vec())));
    parts.push(Part::Bytes(rest));
    for history in histories {
        parts.extend(history.numbers.map(Part::Wide));
        parts.extend(history.codes.map(Part::Narrow));
        parts.extend(words(&history.actions));
        parts.extend(words(&history.pools));
    }
    Ok(parts)
}

fn words(pool: &Pool) -> [Part; 2] {
    [Part::Bytes(pool.texts().to_vec()), Part::Wide(pool.ends().collect())]
}
