//! Sweeps over sorted spans and intervals: one pass each, where numpy needs several over fresh arrays.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, TryReserveError};

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
        at = low + until(&spans.start[low..high], at - low, start[place]);
        let mut row = if at > low { at as i32 - 1 } else { MISSING };
        while row != MISSING && spans.end[row as usize] < end[place] {
            row = spans.parent[row as usize];
        }
        out[place] = row;
    }
}

/// Return the number of sorted `values` up to `time`; it is searched for from `near` on, where mostly it is.
fn until(values: &[i64], near: usize, time: i64) -> usize {
    let (mut from, mut to) = (0, near);
    if near == 0 || values[near - 1] <= time {
        from = near;
        let mut step = 1;
        while from + step <= values.len() && values[from + step - 1] <= time {
            from += step;
            step *= 2;
        }
        to = values.len().min(from + step);
    }
    from + values[from..to].partition_point(|value| *value <= time)
}

/// Half-open intervals: sorted, disjoint, none empty, but for the ones that `union` joins.
#[derive(Clone, Copy)]
pub struct Spans<'a> {
    pub starts: &'a [i64],
    pub ends: &'a [i64],
}

/// Intervals that are written in order; those that touch are joined.
pub struct Joined<'a> {
    pub starts: &'a mut [i64],
    pub ends: &'a mut [i64],
    pub count: usize,
}

impl Joined<'_> {
    #[inline(always)]
    fn push(&mut self, start: i64, end: i64) {
        if start >= end {
        } else if self.count > 0 && start <= self.ends[self.count - 1] {
            self.ends[self.count - 1] = end.max(self.ends[self.count - 1]);
        } else {
            self.starts[self.count] = start;
            self.ends[self.count] = end;
            self.count += 1;
        }
    }
}

/// Write the union of any intervals.
pub fn union(spans: Spans, out: &mut Joined) -> Result<(), TryReserveError> {
    let all = || spans.starts.iter().copied().zip(spans.ends.iter().copied());
    if spans.starts.windows(2).all(|pair| pair[0] <= pair[1]) {
        all().for_each(|(start, end)| out.push(start, end));
        return Ok(());
    }
    let mut pairs: Vec<(i64, i64)> = Vec::new();
    pairs.try_reserve_exact(spans.starts.len())?;
    pairs.extend(all());
    pairs.sort_by_key(|pair| pair.0);
    pairs.iter().for_each(|(start, end)| out.push(*start, *end));
    Ok(())
}

/// Write the parts of `first` that are in `second`, or those that are not.
pub fn parts(first: Spans, second: Spans, inside: bool, out: &mut Joined) {
    let mut other = 0;
    for (mut start, end) in first.starts.iter().copied().zip(first.ends.iter().copied()) {
        while other < second.starts.len() && second.ends[other] <= start {
            other += 1;
        }
        let mut at = other;
        while at < second.starts.len() && second.starts[at] < end {
            if inside {
                out.push(start.max(second.starts[at]), end.min(second.ends[at]));
            } else {
                out.push(start, second.starts[at]);
                start = start.max(second.ends[at]);
            }
            at += 1;
        }
        if !inside {
            out.push(start, end);
        }
    }
}

/// Write how much of each `asked` interval is in `busy`.
pub fn covered(busy: Spans, asked: Spans, out: &mut [i64]) -> Result<(), TryReserveError> {
    let mut before: Vec<i64> = Vec::new();
    before.try_reserve_exact(busy.starts.len() + 1)?;
    before.push(0);
    for (start, end) in busy.starts.iter().zip(busy.ends) {
        before.push(before[before.len() - 1] + end - start);
    }
    let total = |at: usize, time: i64| match at {
        0 => 0,
        _ => before[at] - (busy.ends[at - 1] - time).max(0),
    };
    let mut at = 0;
    for place in 0..out.len() {
        at = until(busy.starts, at, asked.starts[place]);
        let after = until(busy.starts, at, asked.ends[place]);
        out[place] = total(after, asked.ends[place]) - total(at, asked.starts[place]);
    }
    Ok(())
}

/// Columns of the host's spans (by thread, then start, then longest first) and calls.
pub struct Host<'a> {
    pub starts: &'a [i64],
    pub ends: &'a [i64],
    pub parents: &'a [i32],
    /// 1 for a span that is an op or inside one.
    pub works: &'a [u8],
    pub call_starts: &'a [i64],
    pub call_ends: &'a [i64],
}

/// One thread: its rows of spans, and its calls that are in no other call, in order.
pub struct Thread<'a> {
    pub number: i32,
    pub first: usize,
    pub last: usize,
    pub calls: &'a [i64],
}

/// A thread at a moment.
struct Track<'a> {
    thread: &'a Thread<'a>,
    row: usize,
    /// End and row of the spans that are open; those that end first, and of these the innermost, come out first.
    open: BinaryHeap<Reverse<(i64, Reverse<usize>)>>,
    slice: i32,
    call: usize,
}

impl Track<'_> {
    /// Go on to `time`; return the innermost span, the call, and the time until which they stay the same.
    fn at(&mut self, host: &Host, time: i64) -> Result<(i32, i32, i64), TryReserveError> {
        let next = loop {
            while self.row < self.thread.last && host.starts[self.row] == host.ends[self.row] {
                self.row += 1;
            }
            let start = if self.row < self.thread.last { host.starts[self.row] } else { i64::MAX };
            match self.open.peek() {
                Some(Reverse((end, Reverse(row)))) if *end <= start && *end <= time => {
                    self.slice = host.parents[*row];
                    self.open.pop();
                }
                _ if self.row < self.thread.last && start <= time => {
                    self.open.try_reserve(1)?;
                    self.open.push(Reverse((host.ends[self.row], Reverse(self.row))));
                    self.slice = self.row as i32;
                    self.row += 1;
                }
                first => break first.map_or(start, |Reverse((end, _))| start.min(*end)),
            }
        };
        let calls = self.thread.calls;
        while self.call < calls.len() && host.call_ends[calls[self.call] as usize] <= time {
            self.call += 1;
        }
        if self.call == calls.len() {
            return Ok((self.slice, MISSING, next));
        }
        let call = calls[self.call] as usize;
        if host.call_starts[call] > time {
            return Ok((self.slice, MISSING, next.min(host.call_starts[call])));
        }
        Ok((self.slice, call as i32, next.min(host.call_ends[call])))
    }
}

