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

/// Events of a line. They follow those of the part before in the columns.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub thread: i32,
    pub count: usize,
    /// Codes of the names, by place.
    pub names: &'a [i32],
    /// 1 for the name of a call of a jitted function, which profilers write twice.
    pub jitted: &'a [u8],
    /// Number of the part's first event in `rows`, if those are wanted.
    pub first: Option<usize>,
}

/// Columns of events, which become the table of spans.
pub struct Columns<'a> {
    pub start: &'a mut [i64],
    pub end: &'a mut [i64],
    pub kind: &'a mut [u8],
    /// Place of the name, then its code.
    pub name: &'a mut [i32],
    pub thread: &'a mut [i32],
    pub parent: &'a mut [i32],
    /// Row of each event of the parts with `first`, -1 for one that is not in the table.
    pub rows: &'a mut [i32],
}

#[derive(Clone, Copy)]
struct Span {
    start: i64,
    end: i64,
    place: i32,
    part: u32,
    /// Number of the event in the part.
    event: u32,
    kind: u8,
}

impl Span {
    fn order(&self) -> (i64, Reverse<i64>) {
        (self.start, Reverse(self.end))
    }
}

impl Columns<'_> {
    #[inline(always)]
    fn span(&self, at: usize, part: usize, event: usize) -> Span {
        Span {
            start: self.start[at],
            end: self.end[at],
            place: self.name[at],
            part: part as u32,
            event: event as u32,
            kind: self.kind[at],
        }
    }

    /// Return whether the spans of `[low, high)` are in nesting order.
    fn in_order(&self, low: usize, high: usize) -> bool {
        let mut last = (i64::MIN, Reverse(i64::MAX));
        (low..high).filter(|at| self.kind[*at] != DROPPED).all(|at| {
            let before = std::mem::replace(&mut last, self.span(at, 0, 0).order());
            before <= last
        })
    }
}

/// An open span. Times are doubled; readers refuse times that would not fit.
struct Open {
    row: i32,
    closes: i64,
    inside: bool,
}

/// Make the table in place from the events of all parts, which are by thread; return the number of its rows.
pub fn nest(parts: &[Part], columns: &mut Columns) -> Result<usize, TryReserveError> {
    let (mut spans, mut open) = (Vec::new(), Vec::new());
    let (mut count, mut from, mut low) = (0, 0, 0);
    while from < parts.len() {
        let thread = parts[from].thread;
        let group = parts[from..].iter().take_while(|part| part.thread == thread).count();
        let group = &parts[from..from + group];
        let mut is_program = false;
        let mut high = low;
        for part in group {
            for at in high..high + part.count {
                let kind = columns.kind[at];
                let jitted = kind != DROPPED && part.jitted[columns.name[at] as usize] != 0;
                is_program |= matches!(kind, PYTHON | ANNOTATION) || jitted;
            }
            if let Some(first) = part.first {
                columns.rows[first..first + part.count].fill(MISSING);
            }
            high += part.count;
        }
        open.clear();
        let mut sweep = Sweep { parts: group, is_program, open: &mut open };
        // What is written is never ahead of what is read.
        if group.len() == 1 && columns.in_order(low, high) {
            for at in low..high {
                count = sweep.add(columns.span(at, 0, at - low), count, columns)?;
            }
        } else {
            spans.clear();
            let mut at = low;
            for (number, part) in group.iter().enumerate() {
                spans.try_reserve(part.count)?;
                spans.extend((0..part.count).map(|event| columns.span(at + event, number, event)));
                at += part.count;
            }
            spans.sort_by_key(Span::order);
            for span in &spans {
                count = sweep.add(*span, count, columns)?;
            }
        }
        (from, low) = (from + group.len(), high);
    }
    Ok(count)
}

/// The sweep over the spans of a thread, in order.
struct Sweep<'a> {
    parts: &'a [Part<'a>],
    /// Whether the thread runs the user's program.
    is_program: bool,
    /// Each encloses those after it.
    open: &'a mut Vec<Open>,
}

impl Sweep<'_> {
    /// Write a span to row `count`, unless it is dropped; return the next row.
    ///
    /// An empty span at t is open between t and t + 1/2.
    #[inline(always)]
    fn add(&mut self, span: Span, count: usize, columns: &mut Columns) -> Result<usize, TryReserveError> {
        if span.kind == DROPPED {
            return Ok(count);
        }
        let (begin, part) = (span.start * 2, &self.parts[span.part as usize]);
        let closes = (span.end * 2).max(begin + 1);
        while matches!(self.open.last(), Some(last) if last.closes < closes || last.closes <= begin) {
            self.open.pop();
        }
        let (parent, inside) = self.open.last().map_or((MISSING, !self.is_program), |last| (last.row, last.inside));
        let name = part.names[span.place as usize];
        if part.jitted[span.place as usize] != 0 && parent != MISSING && columns.name[parent as usize] == name {
            return Ok(count);
        }
        let inside = inside || span.kind == OTHER || span.kind == OP;
        columns.start[count] = span.start;
        columns.end[count] = span.end;
        columns.name[count] = name;
        columns.thread[count] = part.thread;
        columns.parent[count] = parent;
        columns.kind[count] = match span.kind {
            PERHAPS if inside => OTHER,
            PERHAPS => ANNOTATION,
            kind => kind,
        };
        if let Some(first) = part.first {
            columns.rows[first + span.event as usize] = count as i32;
        }
        self.open.try_reserve(1)?;
        self.open.push(Open { row: count as i32, closes, inside });
        Ok(count + 1)
    }
}
