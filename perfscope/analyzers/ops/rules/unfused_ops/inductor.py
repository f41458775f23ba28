"""Findings of ``unfused_ops`` about kernels that inductor did not fuse, recorded or planned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.devices import bytes_ns, find_device
from perfscope.analyzers.ops.finding_spans import spans_of_slices
from perfscope.analyzers.ops.fusion import FusionReason, fusion_reason
from perfscope.analyzers.plans import plan_works
from perfscope.analyzers.spans import compiled_rows, work_time
from perfscope.analyzers.time import per_step, planned_cost, whole_ns
from perfscope.analyzers.torch_compile import PlannedPair, RefusedPair, planned_pairs, refused_pairs, where_of
from perfscope.model.compile_log import CodeLine, CompiledKernel, ProgramLine
from perfscope.model.finding import MOST_ROWS, Cell, Finding, Span, Where
from perfscope.model.frames import Owner, owner_of
from perfscope.model.severity import Severity, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_share

MIN_SHARE = 0.02
"""Smallest share of the steps' time, or of the bytes of the graph's kernels if no time is known: as for other chains,
the saving is modelled and half of it must still be noticeable.
"""

MIN_BYTES = 1 << 20
"""Smallest number of bytes per run of the graph if no time is known. An H100 moves 1 MiB in 0.3 us, a tenth of a
launch.
"""

CPU_CACHE_BYTES = 32 << 20
"""Smallest value in bytes on a CPU. A smaller one stays in the last-level cache (at least 32 MiB per socket on server
CPUs) between two consecutive kernels and does not reach memory.
"""

MEDIUM_SHARE = 0.1
"""Share of the graph's bytes from which severity is medium if no time is known; it is never high then."""


class _Priced(Struct, frozen=True, kw_only=True):
    """A pair with its time over the trace; ``None`` if unknown."""

    pair: RefusedPair
    runs: int | None
    kernels_ns: int | None
    saved_ns: int | None


def inductor_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per line and reason whose kernels pass enough bytes through memory."""
    places: dict[tuple[Where, str], list[_Priced]] = defaultdict(list)
    for pair in trace.fact(refused_pairs):
        if pair.platform == "gpu" or pair.value_bytes >= CPU_CACHE_BYTES:
            places[_where(pair), pair.refusal.reason].append(_priced(trace, pair))
    for (where, reason), pairs in places.items():
        finding = _finding(trace, where, reason, pairs)
        if finding is not None:
            yield finding


def _where(pair: RefusedPair) -> Where:
    """Return the user's line that reads the value, else the one that writes it."""
    code_lines: list[CodeLine] = [code_line for code_line in (pair.read_at, pair.written_at) if code_line is not None]
    mine = next(
        (code_line for code_line in code_lines if owner_of(code_line.file) is Owner.USER),
        code_lines[0] if code_lines else None,
    )
    if mine is not None:
        return where_of(mine)
    return Where(kernel=pair.second.name if pair.second else pair.refusal.second)


def _priced(trace: Trace, pair: RefusedPair) -> _Priced:
    """Return the pair with its time.

    If its kernels are unknown, it ran as often as its graph, and its time is that of its bytes.
    """
    rows, runs = trace.fact(_rows_of), trace.fact(_runs_of)
    kernel_rows = [*rows.get(pair.first, []), *rows.get(pair.second, [])]
    count = runs.get((pair.refusal.compile_id, pair.refusal.direction), 0)
    spans = np.unique(np.array(kernel_rows, np.int64))
    if not runs:
        return _Priced(pair=pair, runs=None, kernels_ns=None, saved_ns=None)
    if pair.platform == "cpu":
        slices = trace.rows["slices"]
        spent = int((slices["end_ns"] - slices["start_ns"])[spans].sum()) if kernel_rows else None
        return _Priced(pair=pair, runs=count, kernels_ns=spent, saved_ns=None)
    work = work_time(trace, spans) if kernel_rows else None
    names = [trace.text(int(code)) for code in trace.rows["devices"]["name"]]
    known = [device for name in names if (device := find_device(name)) is not None]
    slowest = min(known, key=lambda device: device.memory_bandwidth) if known and len(known) == len(names) else None
    if slowest is None:
        return _Priced(pair=pair, runs=count, kernels_ns=work.sum_ns if work else None, saved_ns=None)
    memory = bytes_ns(slowest, pair.saved_bytes * count)
    both = pair.first is not None and pair.second is not None
    saved = min(memory, work.exposed_ns) if work and both else memory
    return _Priced(pair=pair, runs=count, kernels_ns=work.sum_ns if work else None, saved_ns=round(saved))


