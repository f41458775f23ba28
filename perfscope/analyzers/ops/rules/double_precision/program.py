"""Instructions of compiled XLA programs in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from perfscope.analyzers.hlo import (
    PRODUCTS,
    Computation,
    HloModule,
    Instruction,
    Shape,
    executions_of,
    fused,
    launched,
    rows_of,
    where_of,
)
from perfscope.analyzers.ops.rules.double_precision import HALF, LEAST_SHARE
from perfscope.analyzers.spans import worst_spans
from perfscope.analyzers.time import step_windows, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Where
from perfscope.model.intervals import Int64, union
from perfscope.model.trace import Trace

X64 = "jax_enable_x64"
"""Name of the fact that jax makes float64 numbers."""

DOUBLES = frozenset({"f64", "c128"})


class _Wide(Struct, frozen=True, kw_only=True):
    """An instruction with float64 operands or results."""

    instruction: Instruction
    program: str
    rows: Int64
    """Rows of ``hlo_ops``."""
    time_ns: int
    products: float
    """Number of matrix products in it, times its program's executions."""


def program_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for all float64 instructions of the programs that ran."""
    ops, whole = trace.rows["hlo_ops"], whole_ns(trace)
    if not len(ops):
        raise AbstainError("no instruction of a compiled program is in the recording", ("device_work",))
    found = sorted((wide for module in trace.hlo for wide in _wide(trace, module)), key=lambda wide: -wide.time_ns)
    if not found:
        return
    rows = np.concatenate([wide.rows for wide in found])
    starts, ends = ops["start_ns"][rows], ops["end_ns"][rows]
    cost = round(HALF * union(starts, ends).total())
    if cost < LEAST_SHARE * whole or not cost:
        return
    steps = max(1, trace.fact(step_windows).count)
    products = round(sum(wide.products for wide in found) / steps)
    count = products or len(found)
    what = "matrix product" if products else "instruction"
    where, why = _entrance(trace, found[0])
    yield Finding(
        subject="float64",
        title=f"{count:,} {what}{'s' if count != 1 else ''}{' per step' if products else ''} in float64",
        detail=why,
        **timed_cost(trace, cost, whole, "modelled"),
        where=where,
        evidence=tuple(
            {
                "instruction": wide.instruction.name,
                "at": where_of(wide.instruction).label(),
                "program": wide.program,
                "time_ns": wide.time_ns,
            }
            for wide in found[:MOST_ROWS]
        ),
        spans=worst_spans(starts, ends, ends - starts),
        advice="Use float32 unless the result needs 53 bits: leave jax_enable_x64 off. If a part of the program "
        "needs it, give the other arrays their dtype, jnp.zeros(shape, jnp.float32).",
    )


def _wide(trace: Trace, module: HloModule) -> Iterator[_Wide]:
    runs, ops = executions_of(trace, module), trace.rows["hlo_ops"]
    for computation, instruction, often in launched(module) if runs is not None else ():
        if not _is_double(computation, instruction):
            continue
        rows = rows_of(trace, module, [instruction.name])
        inside = sum(one.opcode in PRODUCTS for one in fused(module, instruction))
        if len(rows):
            yield _Wide(
                instruction=instruction,
                program=module.name,
                rows=rows,
                time_ns=int((ops["end_ns"][rows] - ops["start_ns"][rows]).sum()),
                products=inside * often.times * (runs.rounds if runs is not None else 0),
            )


def _is_double(computation: Computation, instruction: Instruction) -> bool:
    shapes = (instruction.shape, *(computation.by_name[name].shape for name in instruction.operands))
    return any(_holds(shape) for shape in shapes)


def _holds(shape: Shape) -> bool:
    return shape.dtype in DOUBLES or any(_holds(part) for part in shape.parts)


def _entrance(trace: Trace, longest: _Wide) -> tuple[Where, str]:
    """Return the line that makes float64 the default, else that of the longest instruction."""
    for fact in trace.program_facts:
        if fact.name == X64:
            return Where(file=fact.file, line=fact.line), "jax_enable_x64 is on: jax makes float64 numbers by default."
    return where_of(longest.instruction), "The line is that of the float64 instruction with most time."
