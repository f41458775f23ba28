"""What ``full_precision_matmul`` says of compiled XLA programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfscope.analyzers.facts.hlo_program import costs, where_of
from perfscope.analyzers.finding import AbstainError, Finding, Where
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.cost_types import Product
from perfscope.analyzers.trace import Trace

MIN_FLOPS_SHARE = 0.01
"""Of the programs' arithmetic. A full-precision product takes several times the time of the others."""

MEDIUM_FLOPS_SHARE = 0.1
"""No time is known, so nothing is called high."""

MAX_ROWS = 20

_FULL = frozenset({"highest", "dot_f32_f32_f32"})
"""What asks for full float32. ``high`` and the emulations by bfloat16 run on matrix cores."""


def program_findings(trace: Trace) -> Iterator[Finding]:
    """One finding for each element type and line that multiplies in full precision."""
    judged = [cost for cost in trace.fact(costs) if cost.module.platform in ("gpu", "tpu")]
    if not judged:
        on_cpu = any(module.platform == "cpu" for module in trace.hlo)
        raise AbstainError(
            "compiled for the CPU, which has no matrix cores to use" if on_cpu else "no compiled program to judge"
        )
    total = sum(cost.total.flops for cost in judged)
    places: dict[tuple[str, Where], list[tuple[ModuleCost, InstructionCost]]] = defaultdict(list)
    for cost in judged:
        for row in cost.rows:
            kind = _full_kind(row)
            if kind is not None:
                where = where_of(row.instruction)
                places[kind.dtype, Where(file=where.file, line=where.line)].append((cost, row))
    for (dtype, where), rows in places.items():
        if sum(row.total.flops for _, row in rows) >= MIN_FLOPS_SHARE * total:
            yield _finding(dtype, where, sorted(rows, key=lambda pair: -pair[1].total.flops), total)


def _full_kind(row: InstructionCost) -> Product | None:
    """The kind of a product that runs in full precision; None for everything else, fusions and loops included."""
    if row.place == "control" or not row.runs or row.instruction.opcode in ("fusion", "async-start"):
        return None
    kinds = (
        kind for kind in row.once.products if kind.dtype == "f64" or (kind.dtype == "f32" and kind.precision in _FULL)
    )
    return next(kinds, None)


def _finding(dtype: str, where: Where, rows: list[tuple[ModuleCost, InstructionCost]], total: int) -> Finding:
    flops = sum(row.total.flops for _, row in rows)
    name = "float64" if dtype == "f64" else "float32"
    share = flops / total if total else 0.0
    several = len(rows) > 1
    return Finding(
        subject=f"{name} matrix products",
        title=f"{len(rows):,} matrix {'products' if several else 'product'} {'run' if several else 'runs'} in full "
        f"{name}, off the fast path of the matrix cores: {flops / 1e9:,.3g} GFLOP a run, {100 * share:.1f}% of the "
        "program's arithmetic",
        severity="medium" if share >= MEDIUM_FLOPS_SHARE else "low",
        basis="structural",
        where=where,
        evidence=tuple(
            {
                "product": row.instruction.name,
                "program": cost.module.name,
                "from": row.instruction.op_name[-120:] or None,
                "asked": next(iter(row.once.products)).precision,
                "times": row.runs,
                "gflops": row.total.flops / 1e9,
                "flops_share": row.total.flops / total,
            }
            for cost, row in rows[:MAX_ROWS]
        ),
        advice="Leave float64 to the host: without jax_enable_x64, or with x.astype(jnp.float32) before the product."
        if dtype == "f64"
        else "Ask for what the model needs: precision=jax.lax.Precision.HIGH (or DEFAULT) in the product, or "
        'jax.config.update("jax_default_matmul_precision", "high") for all; bfloat16 operands are faster still.',
    )
