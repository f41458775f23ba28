"""A compiled program calls Python on the host.

Why it costs: `jax.debug.print`, `jax.debug.callback`, `jax.pure_callback` and `io_callback` inside a jitted function
make XLA stop at one instruction, copy its operands to the host, wait for the interpreter's lock and run Python. Nothing
is fused across it, an accelerator waits, and inside `jax.lax.scan` or `while_loop` it happens in every turn.

How it is found: custom calls of the compiled programs whose target is JAX's Python callback, by line. Where the
recording has them, their time is measured, and a line with less than 1 % of the step is left out; else it is
structural: how often one run of the program calls. On TPU callbacks are transfers like others and are not found.

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

from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.program import Runs, launched, primitive, where_of
from perfscope.analyzers.ops import spans_within
from perfscope.analyzers.time import program_records, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, Cell, Finding, Where, fit_title
from perfscope.model.intervals import Int64, union
from perfscope.model.severity import MEDIUM_SHARE
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

_TARGET = re.compile(r"xla_(ffi_)?(partitioned_)?python_(cpu_|gpu_)?callback")
"""Of jax 0.6 to 0.10."""

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
    """How often one run of the program calls."""


def check(trace: Trace) -> Iterable[Finding]:
    """One finding a line, the time of its instructions where the recording has them."""
    whole = whole_ns(trace)
    for where, callbacks in _by_line(trace).items():
        rows = _rows(trace, callbacks)
        if not len(rows):
            yield _finding(trace, where, callbacks, None)
            continue
        times = union(trace.rows["hlo_ops"]["start_ns"][rows], trace.rows["hlo_ops"]["end_ns"][rows])
        if times.total() >= MEDIUM_SHARE * whole:
            yield _finding(trace, where, callbacks, rows)


def _by_line(trace: Trace) -> dict[Where, list[_Callback]]:
    found: dict[Where, list[_Callback]] = defaultdict(list)
    for module in trace.hlo:
        for _, instruction, runs in launched(module):
            if _TARGET.fullmatch(instruction.custom_call_target or ""):
                where = where_of(instruction)
                place = Where(file=where.file, line=where.line, op=primitive(instruction.op_name) or None)
                found[place].append(_Callback(module=module, instruction=instruction, runs=runs))
    return found


def _rows(trace: Trace, callbacks: Sequence[_Callback]) -> Int64:
    """Their executions, rows of ``hlo_ops``."""
    ops, codes = trace.rows["hlo_ops"], {text: code for code, text in enumerate(trace.strings)}
    mine = np.zeros(len(ops), bool)
    for callback in callbacks:
        module, name = codes.get(callback.module.name, -1), codes.get(callback.instruction.name, -1)
        mine |= (ops["module"] == module) & (ops["name"] == name)
    return np.flatnonzero(mine)


def _finding(trace: Trace, where: Where, callbacks: Sequence[_Callback], rows: Int64 | None) -> Finding:
    what = f"`{where.op or 'a callback'}`"
    looped = any(callback.runs.times > 1 or not callback.runs.exact for callback in callbacks)
    evidence: tuple[dict[str, Cell], ...] = tuple(
        {"module": callback.module.name, "instruction": callback.instruction.name, "calls_per_run": callback.runs.times}
        for callback in callbacks[:MOST_ROWS]
    )
    detail = "It runs inside a loop of the program." if looped else ""
    if rows is None:
        return Finding(
            subject="python callback",
            title=fit_title(f"{what} calls Python from a compiled program", what),
            detail=detail,
            severity="medium" if looped else "low",
            basis="structural",
            advice=_ADVICE,
            where=where,
            evidence=evidence,
        )
    ops = trace.rows["hlo_ops"]
    times = union(ops["start_ns"][rows], ops["end_ns"][rows])
    each = format_ns(int((ops["end_ns"] - ops["start_ns"])[rows].mean()))
    return Finding(
        subject="python callback",
        title=fit_title(f"{what} calls Python from a compiled program: {len(rows):,} times, {each} each", what),
        detail=detail,
        **timed_cost(trace, times.total(), whole_ns(trace)),
        advice=_ADVICE,
        where=where,
        evidence=evidence,
        spans=spans_within(trace, times),
    )
