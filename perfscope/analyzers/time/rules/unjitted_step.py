"""A JAX program jits nothing: each operation of a step is dispatched by itself.

Why it costs:
    Outside of `jax.jit` every operation is a program of its own: Python looks it up, checks its arguments and
    dispatches it, some ten microseconds each on a fast host and more for indexing. The device computes for a fraction
    of that, and nothing is fused.

How it is found:
    `perfscope run` counts operations of jax's own that a program calls outside of jitted functions. Where it calls no
    jitted function twice, the steps are turns of the loop in which it calls them, and the function that the loop
    calls is the one to jit. The cost is the time of the host between and around these operations in the recorded
    steps, measured; waiting for a core and compiling are left out.

Fix:
    Jit the function that the loop calls::

        @jax.jit
        def step(grid, f):
            ...

    Loops over elements inside of it become `jax.lax.fori_loop` or `jax.lax.scan`, or one operation on whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.time.account import Cause, step_accounts
from perfscope.analyzers.time.jax_debugging import JIT_DISABLED, switches_on
from perfscope.analyzers.time.records import host_records
from perfscope.analyzers.time.steps import step_windows, timed_cost
from perfscope.model.finding import Finding, Where, fit_title
from perfscope.model.trace import Trace

MIN_SHARE = 0.1
"""Of the steps: where the operations themselves take nine tenths, little is left for one program to save."""

_DISPATCH: tuple[Cause, ...] = ("other_host", "launch")
"""Causes of the account that dispatching an operation is in."""

examined = host_records


def check(trace: Trace) -> Iterator[Finding]:
    """One finding for a program whose steps jit nothing."""
    fact = next((fact for fact in trace.program_facts if fact.name == "unjitted_step"), None)
    accounts = trace.fact(step_accounts)
    if fact is None or not accounts or any(one.name == JIT_DISABLED for one in switches_on(trace)):
        return  # `debug_mode` has the switch
    account = max(accounts, key=lambda one: sum(one.total_ns[cause] for cause in _DISPATCH))
    cost = sum(account.total_ns[cause] for cause in _DISPATCH)
    worked = account.whole_ns - account.total_ns["core_wait"]
    if cost < MIN_SHARE * worked or not cost:
        return
    executions = len(set(trace.rows["hlo_ops"]["run_id"].tolist()))
    steps = max(1, trace.fact(step_windows).count)
    often = f"{round(executions / steps):,} single operations per step" if executions > steps else "single operations"
    inside = f" in {fact.value}" if fact.value else ""
    what = (
        f"decorate {fact.value} with @jax.jit"
        if fact.value
        else "move the body of this loop into a function, and decorate it with @jax.jit"
    )
    yield Finding(
        subject=f"nothing is jitted{inside}",
        title=fit_title(f"nothing is jitted: {often}{inside}", fact.value or often),
        detail=f"jax ran {fact.count:,} operations of its own in the run, each as a program that the host dispatches.",
        **timed_cost(trace, cost, account.whole_ns),
        where=Where(file=fact.file, line=fact.line),
        covers_ns={cause: account.total_ns[cause] for cause in _DISPATCH},
        evidence=({"function": fact.value or None, "operations": fact.count, "host_ns": cost},),
        advice=f"Jit the step: {what}. Turn loops over elements inside of it into jax.lax.fori_loop, jax.lax.scan or "
        "operations on whole arrays, or they are written out in the program.",
    )
