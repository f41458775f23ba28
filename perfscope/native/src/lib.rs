//! The native part of perfscope: what takes long in Python and is simple enough to be written twice.
//!
//! This file is the border to Python, which calls it through ctypes with arrays that it allocated. It holds all unsafe
//! code. A pointer is valid for the length that comes with it and for the time of the call; no call keeps one. A panic
//! ends the call with `FAULT`, and Python takes its own path.

mod json;
mod kineto;
mod nest;
mod pool;
mod snapshot;
mod sweep;
mod xspace;

use kineto::{Column, Group, Outcome, Scan, TABLES};
use pool::Pool;
use snapshot::Part;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use xspace::{ById, Events, Line, Sparse, Stop, Wanted};

/// Version of this border; Python refuses a library of another one.
const VERSION: i64 = 10;

const READ: i64 = 0;
const BAD: i64 = 1;
const MEMORY: i64 = 2;
const FAULT: i64 = -1;
const NO_MEMORY: i64 = -2;

fn guarded(work: impl FnOnce() -> i64) -> i64 {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(FAULT)
}

/// Copy `values` to an array of `room` values that Python allocated; return their number.
unsafe fn copy<T: Copy>(values: &[T], out: *mut T, room: usize) -> i64 {
    if values.len() > room {
        return FAULT;
    }
    slice::from_raw_parts_mut(out, values.len()).copy_from_slice(values);
    values.len() as i64
}

#[no_mangle]
pub extern "C" fn perfscope_version() -> i64 {
    VERSION
}

/// Return a new scan. `names`: known categories in lower case, as written in quotes, one per line; `groups`: a number
/// for each.
///
/// # Safety
/// `names` has `length` bytes, `groups` has `count`.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_new(
    names: *const u8, length: usize, groups: *const u8, count: usize,
) -> *mut Scan {
    let (names, groups) = (slice::from_raw_parts(names, length), slice::from_raw_parts(groups, count));
    let known = names.split(|byte| *byte == b'\n').zip(groups).map(|(name, group)| (name.to_vec(), Group::of(*group)));
    Box::into_raw(Box::new(Scan::new(known.collect())))
}

/// # Safety
/// `scan` is from `perfscope_kineto_new` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_free(scan: *mut Scan) {
    drop(Box::from_raw(scan));
}

/// Read the events that begin in `from..soft_end`, write the position that was reached, and return how it ended.
///
/// # Safety
/// `scan` is from `perfscope_kineto_new` and in no other call; `text` has `length` bytes, `position` holds one number.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_scan(
    scan: *mut Scan, text: *const u8, length: usize, from: usize, soft_end: usize, position: *mut usize,
) -> i64 {
    guarded(|| {
        let (scan, text) = (&mut *scan, slice::from_raw_parts(text, length));
        match scan.scan(text, from, soft_end) {
            Outcome::Read(at) => {
                *position = at;
                READ
            }
            Outcome::Bad(at) => {
                *position = at;
                BAD
            }
            Outcome::Memory => MEMORY,
        }
    })
}

/// Count `added` events that Python read itself.
///
/// # Safety
/// `scan` is from `perfscope_kineto_new` and in no other call.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_skip(scan: *mut Scan, added: i64) {
    let scan = &mut *scan;
    scan.events += added;
}

fn pool(scan: &Scan, number: usize) -> &Pool {
    match number {
        0 => &scan.strings,
        1 => &scan.threads,
        _ => &scan.categories,
    }
}

/// Return a size: rows of table 0 to 5; 6 events; 7 numbers in `rest`; 8, 10, 12 texts of each pool, 9, 11, 13 their
/// bytes.
///
/// # Safety
/// `scan` is from `perfscope_kineto_new` and in no other call.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_size(scan: *const Scan, what: usize) -> i64 {
    let scan = &*scan;
    match what {
        _ if what < TABLES => scan.rows(what) as i64,
        6 => scan.events,
        7 => scan.rest.len() as i64,
        8 | 10 | 12 => pool(scan, (what - 8) / 2).len() as i64,
        9 | 11 | 13 => pool(scan, (what - 8) / 2).texts().len() as i64,
        _ => FAULT,
    }
}

