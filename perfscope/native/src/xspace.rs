//! Events of a line of an XSpace to columns, from the bytes of the message.
//!
//! Only the form that XLA's profilers write is read. For anything else, from an unknown field to a text that is not UTF-8,
//! the answer is `Unusual`, and the reader in Python (`readers/xspace/events.py`), which defines the columns, decides.

use crate::pool::Pool;
use std::collections::{HashMap, TryReserveError};

const EVENT: u8 = 0x22;
const MISSING: i64 = -1;

/// Keys of the values of a stat.
const DOUBLE: u8 = 0x11;
const UNSIGNED: u8 = 0x18;
const SIGNED: u8 = 0x20;
const TEXT: u8 = 0x2A;
const BYTES: u8 = 0x32;
const REFERENCE: u8 = 0x38;

/// First byte of a text in the pool: written in the event, or a reference to a name (8 bytes, the lowest first).
pub const WRITTEN: u8 = 0;
pub const REFERS: u8 = 1;

/// Why a line was not read.
#[derive(Debug, PartialEq)]
pub enum Stop {
    Unusual,
    Memory,
}

impl From<TryReserveError> for Stop {
    fn from(_: TryReserveError) -> Stop {
        Stop::Memory
    }
}

/// Columns that every event has, in arrays of the caller.
pub struct Events<'a> {
    pub metadata: &'a mut [i64],
    pub offset: &'a mut [i64],
    pub duration: &'a mut [i64],
    pub occurrences: &'a mut [i64],
    /// The last floating-point stat that is not 0, NaN without one.
    pub values: &'a mut [f64],
}

/// Stats of the events of a line.
#[derive(Default)]
pub struct Line {
    /// A column per wanted stat, empty if no event has it. A column of texts holds codes of `texts`.
    pub stats: Vec<Vec<i64>>,
    pub texts: Pool,
}

/// A wanted stat: its column, and whether it is a text.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub column: usize,
    pub is_text: bool,
}

/// The wanted stats by metadata id; profilers number them from 1.
#[derive(Default)]
pub struct Stats {
    small: Vec<Option<Wanted>>,
    large: HashMap<i64, Wanted>,
    count: usize,
}

impl Stats {
    /// Largest id that is looked up in a list.
    const SMALL: i64 = 1 << 16;

    pub fn add(&mut self, id: i64, is_text: bool) {
        let wanted = Wanted { column: self.count, is_text };
        self.count += 1;
        if (0..Self::SMALL).contains(&id) {
            let place = id as usize;
            if self.small.len() <= place {
                self.small.resize(place + 1, None);
            }
            self.small[place] = Some(wanted);
        } else {
            self.large.insert(id, wanted);
        }
    }

    #[inline(always)]
    fn get(&self, id: i64) -> Option<Wanted> {
        match usize::try_from(id).ok().and_then(|place| self.small.get(place)) {
            Some(found) => *found,
            None if self.large.is_empty() => None,
            None => self.large.get(&id).copied(),
        }
    }
}

/// A number of the wire format at `at`, and the position after it.
#[inline(always)]
fn varint(text: &[u8], at: usize) -> Result<(u64, usize), Stop> {
    let first = *text.get(at).ok_or(Stop::Unusual)?;
    if first < 0x80 {
        return Ok((first as u64, at + 1));
    }
    let mut number = (first & 0x7f) as u64;
    for place in 1..10 {
        let byte = *text.get(at + place).ok_or(Stop::Unusual)?;
        number |= ((byte & 0x7f) as u64) << (7 * place);
        if byte < 0x80 {
            return Ok((number, at + place + 1));
        }
    }
    Err(Stop::Unusual)
}

/// The content of a field with a length at `at`: first byte, and the byte after it.
#[inline(always)]
fn content(text: &[u8], at: usize) -> Result<(usize, usize), Stop> {
    let (length, begin) = varint(text, at)?;
    let length = usize::try_from(length).map_err(|_| Stop::Unusual)?;
    match begin.checked_add(length) {
        Some(end) if end <= text.len() => Ok((begin, end)),
        _ => Err(Stop::Unusual),
    }
}

