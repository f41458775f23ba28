"""Recorded values over the steps so far, on the host and bounded: statistics of tensors, and non-finite values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from perfscope.plugins.numerics.document import (
    FORMATS,
    FormatCounts,
    Kind,
    Nonfinite,
    Numerics,
    PrecisionLoss,
    State,
    StepValues,
    TensorStatistics,
)
from perfscope.plugins.numerics.products import Products

MOST_TENSORS = 5_000
MOST_AMAX = 128
"""Most rows in the history of a tensor; when it is full, rows are merged in pairs."""
MOST_NONFINITE = 200
MOST_LOSSES = 500
MOST_STEPS = 20_000
MOST_NOTES = 8

Moment = Any
"""A moment that ``number`` of `History.document` converts to a step, because the source of steps is known later."""


TensorKey = tuple[Kind, str, str, str]
"""(kind, name, type, dtype) of a tensor of the program, the same in all steps."""


@dataclass(slots=True)
class Row:
    """The values of a tensor so far."""

    line: str
    elements: int = 0
    moments: int = 0
    counted: list[float] = field(default_factory=list)
    amax: list[tuple[Moment, float]] = field(default_factory=list)
    every: int = 1
    """Moments per row of ``amax``."""
    nonfinite: int = 0
    latest: Moment = None

    def add(self, moment: Moment, largest: float, counts: list[float], elements: int) -> bool:
        """Add the numbers of one tensor; return whether it is the first one that is not finite."""
        self.elements = max(self.elements, elements)
        again = self.moments > 0 and moment == self.latest
        self.moments += not again
        self.latest = moment
        if counts:
            self.counted = [a + b for a, b in zip(self.counted or [0.0] * len(counts), counts, strict=True)]
        if not math.isfinite(largest):
            self.nonfinite += 1
            return self.nonfinite == 1
        if self.amax and (again or (self.moments - 1) % self.every):
            self.amax[-1] = (self.amax[-1][0], max(self.amax[-1][1], largest))
        else:
            self.amax.append((moment, largest))
        if len(self.amax) > MOST_AMAX:
            pairs = zip(self.amax[::2], [*self.amax[1::2], self.amax[-1]], strict=False)
            self.amax = [(first[0], max(first[1], second[1])) for first, second in pairs]
            self.every *= 2
        return False


class History:
    """Grows by ``add`` and similar methods; ``document`` returns it for writing."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self.rows: dict[TensorKey, Row] = {}
        self.nonfinite: list[tuple[Moment, Nonfinite]] = []
        self.losses: dict[tuple[str, ...], tuple[Moment, PrecisionLoss]] = {}
        self.examined: set[tuple[str, str, str]] = set()
        """(Op, line, module) of reductions that were computed again, and parameters whose updates were examined."""
        self.steps: list[tuple[Moment, StepValues]] = []
        self.watched: list[Moment] = []
        self.products = Products()
        self._left: set[TensorKey] = set()
        self._notes: list[str] = []

    def row(self, key: TensorKey, line: Callable[[], str]) -> Row | None:
        """The row of a tensor; ``None`` if there are too many. ``line()`` is called for a new one."""
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MOST_TENSORS:
                self._left.add(key)
                return None
            row = self.rows[key] = Row(line())
        return row

    def add_nonfinite(self, moment: Moment, event: Nonfinite) -> None:
        """A tensor is not finite for the first time, or its op is now known."""
        for index, (_, known) in enumerate(self.nonfinite):
            if (known.kind, known.name) == (event.kind, event.name):
                self.nonfinite[index] = (self.nonfinite[index][0], event)
                return
        if len(self.nonfinite) < MOST_NONFINITE:
            self.nonfinite.append((moment, event))

    def add_loss(self, moment: Moment, loss: PrecisionLoss) -> None:
        """A value that lost precision: the worst per line and op; updates are added up."""
        key = (loss.how, loss.op, loss.module, loss.line)
        known = self.losses.get(key)
        if known and loss.how == "update":
            terms = known[1].terms + loss.terms
            error = (known[1].error * known[1].terms + loss.error * loss.terms) / terms
            self.losses[key] = (moment, replace(loss, terms=terms, error=error))
            return
        if math.isfinite(loss.error) and (known[1].error < loss.error if known else len(self.losses) < MOST_LOSSES):
            self.losses[key] = (moment, loss)

    def add_step(self, moment: Moment, values: StepValues) -> None:
        """Add values of a step besides its tensors."""
        if len(self.steps) < MOST_STEPS:
            self.steps.append((moment, values))

    def note(self, text: str) -> None:
        """Note a failure to record, once."""
        if text not in self._notes and len(self._notes) < MOST_NOTES:
            self._notes.append(text)

    def document(self, number: Callable[[Moment], int], steps_seen: int) -> Numerics:
        """The document for writing; ``number``: step of a moment."""
        last = {number(moment): values for moment, values in self.steps}
        steps = [replace(values, step=step) for step, values in sorted(last.items())]
        scales = [(values.step, values.scale) for values in steps if values.scale is not None]
        halved = [step for (_, before), (step, after) in itertools.pairwise(scales) if after < before]
        return Numerics(
            framework=self._framework,
            tensors=tuple(_statistics(key, row, number) for key, row in self.rows.items() if row.moments),
            tensors_left=len(self._left),
            nonfinite=tuple(_placed(event, moment, number) for moment, event in self.nonfinite),
            losses=tuple(replace(loss, step=number(moment)) for moment, loss in self.losses.values()),
            reductions=len(self.examined),
            steps=tuple(steps),
            steps_seen=steps_seen,
            scale_halved=tuple(halved),
            watched=tuple(dict.fromkeys(map(number, self.watched))),
            notes=tuple(self._notes),
            products=self.products.document(number),
        )


def _placed(event: Nonfinite, moment: Moment, number: Callable[[Moment], int]) -> Nonfinite:
    return replace(event, step=number(moment), op_step=None if event.op_step is None else number(event.op_step))


def _statistics(key: TensorKey, row: Row, number: Callable[[Moment], int]) -> TensorStatistics:
    zero, *lost, counted = row.counted or [0.0] * (2 + 3 * len(FORMATS))
    kind, name, type_, dtype = key
    return TensorStatistics(
        kind=kind,
        name=name,
        type=type_,
        dtype=dtype,
        line=row.line,
        elements=row.elements,
        steps=row.moments,
        counted=int(counted),
        zero=int(zero),
        formats=tuple(
            FormatCounts(overflow=int(over), flushed=int(flushed), subnormal=int(subnormal))
            for over, flushed, subnormal in zip(lost[::3], lost[1::3], lost[2::3], strict=True)
        ),
        amax=tuple((number(moment), largest) for moment, largest in row.amax),
        nonfinite_steps=row.nonfinite,
    )


def state_of(numbers: list[float]) -> State | None:
    """State of (smallest, largest): ``None`` if both are finite."""
    low, high = numbers[:2]
    if math.isnan(low) or math.isnan(high):
        return "nan"
    return "inf" if high == math.inf else "-inf" if low == -math.inf else None