/// Move a column out of a scan, and write where its values begin and how many these are; null after a failure. Columns: 0
/// to 14 of 64 bits, then 8 of 32 bits, then the occupancy.
///
/// # Safety
/// `scan` is from `perfscope_kineto_new` and in no other call; `values` and `count` hold one number each.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_take(
    scan: *mut Scan, table: usize, column: usize, values: *mut usize, count: *mut usize,
) -> *mut Column {
    let mut taken = std::ptr::null_mut();
    guarded(|| {
        let column = (*scan).take(table, column);
        (*values, *count) = match &column {
            Column::Wide(values) => (values.as_ptr() as usize, values.len()),
            Column::Narrow(values) => (values.as_ptr() as usize, values.len()),
            Column::Real(values) => (values.as_ptr() as usize, values.len()),
        };
        taken = Box::into_raw(Box::new(column));
        READ
    });
    taken
}

/// # Safety
/// `column` is from `perfscope_kineto_take`; neither it nor its values are used afterwards.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_drop(column: *mut Column) {
    drop(Box::from_raw(column));
}

/// Copy the list of events that are left to Python.
///
/// # Safety
/// `scan` is from `perfscope_kineto_new` and in no other call; `out` has `room` numbers.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_rest(scan: *const Scan, out: *mut i64, room: usize) -> i64 {
    guarded(|| {
        let scan = &*scan;
        copy(&scan.rest, out, room)
    })
}

/// Copy the texts of a pool (0 strings, 1 threads, 2 categories) and the position after each.
///
/// # Safety
/// `scan` is from `perfscope_kineto_new` and in no other call; `texts` and `ends` have the sizes that
/// `perfscope_kineto_size` returns.
#[no_mangle]
pub unsafe extern "C" fn perfscope_kineto_texts(scan: *const Scan, number: usize, texts: *mut u8, ends: *mut i64) {
    copy_texts(pool(&*scan, number), texts, ends);
}

/// Copy the texts of a pool and the position after each.
unsafe fn copy_texts(pool: &Pool, texts: *mut u8, ends: *mut i64) {
    slice::from_raw_parts_mut(texts, pool.texts().len()).copy_from_slice(pool.texts());
    for (target, end) in slice::from_raw_parts_mut(ends, pool.len()).iter_mut().zip(pool.ends()) {
        *target = end;
    }
}

/// Write the number of events of a line of an XSpace, their first byte and the byte after them to `out`. Return 0, or 1
/// for a line that is left to Python.
///
/// # Safety
/// `text` has `length` bytes, `out` holds three numbers.
#[no_mangle]
pub unsafe extern "C" fn perfscope_xspace_extent(text: *const u8, length: usize, out: *mut i64) -> i64 {
    guarded(|| match xspace::extent(slice::from_raw_parts(text, length)) {
        Ok((count, (first, after))) => {
            slice::from_raw_parts_mut(out, 3).copy_from_slice(&[count as i64, first as i64, after as i64]);
            READ
        }
        Err(_) => BAD,
    })
}

/// Columns that every event of a line has, as Python passes them.
#[repr(C)]
pub struct EventColumns {
    place: *mut i32,
    start_ns: *mut i64,
    end_ns: *mut i64,
    offset_ps: *mut i64,
    duration_ps: *mut i64,
    count: usize,
    /// Room in the columns of exact times: `count`, or 0 if they are not wanted.
    exact: usize,
}

/// Read the events from byte `first` on into `columns`; return what only some of them have, or null: then `*status` is 1
/// for a line that is left to Python and 2 if no memory is left. `ids` and `kinds`: metadata id of each wanted stat, and 1
/// if it is a text.
///
/// # Safety
/// `text` has `length` bytes, `ids` and `kinds` have `wanted` values, the columns have the room that they say, and
/// `status` holds one number.
#[no_mangle]
pub unsafe extern "C" fn perfscope_xspace_read(
    text: *const u8, length: usize, first: usize, timestamp_ns: i64, columns: *const EventColumns, ids: *const i64,
    kinds: *const u8, wanted: usize, status: *mut i64,
) -> *mut Line {
    let mut line = std::ptr::null_mut();
    *status = guarded(|| {
        let columns = &*columns;
        let events = Events {
            place: slice::from_raw_parts_mut(columns.place, columns.count),
            start_ns: slice::from_raw_parts_mut(columns.start_ns, columns.count),
            end_ns: slice::from_raw_parts_mut(columns.end_ns, columns.count),
            offset_ps: slice::from_raw_parts_mut(columns.offset_ps, columns.exact),
            duration_ps: slice::from_raw_parts_mut(columns.duration_ps, columns.exact),
        };
        let mut stats = ById::default();
        let (ids, kinds) = (slice::from_raw_parts(ids, wanted), slice::from_raw_parts(kinds, wanted));
        for (column, (id, kind)) in ids.iter().zip(kinds).enumerate() {
            if stats.insert(*id, Wanted { column, is_text: *kind != 0 }).is_err() {
                return MEMORY;
            }
        }
        match xspace::read(slice::from_raw_parts(text, length), first, timestamp_ns, &stats, wanted, events) {
            Ok(found) => {
                line = Box::into_raw(Box::new(found));
                READ
            }
            Err(Stop::Unusual) => BAD,
            Err(Stop::Memory) => MEMORY,
        }
    });
    line
}

