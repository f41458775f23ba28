"""Two sets of launches: each launch is read by itself, and only what their sides have in common is compared.

Counts and bytes take the values of all launches, findings are those of most of them, kernels and ops have a probability
(Benjamini-Hochberg), and the step is judged by ``sets_time``. Its parts are those of the two launches in the middle of
their sides. A number of calls that differs between launches of one side is not the program's, and is called none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfscope.analyzers.compare.causes import Cause, causes, corroborated
from perfscope.analyzers.compare.change import PartChange, StepChange
from perfscope.analyzers.compare.comparison import STEP_TIME, Comparison, check_alike, differences
from perfscope.analyzers.compare.findings import findings_change
from perfscope.analyzers.compare.keys import Key
from perfscope.analyzers.compare.many import LEAST_PAIRS, KernelChange, judge_many
from perfscope.analyzers.compare.ranks import TimeChange, time_change
from perfscope.analyzers.compare.run_sets import MACHINE, SOFTWARE, Launch, RunSet, middle_of
from perfscope.analyzers.compare.sets_findings import of_most
from perfscope.analyzers.compare.sets_time import Turns, judge_time, turns_of
from perfscope.analyzers.compare.structure import SIDES, structure_of
from perfscope.analyzers.compare.verdict import MetricResult
from perfscope.analyzers.readers.load import load
from perfscope.model.trace import Trace

TIMED = (("untraced", STEP_TIME), ("window", f"{STEP_TIME} (mean of a window)"), ("traced", f"{STEP_TIME} (profiled)"))
"""How steps were timed, the one that says most first; the first that all launches have is taken."""

MOST_UNSTEADY = 1 / 3
"""Share of launches that never reached a steady state from which on the rest stands for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTime:
    """One launch in a number; ``pair``: its place among the pairs, ``None`` where it has no partner."""

    side: str
    run: str
    pair: int | None
    ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetsComparison:
    """What came of two sets."""

    comparison: Comparison
    kernels: tuple[KernelChange, ...]
    """Those that changed first; empty with fewer than four launches a side."""
    turns: Turns
    launches: tuple[LaunchTime, ...]
    """In the order they ran."""
    environment: Mapping[str, str]
    commits: tuple[str | None, str | None]
    """Of base and head; ``None`` where their launches are of several, or it is not known."""
    command: tuple[str, ...]
    remarks: tuple[str, ...]


def compare_sets(base: RunSet, head: RunSet, *, read: Callable[[Path], Sequence[Trace]] = load) -> SetsComparison:
    """Compare the launches of two sides; ``read`` gives the traces of a run. ``AskedWronglyError``: of two kinds."""
    sides = base.launches, head.launches
    middle = middle_of(sides[0]), middle_of(sides[1])
    chosen = sides[0][middle[0]], sides[1][middle[1]]
    check_alike(chosen[0].summary, chosen[1].summary)
    traces = read(chosen[0].run), read(chosen[1].run)
    time = time_change(*traces)
    if time is not None:
        varying = [_varying(side) for side in sides]
        time = replace(time, median=_steadied(time.median, varying[0], varying[1]))
    turns = _turns(*sides)
    environment, no_gate = _environment(sides), _no_gate(sides)
    step, times = _step(sides, turns, no_gate)
    kernels = _kernels(sides, turns, None if time is None else time.median)
    built = structure_of([one.said for one in sides[0]], [one.said for one in sides[1]], middle=middle)
    median = None if time is None else time.median
    step_ns = None if median is None or median.per != "step" else float(median.head_ns)
    outcomes = [of_most([one.outcomes for one in side]) for side in sides]
    findings = corroborated(findings_change(outcomes[0], outcomes[1], step_ns=step_ns), median, built)
    found = Comparison(
        base=replace(chosen[0].summary, paths=(base.path,)),
        head=replace(chosen[1].summary, paths=(head.path,)),
        step_time=step,
        exact=built.metrics,
        time=time,
        causes=_judged_first(causes(median, built, findings), kernels),
        findings=findings,
        not_looked=built.not_looked,
        notes=tuple(dict.fromkeys((*differences(chosen[0].summary, chosen[1].summary), *_notes(time, built.notes)))),
    )
    return SetsComparison(
        comparison=found,
        kernels=kernels,
        turns=turns,
        launches=tuple(_rows(sides, turns, times)),
        environment=environment,
        commits=(_commit(sides[0]), _commit(sides[1])),
        command=sides[1][0].command,
        remarks=tuple(_remarks(base, head, turns, chosen)),
    )


