"""A mode for finding errors is on: it slows every op of the program.

Example:
    Before::

        torch.autograd.set_detect_anomaly(True)
        for batch in loader:
            train_step(batch)

    After::

        for batch in loader:
            train_step(batch)

Why it costs:
    Anomaly mode of autograd keeps a Python stack of each op of the forward pass, and in the backward pass checks each
    result for NaN, which reads it on the host. The device waits after every node of the graph.
    `CUDA_LAUNCH_BLOCKING=1` makes the host wait for every kernel. Deterministic algorithms fill all new memory.

How it is found:
    Anomaly mode by its checks: `aten::isnan` on the results of at least half of the autograd nodes. The cost is the
    time of the checks in the recorded steps, and of the stacks, which `perfscope run` times without a profiler; it
    also records the line that turns the mode on. Variables of the environment are those of the run; the cost of
    blocking launches is the time in which the device idles. Filled memory is timed by the `fill_` inside of `empty`.
    Distributions of torch check their parameters when they are made, and values when a probability is computed: the op
    graph marks these ops, and their cost is the time from the first to the last op of each check; with an accelerator,
    the device time of the ops.
    While anomaly mode is on or jit is disabled, rules that would describe the consequences are not evaluated:
    `host_sync`, `host_bound`, `launch_bound`, `small_kernels`, `unfused_ops`, `unexplained_idle`.

    JAX: `perfscope run` records which switches of its configuration are on (`jax_debug_nans`, `jax_debug_infs`,
    `jax_disable_jit`, `jax_check_tracer_leaks`, `jax_enable_checks`), where they were set, and the lines whose Pallas
    kernels are interpreted. The cost of an interpreted kernel is the time of the loops of that line, measured; that of
    `jax_disable_jit` is the time in which the host dispatches and compiles single operations, measured too.

Fix:
    Turn it on for the step that fails, and only there::

        with torch.autograd.detect_anomaly():
            loss.backward()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops.anomaly import anomaly_mode
from perfscope.analyzers.ops.graph_time import graph_time, ops_time
from perfscope.analyzers.time import (
    UNCHECKED,
    call_site,
    jax_debugging,
    step_accounts,
    time_with_core,
    timed_cost,
    whole_ns,
)
from perfscope.model.finding import MOST_ROWS, Finding, Where
from perfscope.model.intervals import merge, union
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.ops.graph_time import GraphTime
    from perfscope.model.documents.causes import Cause
    from perfscope.model.documents.run import ProgramFact

LEAST_SHARE = 0.01
"""Smallest share of the step; less is within the variation between steps."""

examined = op_records

_STACKS = " Each op of the forward pass keeps a Python stack ({count:,} per step)."


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per mode that costs time."""
    yield from _anomaly(trace)
    yield from _blocking_launches(trace)
    yield from _filled_memory(trace)
    yield from _argument_checks(trace)
    if trace.hlo or trace.compile_events:
        debugging = trace.fact(jax_debugging)
        yield from _interpreted(trace)
        for fact in debugging.switches:
            yield _jit_disabled(trace, fact) if fact is debugging.disable_jit else _switch(fact)


def _interpreted(trace: Trace) -> Iterator[Finding]:
    whole = whole_ns(trace)
    for kernel in trace.fact(jax_debugging).kernels:
        spent = kernel.spans.total()
        on_cpu = all(module.platform == "cpu" for module in trace.hlo)
        yield Finding(
            subject="interpreted Pallas kernel",
            title=f"a Pallas kernel runs in interpret mode: {kernel.calls:,} call{'' if kernel.calls == 1 else 's'}",
            detail="Each block of its grid is a turn of a loop of ordinary operations; no kernel is compiled."
            + (" Pallas has no compiler for CPUs: there it is always interpreted." if on_cpu else ""),
            **timed_cost(trace, spent, whole)
            if spent >= LEAST_SHARE * whole > 0
            else {"severity": "medium", "basis": "structural"},
            where=kernel.where,
            evidence=({"calls": kernel.calls, "time_ns": spent},),
            advice="Take interpret=True out of pl.pallas_call; where the program also runs on a CPU, "
            'interpret=jax.default_backend() == "cpu".',
        )


def _switch(fact: ProgramFact) -> Finding:
    return Finding(
        subject=f"{fact.name} is on",
        title=f"{fact.name} is on: {_SWITCHES[fact.name]}",
        severity="medium",
        basis="structural",
        where=Where(file=fact.file, line=fact.line),
        advice=f'Turn it off: jax.config.update("{fact.name}", False), or unset {fact.name.upper()}. It is for finding '
        "errors.",
    )


def _jit_disabled(trace: Trace, fact: ProgramFact) -> Finding:
    """Return a finding about the switch, with the host's time between operations and for compiling each of them."""
    finding, accounts = _switch(fact), trace.fact(step_accounts)
    if not accounts:
        return finding
    account = max(accounts, key=lambda one: sum(one.total_ns[cause] for cause in _OF_SINGLE_OPERATIONS))
    covers = {cause: account.total_ns[cause] for cause in _OF_SINGLE_OPERATIONS}
    cost = sum(covers.values())
    if cost < LEAST_SHARE * account.whole_ns or not cost:
        return finding
    return replace(finding, covers_ns=covers, **timed_cost(trace, cost, account.whole_ns))


_OF_SINGLE_OPERATIONS: tuple[Cause, ...] = ("compilation", "launch", "other_host")
_SWITCHES = {
    "jax_disable_jit": "nothing is compiled, each operation runs by itself",
    "jax_debug_nans": "every result of a jitted call is read and checked",
    "jax_debug_infs": "every result of a jitted call is read and checked",
    "jax_check_tracer_leaks": "functions are traced anew in each call",
    "jax_enable_checks": "jax checks its own work",
}