/// # Safety
/// `line` is from `perfscope_xspace_read` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn perfscope_xspace_free(line: *mut Line) {
    drop(Box::from_raw(line));
}

/// Return a size: 0 texts, 1 their bytes, 2 metadata ids, 3 references; from 4 on the number of values of each sparse
/// column: occurrences, doubles, stats.
///
/// # Safety
/// `line` is from `perfscope_xspace_read`.
#[no_mangle]
pub unsafe extern "C" fn perfscope_xspace_size(line: *const Line, what: usize) -> i64 {
    let line = &*line;
    match what {
        0 => line.texts.len() as i64,
        1 => line.texts.texts().len() as i64,
        2 => line.metadata.ids.len() as i64,
        3 => line.references.ids.len() as i64,
        _ => sparse(line, what).map_or(FAULT, |column| column.values.len() as i64),
    }
}

fn sparse(line: &Line, what: usize) -> Option<&Sparse> {
    match what {
        4 => Some(&line.occurrences),
        5 => Some(&line.doubles),
        _ => line.stats.get(what - 6),
    }
}

/// Copy the values of a size from 2 on to `values`, and those of a sparse column with the event of each, in `rows`; return
/// their number.
///
/// # Safety
/// `line` is from `perfscope_xspace_read`; `rows` and `values` have `room` numbers.
#[no_mangle]
pub unsafe extern "C" fn perfscope_xspace_take(
    line: *const Line, what: usize, rows: *mut i32, values: *mut i64, room: usize,
) -> i64 {
    guarded(|| {
        let line = &*line;
        match what {
            2 => copy(&line.metadata.ids, values, room),
            3 => copy(&line.references.ids, values, room),
            _ => sparse(line, what).map_or(FAULT, |column| {
                copy(&column.rows, rows, room);
                copy(&column.values, values, room)
            }),
        }
    })
}

/// Copy the texts of a line and the position after each.
///
/// # Safety
/// `line` is from `perfscope_xspace_read`; `texts` and `ends` have the sizes that `perfscope_xspace_size` returns.
#[no_mangle]
pub unsafe extern "C" fn perfscope_xspace_texts(line: *const Line, texts: *mut u8, ends: *mut i64) {
    let line = &*line;
    copy_texts(&line.texts, texts, ends);
}

/// Read a memory snapshot; return its parts, or null: then `*status` is 1 for a file that is left to Python and 2 if no
/// memory is left. `*count`: number of parts.
///
/// # Safety
/// `text` has `length` bytes, `status` and `count` hold one number each.
#[no_mangle]
pub unsafe extern "C" fn perfscope_snapshot_read(
    text: *const u8, length: usize, status: *mut i64, count: *mut i64,
) -> *mut Vec<Part> {
    let mut parts = std::ptr::null_mut();
    *status = guarded(|| match snapshot::read(slice::from_raw_parts(text, length)) {
        Ok(found) => {
            *count = found.len() as i64;
            parts = Box::into_raw(Box::new(found));
            READ
        }
        Err(Stop::Unusual) => BAD,
        Err(Stop::Memory) => MEMORY,
    });
    parts
}

/// # Safety
/// `parts` is from `perfscope_snapshot_read` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn perfscope_snapshot_free(parts: *mut Vec<Part>) {
    drop(Box::from_raw(parts));
}

