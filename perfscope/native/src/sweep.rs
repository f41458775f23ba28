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
    fn the_parent_is_the_innermost_that_encloses() {
        let (thread, start, end) = ([0, 0, 0, 0, 0, 1], [0, 0, 2, 4, 12, 1], [10, 5, 4, 4, 13, 2]);
        let mut out = [9; 6];
        assert!(parents(&thread, &start, &end, &mut out).is_ok());
        assert_eq!(out, [-1, 0, 1, 1, -1, -1]);
    }
}
