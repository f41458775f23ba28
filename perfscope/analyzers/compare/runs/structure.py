"""Metrics that do not depend on chance: values that both runs recorded are compared exactly, missing ones are named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.keys import LineMap
from perfscope.analyzers.compare.programs.pairs import MOST_PROGRAMS, ProgramSide, paired_sides, program_sides
from perfscope.analyzers.compare.programs.row import some_of
from perfscope.analyzers.compare.programs.units import EXCHANGED
from perfscope.analyzers.compare.runs.keys import same_files
from perfscope.analyzers.compare.runs.measures import (
    COMPILED_GRAPHS,
    COMPILED_KERNELS,
    COMPILED_LIBRARY_CALLS,
    Measure,
    host_ops,
    measures,
)
from perfscope.analyzers.compare.statistics.verdict import MetricResult, compare_exact, compare_text
from perfscope.model.documents.comparison import NotLooked, Place
from perfscope.model.trace import Trace

NEUTRAL = "it differs: whether for better or worse, the other metrics say"
NO_STEPS = "no steps: a longer recording has more"

SIDES = ("base", "head")

MOST_OPS = 8
"""Maximum number of named host ops of one side."""

MOST_PLACES = 20
"""Maximum number of places of a changed metric, equal to a finding's rows of evidence."""


class ExactMetric(Struct, frozen=True, kw_only=True):
    """A metric with its verdict and the places of change, the largest first."""

    result: MetricResult
    places: tuple[Place, ...] = ()
    neutral: bool = False
    """Whether more of it is neither better nor worse; a difference is inconclusive."""
    launches: tuple[Sequence[float], Sequence[float]] = ((), ())
    """Value in each launch of both sides."""

    @property
    def changed(self) -> bool:
        """Whether the two sides differ at all."""
        return self.result.base != self.result.head


class Structure(Struct, frozen=True, kw_only=True):
    """All exact metrics, and the reasons for missing ones."""

    metrics: tuple[ExactMetric, ...]
    not_looked: tuple[NotLooked, ...]
    notes: tuple[str, ...] = ()


class ExactValues(Struct, frozen=True, kw_only=True):
    """Exact values of one run; for several ranks, the values of the rank with most of a metric."""

    found: Mapping[str, Measure]
    blind: Mapping[str, str]
    """Name -> why the value is unknown."""
    programs: tuple[ProgramSide, ...] | None
    """Compiled programs; ``None`` if none was recorded."""
    host_ops: Mapping[str, float] | None = None
    """Host ops by name, calls per step, of the first rank; ``None`` if none was recorded."""


def exact_values(traces: Sequence[Trace]) -> ExactValues:
    """Return the exact values in the traces of a run."""
    ranks = [trace.fact(measures) for trace in traces]
    by_name, blind = {}, {}
    for name in dict.fromkeys(name for rank in ranks for name in (*rank.found, *rank.blind)):
        if all(name in rank.found for rank in ranks):
            by_name[name] = max((rank.found[name] for rank in ranks), key=lambda measure: measure.value)
        else:
            blind[name] = next((rank.blind[name] for rank in ranks if name in rank.blind), "not recorded by all ranks")
    ops = host_ops(traces[0]) if traces else None
    # The ranks of a job run the same programs.
    programs = next((trace.fact(program_sides) for trace in traces if trace.hlo or trace.torch_plans), None)
    return ExactValues(found=by_name, blind=blind, programs=programs, host_ops=ops)


def structure(base: Sequence[Trace], head: Sequence[Trace], lines: Mapping[str, LineMap] | None = None) -> Structure:
    """Compare the exact values in the traces of two runs.

    ``lines``: by fingerprint of a program of the base, the positions of its lines in the head.
    """
    return structure_of((exact_values(base),), (exact_values(head),), lines=lines)


def structure_of(
    base: Sequence[ExactValues],
    head: Sequence[ExactValues],
    *,
    middle: tuple[int, int] = (0, 0),
    lines: Mapping[str, LineMap] | None = None,
) -> Structure:
    """Compare launches of two programs by their ranges. Places are those of the two launches in the ``middle``.

    ``IndexError`` if one of them does not exist.
    """
    exact_metrics, lost = _of_traces(base, head, middle)
    notes = tuple(_ops_of_one_side(base[middle[0]].host_ops, head[middle[1]].host_ops))
    if any(run.programs is not None for run in (*base, *head)):
        metrics, blind, of_programs = _of_programs(base, head, middle, lines or {})
        notes += of_programs
        exact_metrics += metrics
        lost += blind
    return Structure(metrics=tuple(exact_metrics), not_looked=tuple(lost), notes=notes)