/// Return the number of values of a part, and copy them if `out` is not null.
///
/// # Safety
/// `parts` is from `perfscope_snapshot_read`; `out` has room for the values, of the part's type.
#[no_mangle]
pub unsafe extern "C" fn perfscope_snapshot_take(parts: *const Vec<Part>, part: usize, out: *mut u8) -> i64 {
    guarded(|| {
        let parts = &*parts;
        let length = match &parts[part] {
            Part::Wide(values) => values.len(),
            Part::Narrow(values) => values.len(),
            Part::Bytes(values) => values.len(),
        };
        match &parts[part] {
            _ if out.is_null() => length as i64,
            Part::Wide(values) => copy(values, out.cast(), length),
            Part::Narrow(values) => copy(values, out.cast(), length),
            Part::Bytes(values) => copy(values, out, length),
        }
    })
}

/// Write to `out` the row of the innermost span of the same thread that encloses each span, -1 without one. Return 0, or
/// 2 if no memory is left.
///
/// # Safety
/// All arrays have `count` values; the spans are by thread, then start, then longest first.
#[no_mangle]
pub unsafe extern "C" fn perfscope_parents(
    thread: *const i32, start: *const i64, end: *const i64, count: usize, out: *mut i32,
) -> i64 {
    guarded(|| {
        let thread = slice::from_raw_parts(thread, count);
        let (start, end) = (slice::from_raw_parts(start, count), slice::from_raw_parts(end, count));
        match sweep::parents(thread, start, end, slice::from_raw_parts_mut(out, count)) {
            Ok(()) => READ,
            Err(_) => MEMORY,
        }
    })
}

/// Columns of spans in nesting order, as Python passes them.
#[repr(C)]
pub struct NestedColumns {
    thread: *const i32,
    start: *const i64,
    end: *const i64,
    parent: *const i32,
    count: usize,
}

/// Write to `out` the row of the innermost of `spans` that encloses each interval of a thread, -1 without one.
///
/// # Safety
/// The columns of `spans` have their `count`, the other arrays have `count` values.
#[no_mangle]
pub unsafe extern "C" fn perfscope_innermost(
    spans: *const NestedColumns, thread: *const i32, start: *const i64, end: *const i64, count: usize, out: *mut i32,
) -> i64 {
    guarded(|| {
        let spans = &*spans;
        let nested = sweep::Nested {
            thread: slice::from_raw_parts(spans.thread, spans.count),
            start: slice::from_raw_parts(spans.start, spans.count),
            end: slice::from_raw_parts(spans.end, spans.count),
            parent: slice::from_raw_parts(spans.parent, spans.count),
        };
        let thread = slice::from_raw_parts(thread, count);
        let (start, end) = (slice::from_raw_parts(start, count), slice::from_raw_parts(end, count));
        sweep::innermost(&nested, thread, start, end, slice::from_raw_parts_mut(out, count));
        READ
    })
}

/// Events of a line, as Python passes them.
#[repr(C)]
pub struct SpanPart {
    thread: i64,
    count: usize,
    /// Number of the part's first event in the rows, or -1.
    first: i64,
    names: *const i32,
    jitted: *const u8,
    name_count: usize,
}

/// Columns of events that become a table of spans, as Python passes them.
#[repr(C)]
pub struct SpanColumns {
    start: *mut i64,
    end: *mut i64,
    kind: *mut u8,
    name: *mut i32,
    thread: *mut i32,
    parent: *mut i32,
    rows: *mut i32,
    count: usize,
}

/// Make the table of spans in place from the events of all parts, which are by thread; return the number of its rows, or
/// -2 if no memory is left.
///
/// # Safety
/// `parts` has `part_count` entries, whose arrays have `name_count` values; all `columns` have their `count`.
#[no_mangle]
pub unsafe extern "C" fn perfscope_nest(parts: *const SpanPart, part_count: usize, columns: *const SpanColumns) -> i64 {
    guarded(|| {
        let given = slice::from_raw_parts(parts, part_count).iter().map(|part| nest::Part {
            thread: part.thread as i32,
            count: part.count,
            names: slice::from_raw_parts(part.names, part.name_count),
            jitted: slice::from_raw_parts(part.jitted, part.name_count),
            first: usize::try_from(part.first).ok(),
        });
        let columns = &*columns;
        let mut made = nest::Columns {
            start: slice::from_raw_parts_mut(columns.start, columns.count),
            end: slice::from_raw_parts_mut(columns.end, columns.count),
            kind: slice::from_raw_parts_mut(columns.kind, columns.count),
            name: slice::from_raw_parts_mut(columns.name, columns.count),
            thread: slice::from_raw_parts_mut(columns.thread, columns.count),
            parent: slice::from_raw_parts_mut(columns.parent, columns.count),
            rows: slice::from_raw_parts_mut(columns.rows, columns.count),
        };
        match nest::nest(&given.collect::<Vec<_>>(), &mut made) {
            Ok(count) => count as i64,
            Err(_) => -MEMORY,
        }
    })
}

