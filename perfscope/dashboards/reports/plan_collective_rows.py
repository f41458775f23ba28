"""What a planned rank exchanges with the others, as rows and sentences. Bytes are planned, times modelled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.plan_memory_rows import place_of
from perfscope.model.units import format_bytes, format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.estimate.spans import Range
    from perfscope.analyzers.plan_exchanges import ExchangeSummary, ExchangeTotals
    from perfscope.analyzers.plan_section import PlanSummary

Cells = tuple[tuple[str, str], ...]


def exchange_cells(plan: PlanSummary) -> Iterator[Cells]:
    """Collectives of the step as the program runs it, by kind and line."""
    held = plan.exchanges
    for row in () if held is None else held.rows:
        yield (
            ("collective", row.kind),
            ("asked for by", sanitize(row.by)),
            ("phase", row.phase),
            ("at", place_of(row.file, row.line)),
            ("runs", f"{row.times:,}"),
            ("ranks", f"{row.group_size:,}"),
            ("bytes", format_bytes(row.bytes)),
            ("takes", span_text(row.busy_ns)),
            ("step waits", span_text(row.exposed_ns)),
            ("beside it", "nothing" if row.blocking == row.times else span_text(row.beside_ns)),
        )


def exchange_sentences(plan: PlanSummary) -> Iterator[str]:
    """What is said of them above and below the rows."""
    held = plan.exchanges
    if held is None:
        return
    yield f"planned as rank 0 of {held.world_size:,} processes ({sanitize(held.backend or 'no backend named')})"
    for name, totals in (("eager", held.eager), ("compiled", held.compiled)):
        if totals is not None and totals.collectives:
            yield _totals(name, totals)
    rows = held.eager if held.step == "eager" else held.compiled
    if rows is not None and rows.blocking:
        yield (
            f"{rows.blocking:,} of {rows.collectives:,} collectives of the {held.step} step can hide behind nothing: "
            "the step waits for them before any kernel that could run beside them"
        )
    if held.buckets is not None:
        yield _buckets(held)
    if held.left:
        yield f"and {held.left:,} more lines of collectives"
    yield from (sanitize(text) for text in held.notes)


def _totals(name: str, totals: ExchangeTotals) -> str:
    known = "" if totals.known else "; what joins the devices is not known, so times are the least there can be"
    return (
        f"{name} step: {totals.collectives:,} collectives of {format_bytes(totals.bytes)} take "
        f"{span_text(totals.busy_ns)} over the links, and the step waits {span_text(totals.exposed_ns)} for them, "
        f"modelled{known}"
    )


def _buckets(held: ExchangeSummary) -> str:
    found = held.buckets
    if found is None:
        return ""
    sizes = format_bytes(found.largest_bytes)
    if found.smallest_bytes != found.largest_bytes:
        sizes = f"{format_bytes(found.smallest_bytes)} to {sizes}"
    count = f"{found.buckets:,} buckets" if found.buckets > 1 else "1 bucket"
    gradients = f"{format_bytes(found.bytes)} of gradients in {count}"
    return f"DistributedDataParallel sums up {gradients} ({sizes})"


def span_text(span: Range) -> str:
    """``'84 us to 257 us'``."""
    low, high = format_ns(span.low), format_ns(span.high)
    return low if low == high else f"{low} to {high}"
