"""Findings of ``full_precision_matmul`` about compiled XLA programs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Device
from perfscope.analyzers.hlo import (
    Cost,
    Fusions,
    InstructionCost,
    ModuleCost,
    Product,
    casts,
    costs,
    fusions_of,
    kernels_of,
    primitive,
    program_device,
    roof_of,
    where_of,
)
from perfscope.analyzers.ops.finding_spans import spans_of_parts
from perfscope.analyzers.ops.rules.full_precision_matmul.widened import first_forward, widened_products
from perfscope.analyzers.programs import Part, Price, price, priced
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Where
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace

MIN_FLOPS_SHARE = 0.01
"""Smallest share of the programs' arithmetic if no time is known. A product in full precision takes several times as
long.
"""

MEDIUM_FLOPS_SHARE = 0.1
"""Share from which severity is medium if no time is known; it is never high then."""

OWN_TYPE_SHARE = 0.5
"""Share of the arithmetic of a CPU program's products in float64 from which that is the program's intended type."""


_FULL = frozenset({"highest", "dot_f32_f32_f32"})
"""Precisions that request full float32. ``high`` and the emulations by bfloat16 run on matrix cores."""

_NARROW = frozenset({"bf16", "f16", "f8e4m3", "f8e4m3fn", "f8e4m3fnuz", "f8e4m3b11fnuz", "f8e5m2", "f8e5m2fnuz"})


_NARROW_KIND = {"bf16": Product("bf16"), "f16": Product("f16")}


_OF_JAX = re.compile(
    r"jit\(_?(?:inv|solve|slogdet|det|lstsq|pinv|svd|qr|eigh|cholesky|cho_solve|solve_triangular|lu_solve|expm)\)"
)
"""Scopes of jax.numpy.linalg and jax.scipy.linalg, whose functions ask for full precision themselves."""


class _Full(Struct, frozen=True, kw_only=True):
    """A product in full precision."""

    cost: ModuleCost
    row: InstructionCost
    kind: Product


def program_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per element type and line that multiplies in full precision."""
    every = trace.fact(costs)
    judged = [cost for cost in every if cost.module.platform in ("gpu", "tpu")]
    on_cpu = not judged
    if on_cpu:
        judged = [cost for cost in every if cost.module.platform == "cpu"]
    if not judged:
        raise AbstainError("no compiled program to analyze")
    total = sum(cost.total.flops for cost in judged)
    places: dict[tuple[str, Where], list[_Full]] = defaultdict(list)
    for cost in judged:
        for product in _of_cpu(cost) if on_cpu else _all(cost):
            where = where_of(product.row.instruction)
            places[product.kind.dtype, Where(file=where.file, line=where.line)].append(product)
    for (dtype, where), found in places.items():
        saving = None if on_cpu else price(trace, _parts(trace, found))
        flops = sum(product.row.total.flops for product in found)
        # a low saving is within the variation of a step: limited by memory, the precision costs nothing
        if flops >= MIN_FLOPS_SHARE * total if saving is None else saving.cost["severity"] != "low":
            found.sort(key=lambda product: -product.row.total.flops)
            yield _finding(trace, dtype, where, found, total, saving, on_cpu=on_cpu)
    yield from _promoted(trace, judged, total, on_cpu=on_cpu)


def _promoted(trace: Trace, judged: list[ModuleCost], total: int, *, on_cpu: bool) -> Iterator[Finding]:
    """Yield one finding for all products of 16-bit factors that run in float32, at the first line that widens."""
    found = [product for cost in judged for product in widened_products(cost)]
    flops = sum(product.row.total.flops for product in found)
    if not found or flops < MEDIUM_FLOPS_SHARE * total:
        return
    full = [_Full(cost=one.cost, row=one.row, kind=_NARROW_KIND[one.narrow]) for one in found]
    saving = None if on_cpu else price(trace, _parts(trace, full, fast=_NARROW_KIND[found[0].narrow]))
    if saving is not None and saving.cost["severity"] == "low":
        return
    first, narrow = first_forward(found), {"bf16": "bfloat16", "f16": "float16"}[found[0].narrow]
    at = first.row.instruction if first.widens is None else first.widens
    where = where_of(at)
    met = f", where it meets float32 {first.argument}" if first.argument else ""
    finding = Finding(
        subject=f"{narrow} products in float32",
        title=f"{len(found):,} matrix product{'s' if len(found) > 1 else ''} of {narrow} weights in float32: "
        f"{100 * flops / total:.0f}% of the arithmetic",
        detail=f"The first line that widens is {at.file or 'not known'}{f':{at.line}' if at.line else ''}{met}. "
        f"A {narrow} value becomes float32 there, and so does all that is computed from it.",
        severity="medium",
        basis="structural",
        where=Where(file=where.file, line=where.line) if where.file is not None else Where(module=where.module),
        evidence=tuple(
            {
                "product": one.row.instruction.name,
                "program": one.cost.module.name,
                "from": one.row.instruction.op_name[-120:] or None,
                "widened_at": None if one.widens is None else f"{one.widens.file}:{one.widens.line}",
                "meets": one.argument or None,
                "gflops": one.row.total.flops / 1e9,
            }
            for one in found[:MOST_ROWS]
        ),
        spans=spans_of_parts(trace, _parts(trace, full)),
        advice=f"Cast the float32 value to {narrow} ({first.argument or 'x'}.astype(jnp.{narrow})), or the result "
        f"before the product (h.astype(jnp.{narrow})). Sums stay in float32 with preferred_element_type=jnp.float32.",
    )
    yield priced(finding, saving)