def _runs_of(trace: Trace) -> dict[tuple[str | None, str | None], int]:
    """Return the runs of each graph: those of its most frequent kernel, divided by its number of calls."""
    runs: dict[tuple[str | None, str | None], int] = defaultdict(int)
    for kernel, rows in trace.fact(_rows_of).items():
        if kernel is not None:
            key = (kernel.compile_id, kernel.direction)
            runs[key] = max(runs[key], len(rows) // (1 if kernel.handle else kernel.calls))
    return dict(runs)


def _rows_of(trace: Trace) -> dict[CompiledKernel | None, list[int]]:
    """Return the rows of ``slices`` of each kernel of the log."""
    log = trace.compile_log
    rows: dict[CompiledKernel | None, list[int]] = defaultdict(list)
    for row, index in trace.fact(compiled_rows).items():
        if log is not None:
            rows[log.kernels[index]].append(row)
    return dict(rows)


def _finding(trace: Trace, where: Where, reason: str, pairs: list[_Priced]) -> Finding | None:
    pairs.sort(key=lambda pair: (-(pair.saved_ns or 0), -pair.pair.saved_bytes))
    timed = all(pair.saved_ns is not None for pair in pairs)
    moved, graph_bytes = _bytes_of_a_run(pairs)
    saved = min(sum(pair.saved_ns or 0 for pair in pairs), whole_ns(trace)) if timed else None
    if saved is not None:
        if not saved or saved < MIN_SHARE * whole_ns(trace):
            return None
    elif moved < max(MIN_BYTES, MIN_SHARE * graph_bytes):
        return None
    means = fusion_reason(reason)
    count = len({(pair.pair.refusal.first, pair.pair.refusal.second) for pair in pairs})
    share = f" ({format_share(moved, graph_bytes)} of the graph's bytes)" if graph_bytes else ""
    size = f": {format_bytes(moved)} per run{share}" if saved is None else ""
    return Finding(
        subject=_subject(reason),
        title=f"inductor does not fuse {_pairs(count)} of kernels{size}",
        detail=f"The reason: {means.meaning}. {format_bytes(moved)} per run go through memory between them.",
        severity=_severity(saved, whole_ns(trace), moved, graph_bytes, pairs),
        basis="structural" if saved is None else "modelled",
        cost_ns=saved,
        cost_ns_per_step=None if saved is None else per_step(trace, saved),
        cost_bytes=moved,
        where=where,
        evidence=tuple(_row(pair) for pair in pairs[:MOST_ROWS]),
        spans=_spans(trace, pairs),
        advice=_advice(means),
    )


def _spans(trace: Trace, pairs: Iterable[_Priced]) -> tuple[Span, ...]:
    """Return the kernels of the pairs."""
    rows = trace.fact(_rows_of)
    return spans_of_slices(
        trace,
        sorted(
            {
                row
                for pair in pairs
                for kernel in (pair.pair.first, pair.pair.second)
                if kernel is not None
                for row in rows.get(kernel, ())
            }
        ),
    )


def _severity(saved: int | None, whole: int, moved: int, graph_bytes: int, pairs: Sequence[_Priced]) -> Severity:
    if saved is not None:
        return severity_of(saved, whole)
    gpu = any(pair.pair.platform == "gpu" for pair in pairs)
    return "medium" if gpu and graph_bytes and moved >= MEDIUM_SHARE * graph_bytes else "low"


def _bytes_of_a_run(pairs: Iterable[_Priced]) -> tuple[int, int]:
    """Return the bytes between the kernels of the pairs, and of all kernels of their graphs (0 if unknown).

    Only the compilation of a frame with most bytes counts, because a call runs one of them.
    """
    frames: dict[str, dict[str, list[RefusedPair]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        compile_id = pair.pair.refusal.compile_id or ""
        frames[compile_id.rpartition("/")[0]][compile_id].append(pair.pair)
    moved = total = 0
    for compiled in frames.values():
        worst = max(compiled.values(), key=lambda pairs: sum(pair.saved_bytes for pair in pairs))
        moved += sum(pair.saved_bytes for pair in worst)
        total += sum({pair.refusal.direction: pair.graph_bytes or 0 for pair in worst}.values())
    return moved, total


def _row(one: _Priced) -> dict[str, Cell]:
    pair = one.pair
    return {
        "writes": pair.first.name if pair.first else pair.refusal.first,
        "reads": pair.second.name if pair.second else pair.refusal.second,
        "written_at": where_of(pair.written_at).label(),
        "read_at": where_of(pair.read_at).label(),
        "compile_id": pair.refusal.compile_id,
        "direction": pair.refusal.direction,
        "inductor_says": pair.refusal.reason,
        "value_bytes": pair.value_bytes,
        "saved_bytes": pair.saved_bytes,
        "also_needed_elsewhere": "yes" if pair.needed_elsewhere else "no",
        "runs": one.runs,
        "kernels_ns": one.kernels_ns,
        "saved_ns": one.saved_ns,
    }


def _subject(reason: str) -> str:
    return f"not fused by inductor: {reason.split(' (')[0][:60]}"


def _pairs(count: int) -> str:
    return f"{count:,} {'pair' if count == 1 else 'pairs'}"


def _advice(means: FusionReason) -> str:
    return means.fix or ("See both kernels with TORCH_LOGS=fusion,output_code; use the same order of elements in both.")


# Neighbouring kernels of a plan that inductor would not fuse.


def plan_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per line and reason that costs at least ``MIN_SHARE`` of the planned step."""
    target = trace.target
    for work in trace.fact(plan_works):
        if target is None:
            continue
        whole = (work.compiled or work.inside).device.low
        places: dict[tuple[ProgramLine | None, str], list[PlannedPair]] = defaultdict(list)
        for pair in planned_pairs(work.held.plan):
            places[pair.place, pair.refusal.reason].append(pair)
        for (plan_line, reason), pairs in places.items():
            moved = sum(pair.graph.calls * pair.saved_bytes for pair in pairs)
            saved = round(bytes_ns(target.device, moved))
            if not saved or saved < MIN_SHARE * whole:
                continue
            means = fusion_reason(reason)
            yield Finding(
                subject=_subject(reason),
                title=f"inductor would not fuse {_pairs(len(pairs))} of kernels",
                detail=f"The reason: {means.meaning}. {format_bytes(moved)} per step go through memory between them.",
                **planned_cost(saved, whole),
                cost_bytes=moved,
                where=Where() if plan_line is None else Where(file=plan_line.file, line=plan_line.line),
                evidence=tuple(
                    {
                        "writes": pair.first.name,
                        "reads": pair.second.name,
                        "direction": pair.graph.direction,
                        "inductor_says": pair.refusal.reason,
                        "value_bytes": pair.value_bytes,
                        "saved_bytes": pair.saved_bytes,
                        "runs_a_step": pair.graph.calls,
                    }
                    for pair in sorted(pairs, key=lambda one: -one.saved_bytes)[:MOST_ROWS]
                ),
                advice=_advice(means),
            )