/// Columns of the host's spans and calls, as Python passes them.
#[repr(C)]
pub struct HostColumns {
    starts: *const i64,
    ends: *const i64,
    parents: *const i32,
    works: *const u8,
    spans: usize,
    call_starts: *const i64,
    call_ends: *const i64,
    calls: usize,
}

/// Rows of a thread, as Python passes them.
#[repr(C)]
pub struct ThreadRows {
    number: i64,
    first: usize,
    last: usize,
    calls: *const i64,
    count: usize,
}

/// Arrays of a lane, as Python passes them.
#[repr(C)]
pub struct LaneColumns {
    starts: *mut i64,
    threads: *mut i32,
    slices: *mut i32,
    calls: *mut i32,
    room: usize,
}

/// Write the lane of `[low, high)` to `out` and return its number of pieces, or -2 if no memory is left.
///
/// # Safety
/// The columns of `host` have `spans` and `calls` values; `all` has `threads` entries, whose calls have their `count`;
/// `cuts` has `cut_count` numbers; the arrays of `out` have `room` numbers.
#[no_mangle]
pub unsafe extern "C" fn perfscope_lane(
    host: *const HostColumns, all: *const ThreadRows, threads: usize, cuts: *const i64, cut_count: usize, low: i64,
    high: i64, main: i64, out: *const LaneColumns,
) -> i64 {
    guarded(|| {
        let (given, out) = (&*host, &*out);
        let host = sweep::Host {
            starts: slice::from_raw_parts(given.starts, given.spans),
            ends: slice::from_raw_parts(given.ends, given.spans),
            parents: slice::from_raw_parts(given.parents, given.spans),
            works: slice::from_raw_parts(given.works, given.spans),
            call_starts: slice::from_raw_parts(given.call_starts, given.calls),
            call_ends: slice::from_raw_parts(given.call_ends, given.calls),
        };
        let rows = slice::from_raw_parts(all, threads).iter().map(|rows| sweep::Thread {
            number: rows.number as i32,
            first: rows.first,
            last: rows.last,
            calls: slice::from_raw_parts(rows.calls, rows.count),
        });
        let mut lane = sweep::Lane {
            starts: slice::from_raw_parts_mut(out.starts, out.room),
            threads: slice::from_raw_parts_mut(out.threads, out.room),
            slices: slice::from_raw_parts_mut(out.slices, out.room),
            calls: slice::from_raw_parts_mut(out.calls, out.room),
        };
        let cuts = slice::from_raw_parts(cuts, cut_count);
        match sweep::lane(&host, &rows.collect::<Vec<_>>(), cuts, low, high, main as i32, &mut lane) {
            Ok(count) => count as i64,
            Err(_) => NO_MEMORY,
        }
    })
}

/// Write the end of each node of a graph in which each node has three dependencies, or -1.
///
/// # Safety
/// `earliest`, `durations` and `ends` have `count` numbers, `before` and `lag` three times as many.
#[no_mangle]
pub unsafe extern "C" fn perfscope_replay(
    earliest: *const i64, durations: *const i64, before: *const i64, lag: *const i64, count: usize, ends: *mut i64,
) -> i64 {
    guarded(|| {
        sweep::replay(
            slice::from_raw_parts(earliest, count),
            slice::from_raw_parts(durations, count),
            slice::from_raw_parts(before, 3 * count),
            slice::from_raw_parts(lag, 3 * count),
            slice::from_raw_parts_mut(ends, count),
        );
        READ
    })
}

