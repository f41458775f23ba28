//! Sweeps over sorted spans and intervals: one pass each, where numpy needs several over fresh arrays.

use std::collections::TryReserveError;

const MISSING: i32 = -1;

/// Write the row of each span's parent: the last earlier span of its thread that encloses it.
///
/// Spans are by thread, then start, then longest first. An empty span at t is open between t and t + 1/2, so times are
/// doubled. A span that is closed never encloses a later one.
pub fn parents(thread: &[i32], start: &[i64], end: &[i64], out: &mut [i32]) -> Result<(), TryReserveError> {
    let mut open: Vec<(i32, i128)> = Vec::new();
    for row in 0..out.len() {
        if row > 0 && thread[row] != thread[row - 1] {
            open.clear();
        }
        let begin = start[row] as i128 * 2;
        let finish = (end[row] as i128 * 2).max(begin + 1);
        while let Some((_, closes)) = open.last() {
            if *closes < finish || *closes <= begin {
                open.pop();
            } else {
                break;
            }
        }
        out[row] = open.last().map_or(MISSING, |(parent, _)| *parent);
        open.try_reserve(1)?;
        open.push((row as i32, finish));
    }
    Ok(())
}

/// Spans of threads in nesting order.
pub struct Nested<'a> {
    pub thread: &'a [i32],
    pub start: &'a [i64],
    pub end: &'a [i64],
    pub parent: &'a [i32],
}

/// Write the row of the innermost span that encloses each `[start, end)` of its thread.
pub fn innermost(spans: &Nested, thread: &[i32], start: &[i64], end: &[i64], out: &mut [i32]) {
    let (mut of, mut low, mut high, mut at) = (None, 0, 0, 0);
    for place in 0..out.len() {
        if of != Some(thread[place]) {
            of = Some(thread[place]);
            low = spans.thread.partition_point(|other| *other < thread[place]);
            high = low + spans.thread[low..].partition_point(|other| *other == thread[place]);
            at = low;
        }
        // `at` is the number of spans up to the last that begins by then; mostly it is near the one before.
        let (mut from, mut to) = (low, at);
        if at == low || spans.start[at - 1] <= start[place] {
            let mut step = 1;
            while at + step <= high && spans.start[at + step - 1] <= start[place] {
                at += step;
                step *= 2;
            }
            from = at;
            to = high.min(at + step);
        }
        at = from + spans.start[from..to].partition_point(|other| *other <= start[place]);
        let mut row = if at > low { at as i32 - 1 } else { MISSING };
        while row != MISSING && spans.end[row as usize] < end[place] {
            row = spans.parent[row as usize];
        }
        out[place] = row;
    }
}

/// Sort `values` and keep each of them once, at the front; return how many these are.
///
/// The sort of the standard library merges ascending runs, which joined sorted lists are made of.
pub fn distinct(values: &mut [i64]) -> usize {
    values.sort();
    let mut kept = 0;
    for place in 0..values.len() {
        if place == 0 || values[place] != values[kept - 1] {
            values[kept] = values[place];
            kept += 1;
        }
    }
    kept
}

/// Times at which one thread is inside a span or a call: disjoint, sorted, none empty.
pub struct Pieces<'a> {
    pub thread: i64,
    pub starts: &'a [i64],
    pub ends: &'a [i64],
    pub slices: &'a [i64],
    pub calls: &'a [i64],
    /// 1 where the thread is inside an op or a call, not only in Python.
    pub works: &'a [u8],
}

/// A lane: neighbouring pieces differ in thread, slice or call, or a cut is between them.
pub struct Lane<'a> {
    pub starts: &'a mut [i64],
    pub ends: &'a mut [i64],
    pub threads: &'a mut [i64],
    pub slices: &'a mut [i64],
    pub calls: &'a mut [i64],
}

/// Write the lane of `[low, high)` and return its number of pieces; `None` if the arrays are too short.
///
/// The first of `all` is the main thread. Another thread stands for it where it works and neither the main thread nor an
/// earlier one does. `cuts` are sorted.
pub fn lane(all: &[Pieces], cuts: &[i64], low: i64, high: i64, main: i64, out: &mut Lane) -> Option<usize> {
    let mut at: Vec<usize> = all.iter().map(|pieces| pieces.ends.partition_point(|end| *end <= low)).collect();
    let mut cut = cuts.partition_point(|time| *time < low);
    let mut count: usize = 0;
    let mut time = low;
    while time < high {
        let (mut thread, mut slice, mut call) = (main, MISSING as i64, MISSING as i64);
        let (mut next, mut is_open) = (high, true);
        for (number, pieces) in all.iter().enumerate() {
            let place = &mut at[number];
            while *place < pieces.ends.len() && pieces.ends[*place] <= time {
                *place += 1;
            }
            if *place == pieces.ends.len() {
                continue;
            }
            if pieces.starts[*place] > time {
                next = next.min(pieces.starts[*place]);
                continue;
            }
            next = next.min(pieces.ends[*place]);
            let works = pieces.works[*place] != 0;
            if number == 0 || (works && is_open) {
                (thread, slice, call) = (pieces.thread, pieces.slices[*place], pieces.calls[*place]);
            }
            is_open &= !works;
        }
        let mut is_cut = false;
        while cut < cuts.len() && cuts[cut] <= time {
            is_cut |= cuts[cut] == time;
            cut += 1;
        }
        if let Some(later) = cuts.get(cut) {
            next = next.min(*later);
        }
        let last = count.wrapping_sub(1);
        let same = count > 0 && out.threads[last] == thread && out.slices[last] == slice && out.calls[last] == call;
        if same && !is_cut {
            out.ends[last] = next;
        } else {
            if count == out.starts.len() {
                return None;
            }
            out.starts[count] = time;
            out.ends[count] = next;
            out.threads[count] = thread;
            out.slices[count] = slice;
            out.calls[count] = call;
            count += 1;
        }
        time = next;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_kept_once() {
        let mut values = [5, 7, 7, 1, 5, 9];
        let kept = distinct(&mut values);
        assert_eq!(values[..kept], [1, 5, 7, 9]);
        assert_eq!(distinct(&mut []), 0);
    }

    #[test]
    fn the_innermost_span_encloses_to_the_end() {
        let spans = Nested {
            thread: &[0, 0, 0, 2, 2],
            start: &[0, 2, 5, 0, 3],
            end: &[10, 4, 6, 9, 5],
            parent: &[-1, 0, 0, -1, 3],
        };
        let (thread, start, end) = ([0, 0, 0, 0, 1, 2, 2], [2, 5, 3, -1, 0, 4, 9], [3, 7, 11, 0, 1, 5, 9]);
        let mut out = [9; 7];
        innermost(&spans, &thread, &start, &end, &mut out);
        assert_eq!(out, [1, 0, -1, -1, -1, 4, 3]);
    }

    #[test]
    fn the_parent_is_the_innermost_that_encloses() {
        let (thread, start, end) = ([0, 0, 0, 0, 0, 1], [0, 0, 2, 4, 12, 1], [10, 5, 4, 4, 13, 2]);
        let mut out = [9; 6];
        assert!(parents(&thread, &start, &end, &mut out).is_ok());
        assert_eq!(out, [-1, 0, 1, 1, -1, -1]);
    }
}
