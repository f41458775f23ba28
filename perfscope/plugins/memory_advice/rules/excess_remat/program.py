"""The part of ``excess_remat`` for compiled XLA programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from perfscope.analyzers.hlo import ModuleCost, costs, peak_bytes, where_of
from perfscope.analyzers.ops import spans_of_parts
from perfscope.analyzers.programs import Part, Price, price, priced
from perfscope.model.finding import AbstainError, Cell, Finding, Where
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns
from perfscope.plugins.memory_advice.program_remat import (
    Bought,
    Cloned,
    Recomputed,
    bought_by_checkpoint,
    cloned_instructions,
    cloned_parts,
    ns_a_mib,
    part_ns,
    recomputed_parts,
    recomputed_products,
    storing_part,
)

MIN_FLOPS_SHARE = 0.05
"""Least share of a program's arithmetic. Full checkpointing of a network's matrix products adds a third to its forward,
at most a quarter of a step's matrix work; below a twentieth there is little to gain."""

MEDIUM_FLOPS_SHARE = 0.1
"""Share from which severity is medium without a known time; it is never high then."""

REGION_SHARE = 0.01
"""Least share of a program's arithmetic for a checkpointed region to have its own finding."""

MAX_ROWS = 20

NOT_KNOWN: Mapping[str, Cell] = {
    "reason": None,
    "peak_bytes": None,
    "peak_without_bytes": None,
    "usable_bytes": None,
}

ADVICE = (
    "Save the products: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable). "
    "Or use save_only_these_names(...) with "
    "jax.ad_checkpoint.checkpoint_name around the results of the products themselves: a name on what is computed "
    "from them saves nothing. jax.ad_checkpoint.print_saved_residuals(f, *args) shows what a policy keeps. "
)

EVEN = (
    "At the device's peaks the change gains no time. Products seldom reach their peak, so a run may still gain a "
    "little: time both before changing anything."
)


def program_findings(trace: Trace) -> Iterator[Finding]:
    """Findings on recomputation in all compiled programs."""
    judged = trace.fact(costs)
    if not judged:
        raise AbstainError("no compiled program among the XLA programs: the compiler may still remove recomputation")
    clones = trace.fact(cloned_instructions)
    if not clones and not any(row.instruction.op_name for cost in judged for row in cost.rows):
        raise AbstainError("the programs' instructions carry no paths (op_name): recomputation cannot be identified")
    for cost in judged:
        yield from _checkpointed(trace, cost)
        yield from _cloned(trace, [clone for clone in clones if clone.cost is cost], cost)


def _checkpointed(trace: Trace, cost: ModuleCost) -> Iterator[Finding]:
    members = [product for product in trace.fact(recomputed_products) if product.cost is cost and not product.is_cheap]
    if not members or sum(product.flops for product in members) < MIN_FLOPS_SHARE * cost.total.flops:
        return
    whole = bought_by_checkpoint(trace, cost, members)
    if whole is not None and whole.is_needed:
        return  # not wasted: the program would not fit without it
    regions: dict[str, list[Recomputed]] = defaultdict(list)
    for product in members:
        regions[product.region].append(product)
    for products in regions.values():
        products.sort(key=lambda product: -product.flops)
        where = where_of(products[0].row.instruction)
        where = Where(file=where.file, line=where.line, module=where.module if where.file is None else None)
        share = _share(sum(product.flops for product in products), cost)
        if share < REGION_SHARE:
            continue
        kept = sum(product.kept_bytes for product in products)
        parts, storing = recomputed_parts(trace, products), storing_part(trace, products)
        spent = price(trace, parts if storing is None else [*parts, storing])
        lost = _lost(spent, kept) if storing is None else _against(price(trace, parts), storing, spent)
        even = storing is not None and spent is not None and not spent.run_ns  # the model predicts no gain
        spent = None if even else spent
        finding = Finding(
            subject="recomputed forward",
            title=f"jax.checkpoint runs {len(products):,} matrix {'product' if len(products) == 1 else 'products'} "
            "again" + (f": {_percent(share, cost)} of the arithmetic" if spent is None else ""),
            detail=f"{_percent(share, cost)} of the program's arithmetic. Keeping the results takes "
            f"{format_bytes(kept)}{lost}." + (f" {EVEN}" if even else ""),
            severity="low" if even else _severity(share),
            basis="structural",
            where=where,
            evidence=tuple(_row(trace, product, whole) for product in products[:MAX_ROWS]),
            spans=spans_of_parts(trace, parts),
            advice=ADVICE + (_headroom(cost) if whole is None else whole.text()),
        )
        yield priced(finding, spent)