/// Read the events of a line, which lie side by side from byte `first` on.
pub fn read(text: &[u8], first: usize, wanted: &Stats, mut events: Events) -> Result<Line, Stop> {
    let mut line = Line { stats: vec![Vec::new(); wanted.count], ..Line::default() };
    let mut at = first;
    for row in 0..events.metadata.len() {
        let (begin, end) = content(text, at + 1)?;
        line.event(&text[begin..end], row, &mut events, wanted)?;
        at = end;
    }
    Ok(line)
}

/// Count the events of a line, which lie side by side; return the first byte of them, and the byte after them.
pub fn extent(text: &[u8]) -> Result<(usize, (usize, usize)), Stop> {
    let (mut at, mut count) = (0, 0);
    let mut events = (0, 0);
    while at < text.len() {
        let key = text[at];
        if key == EVENT {
            if count == 0 {
                events.0 = at;
            } else if at != events.1 {
                return Err(Stop::Unusual);
            }
            at = content(text, at + 1)?.1;
            events.1 = at;
            count += 1;
        } else {
            at = match key {
                _ if key >= 0x80 => return Err(Stop::Unusual),
                _ if key & 7 == 0 => varint(text, at + 1)?.1,
                _ if key & 7 == 2 => content(text, at + 1)?.1,
                _ => return Err(Stop::Unusual),
            };
        }
    }
    Ok((count, events))
}

impl Line {
    #[inline(always)]
    fn event(&mut self, text: &[u8], row: usize, events: &mut Events, wanted: &Stats) -> Result<(), Stop> {
        let (mut metadata, mut offset, mut duration, mut occurrences) = (0, 0, 0, 0);
        events.values[row] = f64::NAN;
        let mut at = 0;
        while at < text.len() {
            let key = text[at];
            if key == EVENT {
                let (begin, end) = content(text, at + 1)?;
                self.stat(&text[begin..end], row, events, wanted)?;
                at = end;
                continue;
            }
            let (number, after) = varint(text, at + 1)?;
            match key {
                0x08 => metadata = number as i64,
                0x10 => offset = number as i64,
                0x18 => duration = number as i64,
                0x28 => occurrences = number as i64,
                _ => return Err(Stop::Unusual),
            }
            at = after;
        }
        events.metadata[row] = metadata;
        events.offset[row] = offset;
        events.duration[row] = duration;
        events.occurrences[row] = occurrences;
        Ok(())
    }

    #[inline(always)]
    fn stat(&mut self, text: &[u8], row: usize, events: &mut Events, wanted: &Stats) -> Result<(), Stop> {
        let (mut id, mut kind, mut number, mut written) = (0, 0, 0, (0, 0));
        let mut at = 0;
        while at < text.len() {
            let key = text[at];
            if key != 0x08 {
                if kind != 0 {
                    return Err(Stop::Unusual);
                }
                kind = key;
            }
            match key {
                0x08 => {
                    let (value, after) = varint(text, at + 1)?;
                    id = value as i64;
                    at = after;
                }
                UNSIGNED | SIGNED | REFERENCE => (number, at) = varint(text, at + 1)?,
                TEXT | BYTES => {
                    written = content(text, at + 1)?;
                    at = written.1;
                }
                DOUBLE => {
                    let bytes = text.get(at + 1..at + 9).ok_or(Stop::Unusual)?;
                    number = u64::from_le_bytes(bytes.try_into().map_err(|_| Stop::Unusual)?);
                    at += 9;
                }
                _ => return Err(Stop::Unusual),
            }
        }
        let written = &text[written.0..written.1];
        if kind == TEXT && std::str::from_utf8(written).is_err() {
            return Err(Stop::Unusual);
        }
        let found = match wanted.get(id) {
            Some(found) => found,
            None => {
                if kind == DOUBLE && f64::from_bits(number) != 0.0 {
                    events.values[row] = f64::from_bits(number);
                }
                return Ok(());
            }
        };
        let value = if found.is_text {
            self.text(kind, number, written)? as i64
        } else {
            match kind {
                UNSIGNED | SIGNED => number as i64,
                TEXT => decimal(written)?,
                _ => 0,
            }
        };
        let column = &mut self.stats[found.column];
        if column.is_empty() {
            column.try_reserve_exact(events.metadata.len())?;
            column.resize(events.metadata.len(), MISSING);
        }
        column[row] = value;
        Ok(())
    }