/// A lane: neighbouring pieces differ in thread, slice or call, or a cut is between them.
pub struct Lane<'a> {
    pub starts: &'a mut [i64],
    pub threads: &'a mut [i32],
    pub slices: &'a mut [i32],
    pub calls: &'a mut [i32],
}

/// Write the lane of `[low, high)` and return its number of pieces.
///
/// The first of `threads` is the main thread. Another thread stands for it where it is in an op or a call, and neither
/// the main thread nor an earlier one is. `cuts` are sorted. The arrays of `out` are long enough for all bounds.
pub fn lane(
    host: &Host, threads: &[Thread], cuts: &[i64], low: i64, high: i64, main: i32, out: &mut Lane,
) -> Result<usize, TryReserveError> {
    let mut tracks: Vec<Track> = threads
        .iter()
        .map(|thread| Track { thread, row: thread.first, open: BinaryHeap::new(), slice: MISSING, call: 0 })
        .collect();
    let mut cut = cuts.partition_point(|time| *time < low);
    let (mut count, mut time) = (0, low);
    while time < high {
        let (mut found, mut next, mut is_open) = ((main, MISSING, MISSING), high, true);
        for (number, track) in tracks.iter_mut().enumerate() {
            let (slice, call, until) = track.at(host, time)?;
            next = next.min(until);
            let works = call != MISSING || (slice != MISSING && host.works[slice as usize] != 0);
            if (number == 0 && slice != MISSING) || (works && is_open) {
                found = (track.thread.number, slice, call);
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
        let last = count.max(1) - 1;
        if count == 0 || is_cut || found != (out.threads[last], out.slices[last], out.calls[last]) {
            out.starts[count] = time;
            (out.threads[count], out.slices[count], out.calls[count]) = found;
            count += 1;
        }
        time = next;
    }
    Ok(count)
}

/// Write the end of each node: its duration after the latest of its earliest begin and the ends of what it waited for,
/// each plus a lag. `before` and `lag` have `ways` rows of all nodes; a negative number is no node.
pub fn replay(earliest: &[i64], durations: &[i64], before: &[i64], lag: &[i64], ends: &mut [i64]) {
    let nodes = ends.len();
    for node in 0..nodes {
        let mut begin = earliest[node];
        for at in (node..before.len()).step_by(nodes) {
            if before[at] >= 0 {
                begin = begin.max(ends[before[at] as usize] + lag[at]);
            }
        }
        ends[node] = begin + durations[node];
    }
}

/// Nodes of a graph that is replayed: what each waited for and the lags, three of each, in rows.
pub struct Waits<'a> {
    pub before: &'a [i64],
    pub lag: &'a [i64],
    pub ends: &'a [i64],
    /// Time from which on a node may begin by itself; the smallest number for never.
    pub alone: &'a [i64],
}

/// Write the nodes from `last` backwards, each after the one that it waited for last, and the lag after each; return
/// how many these are. The path ends at a node that began by itself.
pub fn path(waits: &Waits, last: usize, nodes: &mut [i64], lags: &mut [i64]) -> usize {
    let (size, mut node, mut count) = (waits.ends.len(), last, 0);
    loop {
        nodes[count] = node as i64;
        lags[count] = 0;
        count += 1;
        let mut latest: Option<(i64, usize)> = None;
        for at in (node..waits.before.len()).step_by(size) {
            if waits.before[at] >= 0 {
                let arrives = waits.ends[waits.before[at] as usize] + waits.lag[at];
                if latest.map_or(true, |(time, _)| arrives > time) {
                    latest = Some((arrives, at));
                }
            }
        }
        match latest {
            Some((arrives, at)) if arrives > waits.alone[node] => {
                lags[count - 1] = waits.lag[at];
                node = waits.before[at] as usize;
            }
            _ => return count,
        }
    }
}

/// Add the time and number of pieces of a lane in each of the `asked` intervals by row of their slice, that of no slice
/// first. `bounds`: the begin of each piece, then the end of the last one.
pub fn time_by_slice(bounds: &[i64], slices: &[i32], asked: Spans, time: &mut [i64], pieces: &mut [i64]) {
    let mut at = 0;
    for (start, end) in asked.starts.iter().copied().zip(asked.ends.iter().copied()) {
        at = until(bounds, at, start).max(1) - 1;
        while at < slices.len() && bounds[at] < end {
            let row = (slices[at] + 1) as usize;
            time[row] += end.min(bounds[at + 1]) - start.max(bounds[at]);
            pieces[row] += 1;
            at += 1;
        }
    }
}

/// Write the innermost or outermost wanted span around each span, itself included, or -1. A parent is before its
/// children.
pub fn enclosing(parents: &[i32], wanted: &[u8], outermost: bool, out: &mut [i32]) {
    for row in 0..out.len() {
        let above = if parents[row] < 0 { MISSING } else { out[parents[row] as usize] };
        let is_itself = wanted[row] != 0 && !(outermost && above != MISSING);
        out[row] = if is_itself { row as i32 } else { above };
    }
}