def _against(again: Price | None, storing: Part, spent: Price | None) -> str:
    """Cost of keeping the results in a loop's stacks, compared with computing them again: the end of a title."""
    if again is None or spent is None or storing.modelled_ns is None:
        return ""
    way = f" and {format_ns(-storing.modelled_ns)} per run for their way through memory"
    if not spent.run_ns:
        return f"{way} (modelled), no less than running them again: {format_ns(again.run_ns)}"
    return f"{way} (modelled) instead of {format_ns(again.run_ns)}: saves {spent.text}"


def _lost(spent: Price | None, kept: int) -> str:
    """Known time, as the end of the title."""
    if spent is None:
        return ""
    rate = ns_a_mib(spent.run_ns, kept)
    return f"; it takes {spent.text}" + ("" if rate is None else f" ({format_ns(rate)} for each MiB kept)")


def _row(trace: Trace, product: Recomputed, whole: Bought | None) -> dict[str, Cell]:
    spent = part_ns(trace, recomputed_parts(trace, [product]))
    return {
        "product": product.row.instruction.name,
        "at": where_of(product.row.instruction).label(),
        "program": product.cost.module.name,
        "from": product.row.instruction.op_name[-120:],
        "result": f"{product.result.dtype}{list(product.result.dims)}",
        "times": product.row.runs,
        "gflops": product.flops / 1e9,
        "flops_share": product.flops / product.cost.total.flops,
        "kept_bytes": product.kept_bytes,
        "recompute_ns": spent,
        "ns_a_kept_mib": ns_a_mib(spent, product.kept_bytes),
        "gflops_a_kept_mib": product.flops / 1e9 / (product.kept_bytes / (1 << 20)),
        **(NOT_KNOWN if whole is None else whole.cells()),
    }


def _cloned(trace: Trace, members: list[Cloned], cost: ModuleCost) -> Iterator[Finding]:
    share = _share(sum(clone.flops for clone in members), cost)
    if share < MIN_FLOPS_SHARE:
        return
    copies = sum(len(clone.rows) for clone in members)
    where = where_of(members[0].rows[0].instruction)
    spent = price(trace, cloned_parts(trace, members))
    finding = Finding(
        subject="rematerialized by XLA",
        title=f"XLA computes {copies:,} {'instruction' if copies == 1 else 'instructions'} again to save memory"
        + (f": {_percent(share, cost)} of the arithmetic" if spent is None else ""),
        detail=f"The program did not fit into memory. {_percent(share, cost)} of its arithmetic, "
        f"{format_bytes(sum(clone.bytes for clone in members))} more moved per run"
        + ("." if spent is None else f"; it takes {spent.text}."),
        severity=_severity(share),
        basis="structural",
        cost_bytes=sum(clone.bytes for clone in members),
        where=Where(file=where.file, line=where.line, module=where.module if where.file is None else None),
        evidence=tuple(
            {
                "again": clone.original,
                "program": cost.module.name,
                "copies": len(clone.rows),
                "from": clone.rows[0].instruction.op_name[-120:] or None,
                "gflops": clone.flops / 1e9,
                "flops_share": _share(clone.flops, cost),
                "moved_bytes": clone.bytes,
                "recompute_ns": part_ns(trace, cloned_parts(trace, [clone])),
            }
            for clone in members[:MAX_ROWS]
        ),
        spans=spans_of_parts(trace, cloned_parts(trace, members)),
        advice="Choose what to recompute yourself: jax.checkpoint with a policy that saves the products. Donate "
        "arguments that are replaced (jax.jit(..., donate_argnums=...)), or make the batch per device smaller. Look "
        "at XLA's "
        "warning 'Can't reduce memory use below': the recomputation may not even have helped. " + _headroom(cost),
    )
    yield priced(finding, spent)


def _share(flops: int, cost: ModuleCost) -> float:
    return flops / cost.total.flops if cost.total.flops else 0.0


def _percent(share: float, cost: ModuleCost) -> str:
    return f"{100 * share:.1f}%" + ("" if cost.total.exact else " or less")


def _severity(share: float) -> Severity:
    return "medium" if share >= MEDIUM_FLOPS_SHARE else "low"


def _headroom(cost: ModuleCost) -> str:
    known = "is assigned" if cost.module.buffer_assignment is not None else "is modelled to need"
    return f"The program {known} {format_bytes(peak_bytes(cost.module))} at its peak."
