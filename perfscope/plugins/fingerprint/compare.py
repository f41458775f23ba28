"""The first difference between two recordings of fingerprints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from perfscope.model.errors import DataError
from perfscope.plugins.fingerprint.document import CALL, OPTIMIZER
from perfscope.plugins.fingerprint.gradients import divides_differently, first_of_gradients
from perfscope.plugins.fingerprint.reading import Recording, Step, kind_of
from perfscope.plugins.fingerprint.result import (
    SCHEMA,
    Counts,
    Difference,
    Differing,
    FirstDifference,
    Mode,
    Setting,
    Side,
)
from perfscope.plugins.fingerprint.sources import Source, source_at
from perfscope.plugins.fingerprint.walk import (
    HOST_GENERATORS,
    StepWalk,
    is_generator,
    place_of,
    state_cause,
)

Tolerance = Literal["exact", "rounding"]
MOST_STEPS_LISTED = 1_000


def compare_runs(a: Path, b: Path, *, tolerance: Tolerance = "exact", shift: int | None = None) -> FirstDifference:
    """Compare two runs that `perfscope run --fingerprint` recorded.

    ``shift``: step of A less the step of B that continues it; ``None``: found by the parameters with which B begins.
    ``DataError`` in one line for sides that cannot be read or share no recorded step, and for other numbers of ranks
    unless only gradients are compared.
    """
    sides = source_at(a), source_at(b)
    frameworks = [next(iter(side.recordings.values())).head.framework for side in sides]
    if frameworks[0] != frameworks[1]:
        raise DataError(f"{a}, {b}: fingerprints of {frameworks[0]} and of {frameworks[1]} have no ops in common")
    ranks = [tuple(sorted(side.recordings)) for side in sides]
    if ranks[0] != ranks[1] and (tolerance == "exact" or 0 not in ranks[0] or 0 not in ranks[1]):
        raise DataError(
            f"{a}, {b}: recordings of {len(ranks[0])} and of {len(ranks[1])} ranks: only gradients can be compared, "
            "with --tolerance rounding"
        )
    of_ranks = ranks[0] == ranks[1]
    pairs = [(rank, rank) for rank in ranks[0]] if of_ranks else [(0, rank) for rank in ranks[1]]
    comparisons = [
        Comparison(
            sides[0].recordings[one], sides[1].recordings[other], (one, other), tolerance, shift, of_ranks=of_ranks
        )
        for one, other in pairs
    ]
    found = [comparison.first() for comparison in comparisons]
    if not any(comparison.counts.steps for comparison in comparisons):
        steps = [_listed(side) for side in sides]
        raise DataError(f"{a}, {b}: no step is in both recordings: {steps[0]} and {steps[1]}")
    differences = [item for item in found if item is not None]
    return FirstDifference(
        schema=SCHEMA,
        a=_side(sides[0]),
        b=_side(sides[1]),
        tolerance=tolerance,
        mode=_mode(comparisons),
        shift=comparisons[0].shift,
        verdict="differs" if differences else "same",
        first=min(differences, key=_earliest, default=None),
        ranks=tuple(differences),
        counts=_total(comparisons),
        settings=tuple(_settings(*sides)),
        notes=tuple(_notes(sides, comparisons)),
    )


class Comparison:
    """One rank of each side."""

    def __init__(
        self,
        a: Recording,
        b: Recording,
        ranks: tuple[int, int],
        tolerance: Tolerance,
        shift: int | None,
        *,
        of_ranks: bool,
    ) -> None:
        self.a, self.b, self.ranks, self.tolerance = a, b, ranks, tolerance
        self.shift = _found_shift(a, b) if shift is None else shift
        self.counts = Counts()
        self.gradients = not of_ranks
        """Whether gradients alone are compared."""

    def first(self) -> Difference | None:
        """The first difference of the common steps; ``None`` without any."""
        unseen: int | None = None
        for one, other in self._steps():
            self.counts.steps += 1
            found = self._step(one, other)
            if found is not None:
                found = replace(found, last_equal_step=unseen)
                return self._with_order(found, other)
            unseen = None if one.sampled and other.sampled else one.number
        return None

    def _steps(self) -> Iterator[tuple[Step, Step]]:
        ours, theirs = self.a.steps(), self.b.steps()
        one, other = next(ours, None), next(theirs, None)
        while one is not None and other is not None:
            ahead = one.number - self.shift - other.number
            if not ahead:
                yield one, other
            if ahead <= 0:
                one = next(ours, None)
            if ahead >= 0:
                other = next(theirs, None)

    def _step(self, a: Step, b: Step) -> Difference | None:
        rounding = self.tolerance == "rounding"
        if self.shift and self.counts.steps == 1:  # the step that resumes begins with what starts its program
            a, b = _from_first_call(a), _from_first_call(b)
        if a.sampled and b.sampled:
            if rounding and (self.gradients or divides_differently(a, b)):
                self.gradients = True
                return first_of_gradients(a, b, self.ranks, self.counts)
            return StepWalk(a, b, self.ranks, self.counts, rounding=rounding).first()
        return None if rounding or self.gradients else self._states(a, b)

    def _states(self, a: Step, b: Step) -> Difference | None:
        """The first moment of a step whose states differ, where the ops of one side at least were not recorded."""
        generators: list[str] = []
        for name in (CALL, OPTIMIZER):
            ours, theirs = a.kinds(name), b.kinds(name)
            self.counts.values += len(ours)
            kinds = [kind for kind in {**ours, **theirs} if ours.get(kind) != theirs.get(kind)]
            generators += [kind for kind in kinds if is_generator(kind)]
            if ours and theirs and not all(map(is_generator, kinds)):
                kinds = [*(kind for kind in kinds if not is_generator(kind)), *generators]
                cause = state_cause(kinds)
                kinds = [kind for kind in kinds if cause == "data" or kind not in HOST_GENERATORS]
                rows = tuple(_kind_row(kind, ours, theirs) for kind in kinds)
                moments = a.moment(name), b.moment(name)
                return Difference(
                    cause=cause,
                    a=None if moments[0] is None else place_of(*moments[0]),
                    b=None if moments[1] is None else place_of(*moments[1]),
                    recorded=False,
                    rank_a=self.ranks[0],
                    rank_b=self.ranks[1],
                    step_a=a.number,
                    step_b=b.number,
                    values=rows,
                )
        return None

    def _with_order(self, found: Difference, step: Step) -> Difference:
        """The step of A that had the data that B has here, if there is one."""
        if found.cause != "data" or found.b is None or found.b.op != CALL:
            return found
        wanted = step.kinds(CALL).get("input")
        same = [one.number for one in self.a.contents if wanted is not None and one.states.get("input") == wanted]
        if not same:
            return found
        return replace(found, cause="order", same_as_step=same[0])


def _from_first_call(step: Step) -> Step:
    """The step without the ops before its first call of a model."""
    begin = step.moment(CALL)
    return step if begin is None else Step(
        number=step.number, sampled=step.sampled, ops=step.ops[begin[0] :], values=step.values
    )  # fmt: skip


def _kind_row(kind: str, ours: dict[str, str | None], theirs: dict[str, str | None]) -> Differing:
    alone = "" if is_generator(kind) or (kind in ours and kind in theirs) else ", on one side only"
    return Differing(role=f"{kind}{alone}", dtype="", shape_a=(), shape_b=())


def _found_shift(a: Recording, b: Recording) -> int:
    """0, or the distance to the step of one side with whose parameters the other side begins."""
    if not a.contents or not b.contents:
        return 0
    parameters = [[step.states.get("parameter") for step in side.contents] for side in (a, b)]
    if parameters[0][0] == parameters[1][0] or None in (parameters[0][0], parameters[1][0]):
        return 0
    for ours, theirs, sign in ((a, b, 1), (b, a, -1)):
        wanted = theirs.contents[0].states["parameter"]
        for step in ours.contents:
            if step.states.get("parameter") == wanted:
                return sign * (step.number - theirs.contents[0].number)
    return 0


def _earliest(difference: Difference) -> tuple[int, bool, int]:
    """Order of differences of ranks: what a collective brought to a rank began on another one."""
    place = difference.a or difference.b
    return difference.step_a, difference.cause == "collective", place.number if place is not None else 0


def _total(comparisons: list[Comparison]) -> Counts:
    counts = [comparison.counts for comparison in comparisons]
    return Counts(
        steps=sum(each.steps for each in counts),
        ops=sum(each.ops for each in counts),
        values=sum(each.values for each in counts),
        unequal=sum(each.unequal for each in counts),
        unread=sum(each.unread for each in counts),
        rows=any(each.rows for each in counts),
    )


def _mode(comparisons: list[Comparison]) -> Mode:
    if any(comparison.gradients for comparison in comparisons):
        return "gradients"
    return "first rows" if any(comparison.counts.rows for comparison in comparisons) else "ops"


def _side(source: Source) -> Side:
    first = source.recordings[min(source.recordings)]
    return Side(
        source=source.path,
        framework=first.head.framework,
        ranks=len(source.recordings),
        steps=len(first.contents),
        sampled=tuple(step.number for step in first.contents if step.sampled)[:MOST_STEPS_LISTED],
    )


def _settings(a: Source, b: Source) -> Iterator[Setting]:
    heads = [next(iter(side.recordings.values())).head.settings for side in (a, b)]
    versions = [side.packages for side in (a, b)]
    for ours, theirs in (heads, versions):
        for name in {**ours, **theirs}:
            one, other = ours.get(name, "-"), theirs.get(name, "-")
            if one != other:
                yield Setting(name=name, a=one, b=other)


def _notes(sides: tuple[Source, Source], comparisons: list[Comparison]) -> Iterator[str]:
    if not any(comparison.counts.ops for comparison in comparisons):
        yield "the ops of no step were recorded on both sides: states before each step were compared (--steps A:B)"
    if comparisons[0].shift:
        yield (
            f"step N of B is compared with step N{comparisons[0].shift:+d} of A"
            + ", with whose parameters it begins" * (comparisons[0].shift != 0)
        )
    for name, side in zip("AB", sides, strict=True):
        for rank, recording in side.recordings.items():
            whose = name if len(side.recordings) == 1 else f"{name}, rank {rank}"
            if recording.cut:
                yield f"{whose}: the recording ends within a step, and was compared up to there"
            yield from (f"{whose}: {note}" for note in recording.notes)


def _listed(source: Source) -> str:
    numbers = [step.number for step in source.recordings[min(source.recordings)].contents]
    return f"steps {numbers[0]} to {numbers[-1]}" if numbers else "no steps"


def kinds_of(roles: list[str]) -> list[str]:
    """The kinds of values, once each."""
    return list(dict.fromkeys(kind_of(role) for role in roles))
