"""A JAX program dispatches the operations of a step one by one: it jits nothing, or not the whole step.

Example:
    Before::

        for batch in loader:
            state = train_step(state, batch)    # each operation is dispatched by itself

    After::

        step = jax.jit(train_step)
        for batch in loader:
            state = step(state, batch)

Why it costs:
    Outside of `jax.jit` every operation is a separate program: Python looks it up, checks its arguments and dispatches
    it, in some ten microseconds on a fast host and longer for indexing. The device computes for a fraction of that, and
    nothing is fused.

How it is found:
    `perfscope run` counts jax operations outside of jitted functions. If a program calls no jitted function twice, the
    steps are iterations of the loop with these operations, and the function that the loop calls is the one to jit. If a
    jitted function makes the steps, the operations are counted per step, with the function or line that calls most of
    them: an optimizer outside of the jitted gradient, metrics of each batch. The cost is measured: the time of the host
    between and around these operations in the recorded steps, without waiting for a core and compiling.

Fix:
    Jit the function that the loop calls::

        @jax.jit
        def step(grid, f):
            ...

    Loops over elements inside of it become `jax.lax.fori_loop` or `jax.lax.scan`, or one operation on whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.examined import host_records
from perfscope.analyzers.time.account import step_accounts
from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.samples import free_samples
from perfscope.analyzers.time.steps import step_windows, timed_cost
from perfscope.analyzers.time.unjitted import single_operations
from perfscope.analyzers.time.untraced import trace_step_time
from perfscope.model.documents.causes import Cause
from perfscope.model.documents.run import ProgramFact
from perfscope.model.finding import Finding, Where, fit_title
from perfscope.model.trace import MISSING, Trace

MIN_SHARE = 0.1
"""Smallest share of the steps: if the operations take nine tenths, one program would save little."""

LEAST_SAMPLES = 10
"""Stacks of steps without a profiler: fewer give no share."""

_DISPATCH: tuple[Cause, ...] = ("other_host", "launch")
"""Causes of the account that contain the dispatch of an operation."""

examined = host_records


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for a program whose steps dispatch many operations one by one."""
    found, accounts = trace.fact(single_operations), trace.fact(step_accounts)
    if found is None or not accounts:
        return
    account = max(accounts, key=lambda one: sum(one.total_ns[cause] for cause in _DISPATCH))
    cost = sum(account.total_ns[cause] for cause in _DISPATCH)
    if found.steps == "jitted":  # the jitted call is dispatched too
        cost = cost * found.fact.count // (found.fact.count + 1)
    worked = account.whole_ns - account.total_ns["core_wait"]
    share = _sampled_share(trace, found.fact) if found.steps == "jitted" else None
    if share is not None:  # operations cost more or less than the jitted call; the stacks tell
        cost = min(cost, round(share * worked))
    if cost < MIN_SHARE * worked or not cost:
        return
    covers: dict[str, int] = {cause: account.total_ns[cause] for cause in _DISPATCH}
    make = _unjitted if found.steps == "unjitted" else _outside_jitted
    finding = replace(make(trace, found.fact), covers_ns=covers, **timed_cost(trace, cost, account.whole_ns))
    bare = trace_step_time(trace)
    if bare is not None and bare.of != "profiled":  # a profiler lengthens all of it equally
        finding = replace(finding, untraced_ns_per_step=round(bare.ns * cost / worked))
    yield finding


def _sampled_share(trace: Trace, fact: ProgramFact) -> float | None:
    """Share of the steps in which the function with most of the operations was running, by stacks without a profiler.

    ``None``: the function is unknown, or fewer than ``LEAST_SAMPLES`` stacks were sampled.
    """
    rows = free_samples(trace, trace.fact(main_thread))
    if not fact.value or len(rows) < LEAST_SAMPLES:
        return None
    frames = trace.rows["frames"]
    inside = np.array([trace.text(int(code)) == fact.value for code in frames["name"]], bool)
    name = (fact.file or "").rpartition("/")[2]
    inside &= np.array([trace.text(int(file)).rpartition("/")[2] == name for file in frames["file"]], bool)
    for row, parent in enumerate(frames["parent"].tolist()):
        inside[row] |= MISSING < parent < row and inside[parent]
    samples = trace.rows["samples"]
    lasts, frame = samples["lasts_ns"][rows], samples["frame"][rows]
    return float(lasts[(frame != MISSING) & inside[frame]].sum() / max(1, lasts.sum()))


def _unjitted(trace: Trace, fact: ProgramFact) -> Finding:
    """Return a finding about a program that jits nothing."""
    executions = len(set(trace.rows["hlo_ops"]["run_id"].tolist()))
    steps = max(1, trace.fact(step_windows).count)
    often = f"{round(executions / steps):,} single operations per step" if executions > steps else "single operations"
    inside = f" in {fact.value}" if fact.value else ""
    what = (
        f"decorate {fact.value} with @jax.jit"
        if fact.value
        else "move the body of this loop into a function, and decorate it with @jax.jit"
    )
    return Finding(
        subject=f"nothing is jitted{inside}",
        title=fit_title(f"nothing is jitted: {often}{inside}", fact.value or often),
        detail=f"jax ran {fact.count:,} single operations in the run; the host dispatches each as a program.",
        severity="medium",
        basis="measured",
        where=Where(file=fact.file, line=fact.line),
        evidence=({"function": fact.value or None, "operations": fact.count},),
        advice=f"Jit the step: {what}. Turn loops over elements inside of it into jax.lax.fori_loop, jax.lax.scan or "
        "operations on whole arrays, or the program contains them unrolled.",
    )


def _outside_jitted(trace: Trace, fact: ProgramFact) -> Finding:
    """Return a finding about operations next to a jitted function that makes the steps."""
    inside = f", most in {fact.value}" if fact.value else ""
    what = f"the operations of {fact.value}" if fact.value else "the operations of this line"
    return Finding(
        subject="operations outside of jit",
        title=fit_title(
            f"{fact.count:,} single operations per step outside of jax.jit{inside}", fact.value or "jax.jit"
        ),
        detail="Each is a separate program that the host dispatches, and nothing is fused.",
        severity="medium",
        basis="measured",
        where=Where(file=fact.file, line=fact.line),
        evidence=({"function": fact.value or None, "operations_per_step": fact.count},),
        advice=f"Put {what} in one function with @jax.jit, at best the step's own; where they prepare data, use numpy. "
        "Numbers that change in each step, such as a step count, are passed as arrays.",
    )
