"""A loop that generates tokens: time to first token, time per output token, tokens per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Section, table
from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.time import Generation, ModelCall

MOST_CALLS = 50
"""Rows of the table of calls."""

_CALLS: tuple[Column[ModelCall], ...] = (
    Column("call", lambda call: "prefill" if (call.length or 0) > 1 else "decode"),
    Column("sequences", lambda call: call.sequences, "count"),
    Column("tokens each", lambda call: call.length, "count"),
    Column("time", lambda call: call.end_ns - call.start_ns, "ns"),
)


def generation_sections(generations: Sequence[Generation]) -> tuple[Section, ...]:
    """A section per recording whose shapes separate prefill from decode."""
    return tuple(map(_section, generations))


def generation_fact(generations: Sequence[Generation]) -> str:
    """Sentence for the head of a report: times of the first recording that has any; ``''`` if none has."""
    if not generations:
        return ""
    first = generations[0]
    return (
        f"time to first token {format_ns(first.first_token_ns)}, {format_ns(first.output_token_ns)} per output token, "
        f"{first.tokens_per_s:,.1f} tokens/s while decoding{' and traced' if first.traced else ''}"
    )


def _section(generation: Generation) -> Section:
    calls = sorted((*generation.prefills, *generation.decodes), key=lambda call: call.start_ns)
    return Section(
        title="Generation",
        summary=f"time to first token {format_ns(generation.first_token_ns)} (median of "
        f"{len(generation.prefills):,} prefills), {format_ns(generation.output_token_ns)} per output token (median of "
        f"{len(generation.decodes):,} decode calls), {generation.tokens_per_s:,.1f} tokens/s while decoding"
        + (", all while traced" if generation.traced else ", without a profiler"),
        blocks=(
            table(_CALLS, calls[:MOST_CALLS], left=max(0, len(calls) - MOST_CALLS), rest="calls", few=3),
        ),
    )  # fmt: skip