def _ops_of_one_side(base: Mapping[str, float] | None, head: Mapping[str, float] | None) -> Iterator[str]:
    """Yield ops that ran on the host of one side only, by calls per step."""
    if base is None or head is None:
        return
    for side, mine, other in (("base", base, head), ("head", head, base)):
        alone = sorted((name for name in mine if name not in other), key=lambda name: (-mine[name], name))
        if alone:
            named = some_of((f"{name} ({mine[name]:g})" for name in alone), MOST_OPS)
            yield f"host ops that ran in the {side} only (calls per step): {named}"


def _of_traces(
    base: Sequence[ExactValues], head: Sequence[ExactValues], middle: tuple[int, int]
) -> tuple[list[ExactMetric], list[NotLooked]]:
    names = dict.fromkeys(name for run in (*base, *head) for name in (*run.found, *run.blind))
    by_name: dict[str, ExactMetric] = {}
    lost = []
    for name in names:
        sides = [[run.found[name] for run in side if name in run.found] for side in (base, head)]
        absent = tuple(
            which for which, side, measures in zip(SIDES, (base, head), sides, strict=True) if len(measures) < len(side)
        )
        if not absent:
            by_name[name] = exact_metric(
                name,
                base[middle[0]].found[name],
                head[middle[1]].found[name],
                launches=([measure.value for measure in sides[0]], [measure.value for measure in sides[1]]),
            )
            continue
        reason = next((run.blind[name] for run in (*base, *head) if name in run.blind), "not recorded there")
        lost.append(NotLooked(name=name, reason=reason, sides=absent))
    return [_of_as_many_graphs(exact_metric, by_name) for exact_metric in by_name.values()], lost


def _of_as_many_graphs(exact_metric: ExactMetric, by_name: Mapping[str, ExactMetric]) -> ExactMetric:
    """Judge the number of kernels if graphs are as many, unless library calls became kernels or the reverse."""
    graphs, library = by_name.get(COMPILED_GRAPHS), by_name.get(COMPILED_LIBRARY_CALLS)
    if exact_metric.result.name != COMPILED_KERNELS or graphs is None or library is None:
        return exact_metric
    if graphs.changed or graphs.result.remarks or not graphs.result.base or not exact_metric.changed:
        return exact_metric
    more, taken = (_difference(metric) for metric in (exact_metric, library))
    if more * taken < 0:
        return exact_metric
    result = exact_metric.result
    return replace(
        exact_metric, result=compare_exact(result.name, *exact_metric.launches, unit=result.unit), neutral=False
    )


def _difference(exact_metric: ExactMetric) -> float:
    base, head = exact_metric.result.base, exact_metric.result.head
    return head - base if isinstance(base, float) and isinstance(head, float) else 0.0


def exact_metric(
    name: str, base: Measure, head: Measure, *, launches: tuple[Sequence[float], Sequence[float]] | None = None
) -> ExactMetric:
    """Return one metric with its verdict and places of change. ``launches``: its values, if there are several."""
    values = ([base.value], [head.value]) if launches is None else launches
    result = compare_exact(name, *values, unit=base.unit)
    remarks = dict.fromkeys((*result.remarks, *base.remarks, *head.remarks))
    if result.effect is not None and abs(result.effect) < base.least and result.verdict != "no change":
        result = replace(result, verdict="no change")
        remarks[f"it differs, by less than the {base.least:.0%} that matters"] = None
    if base.per_trace and result.verdict != "no change":
        result = replace(result, verdict="inconclusive")
        remarks[NO_STEPS] = None
    neutral = base.neutral and head.neutral
    if neutral and result.verdict != "no change":
        result = replace(result, verdict="inconclusive")
        remarks[NEUTRAL] = None
    return ExactMetric(
        result=replace(result, remarks=tuple(remarks)),
        places=_places(base.places, head.places),
        neutral=neutral,
        launches=values,
    )


def _places(base: Mapping[str, float], head: Mapping[str, float]) -> tuple[Place, ...]:
    files = same_files({_file(location) for location in base}, {_file(location) for location in head})
    mine: dict[str, float] = {}
    for location, amount in base.items():
        file = _file(location)
        mine[files.get(file, file) + location[len(file) :]] = amount
    changed = [
        Place(place=location, base=mine.get(location, 0.0), head=head.get(location, 0.0))
        for location in dict.fromkeys((*mine, *head))
        if mine.get(location, 0.0) != head.get(location, 0.0)
    ]
    changed = _without_moved(changed)
    return tuple(
        sorted(changed, key=lambda place_change: (-abs(place_change.head - place_change.base), place_change.place))[
            :MOST_PLACES
        ]
    )


def _without_moved(changed: list[Place]) -> list[Place]:
    """Drop lines whose whole amount is now at another line of the file, because the code moved."""
    gone: dict[tuple[str, float], list[Place]] = {}
    for place_change in sorted(changed, key=_line_of):
        if not place_change.head:
            gone.setdefault((_file(place_change.place), place_change.base), []).append(place_change)
    moved: set[str] = set()
    for place_change in sorted(changed, key=_line_of):
        before = gone.get((_file(place_change.place), place_change.head)) if not place_change.base else None
        if before:
            moved |= {before.pop(0).place, place_change.place}
    return [place_change for place_change in changed if place_change.place not in moved]


