"""How much a finding matters: by the share of the step that fixing it saves."""

from __future__ import annotations

from typing import Literal

Severity = Literal["low", "medium", "high"]
SEVERITIES: tuple[Severity, ...] = ("low", "medium", "high")

HIGH_SHARE = 0.05
"""Share of the step that is worth stopping for: half of the 10% at which teams usually schedule a tuning task."""
MEDIUM_SHARE = 0.01
"""Share of the step below which a saving drowns in the usual 1% spread between launches."""


def severity_of(cost_ns: int | float, whole_ns: int | float) -> Severity:
    """Severity from the share of the step (or of the span) that fixing it would save at most."""
    share = cost_ns / whole_ns if whole_ns else 0.0
    if share >= HIGH_SHARE:
        return "high"
    return "medium" if share >= MEDIUM_SHARE else "low"
