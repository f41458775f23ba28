"""Steps of JAX programs that are one call of a compiled function each, with less work than dispatch time.

The time of a step without a profiler is compared with the time in which the instructions of its program ran. Sampled
stacks show that the rest is the call: most of them are at the calling line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.samples import free_samples, sampled_lines
from perfscope.analyzers.time.steps import step_windows
from perfscope.analyzers.time.whole_run.cores import core_wait_share
from perfscope.model.finding import Where
from perfscope.model.intervals import union
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import HloModule, Shape

SHORT_NS = 1_000_000
"""Maximum duration of a step without a profiler: dispatching a call takes 10 to 100 us, longer steps do something else.
"""

HALF = 0.5
"""Largest share of the step with running instructions, and smallest share of stacks at the calling line."""

LEAST_CALLS = 20
"""Minimum number of steps of the run: a few short calls are not a loop."""


class SmallCall(Struct, frozen=True, kw_only=True):
    """A compiled function whose call takes longer than its work."""

    function: str
    where: Where
    """The line that calls it."""
    step_ns: int
    """Duration of one call without a profiler, without waiting for a core."""
    work_ns: int
    """Part of it in which instructions run."""
    calls: int
    """Number of calls in the run."""
    independent: bool
    """Whether no result has the type of an argument, so that no call can use the previous result."""


def small_call(trace: Trace) -> SmallCall | None:
    """Return the function; ``None`` if steps are not such calls. A fact of the trace."""
    if not trace.hlo:
        return None
    from perfscope.analyzers.hlo import call_line, executions

    ran, calls = trace.fact(executions), len(trace.rows["run_steps"])
    steps = trace.fact(step_windows).count
    if trace.window_ns is None or not steps or calls < LEAST_CALLS or len(ran) != 1:
        return None
    ((index, runs),) = ran.items()
    bare = trace.window_ns / trace.window_steps * (1 - (trace.fact(core_wait_share) or 0.0))
    ops, module = trace.rows["hlo_ops"], trace.hlo[index]
    work = union(ops["start_ns"], ops["end_ns"]).total() / runs.rounds
    where = call_line(trace, module.name)
    if bare > SHORT_NS or work > HALF * bare or round(runs.rounds) > steps or where is None:
        return None
    lines = sampled_lines(trace, free_samples(trace, trace.fact(main_thread)))
    share = sum(line.share for line in lines if (line.site.file, line.site.line) == (where.file, where.line))
    if share <= HALF:
        return None
    return SmallCall(
        function=module.name.removeprefix("jit_"), where=where, step_ns=round(bare), work_ns=round(work), calls=calls,
        independent=_independent(module),
    )  # fmt: skip


def _independent(module: HloModule) -> bool:
    entry = module.entry_computation()
    arguments = [each for one in entry.instructions if one.opcode == "parameter" for each in _arrays(one.shape)]
    return set(arguments).isdisjoint(_arrays(entry.root.shape))


def _arrays(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    if not shape.parts:
        yield shape.dtype, shape.dims
    for part in shape.parts:
        yield from _arrays(part)