def _file(location: str) -> str:
    """Return the file of ``file:line``; an op stays itself."""
    file, colon, line = location.rpartition(":")
    return file if colon and line.isdigit() else location


def _line_of(change: Place) -> int:
    line = change.place.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def _of_programs(
    base: Sequence[ExactValues], head: Sequence[ExactValues], middle: tuple[int, int], lines: Mapping[str, LineMap]
) -> tuple[list[ExactMetric], list[NotLooked], tuple[str, ...]]:
    left, right = base[middle[0]].programs, head[middle[1]].programs
    if not left or not right:
        absent = tuple(name for name, side in zip(SIDES, (left, right), strict=True) if not side)
        return [], [NotLooked(name="compiled programs", reason="no compiled program recorded", sides=absent)], ()
    pairs = paired_sides(left, right)
    mine_of, theirs_of = _of_launches(left, base), _of_launches(right, head)
    metrics: list[ExactMetric] = []
    lost: list[NotLooked] = []
    for mine, theirs in pairs:
        ahead = f"{theirs.label}: " if len(pairs) > 1 else ""
        every = mine_of[id(mine)], theirs_of[id(theirs)]
        if mine.failed != theirs.failed:
            sides = ("base",) if mine.failed else ("head",)
            reason = "the planning of the program failed"
            names = dict.fromkeys((*mine.measures, *theirs.measures))
            lost += (NotLooked(name=f"{ahead}{name}", reason=reason, sides=sides) for name in names)
            continue
        metrics.append(ExactMetric(result=_fingerprints(f"{ahead}program", *every), neutral=True))
        other_jobs = mine.processes != theirs.processes
        if other_jobs:
            reason = f"planned as {mine.processes or 'no'} processes and as {theirs.processes or 'no'}"
            lost.append(NotLooked(name=f"{ahead}planned collectives", reason=reason, sides=SIDES))
        for name in dict.fromkeys((*mine.measures, *theirs.measures)):
            if other_jobs and name in EXCHANGED:
                continue
            values = [
                [program_side.measures[name].value for program_side in side if name in program_side.measures]
                for side in every
            ]
            if all(len(side_values) == len(side) for side_values, side in zip(values, (base, head), strict=True)):
                measured = _moved(mine.measures[name], lines.get(mine.fingerprint)), theirs.measures[name]
                metrics.append(exact_metric(f"{ahead}{name}", *measured, launches=(values[0], values[1])))
            else:
                absent = ("head",) if name in mine.measures else ("base",)
                lost.append(NotLooked(name=f"{ahead}{name}", reason="the program lacks it", sides=absent))
    return metrics, lost, tuple(_alone(left, right, pairs))


def _moved(measure: Measure, lines: LineMap | None) -> Measure:
    """Return the measure with its places at the head's lines."""
    if lines is None:
        return measure
    places: dict[str, float] = {}
    for place, amount in measure.places.items():
        file = _file(place)
        line = place[len(file) + 1 :]
        location = f"{lines.file(file)}:{lines.line(file, int(line))}" if line else place
        places[location] = places.get(location, 0) + amount
    return replace(measure, places=places)


def _of_launches(programs: Sequence[ProgramSide], launches: Sequence[ExactValues]) -> dict[int, list[ProgramSide]]:
    """Return, by ``id`` of a program, the same program of every launch."""
    result: dict[int, list[ProgramSide]] = {id(program): [] for program in programs}
    for launch in launches:
        for program_side, other in paired_sides(programs, launch.programs or ()):
            result[id(program_side)].append(other)
    return result


def _fingerprints(name: str, base: Sequence[ProgramSide], head: Sequence[ProgramSide]) -> MetricResult:
    result = compare_text(name, base[0].fingerprint, head[0].fingerprint)
    texts = tuple(
        f"differs between launches of {which}"
        for which, side in zip(SIDES, (base, head), strict=True)
        if len({program_side.fingerprint for program_side in side}) > 1
    )
    return replace(result, verdict="inconclusive", remarks=(*result.remarks, *texts)) if texts else result


def _alone(
    base: Sequence[ProgramSide], head: Sequence[ProgramSide], pairs: Iterable[tuple[ProgramSide, ProgramSide]]
) -> list[str]:
    matched = {id(program_side) for pair in pairs for program_side in pair}
    sentences = []
    for side, programs in (("base", base), ("head", head)):
        labels = [program.label for program in programs if id(program) not in matched]
        if labels:
            more = "" if len(labels) <= MOST_PROGRAMS else " ..."
            sentences.append(f"programs of {side} without a partner: {', '.join(labels[:MOST_PROGRAMS])}{more}")
    return sentences
