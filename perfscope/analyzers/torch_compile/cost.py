"""What of torch.compile's time a cache would have spared, and what a second look at its graphs tells."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfscope.analyzers.time import (
    Window,
    blocking_calls,
    compiled_rows,
    device_busy,
    nearest_ancestor,
    step_windows,
    time_of,
    whole_ns,
)
from perfscope.analyzers.torch_compile.frames import compile_spans, compiled_frames
from perfscope.analyzers.torch_compile.phases import CompileTime, Stage, compile_times
from perfscope.model.compile_log import Compile, CompileLog, Graph
from perfscope.model.intervals import Int64, Intervals, complement, covered, union
from perfscope.model.trace import MISSING, CallKind, SliceKind, Trace

Warmth = Literal["cold", "warm", "uncached"]

MIN_REPEATS = 4
"""Times a line's op must stand in a graph for its block to count as repeated: fewer are q, k, v and their like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """First compilations of frames by what the caches answered. Times in ns, moments once (``compile_times``)."""

    cold: tuple[CompileTime, ...]
    """A cache was asked and had it not, or does not take it."""
    warm: tuple[CompileTime, ...]
    uncached: tuple[CompileTime, ...]
    """A graph was compiled and the log says of no cache that it was asked."""
    again: tuple[CompileTime, ...]
    """Compilations of frames that were compiled before, whatever the caches said."""

    @property
    def spared_ns(self) -> int:
        """What warm caches would have spared at most."""
        return sum(one.cached_ns for one in (*self.cold, *self.uncached))


def cache_use(trace: Trace) -> CacheUse:
    """The compilations of a log by their caches; first ones without a graph are in none of the four."""
    first = {id(frame.compiles[0]) for frame in trace.fact(compiled_frames)}
    held: dict[Warmth | None, list[CompileTime]] = {"cold": [], "warm": [], "uncached": [], None: []}
    again = []
    for one in trace.fact(compile_times).compiles:
        if id(one.compile) in first:
            held[warmth(one.compile)].append(one)
        else:
            again.append(one)
    return CacheUse(
        cold=tuple(held["cold"]), warm=tuple(held["warm"]), uncached=tuple(held["uncached"]), again=tuple(again)
    )


def warmth(one: Compile) -> Warmth | None:
    """Whether its graphs came from a cache; ``None``: it has none, or was given up.

    What inductor makes of a graph is the dear part: where its cache hit, AOT autograd's own may have been bypassed.
    """
    inductor = [result for cache, result in one.caches.items() if cache.startswith("fx_graph")]
    answers = inductor or list(one.caches.values())
    if answers:
        return "warm" if all(result == "hit" for result in answers) else "cold"
    return "uncached" if one.graph_ops and one.fail_type is None else None


def repeated_part(log: CompileLog, compiles: Iterable[Compile]) -> float:
    """Of the nodes of the given compilations' graphs the part that a repeated block makes twice or more, 0 to 1.

    A model of N equal layers has every line's op N times in its graph with the same dtype and shape; compiled
    once, all but the first were not compiled. Nodes without a line, and whatever stands fewer than ``MIN_REPEATS``
    times, count as made once.
    """
    wanted = {one.compile_id for one in compiles}
    nodes = again = 0
    for graph in log.graphs:
        if graph.compile_id not in wanted:
            continue
        nodes += len(graph.nodes)
        again += _made_again(graph)
    return again / nodes if nodes else 0.0


def _made_again(graph: Graph) -> int:
    counts = Counter((node.op, node.dtype, node.shape, node.place) for node in graph.nodes if node.place is not None)
    return sum(count - 1 for count in counts.values() if count >= MIN_REPEATS)


# What host time outside compiled code costs at most: on a CPU that time, with an accelerator what it idles for it.


HOST_READS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2"})
"""Ops whose result the host must know before it can go on."""