def _turns(base: Sequence[Launch], head: Sequence[Launch]) -> Turns:
    when = [[f"{one.created_utc} {one.run.name}" for one in side] for side in (base, head)]
    return turns_of(when[0], when[1])


def _varying(side: Sequence[Launch]) -> set[Key]:
    """Keys that are not called as often in each launch."""
    every = {key for one in side for key in one.calls}
    return {key for key in every if len({one.calls.get(key, 0) for one in side}) > 1}


def _steadied(change: StepChange, base: set[Key], head: set[Key]) -> StepChange:
    """Without numbers of calls that differ among launches of one side."""
    parts = tuple(
        replace(part, countable=False)
        if base.intersection(part.base.keys) or head.intersection(part.head.keys)
        else part
        for part in change.parts
    )
    return replace(change, parts=parts)


def _step(
    sides: tuple[Sequence[Launch], Sequence[Launch]], turns: Turns, no_gate: str | None
) -> tuple[MetricResult | None, tuple[list[float | None], list[float | None]]]:
    """The verdict on the step, and what stands for each launch."""
    every = [*sides[0], *sides[1]]
    for way, name in TIMED:
        if not all(way in one.times for one in every):
            continue
        times = tuple(
            [None if one.unsteady and way == "untraced" else one.times[way] for one in side] for side in sides
        )
        base, head = times
        unsteady = sum(ns is None for side in times for ns in side)
        if unsteady > MOST_UNSTEADY * len(every):
            no_gate = no_gate or f"{unsteady} of {len(every)} launches never reached a steady state"
        kept = _among(turns, base, head)
        result = judge_time(name, [ns for ns in base if ns], [ns for ns in head if ns], kept, no_gate=no_gate)
        if unsteady:
            lost = f"{unsteady} of {len(every)} launches are left out of the time: their steps still became faster"
            result = replace(result, remarks=(*result.remarks, lost))
        return result, (base, head)
    return None, ([None] * len(sides[0]), [None] * len(sides[1]))


def _among(turns: Turns, base: Sequence[float | None], head: Sequence[float | None]) -> Turns:
    """The pairs of which both launches have a time, by their places among those that do."""
    if all(base) and all(head):
        return turns
    places = [[sum(one is not None for one in side[:place]) for place in range(len(side))] for side in (base, head)]
    kept = [(one, other) for one, other in turns.pairs if base[one] is not None and head[other] is not None]
    pairs = tuple((places[0][one], places[1][other]) for one, other in kept)
    lost = len(turns.pairs) - len(pairs)
    return replace(turns, pairs=pairs, base_first=max(0, turns.base_first - lost))


def _kernels(
    sides: tuple[Sequence[Launch], Sequence[Launch]], turns: Turns, change: StepChange | None
) -> tuple[KernelChange, ...]:
    """Work that both middle launches have in common, or that is new or gone, over all launches."""
    pairs = turns.pairs if turns.interleaved else tuple((at, at) for at in range(min(map(len, sides))))
    if change is None or len(pairs) < LEAST_PAIRS:
        return ()
    arms = [sides[0][one] for one, _ in pairs], [sides[1][other] for _, other in pairs]
    times: dict[str, tuple[list[float], list[float]]] = {}
    for part in change.parts:
        if part.kind == "idle":
            continue
        held = times.setdefault(name_of(part), ([0.0] * len(pairs), [0.0] * len(pairs)))
        for row, arm, keys in zip(held, arms, (part.base.keys, part.head.keys), strict=True):
            for place, launch in enumerate(arm):
                row[place] += sum(launch.parts.get(key, 0.0) for key in keys)
    totals = [[sum(one.parts.values()) for one in arm] for arm in arms]
    return tuple(sorted(judge_many(times, (totals[0], totals[1])), key=lambda one: not _changed(one)))


