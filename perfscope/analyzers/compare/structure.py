"""Metrics that do not depend on chance, side by side: what both recorded is compared exactly, the rest is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfscope.analyzers.compare.align import same_files
from perfscope.analyzers.compare.exact import compare_exact, compare_text
from perfscope.analyzers.compare.measures import Measure, Measured, measures
from perfscope.analyzers.compare.programs_side import MOST_PROGRAMS, ProgramSide, paired_programs, program_sides
from perfscope.analyzers.compare.verdict import MetricResult
from perfscope.analyzers.trace import Trace

NEUTRAL = "it differs: whether for better or worse, the other metrics say"
NO_STEPS = "no steps: a longer recording has more of it"

MOST_PLACES = 20
"""Places of a metric that changed: as many as a finding has rows of evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceChange:
    """A line (or an op) whose part of a metric differs."""

    place: str
    base: float
    head: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMetric:
    """A metric with its verdict, and where it changed, the largest change first."""

    result: MetricResult
    places: tuple[PlaceChange, ...] = ()
    neutral: bool = False
    """More of it is neither better nor worse; where it differs the verdict is inconclusive."""

    @property
    def changed(self) -> bool:
        """Whether the two sides differ at all."""
        return self.result.base != self.result.head


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLooked:
    """A metric that one side or both did not record."""

    name: str
    reason: str
    sides: tuple[str, ...]
    """``base``, ``head`` or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """All exact metrics, and what could not be looked at."""

    metrics: tuple[ExactMetric, ...]
    not_looked: tuple[NotLooked, ...]
    notes: tuple[str, ...] = ()


def structure(base: Sequence[Trace], head: Sequence[Trace]) -> Structure:
    """Compare what the traces of both sides say of themselves; of several ranks, the one with most of a metric."""
    left, right = [one.fact(measures) for one in base], [one.fact(measures) for one in head]
    found, lost = _of_traces(left, right)
    notes: tuple[str, ...] = ()
    if any(trace.hlo for trace in (*base, *head)):
        metrics, blind, notes = _of_programs(base, head)
        found += metrics
        lost += blind
    return Structure(metrics=tuple(found), not_looked=tuple(lost), notes=notes)


def _of_traces(base: Sequence[Measured], head: Sequence[Measured]) -> tuple[list[ExactMetric], list[NotLooked]]:
    names = dict.fromkeys(name for side in (*base, *head) for name in (*side.found, *side.blind))
    found, lost = [], []
    for name in names:
        mine, theirs = _most(base, name), _most(head, name)
        if mine is not None and theirs is not None:
            found.append(exact_metric(name, mine, theirs))
            continue
        absent = tuple(side for side, one in (("base", mine), ("head", theirs)) if one is None)
        reasons = [one.blind[name] for one in (*base, *head) if name in one.blind]
        lost.append(NotLooked(name=name, reason=reasons[0] if reasons else "not recorded there", sides=absent))
    return found, lost


def _most(side: Sequence[Measured], name: str) -> Measure | None:
    """The measure of the rank that has most of it; ``None`` unless every rank has it."""
    held = [one.found[name] for one in side if name in one.found]
    return max(held, key=lambda one: one.value) if held and len(held) == len(side) else None


def exact_metric(name: str, base: Measure, head: Measure) -> ExactMetric:
    """One metric with its verdict and the places where it differs."""
    result = compare_exact(name, [base.value], [head.value], unit=base.unit)
    said = dict.fromkeys((*result.remarks, *base.remarks, *head.remarks))
    if base.per_trace and result.verdict != "no change":
        result = replace(result, verdict="inconclusive")
        said[NO_STEPS] = None
    neutral = base.neutral and head.neutral
    if neutral and result.verdict != "no change":
        result = replace(result, verdict="inconclusive")
        said[NEUTRAL] = None
    return ExactMetric(
        result=replace(result, remarks=tuple(said)), places=_places(base.places, head.places), neutral=neutral
    )


def _places(base: Mapping[str, float], head: Mapping[str, float]) -> tuple[PlaceChange, ...]:
    files = same_files({_file(place) for place in base}, {_file(place) for place in head})
    mine: dict[str, float] = {}
    for place, amount in base.items():
        file = _file(place)
        mine[files.get(file, file) + place[len(file) :]] = amount
    changed = [
        PlaceChange(place=place, base=mine.get(place, 0.0), head=head.get(place, 0.0))
        for place in dict.fromkeys((*mine, *head))
        if mine.get(place, 0.0) != head.get(place, 0.0)
    ]
    changed = _without_moved(changed)
    return tuple(sorted(changed, key=lambda one: (-abs(one.head - one.base), one.place))[:MOST_PLACES])


def _without_moved(changed: list[PlaceChange]) -> list[PlaceChange]:
    """Without lines whose whole amount stands at another line of the file now: the code moved."""
    gone: dict[tuple[str, float], list[PlaceChange]] = {}
    for one in sorted(changed, key=_line_of):
        if not one.head:
            gone.setdefault((_file(one.place), one.base), []).append(one)
    moved: set[str] = set()
    for one in sorted(changed, key=_line_of):
        before = gone.get((_file(one.place), one.head)) if not one.base else None
        if before:
            moved |= {before.pop(0).place, one.place}
    return [one for one in changed if one.place not in moved]


def _file(place: str) -> str:
    """The file of ``file:line``; of an op, itself."""
    file, colon, line = place.rpartition(":")
    return file if colon and line.isdigit() else place


def _line_of(change: PlaceChange) -> int:
    line = change.place.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def _of_programs(
    base: Sequence[Trace], head: Sequence[Trace]
) -> tuple[list[ExactMetric], list[NotLooked], tuple[str, ...]]:
    left, right = _sides(base), _sides(head)
    if not left or not right:
        absent = tuple(name for name, side in (("base", left), ("head", right)) if not side)
        return [], [NotLooked(name="compiled programs", reason="no compiled program recorded", sides=absent)], ()
    pairs = paired_programs(left, right)
    found: list[ExactMetric] = []
    lost: list[NotLooked] = []
    for mine, theirs in pairs:
        ahead = f"{theirs.label}: " if len(pairs) > 1 else ""
        found.append(
            ExactMetric(result=compare_text(f"{ahead}program", mine.fingerprint, theirs.fingerprint), neutral=True)
        )
        for name in dict.fromkeys((*mine.measures, *theirs.measures)):
            if name in mine.measures and name in theirs.measures:
                found.append(exact_metric(f"{ahead}{name}", mine.measures[name], theirs.measures[name]))
            else:
                absent = ("head",) if name in mine.measures else ("base",)
                lost.append(NotLooked(name=f"{ahead}{name}", reason="the program does not say it", sides=absent))
    return found, lost, tuple(_alone(left, right, pairs))


def _sides(traces: Sequence[Trace]) -> tuple[ProgramSide, ...]:
    """Programs of the first trace that has any: ranks of a job run the same ones."""
    return next((trace.fact(program_sides) for trace in traces if trace.hlo), ())


def _alone(
    base: Sequence[ProgramSide], head: Sequence[ProgramSide], pairs: Iterable[tuple[ProgramSide, ProgramSide]]
) -> list[str]:
    matched = {id(one) for pair in pairs for one in pair}
    said = []
    for side, programs in (("base", base), ("head", head)):
        labels = [one.label for one in programs if id(one) not in matched]
        if labels:
            more = "" if len(labels) <= MOST_PROGRAMS else " ..."
            said.append(f"programs of {side} without a partner: {', '.join(labels[:MOST_PROGRAMS])}{more}")
    return said
