"""The document of a sweep: its compared variants, with texts cleaned for display."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.ahead.sweep.document import (
    SCHEMA,
    Sweep,
    SweptAxis,
    SweptDominance,
    SweptReach,
    SweptVariant,
)
from perfscope.plugins.ahead.sweep.front import Swept, VariantPoint, pareto_front, sentences, size_limits


def sweep_document(
    axes: Sequence[Swept],
    points: Sequence[VariantPoint],
    *,
    name: str,
    command: Sequence[str],
    created_utc: str,
    notes: Sequence[str] = (),
) -> Sweep:
    """Build the document of compared points. Texts are cleaned for display."""
    front = pareto_front(axes, points)
    alike: dict[int, tuple[int, ...]] = {}
    for numbers in front.same:
        alike |= {number: tuple(value for value in numbers if value != number) for number in numbers}
    reached = size_limits(front.sizes, points)
    return Sweep(
        schema=SCHEMA,
        name=sanitize(name),
        command=tuple(sanitize(word) for word in command),
        created_utc=created_utc,
        axes=tuple(
            SweptAxis(
                name=axis.name, values=tuple(sanitize(value) for value in axis.values),
                kind=front.kinds[axis.name],
            )
            for axis in axes
        ),
        variants=tuple(
            _variant(point, number in front.on_front, front.beaten_by.get(number, ()), alike.get(number, ()))
            for number, point in enumerate(points)
        ),
        reaches=tuple(
            SweptReach(
                held=sanitize(item.rest), axis=item.axis, memory_bytes=item.memory_bytes, fits_to=item.fits_to,
                first_that_does_not=item.first_that_does_not, not_known=item.not_known,
            )
            for item in reached
        ),
        dominated=tuple(
            SweptDominance(worse=sanitize(dominance.worse), better=sanitize(dominance.better), sizes=dominance.groups)
            for dominance in front.dominated
        ),
        said=tuple(sanitize(sentence, 400) for sentence in sentences(front, reached, points)),
        notes=tuple(sanitize(note, 400) for note in notes),
        complete=not any(point.state == "not reached" for point in points),
    )  # fmt: skip


def _variant(point: VariantPoint, on_front: bool, beaten_by: tuple[int, ...], same_as: tuple[int, ...]) -> SweptVariant:
    return SweptVariant(
        settings={name: sanitize(value) for name, value in point.settings},
        state=point.state,
        target=sanitize(point.target),
        step_low_ns=None if point.step is None else point.step.low,
        step_high_ns=None if point.step is None else point.step.high,
        peak_bytes=point.peak_bytes,
        memory_bytes=point.memory_bytes,
        on_front=on_front,
        dominated_by=beaten_by,
        same_as=same_as,
        reason=sanitize(point.reason, 400),
        programs=tuple(sanitize(name) for name in point.programs),
        folder=point.folder,
        seconds_to_compile=point.seconds,
        host_bytes=point.host_bytes,
        reused=point.reused,
    )
