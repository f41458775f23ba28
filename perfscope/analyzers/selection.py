"""The part of recordings that the user selects: some steps, ranks, or a range of time.

Files of other ranks are not opened if a manifest or the file name has the rank. The rows that overlap the
selected time are kept whole, with the calls and spans that launched them. A step's account also needs the time
around it (work in flight, the time at which the device became idle); this is derived before the other rows are removed,
so every step has the same account as in the whole recording.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.readers import Loaded, load_paths
from perfscope.analyzers.time import Windows, account_windows, cause_intervals, main_thread, step_windows, steps_work
from perfscope.model.errors import DataError, UsageError
from perfscope.model.intervals import Int64, intersection, union
from perfscope.model.trace import MISSING, MemoryAction, Part, Rows, Trace
from perfscope.model.trace.trace import span
from perfscope.model.units import format_ns

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s)?")
_UNIT_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, None: 10**9}
MOST_RANKS = 1_000_000
"""Limit for a valid rank number."""

_ON_DEVICE = ("kernels", "copies", "sync_records", "hlo_ops")

_LAUNCHERS = {"kernels": ("call", "op"), "copies": ("call", "op"), "kernel_counters": ("call", "op"),
              "sync_records": ("call",), "calls": ("parent",), "slices": ("parent",)}  # fmt: skip
"""References whose target rows are kept; other references to a removed row become missing."""

_SAMPLED = ("counters", "memory", "samples")


class Selection(Struct, frozen=True, kw_only=True):
    """The user's selection; ``None`` selects everything. It is sent to other processes."""

    steps: tuple[int, int | None] | None = None
    """Number of the first step, and one more than the last."""
    ranks: frozenset[int] | None = None
    time_ns: tuple[int, int | None] | None = None
    """Begin and end, relative to the first event of each recording, ns."""

    @property
    def of_time(self) -> bool:
        """Whether recordings are cut."""
        return self.steps is not None or self.time_ns is not None


EVERYTHING = Selection()


def parse_selection(steps: str | None, ranks: str | None, time: str | None) -> Selection:
    """Parse ``--steps``, ``--ranks`` and ``--time``. ``UsageError`` for invalid values."""
    if steps is not None and time is not None:
        raise UsageError("--steps and --time: both select a range of time; give one of them")
    return Selection(steps=_parse_steps(steps), ranks=_parse_ranks(ranks), time_ns=_parse_time(time))


def _parse_steps(text: str | None) -> tuple[int, int | None] | None:
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not colon or not re.fullmatch(r"\d*", first + end, re.ASCII) or not first + end:
        raise UsageError(f"--steps {text}: give A:B, two step numbers, B excluded, such as 20:25, 20: or :25")
    steps = (int(first or 0), int(end) if end else None)
    if steps[1] is not None and steps[1] <= steps[0]:
        raise UsageError(f"--steps {text}: selects no step; B is excluded and must be greater than A")
    return steps