_LAUNCHING = (CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerCost:
    """Of some host time, in ns over the whole trace."""

    cost_ns: int
    """Upper bound of what is saved without it: where an accelerator's work was recorded its idle time from there to
    the next work, and the time of what was launched there while nothing else ran; else the host time."""
    host_ns: int
    visits: int
    syncs: int
    """Times the host waited in it for a value."""
    sync_wait_ns: int
    """Of waiting calls; 0 without an accelerator."""
    on_device: bool


def compiling(trace: Trace) -> Intervals:
    """When the log says that something was compiled, on the trace's clock."""
    log = trace.compile_log
    return compile_spans(trace, log.compiles if log is not None else ())


def steady_ns(trace: Trace) -> int:
    """``whole_ns`` without compiling in the recorded steps: what a cost of every step is a share of.

    A step that compiles lasts as long as a thousand others; that is other rules' cost and hides no other.
    """
    steps, busy = trace.fact(step_windows), trace.fact(compiling)
    inside = int(covered(busy, steps.starts, steps.ends).sum()) if steps.count else 0
    return max(0, whole_ns(trace) - inside)


def eager_cost(trace: Trace, windows: Sequence[Window]) -> EagerCost:
    """The cost of some windows. Windows may touch but not overlap on one thread; compiling in them is left out."""
    visits = len(windows)
    windows = _without_compiling(trace, windows)
    host = union([one.start_ns for one in windows], [one.end_ns for one in windows])
    on_device = "device_work" in trace.recorded
    host_ns = sum(one.end_ns - one.start_ns for one in windows)
    syncs, waited = _syncs(trace, windows, on_device=on_device)
    return EagerCost(
        cost_ns=_device_ns(trace, windows) if on_device else host.total(),
        host_ns=host_ns,
        visits=visits,
        syncs=syncs,
        sync_wait_ns=waited,
        on_device=on_device,
    )


def _without_compiling(trace: Trace, windows: Sequence[Window]) -> list[Window]:
    """The windows cut where something is compiled: the first run of what follows a break compiles it."""
    busy = trace.fact(compiling)
    found = []
    for one in windows:
        free = complement(busy, one.start_ns, one.end_ns)
        for start, end in zip(free.starts.tolist(), free.ends.tolist(), strict=True):
            found.append(Window(thread=one.thread, start_ns=start, end_ns=end))
    return found


def _device_ns(trace: Trace, windows: Sequence[Window]) -> int:
    """Of the device that loses most: what it idles for the windows, and their work while nothing else runs."""
    calls = trace.rows["calls"]
    launching = np.isin(calls["kind"], _LAUNCHING)
    inside = np.flatnonzero(_inside(windows, calls["thread"], calls["start_ns"]) & launching)
    waiting = trace.fact(blocking_calls)
    waits = np.sort(calls["start_ns"][waiting])
    worst = 0
    for device, busy in trace.fact(device_busy).items():
        lost = _idle_for(trace, device, busy, windows, waits)
        for table in ("kernels", "copies"):
            work = trace.rows[table]
            mine = (work["device"] == device) & np.isin(work["call"], inside)
            lost += time_of(trace, table, np.flatnonzero(mine)).exposed_ns
        worst = max(worst, lost)
    return worst


def _idle_for(trace: Trace, device: int, busy: Intervals, windows: Sequence[Window], waits: Int64) -> int:
    """Idle time from each window to the work that is launched first behind it; the moments of two windows once.

    A window in which the host waits for the device lets its queue run dry: all of it. Otherwise the host is late by
    no more than the window is long.
    """
    if not len(busy.starts):
        return 0
    idle = complement(busy, int(busy.starts[0]), int(busy.ends[-1]))
    launched, began = _launches(trace, device)
    total, reached = 0, 0
    for one in sorted(windows, key=lambda one: one.start_ns):
        behind = int(np.searchsorted(launched, one.end_ns))
        until = int(began[behind]) if behind < len(began) else one.end_ns
        begin = max(one.start_ns, reached)
        if until <= begin:
            continue
        lost = int(covered(idle, [begin], [until])[0])
        syncs = np.searchsorted(waits, one.end_ns) > np.searchsorted(waits, one.start_ns)
        total += lost if syncs else min(lost, one.end_ns - one.start_ns)
        reached = until
    return total


def _launches(trace: Trace, device: int) -> tuple[Int64, Int64]:
    """When each piece of work of a device was launched, ascending, and when it began."""
    launched, began = [], []
    for table in ("kernels", "copies"):
        work = trace.rows[table]
        rows = np.flatnonzero((work["device"] == device) & (work["call"] >= 0))
        launched.append(trace.rows["calls"]["start_ns"][work["call"][rows]])
        began.append(work["start_ns"][rows])
    times, starts = np.concatenate(launched), np.concatenate(began)
    order = np.argsort(times, kind="stable")
    return times[order], starts[order]


def _syncs(trace: Trace, windows: Sequence[Window], *, on_device: bool) -> tuple[int, int]:
    if on_device:
        calls, rows = trace.rows["calls"], trace.fact(blocking_calls)
        mine = rows[_inside(windows, calls["thread"][rows], calls["start_ns"][rows])]
        return len(mine), int((calls["end_ns"][mine] - calls["start_ns"][mine]).sum())
    slices = trace.rows["slices"]
    names = [code for code, text in enumerate(trace.strings) if text in HOST_READS]
    reads = np.flatnonzero((slices["kind"] == SliceKind.OP) & np.isin(slices["name"], names))
    return int(_inside(windows, slices["thread"][reads], slices["start_ns"][reads]).sum()), 0


def _inside(windows: Sequence[Window], threads: Int64, times: Int64) -> np.ndarray:
    """Mask: begins in one of the windows, on its thread."""
    found = np.zeros(len(times), bool)
    for thread in {one.thread for one in windows}:
        begun = sorted((one.start_ns, one.end_ns) for one in windows if one.thread == thread)
        starts, ends = (np.array(part, np.int64) for part in zip(*begun, strict=True))
        place = np.searchsorted(starts, times, side="right") - 1
        found |= (threads == thread) & (place >= 0) & (times < ends[np.maximum(place, 0)])
    return found


# What to do about time spent compiling, by what dominates it and by torch's reason for not caching.


MIN_REPEATED = 0.5
"""Of a graph's nodes: compiling its repeated block once halves the work behind tracing."""

_KEEP = (
    "Keep inductor's cache between starts: set TORCHINDUCTOR_CACHE_DIR to a folder that outlives the process, or ship "
    "one run's: artifacts, _ = torch.compiler.save_cache_artifacts() after the first steps, and "
    "torch.compiler.load_cache_artifacts(artifacts) before the first compiled call."
)
_ASK = (
    "No cache was asked: take TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 out of the environment and leave "
    "TORCHINDUCTOR_FX_GRAPH_CACHE at 1. "
)
_BY_STAGE = {
    Stage.TUNING: ' Autotuning dominates: compile with mode="default" while developing, max-autotune for the last run.',
    Stage.KERNELS: " Building kernels dominates: raise TORCHINDUCTOR_COMPILE_THREADS to the free cores of the host.",
}

_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"context_fn does not have a cache_hash"),
        "Give the context_fn of selective checkpointing an attribute `cache_hash` (a string that changes with the "
        "policy).",
    ),
    (
        re.compile(r"without uuid\(\) method|uuid\(\) returned None"),
        "Wrap the solver or estimator in the class that torch names and return a fixed uuid() from it.",
    ),
    (
        re.compile(r"[Uu]nsupported call_(function|method)"),
        "AOT autograd's cache takes only ops that it knows to be pure. Let the function that torch names stand outside "
        "the compiled region, register it as torch.library.custom_op, or update torch: each version takes more.",
    ),
    (re.compile(r"freezing"), "Frozen weights are part of the code: compile without torch._inductor.config.freezing."),
    (
        re.compile(r"FX graph cache is not enabled"),
        "AOT autograd's cache needs inductor's: leave TORCHINDUCTOR_FX_GRAPH_CACHE at 1.",
    ),
    (
        re.compile(r"custom.*pass|without uuid", re.IGNORECASE),
        "Derive the custom pass from torch._inductor.custom_graph_pass.CustomGraphPass and return a uuid() for it.",
    ),
)