def _changed(one: KernelChange) -> bool:
    return one.verdict in ("regression", "improvement")


def name_of(part: PartChange) -> str:
    """What a part is called among the kernels: its op or kernel, its phase and its place."""
    key = part.key()
    phase = f" ({key.phase})" if key.phase else ""
    place = key.place()
    return f"{key.name()}{phase} at {place}" if place else f"{key.name()}{phase}"


def _judged_first(found: Sequence[Cause], kernels: Sequence[KernelChange]) -> tuple[Cause, ...]:
    """Of the causes that only times tell of, those with work that changed in all launches first, by how much it did."""
    changed = {one.name: abs(one.change) for one in kernels if _changed(one)}

    def order(cause: Cause) -> tuple[bool, float]:
        if cause.exact:
            return False, 0.0
        return True, -max((changed.get(name_of(part), 0.0) for part in cause.parts), default=0.0)

    return tuple(sorted(found, key=order))


def _environment(sides: tuple[Sequence[Launch], Sequence[Launch]]) -> dict[str, str]:
    said = {}
    for name in (*MACHINE, *SOFTWARE):
        values = [", ".join(_values(side, name)) or "-" for side in sides]
        if values != ["-", "-"]:
            said[name] = values[0] if values[0] == values[1] else f"base {values[0]}, head {values[1]}"
    return said


def _values(side: Sequence[Launch], name: str) -> list[str]:
    return list(dict.fromkeys(one.environment[name] for one in side if name in one.environment))


def _no_gate(sides: tuple[Sequence[Launch], Sequence[Launch]]) -> str | None:
    """Why times of these launches must fail no build, or ``None``."""
    for name in MACHINE:
        every = list(dict.fromkeys(one.environment.get(name, "-") for side in sides for one in side))
        if len(every) > 1:
            return f"launches ran on different machines ({name}: {', '.join(every)}): it fails no build"
    for which, side in zip(SIDES, sides, strict=True):
        commits = list(dict.fromkeys(one.commit for one in side))
        if len(commits) > 1:
            return f"launches of {which} are of {len(commits)} commits: it fails no build"
        for name in SOFTWARE:
            if len(_values(side, name)) > 1:
                return f"launches of {which} ran with several versions of {name}: it fails no build"
    return None


def _commit(side: Sequence[Launch]) -> str | None:
    commits = {one.commit for one in side}
    return commits.pop() if len(commits) == 1 else None


def _notes(time: TimeChange | None, more: Sequence[str]) -> Iterator[str]:
    yield from () if time is None else time.notes
    yield from more


def _remarks(base: RunSet, head: RunSet, turns: Turns, chosen: tuple[Launch, Launch]) -> Iterator[str]:
    for which, side in zip(SIDES, (base, head), strict=True):
        yield from (f"{which}: {remark}" for remark in side.remarks)
    how = f"in turns, {len(turns.pairs)} pairs" if turns.interleaved else "not in turns"
    yield f"{len(base.launches)} launches of base and {len(head.launches)} of head, {how}"
    yield f"parts of the step: {chosen[0].run.name} and {chosen[1].run.name}, each in the middle of its side"
    if min(len(base.launches), len(head.launches)) < LEAST_PAIRS:
        yield f"kernels have no probability with fewer than {LEAST_PAIRS} launches a side"


def _rows(
    sides: tuple[Sequence[Launch], Sequence[Launch]],
    turns: Turns,
    times: tuple[Sequence[float | None], Sequence[float | None]],
) -> Iterator[LaunchTime]:
    pair_of = [{pair[side]: number for number, pair in enumerate(turns.pairs)} for side in (0, 1)]
    every = [
        (one.created_utc, one.run.name, side, place)
        for side, held in enumerate(sides)
        for place, one in enumerate(held)
    ]
    for _, name, side, place in sorted(every):
        pair = pair_of[side].get(place) if turns.interleaved else None
        yield LaunchTime(side=SIDES[side], run=name, pair=pair, ns=times[side][place])
