"""The document of a sweep: its compared variants, with texts cleaned for display."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.ahead.sweep.document import (
    SCHEMA,
    Sweep,
    SweptAxis,
    SweptVariant,
)
from perfscope.plugins.ahead.sweep.front import Swept, pareto_front, sentences, size_limits


def sweep_document(
    axes: Sequence[Swept],
    points: Sequence[SweptVariant],
    *,
    name: str,
    command: Sequence[str],
    created_utc: str,
    notes: Sequence[str] = (),
) -> Sweep:
    """Build the document of the variants. Texts are cleaned for display."""
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
            _cleaned(point, number in front.on_front, front.beaten_by.get(number, ()), alike.get(number, ()))
            for number, point in enumerate(points)
        ),
        reaches=tuple(
            replace(item, held=sanitize(item.held)) for item in reached
        ),
        dominated=tuple(
            replace(dominance, worse=sanitize(dominance.worse), better=sanitize(dominance.better))
            for dominance in front.dominated
        ),
        said=tuple(sanitize(sentence, 400) for sentence in sentences(front, reached, points)),
        notes=tuple(sanitize(note, 400) for note in notes),
        complete=not any(point.state == "not reached" for point in points),
    )  # fmt: skip


def _cleaned(
    variant: SweptVariant, on_front: bool, beaten_by: tuple[int, ...], same_as: tuple[int, ...]
) -> SweptVariant:
    return replace(
        variant,
        settings={name: sanitize(value) for name, value in variant.settings.items()},
        target=sanitize(variant.target),
        on_front=on_front,
        dominated_by=beaten_by,
        same_as=same_as,
        reason=sanitize(variant.reason, 400),
        programs=tuple(map(sanitize, variant.programs)),
    )
