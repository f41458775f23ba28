"""Causes of a change by source line: changed counts first, then times, which may differ by chance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import PurePath

from msgspec.structs import replace

from perfscope.analyzers.compare.runs.change import PartChange, StepChange
from perfscope.analyzers.compare.runs.structure import Structure
from perfscope.model.documents.compared_findings import Change, FindingChange
from perfscope.model.documents.comparison import CauseMetric, CauseValues
from perfscope.model.finding import Finding, FindingHead, Outcome
from perfscope.model.severity import MEDIUM_SHARE, SEVERITIES

# Findings of two analyses: new, fixed, unchanged, worse or better, and findings that only one side looked for.


LEAST_RATIO = 1.5
"""Smallest ratio of costs that differ. Costs of single captures vary by a fifth between runs, and by more for a rank or
a step that was cut at the edge.
"""

_ORDER: tuple[Change, ...] = (
    "new", "worse", "first looked at", "fixed", "better", "no longer looked at", "unchanged",
)  # fmt: skip


def findings_change(
    base: Iterable[Outcome], head: Iterable[Outcome], *, step_ns: float | None = None
) -> tuple[FindingChange, ...]:
    """Return every finding of both sides once, worst change first.

    ``base`` and ``head``: an analysis, or outcomes. ``step_ns``: a step of the head; a cost that moved by less than 1%
    of it is unchanged. A finding that one side did not look for (its rule abstained or was not selected) is never new
    or fixed. A finding that is silenced in the head is left out.
    """
    outcomes = {outcome.rule: outcome for outcome in base}, {outcome.rule: outcome for outcome in head}
    changes: list[FindingChange] = []
    for rule in dict.fromkeys((*outcomes[0], *outcomes[1])):
        mine, theirs = outcomes[0].get(rule), outcomes[1].get(rule)
        for finding, other in _paired(mine.findings if mine else (), theirs.findings if theirs else ()):
            if other is not None and other.silenced is not None:
                continue
            change = _change(finding, other, mine, theirs, step_ns)
            changes.append(FindingChange(rule=rule, change=change, base=finding, head=other))
    return tuple(sorted(changes, key=_worst_first))


def _change(
    base: Finding | None, head: Finding | None, mine: Outcome | None, theirs: Outcome | None, step_ns: float | None
) -> Change:
    if base is None:
        return "new" if _looked(mine) else "first looked at"
    if head is None:
        return "fixed" if _looked(theirs) else "no longer looked at"
    before, after = cost_of(base), cost_of(head)
    moved = SEVERITIES.index(head.severity) - SEVERITIES.index(base.severity)
    if before is None or after is None:
        return "worse" if moved > 0 else "better" if moved < 0 else "unchanged"
    if max(before, after) < LEAST_RATIO * min(before, after):
        return "unchanged"
    if step_ns is not None and abs(after - before) < MEDIUM_SHARE * step_ns:
        return "unchanged"
    return "worse" if after > before else "better"


def _looked(outcome: Outcome | None) -> bool:
    """Return whether the rule inspected everything.

    A rule that abstained for a part may have missed a finding there.
    """
    return outcome is not None and outcome.status != "abstained" and outcome.reason is None


def cost_of(finding: FindingHead | None) -> int | None:
    """ns that it costs: a step where that is known, else in all; ``None`` for no time, or no finding."""
    if finding is None:
        return None
    return finding.cost_ns_per_step if finding.cost_ns_per_step is not None else finding.cost_ns


def _file_name(finding: Finding) -> str | None:
    """Return the file name without its folder, which differs between checkouts."""
    return finding.where.file and PurePath(finding.where.file).name


_LEVELS: tuple[Callable[[Finding], tuple[object, ...]], ...] = (
    lambda finding: (finding.subject, finding.where),
    lambda finding: (finding.subject, _file_name(finding), finding.where.op, finding.where.module),
    lambda finding: (finding.subject, _file_name(finding)),
)
"""Features that two equal findings share, most specific first."""


def _paired(base: Sequence[Finding], head: Sequence[Finding]) -> list[tuple[Finding | None, Finding | None]]:
    """Pair equal findings of both sides: at the same place, else in the same file in the order of lines."""
    left, right = {id(finding): finding for finding in base}, {id(finding): finding for finding in head}
    pairs: list[tuple[Finding | None, Finding | None]] = []
    for level in _LEVELS:
        groups: dict[tuple[object, ...], tuple[list[Finding], list[Finding]]] = defaultdict(lambda: ([], []))
        for side, findings in enumerate((left, right)):
            for finding in sorted(findings.values(), key=lambda finding: finding.where.line or 0):
                groups[level(finding)][side].append(finding)
        for mine, theirs in groups.values():
            for finding, other in zip(mine, theirs, strict=False):
                pairs.append((finding, other))
                del left[id(finding)], right[id(other)]
    return [*pairs, *((finding, None) for finding in left.values()), *((None, other) for other in right.values())]


def _worst_first(change: FindingChange) -> tuple[int, int, int, str]:
    shown = change.shown
    return (_ORDER.index(change.change), -SEVERITIES.index(shown.severity), -(cost_of(shown) or 0), shown.title)


MOVED = ("new", "worse", "fixed", "better")
"""Changes of a finding that need a cause."""

LEAST_SHARE = 0.005
"""Smallest share of the step: parts that changed by less do not explain a change of 2%, the smallest that counts."""


NAMED_BY = {
    "functions traced again": "recompilation",
    "graph breaks": "graph_break",
    "host syncs": "host_sync",
    "reads by the host": "host_sync",
    "recompilations": "recompilation",
    "recomputed": "excess_remat",
}
"""Prefix of a metric's name -> rule whose findings are about that metric only."""


