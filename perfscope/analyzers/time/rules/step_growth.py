"""Steps become longer over the run.

Example:
    Before::

        history = torch.cat([history, value])   # copies all of it in each step
        mean = history.mean()

    After::

        total += value.detach()
        mean = total / count

Why it costs: data of every step is kept and then read, copied or freed in every later one: a tensor that `torch.cat`
makes longer, a list that is summed each time, an autograd graph that reaches back to the first step. A run of ten times
as many steps then takes a hundred times as long, and the few steps that a profiler records at the beginning do not show
it.

How it is found: `perfscope run` times all steps, most of them without a profiler. They are divided into blocks, whose
medians, without the time waiting for a core, are compared with each other. The growth must be beyond chance
(Mann-Kendall's test), at least 30 % over the run, and present in both halves: a warm-up, a slow phase, one jump and
alternating lengths do not count. Stacks sampled in the first and in the last quarter of the steps show the line whose
time grew. If all lines keep their share of the step, the machine became slower; that is a finding only if a variable of
the program grew meanwhile. Text generation without a cache belongs to `recomputed_prefix`; within one generation each
new token reads all earlier ones, which is not a defect. The cost is the median step less the first ones. JAX programs
that do not read a result in their steps are not judged: their steps end before their work does.

Fix: keep less, or touch less of it. Collect parts in a list and join them once after the loop, or write into a tensor
that has its final size; add detached values (`.detach()`, `.item()`) to running sums; keep sums instead of lists that
are summed again.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.time.calls import framework
from perfscope.analyzers.time.model_calls import one_generation, recomputed_lengths
from perfscope.analyzers.time.whole_run.step_growth import (
    LEAST_STEPS,
    GrowingLine,
    GrownName,
    StepGrowth,
    free_steps,
    step_growth,
)
from perfscope.model.finding import MOST_ROWS, NOWHERE, AbstainError, Finding, Scope, Where, fit_title
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

LEAST_UNEXPLAINED = 1.5
"""Last step over first, where no line and no variable explains it: a machine that becomes slower does it too."""

NAMED_SHARE = 0.05
"""Smallest share of the growth for a line of the evidence."""

_GROWS = {"graph": "keeps the graph of every step", "array": "becomes longer", "container": "becomes longer"}


def examined(trace: Trace) -> Scope:
    """Count the steps without a profiler."""
    return Scope(len(free_steps(trace)[0]), "steps without a profiler")


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for a run whose steps become longer."""
    if not trace.step_times_ns:
        raise AbstainError("no step was timed without a profiler, or the host continues before its work is done")
    count = len(free_steps(trace)[0])
    if count < LEAST_STEPS:
        raise AbstainError(f"{count} steps were timed without a profiler: a trend needs {LEAST_STEPS}")
    found = trace.fact(step_growth)
    if found is None or (found.even and found.name is None) or recomputed_lengths(trace):
        return
    if found.name is None and found.line is None and found.last_ns < LEAST_UNEXPLAINED * found.first_ns:
        return
    if trace.fact(one_generation) and not (found.name is not None and found.name.kind == "graph"):
        return  # each new token reads all earlier keys and values; `data_movement` covers how they are kept
    cost = round(max(0.0, found.median_ns - found.first_ns))
    line, name = found.line, found.name
    first, last = format_ns(round(found.first_ns)), format_ns(round(found.last_ns))
    yield Finding(
        subject="growth of the step",
        title=fit_title(
            f"the step grows from {first} to {last}{_who(line, name)}",
            "" if name is None else name.name,
        ),
        detail=_detail(found),
        severity=severity_of(cost, round(found.median_ns)),
        basis="measured",
        cost_ns=cost * count,
        cost_ns_per_step=cost,
        untraced_ns_per_step=cost,
        where=_where(line, name),
        evidence=tuple(
            {
                "site": item.site.where().label(),
                "first_steps_ns": round(item.first_ns),
                "last_steps_ns": round(item.last_ns),
            }
            for item in found.lines[:MOST_ROWS]
            if item.last_ns - item.first_ns >= NAMED_SHARE * (found.last_ns - found.first_ns)
        ),
        advice=_advice(found, framework(trace)),
        record=f"Record a late step: `perfscope run --steps {found.until}:{found.until + 1} ...`",
    )


def _who(line: GrowingLine | None, name: GrownName | None) -> str:
    if name is not None:
        return f": `{name.name}` {_GROWS[name.kind]}"
    return "" if line is None else f": most at {line.site.where().label()}"


def _where(line: GrowingLine | None, name: GrownName | None) -> Where:
    """Return the line that makes the variable grow, else the one whose time grew."""
    if name is not None and name.line is not None:
        return name.where()
    return NOWHERE if line is None else line.site.where()


def _detail(found: StepGrowth) -> str:
    texts = [f"Of {found.steps:,} steps without a profiler, from step {found.since:,} on to step {found.until:,}."]
    if found.line is not None:
        texts.append(
            f"{found.line.site.where().label()} takes {format_ns(round(found.line.last_ns))} in the last steps and "
            f"{format_ns(round(found.line.first_ns))} in the first."
        )
    texts.append("The recorded steps are from the begin of the run and show less of it.")
    return " ".join(texts)


def _advice(found: StepGrowth, whose: str) -> str:
    name = found.name
    if name is None:
        return "" if found.line is None else "Find the growing list, tensor or graph that this line reads"
    if name.kind == "graph":
        return f"Add values to `{name.name}` without their history: `.detach()` at this line"
    if name.kind == "array":
        join = "`jnp.concatenate`" if whose == "jax" else "`torch.cat`"
        return (
            f"Do not copy all of `{name.name}` in each step: append the parts to a list and join them once after the "
            f"loop ({join}). Or write into an array of the final size"
        )
    detach = " Put detached values into it (`.detach()`)." if name.graphs else ""
    return f"Do not read all of `{name.name}` in each step: keep a running sum, or clear it.{detach}"