/// Write the innermost or outermost wanted span around each span, itself included, or -1.
///
/// # Safety
/// `parents`, `wanted` and `out` have `count` values.
#[no_mangle]
pub unsafe extern "C" fn perfscope_enclosing(
    parents: *const i32, wanted: *const u8, count: usize, outermost: i64, out: *mut i32,
) -> i64 {
    guarded(|| {
        let (parents, wanted) = (slice::from_raw_parts(parents, count), slice::from_raw_parts(wanted, count));
        sweep::enclosing(parents, wanted, outermost != 0, slice::from_raw_parts_mut(out, count));
        READ
    })
}

/// Intervals, as Python passes them.
#[repr(C)]
pub struct Intervals {
    starts: *mut i64,
    ends: *mut i64,
    count: usize,
}

impl Intervals {
    unsafe fn spans(&self) -> sweep::Spans<'_> {
        sweep::Spans {
            starts: slice::from_raw_parts(self.starts, self.count),
            ends: slice::from_raw_parts(self.ends, self.count),
        }
    }

    unsafe fn joined(&self) -> sweep::Joined<'_> {
        sweep::Joined {
            starts: slice::from_raw_parts_mut(self.starts, self.count),
            ends: slice::from_raw_parts_mut(self.ends, self.count),
            count: 0,
        }
    }
}

/// Write to `out`, and return the number of, intervals: 0 the union of `first`, 1 its parts in `second`, 2 those that
/// are not. -2 if no memory is left.
///
/// # Safety
/// The arrays have their `count`; those of `out` have as many numbers as the others together.
#[no_mangle]
pub unsafe extern "C" fn perfscope_intervals(
    what: i64, first: *const Intervals, second: *const Intervals, out: *const Intervals,
) -> i64 {
    guarded(|| {
        let mut joined = (*out).joined();
        if what == 0 {
            if sweep::union((*first).spans(), &mut joined).is_err() {
                return NO_MEMORY;
            }
        } else {
            sweep::parts((*first).spans(), (*second).spans(), what == 1, &mut joined);
        }
        joined.count as i64
    })
}

/// Write how much of each `asked` interval is in `busy`, or return -1, or -2 if no memory is left.
///
/// # Safety
/// The arrays have their `count`, `out` that of `asked`.
#[no_mangle]
pub unsafe extern "C" fn perfscope_covered(busy: *const Intervals, asked: *const Intervals, out: *mut i64) -> i64 {
    guarded(|| {
        let asked = &*asked;
        match sweep::covered((*busy).spans(), asked.spans(), slice::from_raw_parts_mut(out, asked.count)) {
            Ok(()) => READ,
            Err(_) => NO_MEMORY,
        }
    })
}

/// Write the path through a graph of `count` nodes from `last` backwards and return how many nodes it has.
///
/// # Safety
/// `before` and `lag` have three times `count` numbers, all other arrays `count`.
#[no_mangle]
pub unsafe extern "C" fn perfscope_path(
    before: *const i64, lag: *const i64, ends: *const i64, alone: *const i64, count: usize, last: usize,
    nodes: *mut i64, lags: *mut i64,
) -> i64 {
    guarded(|| {
        let waits = sweep::Waits {
            before: slice::from_raw_parts(before, 3 * count),
            lag: slice::from_raw_parts(lag, 3 * count),
            ends: slice::from_raw_parts(ends, count),
            alone: slice::from_raw_parts(alone, count),
        };
        let (nodes, lags) = (slice::from_raw_parts_mut(nodes, count), slice::from_raw_parts_mut(lags, count));
        sweep::path(&waits, last, nodes, lags) as i64
    })
}

/// Add the time and pieces of a lane of `count` pieces in the `asked` intervals by slice, or return -1.
///
/// # Safety
/// `bounds` has one number more than `slices`, which has `count`; `time` and `pieces` have `rows` numbers.
#[no_mangle]
pub unsafe extern "C" fn perfscope_time_by_slice(
    bounds: *const i64, slices: *const i32, count: usize, asked: *const Intervals, time: *mut i64, pieces: *mut i64,
    rows: usize,
) -> i64 {
    guarded(|| {
        sweep::time_by_slice(
            slice::from_raw_parts(bounds, count + 1),
            slice::from_raw_parts(slices, count),
            (*asked).spans(),
            slice::from_raw_parts_mut(time, rows),
            slice::from_raw_parts_mut(pieces, rows),
        );
        READ
    })
}