    /// Return the code of a text; that of the reference 0, which is the empty text, for anything else.
    #[inline(always)]
    fn text(&mut self, kind: u8, number: u64, written: &[u8]) -> Result<i32, Stop> {
        if kind == TEXT {
            let mut tagged = Vec::new();
            tagged.try_reserve_exact(written.len() + 1)?;
            tagged.push(WRITTEN);
            tagged.extend_from_slice(written);
            return Ok(self.texts.code(&tagged)?);
        }
        let reference = if kind == REFERENCE { number } else { 0 };
        let mut tagged = [REFERS; 9];
        tagged[1..].copy_from_slice(&reference.to_le_bytes());
        Ok(self.texts.code(&tagged)?)
    }
}

/// Return a number that is written as text, as two's complement; 0 for any other text.
fn decimal(written: &[u8]) -> Result<i64, Stop> {
    if !written.is_ascii() {
        return Err(Stop::Unusual);
    }
    if written.is_empty() || written.len() >= 20 || !written.iter().all(u8::is_ascii_digit) {
        return Ok(0);
    }
    let mut number: u64 = 0;
    for byte in written {
        number = number.wrapping_mul(10).wrapping_add((byte - b'0') as u64);
    }
    Ok(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(parts: &[(u8, &[u8])]) -> Vec<u8> {
        let mut made = Vec::new();
        for (key, bytes) in parts {
            made.push(*key);
            if key & 7 == 2 {
                made.push(bytes.len() as u8);
            }
            made.extend_from_slice(bytes);
        }
        made
    }

    fn wanted() -> Stats {
        let mut stats = Stats::default();
        for (id, is_text) in [(1, false), (2, true), (1 << 40, false)] {
            stats.add(id, is_text);
        }
        stats
    }

    fn read_all(bytes: &[u8]) -> Result<(Line, [Vec<i64>; 4], Vec<f64>), Stop> {
        let (count, (first, _)) = extent(bytes)?;
        let [mut metadata, mut offset, mut duration, mut occurrences] = [(); 4].map(|_| vec![5; count]);
        let mut values = vec![5.0; count];
        let events = Events {
            metadata: &mut metadata,
            offset: &mut offset,
            duration: &mut duration,
            occurrences: &mut occurrences,
            values: &mut values,
        };
        let line = read(bytes, first, &wanted(), events)?;
        Ok((line, [metadata, offset, duration, occurrences], values))
    }

    #[test]
    fn events_and_stats_are_columns() {
        let number = message(&[(0x08, &[1]), (UNSIGNED, &[0x85, 0x01])]);
        let text = message(&[(0x08, &[2]), (TEXT, b"ab")]);
        let double = message(&[(0x08, &[3]), (DOUBLE, &1.5f64.to_le_bytes())]);
        let event = message(&[(0x08, &[7]), (0x10, &[8]), (0x18, &[9]), (0x22, &number), (0x22, &text), (0x22, &double)]);
        let bytes = message(&[(0x08, &[4]), (0x12, b"line"), (EVENT, &event), (EVENT, &[]), (0x48, &[1])]);
        let (line, numbers, values) = read_all(&bytes).unwrap_or_else(|_| panic!("unusual"));
        assert_eq!(numbers, [vec![7, 0], vec![8, 0], vec![9, 0], vec![0, 0]]);
        assert_eq!(line.stats, vec![vec![133, -1], vec![0, -1], vec![]]);
        assert_eq!((values[0], values[1].is_nan(), line.texts.texts()), (1.5, true, &b"\0ab"[..]));
    }

    #[test]
    fn other_forms_are_unusual() {
        let stat = message(&[(0x08, &[1]), (UNSIGNED, &[1]), (SIGNED, &[1])]);
        let event = message(&[(EVENT, &stat)]);
        for bytes in [
            message(&[(EVENT, &event)]),
            message(&[(EVENT, &[]), (0x08, &[4]), (EVENT, &[])]),
            message(&[(EVENT, &[0x30, 1])]),
            vec![EVENT, 5, 0],
            vec![0x08, 0x80],
            vec![0xff],
        ] {
            assert!(read_all(&bytes).is_err(), "{:?}", bytes);
        }
    }

    #[test]
    fn numbers_have_up_to_ten_bytes() {
        assert_eq!(varint(&[0xff; 10], 0), Err(Stop::Unusual));
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(varint(&minus_one, 0), Ok((u64::MAX, 10)));
    }
}
