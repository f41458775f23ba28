"""A ragged matrix product was compiled into a dense one: every token meets every expert.

Why it costs:
    `jax.lax.ragged_dot` multiplies each group of rows with a matrix of its own, which is what a mixture
    of experts needs: the arithmetic of one expert a token. Where XLA has no grouped kernel it copies the
    rows once for every expert, masks what does not belong to it and multiplies all of it: with 8 experts
    8 times the arithmetic, and copies of 8 times the size.

How it is found:
    In the compiled program: products one of whose factors is copied for every expert and masked by where
    each expert's rows begin and end; and products whose path ends in `ragged_dot`, where the number of
    experts is the leading dimension of the one factor that the other carries too. At the same line the
    backward products count with the same number. Wasted is the part of the arithmetic on masked rows, all
    but one of as many. A ragged product that became a kernel of its own (Pallas, a grouped library call) is
    left alone. Where the shapes do not tell the number of experts the rule abstains.

Fix:
    On TPU `jax.experimental.pallas.ops.tpu.megablox.gmm`, on Hopper and Blackwell the kernels
    `jax.experimental.pallas.ops.gpu.ragged_dot_mgpu` and `blackwell_ragged_dot_mgpu`. Without a grouped
    kernel dispatch with a capacity costs less as soon as the capacity factor is below the number of
    experts: gather `[experts, capacity, model]` and use one batched product,
    `jnp.einsum("ecd,edf->ecf", x_ECD, w_EDF)`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from perfscope.analyzers.facts.hlo_experts import DenseRagged, dense_ragged
from perfscope.analyzers.facts.hlo_program import costs, where_of
from perfscope.analyzers.finding import AbstainError, Finding, Where
from perfscope.analyzers.trace import Trace

NEEDS = ("hlo",)

MIN_FLOPS_SHARE = 0.05
"""Of the program's arithmetic, wasted at one line. No time is known; less than a twentieth is not worth a kernel."""

MEDIUM_FLOPS_SHARE = 0.1
"""No time is known, so nothing is called high."""

MAX_ROWS = 20


def check(trace: Trace) -> Iterable[Finding]:
    """One finding for each line whose ragged products became dense ones."""
    judged = trace.fact(costs)
    if not judged:
        raise AbstainError("no compiled program among the XLA programs")
    found = trace.fact(dense_ragged)
    if found and all(one.groups is None for one in found):
        raise AbstainError("ragged products became dense ones, but their shapes do not tell the number of groups")
    places: dict[Where, list[DenseRagged]] = defaultdict(list)
    for one in found:
        where = where_of(one.row.instruction)
        place = Where(file=where.file, line=where.line) if where.file is not None else Where(module=where.module)
        places[place].append(one)
    total = sum(cost.total.flops for cost in judged)
    for place, members in places.items():
        if sum(one.wasted_flops for one in members) >= MIN_FLOPS_SHARE * total:
            yield _finding(place, sorted(members, key=lambda one: -one.wasted_flops), total)


def _finding(where: Where, members: list[DenseRagged], total: int) -> Finding:
    wasted, flops = sum(one.wasted_flops for one in members), sum(one.flops for one in members)
    groups = max(one.groups or 0 for one in members)
    return Finding(
        subject="ragged product computed densely",
        title=f"{len(members):,} ragged {'product multiplies' if len(members) == 1 else 'products multiply'} every row "
        f"with all {groups:,} matrices: {flops / 1e9:,.3g} GFLOP a run where {(flops - wasted) / 1e9:,.3g} would do "
        f"({100 * wasted / total:.1f}% of the program's arithmetic)",
        severity="medium" if wasted >= MEDIUM_FLOPS_SHARE * total else "low",
        basis="structural",
        where=where,
        evidence=tuple(
            {
                "product": one.row.instruction.name,
                "program": one.cost.module.name,
                "from": one.row.instruction.op_name[-120:],
                "result": f"{one.row.instruction.shape.dtype}{list(one.row.instruction.shape.dims)}",
                "groups": one.groups,
                "times": one.row.runs,
                "gflops": one.flops / 1e9,
                "wasted_gflops": one.wasted_flops / 1e9,
            }
            for one in members[:MAX_ROWS]
        ),
        advice="Use a grouped kernel: jax.experimental.pallas.ops.tpu.megablox.gmm on TPU, the ragged_dot kernels of "
        "jax.experimental.pallas.ops.gpu on Hopper and Blackwell; or dispatch with a capacity and one batched product: "
        'jnp.einsum("ecd,edf->ecf", x_ECD, w_EDF).',
    )
