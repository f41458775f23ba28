"""Some steps take far longer than the others, because of work that the others lack.

Example:
    Before::

        if number % 100 == 0:
            plot(model, "weights.png")

    After::

        if number % 100 == 0:
            plotting.submit(plot, copy.deepcopy(model), "weights.png")

Why it costs: drawing samples, collecting new data or logging every N steps takes its time from training.
The median step does not include it, and the traced steps rarely do, so it is easily overlooked.

How it is found: a step without a profiler is slow if it takes at least twice the median, without its time waiting for a
core. A call in its sampled stacks (`perfscope run`) counts if its share of the slow steps is ten times its share of the
other steps, so a step that other programs delayed does not count. Waiting for a device and compiling
belong to other rules. The cost is the sampled time of these calls, divided by all steps, if it is at least a tenth of
the step and at least two steps contain it. The device's work meanwhile is unknown, so the saving is an upper bound. In
JAX programs that do not read a result in their steps, only logging is judged: the host runs ahead, and its steps end
before their work does. Checkpoints belong to `checkpoint_stall`, evaluations to `eval_stall`.

Fix: do it less often, move it to another process or thread, or make it faster: step environments in worker processes,
log in another thread. To see the work of such a step, trace it: `perfscope run --steps A:B` with its number. If only
functions of a framework are known, the finding has no fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfscope.analyzers.examined import host_records
from perfscope.analyzers.time.fixes import situation, worker_starts
from perfscope.analyzers.time.host_lines import UNANIMOUS
from perfscope.analyzers.time.model_calls import generation
from perfscope.analyzers.time.samples import sampled_site
from perfscope.analyzers.time.slow_steps import (
    LEAST_SHARE,
    LEAST_STEPS,
    LOADERS,
    OwnCall,
    SlowSteps,
    frame_owners,
    frame_text,
    slow_steps,
)
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, fit_title
from perfscope.model.frames import Owner
from perfscope.model.frames.kinds import ENGINES, FrameKind
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns, ordinal

LEAST_SLOW = 2
"""Minimum number of slow steps: a single one may be the end of the program."""

LEAST_SAMPLES = 10
"""Minimum number of samples, unless all are of one line: fewer do not show which call has most of the time."""

_WRAPPER = re.compile(r"<locals>\.\w*wrap\w*$")
"""Name of a function that a decorator made, which does not name the work."""

_AHEAD = ", of a host that runs ahead of its work"

examined = host_records


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for all work that only slow steps do."""
    found = trace.fact(slow_steps)
    if not trace.step_times_ns and found is None:
        raise AbstainError("no step was timed without a profiler, or the host continues before its work is done")
    if trace.step_times_ns and len(trace.step_times_ns) < LEAST_STEPS:
        raise AbstainError(f"fewer than {LEAST_STEPS} steps were timed without a profiler")
    if found is None or found.share < LEAST_SHARE or len(found.numbers) < LEAST_SLOW:
        return
    if not _enough(trace, found) or _prompts(trace, len(found.numbers)):
        return
    whole = found.whole_ns
    cost, first = round(found.share * whole), found.calls[0]
    per_step = round(cost / found.steps)
    site = sampled_site(trace, first.frame)
    name = trace.text(int(trace.rows["frames"]["name"][first.callee]))
    if name.startswith("<") or _WRAPPER.search(name):  # <module>, <listcomp>
        name = site.where().label()
    number = found.numbers[-1]
    trace_it = f"`perfscope run --steps {number}:{number + 1} ...` traces such a step."
    happened, fix = worker_starts(trace) if FrameKind(first.kind) in LOADERS else ("", "")
    fix = fix or _fix(trace, first, name)
    yield Finding(
        subject="work of slow steps",
        title=fit_title(f"{_which(found)}: {found.share:.0%} of the time, most in {name}", name),
        detail=f"They take {format_ns(found.slow_ns)}, the others {format_ns(found.other_ns)} (medians, without a "
        f"profiler{_AHEAD if found.of_host else ''}). The traced steps do not show this work unless one of them is "
        f"such a step.{f' {happened}' if happened else ''}",
        severity=severity_of(cost, whole),
        basis="measured",
        advice=f"{fix} {trace_it}" if fix else "",
        record="" if fix else f"{trace_it[:-1]}, and shows the work that only it does.",
        cost_ns=cost,
        cost_ns_per_step=per_step,
        untraced_ns_per_step=per_step,
        where=site.where(),
        evidence=tuple(_row(trace, call, per_step / found.share) for call in found.calls[:MOST_ROWS]),
    )


def _enough(trace: Trace, found: SlowSteps) -> bool:
    """Whether the samples show which call has most of the time: many samples, or a few that are all of one line."""
    count = sum(call.samples for call in found.calls)
    lines = {sampled_site(trace, call.frame).where().label() for call in found.calls}
    return count >= LEAST_SAMPLES or (count >= UNANIMOUS and len(lines) == 1)


def _prompts(trace: Trace, slow: int) -> bool:
    """Whether the slow steps are the calls that read a prompt: they compute many tokens, the others one."""
    found = trace.fact(generation)
    return found is not None and not found.traced and 2 * len(found.prefills) >= slow


def _fix(trace: Trace, call: OwnCall, name: str) -> str:
    """Return the fix; ``''`` if only functions of a framework are known."""
    kind = FrameKind(call.kind)
    fix = "" if kind in ENGINES else trace.fact(situation).frame_fix(kind)
    if fix or trace.fact(frame_owners)[call.frame] == Owner.FRAMEWORK:
        return fix
    if name.rpartition(".")[2] == "forward":  # a model that runs in each step cannot run less often
        return ""
    return f"Run `{name}` less often, or make it faster."


def _which(found: SlowSteps) -> str:
    if found.every is not None:
        return f"every {ordinal(found.every)} step is slow"
    return f"{len(found.numbers)} of {found.steps:,} steps are slow"


def _row(trace: Trace, call: OwnCall, mean_ns: float) -> dict[str, Cell]:
    return {
        "host_was_in": frame_text(trace, call.callee),
        "site": sampled_site(trace, call.frame).where().label(),
        "time_per_step_ns": round(call.share * mean_ns),
        "share": round(call.share, 4),
        "samples": call.samples,
    }