class Cause(CauseValues, frozen=True, kw_only=True):
    """Changes at one place. Where it is not ``exact`` it is a difference of two measured times."""

    parts: tuple[PartChange, ...] = ()
    """The largest change first."""
    findings: tuple[FindingChange, ...] = ()
    """Findings that are new, worse, fixed or better at this place."""
    weight: float = 0.0
    """Largest share of the step or of a metric at this place: its possible part of the change."""


def causes(change: StepChange | None, structure: Structure, findings: Sequence[FindingChange]) -> tuple[Cause, ...]:
    """Return places where something changed: first those with changed counts, then the others, by weight.

    Places with counts have this order. First come places with a finding about a metric (``NAMED_BY``) that is better or
    worse. Places with another new or fixed finding follow, because such a finding may have crossed its threshold when
    the same work ran more often. Then come places without a finding: those with such a metric before those where only
    calls differ.
    """
    by_place: dict[str, _Place] = {}
    shares = _Shares(change, structure)
    for part in change.parts if change is not None else ():
        if part.counts_differ or (change is not None and abs(part.each_ns) >= LEAST_SHARE * change.base_ns):
            by_place.setdefault(_place(part), _Place()).parts.append(part)
    for metric in structure.metrics:
        for place_change in metric.places if metric.result.verdict != "no change" else ():
            found_at = CauseMetric(
                name=metric.result.name, unit=metric.result.unit, base=place_change.base, head=place_change.head
            )
            by_place.setdefault(place_change.place, _Place()).metrics.append(found_at)
    for finding in findings:
        where = finding.shown.where
        if finding.change in MOVED and where.file is not None:
            by_place.setdefault(where.label(), _Place()).findings.append(finding)
    result = [place.cause(location, shares) for location, place in _one_file_one_name(by_place).items()]
    naming = {rule for name in shares.judged for begin, rule in NAMED_BY.items() if name.startswith(begin)}
    return tuple(sorted(result, key=lambda cause: _first(cause, shares.judged, naming)))


def _one_file_one_name(by_place: dict[str, _Place]) -> dict[str, _Place]:
    """Merge a line's file names under the shortest: compiled programs hold whole paths, recordings the end."""
    result: dict[str, _Place] = {}
    by_end: dict[str, list[str]] = {}
    for location in by_place:
        by_end.setdefault(location.rpartition("/")[2], []).append(location)
    for location, place in by_place.items():
        alike = by_end[location.rpartition("/")[2]]
        name = min((other for other in alike if location == other or location.endswith(f"/{other}")), key=len)
        known = result.setdefault(name, _Place())
        known.parts += place.parts
        known.metrics += place.metrics
        known.findings += place.findings
    return result


def corroborated(
    findings: Sequence[FindingChange], change: StepChange | None, structure: Structure
) -> tuple[FindingChange, ...]:
    """Return the findings, with ``by_time`` set if only a measured time shows the change.

    A structural finding follows from the program. Any other finding needs a changed count on its line, in its op or
    kernel, and in its direction: more for a finding that is new or worse, less for one that is fixed or better. If a
    side has no times (compiled programs, snapshots), chance plays no role.
    """
    if change is None:
        return tuple(findings)
    more, less = _counted(change, structure, 1), _counted(change, structure, -1)
    evidence = {"new": more, "worse": more, "fixed": less, "better": less}
    return tuple(
        replace(finding, by_time=finding.change in MOVED and not _follows(finding, *evidence[finding.change]))
        for finding in findings
    )


