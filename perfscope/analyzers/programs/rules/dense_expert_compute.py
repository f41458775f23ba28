"""Rows that belong to one expert each are multiplied with all experts, or moved to their expert by a matrix product.

Example:
    Before::

        y = jnp.einsum("td,edf,te->tf", x, w, one_hot)      # all experts for each token

    After::

        y = jax.lax.ragged_dot(x[order], w, tokens_of_expert)   # each token with its expert

Why it costs:
    `jax.lax.ragged_dot` multiplies each group of rows with its matrix, which is what a mixture of experts needs: the
    arithmetic of one expert per token. If XLA has no grouped kernel, it copies the rows once for every expert, masks
    the rows of other experts and multiplies everything: with 8 experts 8 times the arithmetic, and copies of 8 times
    the size.

    `jnp.einsum("tec,td->ecd", sent_TEC, x_TD)` with a one-hot `sent_TEC` moves rows to the experts, as GShard did on
    TPU: of E x C products for each number all but one or two are with zero. It grows with the square of the tokens and
    soon exceeds the arithmetic of the experts themselves. An embedding written as `jax.nn.one_hot(token_T, V) @
    table_VD` is the same.

How it is found:
    In the compiled program: products with a factor that is copied for every expert and masked by the limits of each
    expert's rows; and products whose path ends in `ragged_dot`, if the number of experts is the leading dimension of
    one factor and also occurs in the other. Backward products at the same line count with the same number. The
    arithmetic on masked rows is wasted, all but one of E parts. A ragged product with a separate kernel (Pallas, a
    grouped library call) is not reported. The rule abstains if the shapes do not contain the number of experts.

    Rows selected by a product: one factor is a selection, made from a comparison of positions with an index
    (`iota == index`, as in `jax.nn.one_hot`) by views, products and sums, also across fusions. At most one element
    along the compared axis is not zero; for a product of two selections the smaller share counts. The arithmetic on the
    other elements is wasted; gradients of the same line count too. Gathers, causal masks and one-hot labels that are
    multiplied element by element are not reported.

    On a GPU or TPU the saving is the roof of those kernels less that of grouped ones (of moving the rows), at most the
    measured time. A program for a CPU gets the share of the arithmetic without time.

Fix:
    On TPU `jax.experimental.pallas.ops.tpu.megablox.gmm`, on Hopper and Blackwell the kernels
    `jax.experimental.pallas.ops.gpu.ragged_dot_mgpu` and `blackwell_ragged_dot_mgpu`. Without a grouped
    kernel dispatch with a capacity costs less as soon as the capacity factor is below the number of
    experts: gather `[experts, capacity, model]` and use one batched product,
    `jnp.einsum("ecd,edf->ecf", x_ECD, w_EDF)`.

    Move rows as rows, into room of fixed size and back::

        slot_R = jnp.where(place_R < C, expert_R * C + place_R, E * C)    # overflow goes to the last
        room_SD = jnp.zeros((E * C + 1, D), x_TD.dtype).at[slot_R].add(x_TD[token_R])
        y_RD = y_SD[slot_R] * weight_R[:, None]

    and an embedding with `table_VD[token_T]`. On TPU, where gathers of short rows are slow, a one-hot product
    with a small table may be faster: measure both first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Device
from perfscope.analyzers.examined import program_records
from perfscope.analyzers.hlo import (
    Computation,
    Fusions,
    Instruction,
    InstructionCost,
    ModuleCost,
    costs,
    fusions_of,
    kernels_of,
    path_across,
    primitive,
    program_device,
    roof_of,
    where_of,
)
from perfscope.analyzers.ops import spans_of_parts
from perfscope.analyzers.programs.saving import Part, Price, price, priced
from perfscope.analyzers.programs.selection import SelectionProduct, selection_products
from perfscope.model.finding import AbstainError, Cell, Finding, Where
from perfscope.model.trace import Trace

MIN_FLOPS_SHARE = 0.05
"""Smallest share of the program's arithmetic that is wasted at one line, if no time is known; less is not worth a
kernel."""

MEDIUM_FLOPS_SHARE = 0.1
"""Where no time is known, nothing is called high."""

MAX_ROWS = 20

examined = program_records

RAGGED = ("ragged_dot", "ragged_dot_general")
"""Primitives of JAX."""


def check(trace: Trace) -> Iterable[Finding]:
    """One finding for each line whose products are ragged and became dense, or only select rows."""
    judged = trace.fact(costs)
    if not judged:
        raise AbstainError("no compiled program among the XLA programs")
    ragged = trace.fact(dense_ragged)
    total = sum(cost.total.flops for cost in judged)
    for where, members in _by_place(ragged).items():
        saving = price(trace, _parts(trace, members))
        if _is_worth(members, total, saving):
            yield _dense_finding(trace, where, members, total, saving)
    taken = {id(dense_ragged.row) for dense_ragged in ragged}
    selections = [product for product in trace.fact(selection_products) if id(product.row) not in taken]
    for where, movers in _by_place(selections).items():
        saving = price(trace, _parts(trace, movers))
        if _is_worth(movers, total, saving):
            yield _selection_finding(trace, where, movers, total, saving)
    if ragged and all(dense_ragged.groups is None for dense_ragged in ragged) and not selections:
        raise AbstainError("ragged products became dense ones, but their shapes do not tell the number of groups")


def _by_place(found: Iterable[One]) -> dict[Where, list[One]]:
    """By line, those that waste most first."""
    places: dict[Where, list[One]] = defaultdict(list)
    for member in sorted(found, key=lambda member: -member.wasted_flops):
        where = where_of(member.row.instruction)
        place = Where(file=where.file, line=where.line) if where.file is not None else Where(module=where.module)
        places[place].append(member)
    return places


def _is_worth(members: Sequence[DenseRagged | SelectionProduct], total: int, saving: Price | None) -> bool:
    if saving is None:
        return sum(member.wasted_flops for member in members) >= MIN_FLOPS_SHARE * total
    # of low severity is what a step's usual spread would hide
    return saving.cost["severity"] != "low"


def _parts(trace: Trace, members: Sequence[DenseRagged | SelectionProduct]) -> list[Part]:
    """Return the saving per kernel; a kernel with several of the products counts for the one that saves most."""
    known = trace.fact(program_device)
    holders = {id(member.cost): kernels_of(member.cost) for member in members}
    best: dict[int, tuple[float | None, InstructionCost, DenseRagged | SelectionProduct]] = {}
    for member in members:
        for kernel in holders[id(member.cost)].around(member.row):
            saved = None if known is None else member.saved_ns(kernel, known.device)
            before = best.get(id(kernel))
            if before is None or (saved or 0.0) > (before[0] or 0.0):
                best[id(kernel)] = (saved, kernel, member)
    return [
        Part(module=one.cost.module, instructions=(kernel.instruction.name,), modelled_ns=saved)
        for saved, kernel, one in best.values()
    ]


def _time(members: Sequence[DenseRagged | SelectionProduct], saving: Price | None) -> str:
    if saving is not None:
        return f"; saves up to {saving.text}"
    on_cpu = all(member.cost.module.platform == "cpu" for member in members)
    return "; compiled for a CPU here, so no time is modelled" if on_cpu else ""


def _row(member: DenseRagged | SelectionProduct, why: Mapping[str, Cell]) -> dict[str, Cell]:
    """A product as evidence; ``why``: what makes most of its arithmetic needless."""
    instruction = member.row.instruction
    return {
        "product": instruction.name,
        "program": member.cost.module.name,
        "from": instruction.op_name[-120:],
        "result": f"{instruction.shape.dtype}{list(instruction.shape.dims)}",
        **why,
        "times": member.row.runs,
        "gflops": member.flops / 1e9,
        "wasted_gflops": member.wasted_flops / 1e9,
    }


def _cost(wasted: float, total: float, saving: Price | None) -> str:
    return f": {100 * wasted / total:.1f}% of the arithmetic" if saving is None else ""


def _dense_finding(trace: Trace, where: Where, members: list[DenseRagged], total: int, saving: Price | None) -> Finding:
    wasted, flops = sum(member.wasted_flops for member in members), sum(member.flops for member in members)
    groups = max(member.groups or 0 for member in members)
    finding = Finding(
        subject="ragged product computed densely",
        title=f"{len(members):,} ragged product{'' if len(members) == 1 else 's'} computed densely"
        f"{_cost(wasted, total, saving)}",
        detail=f"Every row is multiplied with all {groups:,} matrices: {flops / 1e9:,.3g} GFLOP per run where "
        f"{(flops - wasted) / 1e9:,.3g} would do ({100 * wasted / total:.1f}% of the program's arithmetic)"
        f"{_time(members, saving)}.",
        severity="medium" if wasted >= MEDIUM_FLOPS_SHARE * total else "low",
        basis="structural",
        where=where,
        evidence=tuple(_row(member, {"groups": member.groups}) for member in members[:MAX_ROWS]),
        spans=spans_of_parts(trace, _parts(trace, members)),
        advice="Use a grouped kernel: jax.experimental.pallas.ops.tpu.megablox.gmm on TPU, ragged_dot of "
        "jax.experimental.pallas.ops.gpu on Hopper and Blackwell. Or dispatch with a capacity and one batched product: "
        'jnp.einsum("ecd,edf->ecf", x_ECD, w_EDF).',
    )
    return priced(finding, saving)


def _selection_finding(
    trace: Trace, where: Where, members: list[SelectionProduct], total: int, saving: Price | None
) -> Finding:
    wasted, flops = sum(member.wasted_flops for member in members), sum(member.flops for member in members)
    densest = max(member.density for member in members)
    on_tpu = any(member.cost.module.platform == "tpu" for member in members)
    caution = (
        " On TPU a product with a small one-hot matrix can be faster than a gather of short rows: measure both."
        if on_tpu
        else ""
    )
    finding = Finding(
        subject="rows selected by a matrix product",
        title=f"{len(members):,} matrix {'product only moves' if len(members) == 1 else 'products only move'} rows"
        f"{_cost(wasted, total, saving)}",
        detail=f"One factor is one-hot (at most 1 in {1 / densest:,.0f} elements is not zero): "
        f"{flops / 1e9:,.3g} GFLOP per run, of which {(flops - wasted) / 1e9:,.3g} are needed; "
        f"{100 * wasted / total:.1f}% of the program's arithmetic is wasted"
        f"{_time(members, saving)}.",
        severity="medium" if wasted >= MEDIUM_FLOPS_SHARE * total else "low",
        basis="structural",
        where=where,
        evidence=tuple(
            {**_row(member, {"most_nonzero_share": member.density}), "rows_bytes": member.moved_bytes}
            for member in members[:MAX_ROWS]
        ),
        spans=spans_of_parts(trace, _parts(trace, members)),
        advice="Index the rows: x_TD[token_R] to read them, jnp.zeros((slots, D)).at[slot_R].add(rows_RD) to write. "
        "y_SD[slot_R] gets them back from the experts; an embedding is table_VD[token_T]." + caution,
    )
    return priced(finding, saving)


# Ragged products (one matrix per group of rows) that XLA computed with every row times every matrix.
#
# Without a grouped kernel XLA rewrites ``ragged_dot`` of rows [m, k] and matrices [g, k, n] into one dense product of
# the rows, copied and masked for every group: ``g`` times the arithmetic. Such a factor is known by its mask,
# ``select(offset[g] <= i and i < offset[g + 1], rows, 0)``, whatever the product is called (JAX's own rewriting calls
# it ``dot_general``). If a product's path contains ``ragged_dot`` and the mask is not found, the groups follow from the
# shapes: the matrices' leading dimension is also a dimension of the masked rows.


class DenseRagged(Struct, frozen=True, kw_only=True):
    """Dense product that replaces a ragged one."""

    cost: ModuleCost
    row: InstructionCost
    groups: int | None
    """Matrices it multiplies every row with; None: the shapes do not tell."""
    rows_bytes: int
    """Bytes of the copied rows per run: the masked factor, else the larger one."""

    @property
    def flops(self) -> int:
        """In one run of the program."""
        return self.row.total.flops

    @property
    def wasted_flops(self) -> int:
        """FLOPs on rows that a mask has set to zero."""
        return self.flops - self.flops // self.groups if self.groups else 0

    def saved_ns(self, kernel: InstructionCost, device: Device) -> float | None:
        """Roof of the kernel that holds it less that of a grouped one, in one run of the program.

        A grouped kernel does the arithmetic of one group a row, and reads each row once where the dense one reads its
        copies. ``None`` where the device's peak for the product, or the number of groups, is not known.
        """
        if not self.groups:
            return None
        cost = kernel.once
        copies = min(self.rows_bytes, cost.bytes_read) * (self.groups - 1) // self.groups
        grouped = replace(
            kernel,
            once=replace(
                cost,
                flops=cost.flops - self.row.once.flops * (self.groups - 1) // self.groups,
                products={kind: flops // self.groups for kind, flops in cost.products.items()},
                bytes_read=cost.bytes_read - copies,
            ),
        )
        dense, less = roof_of(kernel, device), roof_of(grouped, device)
        if dense.compute_ns is None or less.compute_ns is None:
            return None
        return max(0.0, dense.roof_ns - less.roof_ns) * kernel.runs


One = TypeVar("One", DenseRagged, SelectionProduct)


def dense_ragged(trace: Trace) -> tuple[DenseRagged, ...]:
    """Return the dense products of all programs that replace ragged ones, in program order."""
    result = []
    for cost in trace.fact(costs):
        products = [row for row in cost.rows if row.is_product]
        callers = fusions_of(cost.module)
        masked = {id(row): _masked(cost, row, callers) for row in products}
        rows = [row for row in products if masked[id(row)] or primitive(row.instruction.op_name) in RAGGED]
        groups_by_line: dict[tuple[str | None, int | None], int] = {}
        for row in rows:
            groups = masked[id(row)] or _groups(cost, row, callers)
            if groups is not None:
                groups_by_line[_line(row)] = max(groups, groups_by_line.get(_line(row), 0))
        result += [
            DenseRagged(
                cost=cost, row=row, groups=groups_by_line.get(_line(row)), rows_bytes=_rows_bytes(cost, row, callers)
            )
            for row in rows
        ]
    return tuple(result)


def _rows_bytes(cost: ModuleCost, row: InstructionCost, callers: Fusions) -> int:
    computation, names = cost.module.computations[row.computation], row.instruction.operands[:2]
    masked = [name for name in names if _groups_masking(cost, row, name, callers) is not None]
    return max(computation.by_name[name].shape.bytes for name in masked or names)


def _line(row: InstructionCost) -> tuple[str | None, int | None]:
    """Forward and backward of one product share the line; their shapes do not all tell the groups."""
    return row.instruction.file, row.instruction.line


def _groups(cost: ModuleCost, row: InstructionCost, callers: Fusions) -> int | None:
    """The leading dimension of one factor that is a dimension of the other too, both of rank three."""
    computation = cost.module.computations[row.computation]
    shapes = [_behind(cost, computation, name, callers)[1].shape.dims for name in row.instruction.operands[:2]]
    if len(shapes) < 2:
        return None
    for matrices, rows in ((shapes[1], shapes[0]), (shapes[0], shapes[1])):
        if len(matrices) == len(rows) == 3 and matrices[0] in rows and matrices[0] > 1:
            return matrices[0]
    return None


def _masked(cost: ModuleCost, row: InstructionCost, callers: Fusions) -> int | None:
    """Groups of the mask on one of the two factors."""
    masks = (_groups_masking(cost, row, name, callers) for name in row.instruction.operands[:2])
    return next((groups for groups in masks if groups is not None), None)


def _groups_masking(cost: ModuleCost, row: InstructionCost, name: str, callers: Fusions) -> int | None:
    computation, instruction = _behind(cost, cost.module.computations[row.computation], name, callers)
    if instruction.opcode != "select" or len(instruction.operands) != 3:
        return None
    if _behind(cost, computation, instruction.operands[1], callers)[1].opcode != "broadcast":
        return None
    inside, mask = _behind(cost, computation, instruction.operands[0], callers)
    if mask.opcode == "broadcast" and mask.operands and mask.attributes.get("dimensions", "{}") != "{}":
        inside, mask = _behind(cost, inside, mask.operands[0], callers)  # on TPU a mask of groups and rows
    return _groups_of_mask(inside, mask, instruction.shape.dims)


def _groups_of_mask(computation: Computation, mask: Instruction, dims: tuple[int, ...]) -> int | None:
    """Length of the offsets that a mask compares positions with, if it is a mask of that kind."""
    if mask.opcode != "and":
        return None
    lengths = set()
    for name in mask.operands:
        compare = computation.by_name[name]
        sides = [computation.by_name[side] for side in compare.operands]
        offsets = [
            side
            for side in sides
            if side.opcode == "broadcast" and side.operands and "," not in side.attributes.get("dimensions", ",")
        ]
        if (
            compare.opcode != "compare"
            or len(sides) != 2
            or not any(side.opcode == "iota" for side in sides)
            or not offsets
        ):
            return None
        lengths.add(computation.by_name[offsets[0].operands[0]].shape.elements)
    (length,) = lengths if len(lengths) == 1 else (0,)
    return length if length > 1 and length in dims else None


def _behind(cost: ModuleCost, computation: Computation, name: str, callers: Fusions) -> tuple[Computation, Instruction]:
    """Return the instruction that makes a factor, with its computation."""
    *_, made = path_across(cost.module, callers, computation, name)
    return made