def _all(cost: ModuleCost) -> list[_Full]:
    """Return the products in full precision, without enclosing fusions and loops."""
    result = []
    for row in cost.rows:
        if row.place == "control" or not row.runs or row.instruction.opcode in ("fusion", "async-start"):
            continue
        kind = next(filter(_is_full, row.once.products), None)
        if kind is not None and not _OF_JAX.search(row.instruction.op_name):
            result.append(_Full(cost=cost, row=row, kind=kind))
    return result


def _is_full(kind: Product) -> bool:
    return kind.dtype == "f64" or (kind.dtype == "f32" and kind.precision in _FULL)


def _of_cpu(cost: ModuleCost) -> list[_Full]:
    """Return the products that would be in full precision on an accelerator too.

    XLA's CPU backend multiplies 16-bit operands in float32 by itself, with the requested precision. float64 is often
    the purpose of a program on a CPU, so it is reported only if most of the program has another type.
    """
    found, callers = _all(cost), fusions_of(cost.module)
    products = cost.total.products
    wide = sum(flops for kind, flops in products.items() if kind.dtype == "f64")
    own = wide > OWN_TYPE_SHARE * sum(products.values())
    return [
        product
        for product in found
        if not (own if product.kind.dtype == "f64" else _widened(cost, product.row, callers))
    ]


def _widened(cost: ModuleCost, row: InstructionCost, callers: Fusions) -> bool:
    """Whether XLA widened the operands: a cast that the program does not have."""
    return any(
        made.opcode == "convert" and primitive(made.op_name) != "convert_element_type" and source.shape.dtype in _NARROW
        for name in row.instruction.operands[:2]
        for made, source in casts(cost.module, callers, row.computation, name)
    )


def _parts(trace: Trace, found: Iterable[_Full], fast: Product | None = None) -> list[Part]:
    """Return, by kernel, its roof minus its roof in the fast precision; ``fast``: that of all its float32 products."""
    known = trace.fact(program_device)
    holders = {id(product.cost): kernels_of(product.cost) for product in found}
    kernels: dict[int, tuple[ModuleCost, InstructionCost]] = {}
    for product in found:
        for kernel in holders[id(product.cost)].around(product.row):
            kernels[id(kernel)] = (product.cost, kernel)
    return [
        Part(
            module=cost.module,
            instructions=(kernel.instruction.name,),
            modelled_ns=None if known is None else _saved_ns(kernel, known.device, fast),
        )
        for cost, kernel in kernels.values()
    ]


def _saved_ns(kernel: InstructionCost, device: Device, fast: Product | None) -> float | None:
    """Return the saving per run of the program; ``None`` for an unknown peak."""
    slow_roof = roof_of(kernel, device)
    fast_roof = roof_of(replace(kernel, once=_in_fast(kernel.once, fast)), device)
    if slow_roof.compute_ns is None or fast_roof.compute_ns is None:
        return None
    return max(0.0, slow_roof.roof_ns - fast_roof.roof_ns) * kernel.runs


def _in_fast(cost: Cost, fast: Product | None) -> Cost:
    """Return the cost with full-precision products as plain float32 ones, or with all float32 ones as ``fast``."""
    products: dict[Product, int] = defaultdict(int)
    for kind, flops in cost.products.items():
        if fast is not None:
            products[fast if kind.dtype == "f32" else kind] += flops
        else:
            products[Product("f32") if _is_full(kind) else kind] += flops
    return replace(cost, products=dict(products))


def _finding(
    trace: Trace, dtype: str, where: Where, found: list[_Full], total: int, saving: Price | None, *, on_cpu: bool
) -> Finding:
    flops = sum(product.row.total.flops for product in found)
    name = "float64" if dtype == "f64" else "float32"
    share = flops / total if total else 0.0
    several = len(found) > 1
    if on_cpu:
        what = f"{'ask' if several else 'asks'} for full {name}"
    else:
        what = f"{'run' if several else 'runs'} in full {name}"
    title = f"{len(found):,} matrix {'products' if several else 'product'} {what}"
    if saving is None:
        title += f": {100 * share:.1f}% of the arithmetic"
    detail = f"{flops / 1e9:,.3g} GFLOP per run, {100 * share:.1f}% of the program's arithmetic, off the matrix cores."
    if on_cpu:
        detail += " Compiled for a CPU here, which has no faster kind: on a GPU or TPU it stays off the matrix cores."
    if saving is not None:
        detail += f" The fast precision saves up to {saving.text}."
    severity: Severity = "medium" if share >= MEDIUM_FLOPS_SHARE and not on_cpu else "low"
    finding = Finding(
        subject=f"{name} matrix products",
        title=title,
        detail=detail,
        severity=severity,
        basis="structural",
        where=where,
        evidence=tuple(
            {
                "product": product.row.instruction.name,
                "program": product.cost.module.name,
                "from": product.row.instruction.op_name[-120:] or None,
                "asked": product.kind.precision,
                "times": product.row.runs,
                "gflops": product.row.total.flops / 1e9,
                "flops_share": product.row.total.flops / total,
            }
            for product in found[:MOST_ROWS]
        ),
        spans=spans_of_parts(trace, _parts(trace, found)),
        advice="Use float64 only on the host: without jax_enable_x64, or with x.astype(jnp.float32) before the product."
        if dtype == "f64"
        else 'Call jax.config.update("jax_default_matmul_precision", "high"), or set the precision of the product: '
        "precision=jax.lax.Precision.HIGH (or DEFAULT); bfloat16 operands are faster still.",
    )
    return priced(finding, saving)
