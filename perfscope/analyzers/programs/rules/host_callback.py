"""A compiled program calls Python on the host.

Example:
    Before::

        @jax.jit
        def step(state, batch):
            jax.debug.print("loss {}", loss_of(state, batch))
            return update(state, batch)

    After::

        @jax.jit
        def step(state, batch):
            return update(state, batch), loss_of(state, batch)    # printed by the loop, every 100 steps

Why it costs: `jax.debug.print`, `jax.debug.callback`, `jax.pure_callback` and `io_callback` inside a jitted function
make XLA stop at one instruction, copy its operands to the host, wait for the interpreter's lock and run Python. Nothing
is fused across it, an accelerator waits, and inside `jax.lax.scan` or `while_loop` it happens in every turn.

How it is found: custom calls of the compiled programs whose target is JAX's Python callback, by line. Where the
recording has them, their time is measured, and a line with less than 1 % of the step is left out; else it is
structural: how often one run of the program calls, a call under a condition as if it were made. On TPU callbacks are
transfers like others and are not found.

Fix: return the values from the jitted function and print or log them after the call, every N steps. Inside a loop call
under a condition (`jax.lax.cond(step % 100 == 0, report, skip, value)`). Write what a `pure_callback` computes in
`jax.numpy`, or compute it before the step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.examined import program_records
from perfscope.analyzers.hlo import HloModule, Instruction, Runs, launched, primitive, rows_of, where_of
from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.time import timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, Finding, Where, fit_title
from perfscope.model.intervals import union
from perfscope.model.severity import MEDIUM_SHARE
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

_TARGET = re.compile(r"xla_(ffi_)?(partitioned_)?python_(cpu_|gpu_)?callback")
"""Targets in jax 0.6 to 0.10."""

_ADVICE = (
    "Return the values from the jitted function and print or log them after the call, every N steps. In a loop, call "
    "under `jax.lax.cond`. Write what a `pure_callback` computes in `jax.numpy`."
)

examined = program_records


class _Callback(Struct, frozen=True, kw_only=True):
    """One instruction that calls Python."""

    module: HloModule
    instruction: Instruction
    runs: Runs
    """Number of calls per run of the program."""


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line, with the time of its instructions if the recording has it."""
    ops, whole = trace.rows["hlo_ops"], whole_ns(trace)
    for where, callbacks in _by_line(trace).items():
        finding = _finding(where, callbacks)
        rows = np.concatenate([rows_of(trace, one.module, [one.instruction.name]) for one in callbacks])
        if not len(rows):
            yield finding
            continue
        starts, ends = ops["start_ns"][rows], ops["end_ns"][rows]
        times = union(starts, ends)
        if times.total() >= MEDIUM_SHARE * whole:
            each = format_ns(int((ends - starts).mean()))
            title = fit_title(f"{finding.title}: {len(rows):,} times, {each} each", where.op or "")
            yield replace(
                finding, title=title, spans=spans_within(trace, times), **timed_cost(trace, times.total(), whole)
            )


def _by_line(trace: Trace) -> dict[Where, list[_Callback]]:
    found: dict[Where, list[_Callback]] = defaultdict(list)
    for module in trace.hlo:
        for _, instruction, runs in launched(module):
            if _TARGET.fullmatch(instruction.custom_call_target or ""):
                where = where_of(instruction)
                place = Where(file=where.file, line=where.line, op=primitive(instruction.op_name) or None)
                found[place].append(_Callback(module=module, instruction=instruction, runs=runs))
    return found


def _finding(where: Where, callbacks: Sequence[_Callback]) -> Finding:
    """Return the finding without times."""
    looped = any(one.runs.times > 1 or not one.runs.exact for one in callbacks)
    return Finding(
        subject="python callback",
        title=fit_title(f"`{where.op or 'a callback'}` calls Python from a compiled program", where.op or ""),
        detail="It runs inside a loop of the program." if looped else "",
        severity="medium" if looped else "low",
        basis="structural",
        advice=_ADVICE,
        where=where,
        evidence=tuple(
            {"module": one.module.name, "instruction": one.instruction.name, "calls_per_run": one.runs.times}
            for one in callbacks[:MOST_ROWS]
        ),
    )