def _parse_ranks(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    ranks: set[int] = set()
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", word, re.ASCII)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high < MOST_RANKS:
            raise UsageError(f"--ranks {text}: give numbers and ranges, such as 0,3-5")
        ranks.update(range(low, high + 1))
    return frozenset(ranks)


def _parse_time(text: str | None) -> tuple[int, int | None] | None:
    if text is None:
        return None
    first, colon, end = text.partition(":")
    matches = [_TIME.fullmatch(word) for word in (first, end)]
    if (
        not colon
        or not first + end
        or any(word and not match for word, match in zip((first, end), matches, strict=True))
    ):
        raise UsageError(f"--time {text}: give A:B from the start of the recording, such as 1.2s:1.5s, 300ms: or :2s")
    low, high = (None if match is None else round(float(match[1]) * _UNIT_NS[match[2]]) for match in matches)
    if high is not None and high <= (low or 0):
        raise UsageError(f"--time {text}: selects no time; B must be after A")
    return low or 0, high


def load_selected(path: str | Path, selection: Selection) -> Loaded:
    """Load a path like ``load_path``, reduced to the selection. ``DataError`` as in ``part_of``."""
    loaded = load_paths([path], selection.ranks)
    results = tuple(replace(result, trace=part_of(result.trace, selection)) for result in loaded.results)
    return replace(loaded, results=results)


def part_of(trace: Trace, selection: Selection) -> Trace:
    """Return the selected steps or time range of a trace; the trace itself if everything is selected.

    ``DataError`` if the recording has no such step or nothing in that time. The recording of the details, compile
    logs and memory snapshots are kept whole.
    """
    if not selection.of_time:
        return trace
    if trace.source.events_only or not trace.fact(account_windows).whole_ns:
        raise DataError(f"{trace.source.path}: it has no times, so --steps and --time cannot be used")
    chosen = _chosen_windows(trace, selection)
    rows = _cut(trace, chosen)
    if not any(len(rows[name]) for name in ("slices", "calls", "kernels", "copies", "hlo_ops", "memory", "samples")):
        raise DataError(f"{trace.source.path}: nothing was recorded in {_stretch(trace, chosen)}")
    part = Part(start_ns=chosen.low, end_ns=chosen.high, origin_ns=trace.span_ns()[0],
                facts=_facts_of_part(trace, chosen))  # fmt: skip
    source = msgspec.structs.replace(trace.source, part=_in_words(trace, chosen))
    return msgspec.structs.replace(trace, rows=rows, part=part, source=source)


class _Chosen(Struct, frozen=True, kw_only=True):
    """The selected part of a trace. Times in ns on its clock; steps that do not wait for their work have two ranges."""

    numbers: frozenset[int]
    host: tuple[int, int]
    device: tuple[int, int]
    windows: Windows
    """Windows of the account."""

    @property
    def low(self) -> int:
        return min(self.host[0], self.device[0])

    @property
    def high(self) -> int:
        return max(self.host[1], self.device[1])


def _chosen_windows(trace: Trace, selection: Selection) -> _Chosen:
    windows = trace.fact(account_windows)
    numbers = np.array(windows.numbers, np.int64)
    if selection.steps is not None:
        first, end = selection.steps
        kept = (numbers >= first) & (numbers < (np.iinfo(np.int64).max if end is None else end))
        if not kept.any():
            raise DataError(f"{trace.source.path}: --steps {_range(*selection.steps)}: {_steps_there(numbers)}")
        mine = _taken(windows, kept)
        steps = trace.fact(step_windows)
        here = np.isin(steps.numbers, numbers[kept])
        return _Chosen(
            numbers=frozenset(mine.numbers),
            host=(int(steps.starts[here].min()), int(steps.ends[here].max())),
            device=(int(mine.starts.min()), int(mine.ends.max())),
            windows=mine,
        )
    begin, finish = trace.span_ns()
    first, end = selection.time_ns or (0, None)
    low, high = begin + first, finish if end is None else min(begin + end, finish)
    if low >= high:
        raise DataError(
            f"{trace.source.path}: the recording ends after {format_ns(finish - begin)}: nothing to analyze"
        )
    inside = (windows.starts >= low) & (windows.ends <= high) if len(numbers) else np.zeros(0, bool)
    stretch = Windows(starts=np.array([low], np.int64), ends=np.array([high], np.int64), numbers=())
    mine = _taken(windows, inside) if inside.any() else stretch
    return _Chosen(numbers=frozenset(mine.numbers), host=(low, high), device=(low, high), windows=mine)


def _taken(windows: Windows, kept: np.ndarray) -> Windows:
    numbers = tuple(np.array(windows.numbers, np.int64)[kept].tolist())
    return Windows(starts=windows.starts[kept], ends=windows.ends[kept], numbers=numbers)


def _range(first: int, end: int | None) -> str:
    return f"{first}:{'' if end is None else end}"


def _steps_there(numbers: Int64) -> str:
    if not len(numbers):
        return "the recording has no steps; --time selects a range of time"
    return f"the recording has steps {int(numbers.min()):,} to {int(numbers.max()):,}"


# The kept rows: those that overlap the part, and the calls and spans outside that launched or enclose them.


def _cut(trace: Trace, chosen: _Chosen) -> dict[str, Rows]:
    from perfscope.analyzers.digest import new_rows

    rows = dict(trace.rows)
    rows["memory"] = _with_blocks_before(rows["memory"], chosen.low)
    keep = {name: _overlaps(rows[name], chosen.device if name in _ON_DEVICE else chosen.host)
            for name in (*_ON_DEVICE, "slices", "calls")}  # fmt: skip
    keep |= {name: _within(rows[name]["time_ns"], chosen.low, chosen.high) for name in _SAMPLED}
    steps = rows["steps"]
    keep["steps"] = np.isin(steps["number"], list(chosen.numbers))
    keep["collectives"] = _collectives(rows, keep, chosen.host[0])
    keep["kernel_counters"] = _pointed(keep["calls"], rows["kernel_counters"]["call"])  # these have no time
    for name in ("kernels", "copies", "kernel_counters", "sync_records", "calls", "slices"):
        for column in _LAUNCHERS[name]:
            _keep_targets(rows[name], column, keep[name], keep)
    kept = {name: np.flatnonzero(mask) for name, mask in keep.items()}
    places = {name: new_rows(len(rows[name]), kept[name]) for name in kept}
    return rows | {name: _moved(rows[name].take(kept[name]), places) for name in kept}


def _collectives(rows: dict[str, Rows], keep: dict[str, np.ndarray], low: int) -> np.ndarray:
    """Return the mask of collectives.

    Collectives launched in the part are included, so that all ranks start counting at the same collective.
    """
    kernels, slices, collectives = rows["kernels"], rows["slices"], rows["collectives"]
    call = kernels["call"]
    launched = np.ones(len(kernels), bool)
    launched[call != MISSING] = rows["calls"]["start_ns"][call[call != MISSING]] >= low
    on_device = _pointed(keep["kernels"] & launched, collectives["kernel"])
    on_host = _pointed(keep["slices"] & (slices["start_ns"] >= low), collectives["slice"])
    result: np.ndarray = np.where(collectives["kernel"] == MISSING, on_host, on_device)
    return result


def _overlaps(rows: Rows, within: tuple[int, int]) -> np.ndarray:
    starts, ends = rows["start_ns"], rows["end_ns"]
    result: np.ndarray = (starts < within[1]) & ((ends > within[0]) | (starts >= within[0]))
    return result


def _within(times: np.ndarray, low: int, high: int) -> np.ndarray:
    result: np.ndarray = (times >= low) & (times < high)
    return result


def _pointed(mask: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Return the mask of references whose target is in ``mask``."""
    result = np.zeros(len(references), bool)
    known = references != MISSING
    result[known] = mask[references[known]]
    return result


def _keep_targets(rows: Rows, column: str, mask: np.ndarray, keep: dict[str, np.ndarray]) -> None:
    """Keep the rows that kept rows refer to; for parents in the same table, up to the outermost."""
    target = rows.table.column(column).refers
    assert target is not None
    added = np.flatnonzero(mask)
    while len(added):
        wanted = np.unique(rows[column][added])
        added = wanted[wanted != MISSING]
        added = added[~keep[target][added]]
        keep[target][added] = True
        if target != rows.table.name:
            return


def _moved(rows: Rows, places: dict[str, Int64]) -> Rows:
    from perfscope.analyzers.digest import moved_references

    changed: dict[str, Any] = {
        column.name: moved_references(rows[column.name], places[column.refers])
        for column in rows.table.columns
        if column.refers in places
    }
    return rows.with_columns(changed)


def _with_blocks_before(memory: Rows, low: int) -> Rows:
    """Return the memory events.

    Blocks allocated before ``low`` and not freed until then count as held at the first event.
    """
    later = np.flatnonzero(memory["time_ns"] >= low)
    early = np.flatnonzero((memory["time_ns"] < low) & (memory["address"] != 0)
                           & np.isin(memory["action"], (MemoryAction.ALLOCATE, MemoryAction.FREE,
                                                        MemoryAction.HELD_BEFORE)))  # fmt: skip
    if not len(early) or not len(later):
        return memory
    key = np.column_stack([memory[name][early].astype(np.int64) for name in ("on_device", "ordinal", "address")])
    order = np.lexsort((early, *key.T))
    last = np.append((key[order][1:] != key[order][:-1]).any(axis=1), True)
    held = np.sort(early[order][last])
    held = held[memory["action"][held] != MemoryAction.FREE]
    before = memory.take(held).with_columns({
        "action": np.uint8(MemoryAction.HELD_BEFORE), "time_ns": memory["time_ns"][later[0]],
        **dict.fromkeys(("allocated_bytes", "reserved_bytes", "stack_bytes", "peak_bytes", "op", "thread"), MISSING),
    })  # fmt: skip
    after = memory.take(later)
    return Rows(memory.table, {name: np.concatenate((before[name], after[name])) for name in memory})


def _facts_of_part(trace: Trace, chosen: _Chosen) -> dict[Any, Any]:
    """Return the facts of the part that need the rest of the recording."""
    steps, work = trace.fact(step_windows), trace.fact(steps_work)
    here = np.isin(steps.numbers, list(chosen.numbers))
    if work is not None:
        mine = tuple(step for step in work.steps if step.number in chosen.numbers)
        work = replace(work, start_ns=chosen.device[0], end_ns=chosen.device[1], steps=mine) if mine else None
    facts: dict[Any, Any] = {
        step_windows: replace(steps, starts=steps.starts[here], ends=steps.ends[here], numbers=steps.numbers[here]),
        steps_work: work,
        account_windows: chosen.windows,
        main_thread: trace.fact(main_thread),
        span: (chosen.low, chosen.high),
    }
    if chosen.numbers:  # a range between or within steps has its own account
        inside = union([chosen.device[0]], [chosen.device[1]])
        facts[cause_intervals] = {
            device: {cause: intersection(spans, inside) for cause, spans in parts.items()}
            for device, parts in trace.fact(cause_intervals).items()
        }
    return facts


def _stretch(trace: Trace, chosen: _Chosen) -> str:
    begin, end = trace.span_ns()
    return f"{format_ns(chosen.low - begin)} to {format_ns(chosen.high - begin)} of {format_ns(end - begin)}"


def _in_words(trace: Trace, chosen: _Chosen) -> str:
    """Return, for example, ``'steps 20 to 24 of the recorded 0 to 99 (1.20 s to 1.50 s of 6.00 s)'``."""
    numbers, recorded = sorted(chosen.numbers), trace.fact(account_windows).numbers
    if not numbers:
        return _stretch(trace, chosen)
    named = f"step {numbers[0]:,}" if len(numbers) == 1 else f"steps {numbers[0]:,} to {numbers[-1]:,}"
    return f"{named} of the recorded {min(recorded):,} to {max(recorded):,} ({_stretch(trace, chosen)})"