def cold_advice(stage: Stage | None, repeated: float, *, asked: bool) -> str:
    """Advice on a cold start that ``stage`` dominates (``None``: not known).

    ``repeated``: part of the graphs' nodes that a repeated block makes again. ``asked``: a cache was asked at all.
    """
    advice = _KEEP if asked else _ASK + _KEEP
    if repeated >= MIN_REPEATED:
        advice += (
            f" {100 * repeated:.0f}% of the graphs' ops are a block made again: compile it once with `for layer in "
            "model.layers: layer.compile()`, or mark its forward with torch.compiler.nested_compile_region."
        )
    return advice + (_BY_STAGE.get(stage, "") if stage is not None else "")


def bypass_advice(reason: str) -> str:
    """What makes a compilation cacheable that was refused with ``reason``."""
    known = next((advice for pattern, advice in _REASONS if pattern.search(reason)), None)
    return known or (
        "Take out of the compiled function what torch names as its reason; TORCH_LOGS=+torch._functorch.autograd_cache "
        "says more."
    )


# Measured time of the kernels that inductor made: on the device, or their host span where they ran on a CPU.


def compiled_kernel_times(trace: Trace) -> Mapping[int, int]:
    """Index in ``CompileLog.kernels`` -> ns in the whole recording; those that did not run in it are not in it.

    Kernels of a device are summed, side by side or not. On a CPU the span of a kernel or library call is its time.
    """
    rows = trace.fact(compiled_rows)
    if not rows:
        return {}
    slices, kernels = trace.rows["slices"], trace.rows["kernels"]
    spent: dict[int, int] = defaultdict(int)
    if len(kernels):
        joined = np.zeros(len(slices), np.bool_)
        joined[list(rows)] = True
        launching = nearest_ancestor(trace, kernels["op"], joined)
        for row, time in zip(launching.tolist(), (kernels["end_ns"] - kernels["start_ns"]).tolist(), strict=True):
            if row != MISSING:
                spent[rows[row]] += time
        return spent
    for row, index in rows.items():
        spent[index] += int(slices["end_ns"][row] - slices["start_ns"][row])
    return spent