def _anomaly(trace: Trace) -> Iterator[Finding]:
    anomaly, whole = trace.fact(anomaly_mode), whole_ns(trace)
    if anomaly is None:
        return
    yield Finding(
        subject="anomaly mode",
        title=f"anomaly mode of autograd is on: {anomaly.checks:,} checks for NaN per step",
        detail="The host reads the result of each node of the backward pass."
        + _STACKS.format(count=anomaly.stacks)
        + ("" if anomaly.stack_ns is not None else " The time of these stacks is not known and not in the cost."),
        **timed_cost(trace, min(anomaly.cost_ns, whole), whole),
        where=anomaly.where,
        evidence=(
            {"what": "checks for NaN", "per_step": anomaly.checks, "time_ns": anomaly.check_ns},
            {"what": "Python stacks", "per_step": anomaly.stacks, "time_ns": anomaly.stack_ns},
        ),
        advice="Turn anomaly mode off here: remove `set_detect_anomaly(True)` or `detect_anomaly()`. It is for finding "
        "the op that makes a NaN, and slows every op.",
    )


def _blocking_launches(trace: Trace) -> Iterator[Finding]:
    if _setting(trace, "cuda_launch_blocking") is None or "device_work" not in trace.recorded:
        return
    whole = whole_ns(trace)
    idle = max((account.whole_ns - account.busy_ns for account in trace.fact(step_accounts)), default=0)
    if idle < LEAST_SHARE * whole:
        return
    yield Finding(
        subject="blocking launches",
        title="CUDA_LAUNCH_BLOCKING is set: the host waits for every kernel",
        detail="The next kernel is launched when the one before has ended, so the device idles between them.",
        **timed_cost(trace, idle, whole),
        where=Where(),
        evidence=({"what": "idle device", "time_ns": idle},),
        advice="Unset CUDA_LAUNCH_BLOCKING; it is for finding the line of a kernel that fails.",
    )


def _filled_memory(trace: Trace) -> Iterator[Finding]:
    if _setting(trace, "deterministic_algorithms") != "true":
        return
    slices = trace.rows["slices"]
    fills = [code for code, text in enumerate(trace.strings) if text == "aten::fill_"]
    makes = [code for code, text in enumerate(trace.strings) if text.startswith(("aten::empty", "aten::resize_"))]
    parents = slices["parent"]
    below = (parents != MISSING) & np.isin(slices["name"][np.maximum(parents, 0)], makes)
    rows = np.flatnonzero(below & np.isin(slices["name"], fills))
    cost, whole = int((slices["end_ns"][rows] - slices["start_ns"][rows]).sum()), whole_ns(trace)
    if cost < LEAST_SHARE * whole:
        return
    longest = call_site(trace, int(rows[np.argmax(slices["end_ns"][rows] - slices["start_ns"][rows])]))
    yield Finding(
        subject="filled memory",
        title=f"deterministic mode fills new memory: {len(rows):,} times",
        detail="torch.use_deterministic_algorithms fills each tensor of torch.empty with a fixed value.",
        **timed_cost(trace, cost, whole),
        where=longest.where("aten::fill_"),
        evidence=({"what": "fill_", "count": len(rows), "time_ns": cost},),
        advice="Set torch.utils.deterministic.fill_uninitialized_memory = False; algorithms stay deterministic.",
    )


def _argument_checks(trace: Trace) -> Iterator[Finding]:
    graph, place = trace.op_graph, trace.fact(graph_time)
    ops = [op for op in graph.ops if op.checks and not op.view] if graph is not None else []
    whole = whole_ns(trace)
    if not ops or not place.known:
        return
    cost = _time_of_checks(trace, place, [op.index for op in ops])
    waited = max((account.total_ns["core_wait"] for account in trace.fact(step_accounts)), default=0)
    if cost < LEAST_SHARE * (whole - waited):
        return
    (file, line), _ = Counter((op.file, op.line) for op in ops).most_common(1)[0]
    by_line = Counter((Where(file=op.file, line=op.line).label(), op.host_read is not None) for op in ops)
    yield Finding(
        subject="checks of distributions",
        title=f"torch.distributions checks its arguments: {len(ops):,} ops per step",
        detail="Parameters are checked when a distribution is made, and values when a probability is computed. Each "
        "check reads its result on the host.",
        **timed_cost(trace, cost, whole),
        where=Where(file=file, line=line),
        evidence=tuple(
            {"line": label, "ops_per_step": count, "reads_on_the_host": reads}
            for (label, reads), count in by_line.most_common(MOST_ROWS)
        ),
        advice=UNCHECKED,
    )


def _time_of_checks(trace: Trace, place: GraphTime, ops: list[int]) -> int:
    """Return the time of these ops of the graph in all matched steps, with what the host does between them, ns."""
    if place.on_device:
        time = ops_time(trace, ops)
        return 0 if time is None else time.exposed_ns * len(place.spans)
    slices, checks = trace.rows["slices"], np.zeros(len(place.spans[0]), bool)
    checks[ops] = True
    spans = []
    for step in place.spans:
        known = np.flatnonzero(step != MISSING)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], checks[known], [False])).astype(np.int8)))
        first, last = known[edges[::2]], known[edges[1::2] - 1]
        spans.append(union(slices["start_ns"][step[first]], slices["end_ns"][step[last]]))
    return time_with_core(trace, merge(*spans))


def _setting(trace: Trace, name: str) -> str | None:
    return next((fact.value for fact in trace.program_facts if fact.name == name), None)