def _counted(change: StepChange, structure: Structure, sign: int) -> tuple[set[str], set[str]]:
    """Return (places, names of ops and kernels) where calls or a metric grew (``sign`` 1) or shrank (-1).

    Equal numbers of different calls count as both.
    """
    places: defaultdict[str, Fraction] = defaultdict(Fraction)
    names: defaultdict[str, Fraction] = defaultdict(Fraction)
    for part in change.parts:
        if part.counts_differ:
            calls = (part.head.calls - part.base.calls) * sign
            places[_place(part)] += calls
            for name in {text for side in (part.base, part.head) for key in side.keys for text in (key.op, key.work)}:
                names[name] += calls
    changed = (
        place_change
        for metric in structure.metrics
        if metric.result.verdict != "no change"
        for place_change in metric.places
    )
    moved = {place_change.place for place_change in changed if (place_change.head - place_change.base) * sign > 0}
    return moved | _not_fewer(places), _not_fewer(names) - {""}


def _not_fewer(calls: Mapping[str, Fraction]) -> set[str]:
    return {name for name, more in calls.items() if more >= 0}


def _follows(change: FindingChange, places: Collection[str], names: Collection[str]) -> bool:
    where = change.shown.where
    if change.shown.basis == "structural" and change.change in ("new", "fixed"):
        return True
    label = where.label()
    if where.file is not None:
        return any(
            location == label or location.endswith(f"/{label}") or label.endswith(f"/{location}") for location in places
        )
    return where.op in names or where.kernel in names or where.module in places


class _Place:
    """Changes collected at one place."""

    def __init__(self) -> None:
        self.parts: list[PartChange] = []
        self.metrics: list[CauseMetric] = []
        self.findings: list[FindingChange] = []

    def cause(self, location: str, shares: _Shares) -> Cause:
        return Cause(
            place=location,
            delta_ns=sum(part.delta_ns for part in self.parts),
            exact=bool(self.metrics)
            or any(not finding.by_time for finding in self.findings)
            or any(part.counts_differ for part in self.parts),
            parts=tuple(sorted(self.parts, key=lambda part: (not part.counts_differ, -abs(part.delta_ns)))),
            metrics=tuple(self.metrics),
            findings=tuple(self.findings),
            weight=shares.largest(self.parts, self.metrics, self.findings),
        )


class _Shares:
    """Shares of the step or of a metric."""

    def __init__(self, change: StepChange | None, structure: Structure) -> None:
        self.step_ns = 0 if change is None else max(change.base_ns, change.head_ns)
        results = [metric.result for metric in structure.metrics]
        self.judged = {result.name for result in results if result.verdict in ("regression", "improvement")}
        self.metrics = {
            result.name: max(abs(result.base), abs(result.head))
            for result in results
            if isinstance(result.base, float) and isinstance(result.head, float)
        }

    def largest(
        self, parts: Iterable[PartChange], metrics: Iterable[CauseMetric], findings: Iterable[FindingChange]
    ) -> float:
        """Return the largest share of a place; 0 if nothing is known."""
        shares = [
            abs((metric.head or 0) - (metric.base or 0)) / whole
            for metric in metrics
            if (whole := self.metrics.get(metric.name))
        ]
        if self.step_ns:
            every = list(parts)  # Use the time of parts whose counts changed; without any, of all parts.
            counted = [part for part in every if part.counts_differ]
            shares.append(sum(abs(part.delta_ns) for part in counted or every) / self.step_ns)
            costs = [abs((cost_of(finding.head) or 0) - (cost_of(finding.base) or 0)) for finding in findings]
            shares += [cost / self.step_ns for cost in costs]
        return max(shares, default=0.0)


def _place(part: PartChange) -> str:
    key = part.key()
    return key.place() or key.name()


def _first(cause: Cause, judged: Collection[str], naming: Collection[str]) -> tuple[bool, bool, bool, bool, float, str]:
    rules = {finding.rule for finding in cause.findings if not finding.by_time}
    return (
        not cause.exact,
        not rules & set(naming),
        not rules,
        not any(metric.name in judged for metric in cause.metrics),
        -cause.weight,
        cause.place,
    )
