"""The sentence of a report on recorded fingerprints: they are there, and what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.plugins.fingerprint.reading import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import Section
    from perfscope.model.trace import Trace


class FingerprintSummary(Struct, frozen=True, kw_only=True):
    """Recorded fingerprints of a process."""

    ops: int
    steps: int
    sampled: tuple[int, ...]
    """Steps whose ops were recorded."""


def fingerprint_summary(trace: Trace) -> FingerprintSummary | None:
    """The fingerprints of a trace; ``None`` if none were recorded."""
    found: Fingerprint | None = trace.documents.get("fingerprint")
    if found is None:
        return None
    return FingerprintSummary(ops=found.ops, steps=found.steps, sampled=found.sampled)


def facts(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence on the first process for the head of a report."""
    first: FingerprintSummary = analysis.results["fingerprint"][0]
    shown = ", ".join(map(str, first.sampled[:8])) + (" ..." if len(first.sampled) > 8 else "")
    yield (
        f"fingerprints of {first.ops:,} ops in steps {shown}, and of the states of {first.steps:,} steps; "
        "`perfscope parity RUN RUN` compares them"
    )


def sections(_: Analysis) -> Iterator[Section]:
    """Yield no section: `perfscope parity` shows what was recorded."""
    yield from ()
