"""Builds the document of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.plugins.parity.compare import Comparison
from perfscope.plugins.parity.document import SCHEMA, OptimizerGroup, Parity, Recording, Row, SideSummary


def document_of(
    comparison: Comparison,
    sources: tuple[str, str],
    *,
    created_utc: str,
    kept_weights: bool,
    updates: Sequence[Row] = (),
    groups: Sequence[OptimizerGroup] = (),
) -> Parity:
    """Build the document. ``sources``: the user's names of A and B; ``kept_weights``: B ran with its own weights.

    ``updates``, ``groups``: of one step of the optimizers.
    """
    rows = [*comparison.rows(), *updates]
    weights = comparison.weights() if kept_weights else []
    first = comparison.first([*rows, *weights])
    missing = comparison.unmatched()
    a, b, reference = (side.recording for side in (comparison.a, comparison.b, comparison.reference))
    side = "B" if comparison.of_b else "A"
    own = b if comparison.of_b else a
    text = f"{side} in {reference.dtype}" if reference.dtype != own.dtype else f"{side} itself, in {own.dtype}"
    return Parity(
        schema=SCHEMA,
        created_utc=created_utc,
        a=summary(sources[0], a),
        b=summary(sources[1], b),
        reference=text,
        verdict="diverges" if first is not None else "same" if rows else "not compared",
        first=first,
        rows=(*weights, *rows),
        optimizers=tuple(groups),
        mappings=comparison.translation.mappings() if comparison.translation is not None else (),
        unmatched_a=missing[0],
        unmatched_b=missing[1],
        notes=tuple(
            f"{name}: {note}" for name, run in (("A", a), ("B", b), ("reference", reference)) for note in run.notes
        ),
    )


def summary(source: str, recording: Recording) -> SideSummary:
    """A side in short; ``source``: the user's name of it."""
    return SideSummary(
        source=source,
        framework=recording.framework,
        version=recording.version,
        device=recording.device,
        dtype=recording.dtype,
        layers=len(recording.layers),
    )
