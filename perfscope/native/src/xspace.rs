//! Events of a line of an XSpace to columns, from the bytes of the message.
//!
//! Only the form that XLA's profilers write is read. For anything else, from an unknown field to a text that is not UTF-8
//! or an impossible time, the answer is `Unusual`, and the reader in Python (`readers/xspace/events.py`), which defines
//! the columns, decides.

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

/// Upper bound of ns since 1970 and of ps in a recording; larger values would overflow sums.
const LARGEST: i64 = 1 << 61;

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
    /// Number of the event's metadata id in `Line.metadata`.
    pub place: &'a mut [i32],
    pub start_ns: &'a mut [i64],
    pub end_ns: &'a mut [i64],
    /// The exact times, empty if they are not wanted.
    pub offset_ps: &'a mut [i64],
    pub duration_ps: &'a mut [i64],
}

/// Values of some events, by event.
#[derive(Default, Clone)]
pub struct Sparse {
    pub rows: Vec<i32>,
    pub values: Vec<i64>,
}

impl Sparse {
    /// Set the value of the event `row`, the last one so far or a later one; `None` takes it away.
    #[inline(always)]
    fn set(&mut self, row: usize, value: Option<i64>) -> Result<(), TryReserveError> {
        if self.rows.last() == Some(&(row as i32)) {
            self.rows.pop();
            self.values.pop();
        }
        if let Some(value) = value {
            self.rows.try_reserve(1)?;
            self.values.try_reserve(1)?;
            self.rows.push(row as i32);
            self.values.push(value);
        }
        Ok(())
    }
}

/// Values by metadata id; profilers number them from 1.
pub struct ById<T> {
    small: Vec<Option<T>>,
    large: HashMap<i64, T>,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        ById { small: Vec::new(), large: HashMap::new() }
    }
}

impl<T: Copy> ById<T> {
    /// Number of ids that are looked up in a list.
    const SMALL: usize = 1 << 16;

    #[inline(always)]
    fn get(&self, id: i64) -> Option<T> {
        match usize::try_from(id).ok().and_then(|place| self.small.get(place)) {
            Some(found) => *found,
            None if self.large.is_empty() => None,
            None => self.large.get(&id).copied(),
        }
    }

    pub fn insert(&mut self, id: i64, value: T) -> Result<(), TryReserveError> {
        match usize::try_from(id) {
            Ok(place) if place < Self::SMALL => {
                if self.small.len() <= place {
                    self.small.try_reserve(place + 1 - self.small.len())?;
                    self.small.resize(place + 1, None);
                }
                self.small[place] = Some(value);
            }
            _ => {
                self.large.try_reserve(1)?;
                self.large.insert(id, value);
            }
        }
        Ok(())
    }
}

/// Ids numbered in order of their first occurrence.
#[derive(Default)]
pub struct Numbered {
    places: ById<i32>,
    pub ids: Vec<i64>,
}

impl Numbered {
    #[inline(always)]
    fn place(&mut self, id: i64) -> Result<i32, TryReserveError> {
        if let Some(place) = self.places.get(id) {
            return Ok(place);
        }
        let place = self.ids.len() as i32;
        self.ids.try_reserve(1)?;
        self.places.insert(id, place)?;
        self.ids.push(id);
        Ok(place)
    }
}

/// What only some events of a line have.
#[derive(Default)]
pub struct Line {
    /// Metadata ids of the events.
    pub metadata: Numbered,
    /// Events that are sums, and of how many.
    pub occurrences: Sparse,
    /// The bits of each event's last floating-point stat that is not 0.
    pub doubles: Sparse,
    /// The wanted stats. A text is the code of a written one in `texts`, or -1 - its place in `references`.
    pub stats: Vec<Sparse>,
    pub texts: Pool,
    pub references: Numbered,
}

/// A wanted stat: its column, and whether it is a text.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub column: usize,
    pub is_text: bool,
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

/// Read the events of a line, which lie side by side from byte `first` on. `wanted`: `columns` stats by metadata id.
pub fn read(
    text: &[u8], first: usize, timestamp_ns: i64, wanted: &ById<Wanted>, columns: usize, mut events: Events,
) -> Result<Line, Stop> {
    let mut line = Line { stats: vec![Sparse::default(); columns], ..Line::default() };
    let mut at = first;
    for row in 0..events.place.len() {
        let (begin, end) = content(text, at + 1)?;
        line.event(&text[begin..end], row, timestamp_ns, &mut events, wanted)?;
        at = end;
    }
    Ok(line)
}

/// Convert picoseconds to nanoseconds, rounded half to even.
#[inline(always)]
fn whole_ns(ps: i64) -> i64 {
    let (quotient, rest) = (ps.div_euclid(1000), ps.rem_euclid(1000));
    quotient + (rest > 500 || (rest == 500 && quotient & 1 == 1)) as i64
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
    fn event(
        &mut self, text: &[u8], row: usize, timestamp_ns: i64, events: &mut Events, wanted: &ById<Wanted>,
    ) -> Result<(), Stop> {
        let (mut metadata, mut offset, mut duration, mut occurrences) = (0, 0, 0, 0);
        let mut at = 0;
        while at < text.len() {
            let key = text[at];
            if key == EVENT {
                let (begin, end) = content(text, at + 1)?;
                self.stat(&text[begin..end], row, wanted)?;
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
        let possible = -LARGEST + 1..LARGEST;
        if !possible.contains(&timestamp_ns) || !possible.contains(&offset) || !(0..LARGEST).contains(&duration) {
            return Err(Stop::Unusual);
        }
        events.place[row] = self.metadata.place(metadata)?;
        events.start_ns[row] = timestamp_ns + whole_ns(offset);
        events.end_ns[row] = timestamp_ns + whole_ns(offset + duration);
        if !events.offset_ps.is_empty() {
            events.offset_ps[row] = offset;
            events.duration_ps[row] = duration;
        }
        if occurrences != 0 {
            self.occurrences.set(row, Some(occurrences))?;
        }
        Ok(())
    }

    #[inline(always)]
    fn stat(&mut self, text: &[u8], row: usize, wanted: &ById<Wanted>) -> Result<(), Stop> {
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
                let double = f64::from_bits(number);
                if kind == DOUBLE && double != 0.0 {
                    self.doubles.set(row, if double.is_nan() { None } else { Some(number as i64) })?;
                }
                return Ok(());
            }
        };
        let column = &mut self.stats[found.column];
        if !found.is_text {
            let value = match kind {
                UNSIGNED | SIGNED => number as i64,
                TEXT => decimal(written)?,
                _ => 0,
            };
            column.set(row, if value == MISSING { None } else { Some(value) })?;
        } else if kind == TEXT {
            column.set(row, Some(self.texts.code(written)? as i64))?;
        } else {
            // Anything else is the reference 0, the empty text.
            let reference = if kind == REFERENCE { number as i64 } else { 0 };
            column.set(row, Some(-1 - self.references.place(reference)? as i64))?;
        }
        Ok(())
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

    #[test]
    fn times_are_rounded_half_to_even() {
        let rounded: Vec<i64> = [499, 500, 501, 1500, 2500, -500, -501, -1500].into_iter().map(whole_ns).collect();
        assert_eq!(rounded, [0, 0, 1, 2, 2, 0, -1, -2]);
    }

    #[test]
    fn numbers_have_up_to_ten_bytes() {
        assert_eq!(varint(&[0xff; 10], 0), Err(Stop::Unusual));
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(varint(&minus_one, 0), Ok((u64::MAX, 10)));
    }
}
