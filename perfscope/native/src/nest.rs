//! Spans of threads in nesting order, with their parents. The twin is `readers/xspace/spans.py`.

use std::cmp::Reverse;
use std::collections::TryReserveError;

const MISSING: i32 = -1;

/// Kinds of spans, as in `spans.py` and `SliceKind`.
pub const OP: u8 = 0;
pub const ANNOTATION: u8 = 1;
pub const PYTHON: u8 = 2;
pub const OTHER: u8 = 4;
/// An annotation unless a span of the runtime encloses it.
pub const PERHAPS: u8 = 255;
/// Not a span of the table.
pub const DROPPED: u8 = 254;

/// Events of a line.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub thread: i32,
    pub start: &'a [i64],
    pub end: &'a [i64],
    pub kind: &'a [u8],
    /// Place of the name in `names` and `jitted`.
    pub place: &'a [i32],
    pub names: &'a [i32],
    /// 1 for the call of a jitted function, which profilers write twice.
    pub jitted: &'a [u8],
    /// Number of the part's first event in `rows`, if those are wanted.
    pub first: Option<usize>,
}

/// The table of spans.
pub struct Table<'a> {
    pub start: &'a mut [i64],
    pub end: &'a mut [i64],
    pub name: &'a mut [i32],
    pub thread: &'a mut [i32],
    pub parent: &'a mut [i32],
    pub kind: &'a mut [u8],
    /// Row of each event of the parts with `first`, -1 for one that is not in the table.
    pub rows: &'a mut [i32],
}

#[derive(Clone, Copy)]
struct Span {
    start: i64,
    end: i64,
    part: u32,
    event: u32,
}

/// An open span. Times are doubled; readers refuse times that would not fit.
struct Open {
    row: i32,
    closes: i64,
    inside: bool,
}

/// Write the spans of all parts, which are by thread; return their number, `None` if the table is too short.
pub fn nest(parts: &[Part], table: &mut Table) -> Result<Option<usize>, TryReserveError> {
    let (mut spans, mut open) = (Vec::new(), Vec::new());
    let (mut count, mut from) = (0, 0);
    while from < parts.len() {
        let thread = parts[from].thread;
        let to = from + parts[from..].iter().take_while(|part| part.thread == thread).count();
        spans.clear();
        let mut is_program = false;
        for (number, part) in parts[from..to].iter().enumerate() {
            spans.try_reserve(part.kind.len())?;
            for (event, kind) in part.kind.iter().enumerate().filter(|(_, kind)| **kind != DROPPED) {
                let (start, end) = (part.start[event], part.end[event]);
                spans.push(Span { start, end, part: number as u32, event: event as u32 });
                is_program |= matches!(*kind, PYTHON | ANNOTATION) || part.jitted[part.place[event] as usize] != 0;
            }
            if let Some(first) = part.first {
                table.rows[first..first + part.kind.len()].fill(MISSING);
            }
        }
        spans.sort_by_key(|span| (span.start, Reverse(span.end)));
        if table.start.len() - count < spans.len() {
            return Ok(None);
        }
        count = sweep(&parts[from..to], &spans, is_program, count, &mut open, table)?;
        from = to;
    }
    Ok(Some(count))
}

/// Write the spans of a thread from row `count` on; return the row after them.
///
/// An empty span at t is open between t and t + 1/2, so times are doubled. Open spans enclose each other.
fn sweep(
    parts: &[Part], spans: &[Span], is_program: bool, mut count: usize, open: &mut Vec<Open>, table: &mut Table,
) -> Result<usize, TryReserveError> {
    open.clear();
    for span in spans {
        let (part, event) = (&parts[span.part as usize], span.event as usize);
        let begin = span.start as i64 * 2;
        let closes = (span.end as i64 * 2).max(begin + 1);
        while matches!(open.last(), Some(last) if last.closes < closes || last.closes <= begin) {
            open.pop();
        }
        let (parent, inside) = open.last().map_or((MISSING, !is_program), |last| (last.row, last.inside));
        let place = part.place[event] as usize;
        let name = part.names[place];
        if part.jitted[place] != 0 && parent != MISSING && table.name[parent as usize] == name {
            continue;
        }
        let kind = part.kind[event];
        let inside = inside || kind == OTHER || kind == OP;
        table.start[count] = span.start;
        table.end[count] = span.end;
        table.name[count] = name;
        table.thread[count] = part.thread;
        table.parent[count] = parent;
        table.kind[count] = match kind {
            PERHAPS if inside => OTHER,
            PERHAPS => ANNOTATION,
            _ => kind,
        };
        if let Some(first) = part.first {
            table.rows[first + event] = count as i32;
        }
        open.try_reserve(1)?;
        open.push(Open { row: count as i32, closes, inside });
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_nested_in_order_and_named_once() {
        // A function of Python calls a jitted function, which is written twice, and that calls a span without a known
        // kind; then the runtime calls one, and a mark is left out.
        let start = [2, 1, 0, 3, 20, 21, 4];
        let end = [8, 9, 10, 4, 30, 22, 4];
        let kind = [OTHER, OTHER, PYTHON, PERHAPS, OTHER, PERHAPS, DROPPED];
        let place = [1, 1, 0, 2, 3, 2, 2];
        let part = Part {
            thread: 7,
            start: &start,
            end: &end,
            kind: &kind,
            place: &place,
            names: &[10, 11, 12, 13],
            jitted: &[0, 1, 0, 0],
            first: Some(0),
        };
        let (mut starts, mut ends) = ([0; 6], [0; 6]);
        let (mut name, mut thread, mut parent, mut kinds, mut rows) = ([0; 6], [0; 6], [0; 6], [0; 6], [9; 7]);
        let mut table = Table {
            start: &mut starts,
            end: &mut ends,
            name: &mut name,
            thread: &mut thread,
            parent: &mut parent,
            kind: &mut kinds,
            rows: &mut rows,
        };
        assert!(matches!(nest(&[part], &mut table), Ok(Some(5))));
        assert_eq!((starts, ends), ([0, 1, 3, 20, 21, 0], [10, 9, 4, 30, 22, 0]));
        assert_eq!((name, parent), ([10, 11, 12, 13, 12, 0], [-1, 0, 1, -1, 3, 0]));
        assert_eq!(kinds, [PYTHON, OTHER, OTHER, OTHER, OTHER, 0]);
        assert_eq!((rows, thread[4]), ([-1, 1, 0, 2, 3, 4, -1], 7));
    }
}
