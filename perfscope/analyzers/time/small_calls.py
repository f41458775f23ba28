"""Steps of JAX programs that are one call of a compiled function each, shorter than what dispatching the call costs.

The time of a step without a profiler is held against the time in which the instructions of its program ran. That the
rest is the call, and no work of the program, is shown by sampled stacks: most of them are at the line that calls.
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
    from perfscope.analyzers.hlo.module import HloModule, Shape

SHORT_NS = 1_000_000
"""Of a step without a profiler: dispatching a call takes 10 to 100 us, what lasts longer is something else."""

HALF = 0.5
"""Of the step, in which instructions run, and of the stacks that are at the line of the call."""

LEAST_CALLS = 20
"""Steps of the run: a few short calls are no loop to save."""


class SmallCall(Struct, frozen=True, kw_only=True):
    """A compiled function whose call takes longer than its work."""

    function: str
    where: Where
    """The line that calls it."""
    step_ns: int
    """One call without a profiler, without waiting for a core."""
    work_ns: int
    """Of it the time in which instructions run."""
    calls: int
    """In the run."""
    independent: bool
    """No result has the type of an argument: no call can take what the one before it returned."""


def small_call(trace: Trace) -> SmallCall | None:
    """The function; ``None`` where steps are no such calls. A fact of the trace."""
    if not trace.hlo:
        return None
    from perfscope.analyzers.hlo.executions import executions
    from perfscope.analyzers.hlo.program import call_line

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
