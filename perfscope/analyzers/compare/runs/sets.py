"""Two sets of launches: every launch is read by itself, and the parts that both sides share are compared.

Counts and bytes use the values of all launches. Findings are those of most launches. Kernels and ops have a probability
(Benjamini-Hochberg). The step time is judged as below, and its parts come from the median launch of each side. A number
of calls that differs between launches of one side is not a property of the program and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.causes import Cause, causes, corroborated, cost_of, findings_change
from perfscope.analyzers.compare.runs.change import PartChange, StepChange, time_change
from perfscope.analyzers.compare.runs.comparison import STEP_TIME, Comparison, check_alike, differences
from perfscope.analyzers.compare.runs.likely import LIKELY_LEAST, SETTLE, Direction, as_notes, carried_by, carrying
from perfscope.analyzers.compare.runs.run_sets import MACHINE, SOFTWARE, Launch, RunSet, middle_of
from perfscope.analyzers.compare.runs.structure import SIDES, structure_of
from perfscope.analyzers.compare.statistics import estimators
from perfscope.analyzers.compare.statistics.paired import LEAST_CONFIRMING, Verdict
from perfscope.analyzers.compare.statistics.verdict import (
    LEAST_PAIRS,
    STEP_LEAST,
    MetricResult,
    from_pairs,
    judge_many,
    levels,
)
from perfscope.analyzers.readers import load_all
from perfscope.model.documents import comparison as document
from perfscope.model.documents.comparison import Kernel
from perfscope.model.finding import Finding, Outcome
from perfscope.model.trace import Trace

LEAST_GATING = LEAST_CONFIRMING
"""Number of pairs from which a verdict may fail a build; with five, every arrangement of signs has p of 5% or more."""

MOST_ALONE = 0.2
"""Largest share of launches without a partner if the sets ran in turns; a launch may have failed or been one too many.
"""

LEAST_EACH_FIRST = 0.25
"""Smallest share of pairs in which each arm ran first: the second launch may be slower because it is second."""

ALPHA = 0.05

ESTIMATOR = "median of the steady steps of a launch (not calibrated)"

NOT_IN_TURNS = "base and head did not run in turns: a machine that became slower looks the same, so it fails no build"

SAME_ORDER = (
    "one side ran first in nearly all pairs: the cost of running second looks like a change, so it fails no build; "
    "let each side run first in half of them"
)

TIMED = (("untraced", STEP_TIME), ("window", f"{STEP_TIME} (mean of a window)"), ("traced", f"{STEP_TIME} (profiled)"))
"""Ways of timing steps, the best first; the first that all launches have is used."""

MOST_UNSTEADY = 1 / 3
"""Share of launches without a steady state from which the rest is not representative."""


# Findings of most launches of a program: a finding in one launch of three is chance, or a rare event.


def of_most(launches: Sequence[Sequence[Outcome]]) -> tuple[Outcome, ...]:
    """Return one outcome per rule from the outcomes of all launches: findings that more than half of them have.

    Equal findings have the same subject at the same place; the median of their costs is kept. A rule abstains if it
    abstained in half of the launches or more and no finding is left.
    """
    by_rule: dict[str, list[Outcome]] = {}
    for outcomes in launches:
        for outcome in outcomes:
            by_rule.setdefault(outcome.rule, []).append(outcome)
    return tuple(_of_rule(rule, outcomes, len(launches)) for rule, outcomes in by_rule.items())


def _of_rule(rule: str, outcomes: Sequence[Outcome], launches: int) -> Outcome:
    by_signature: dict[tuple[object, ...], list[Finding]] = {}
    for outcome in outcomes:
        once = {
            (finding.subject, finding.where): finding for finding in reversed(outcome.findings)
        }  # Keep the costliest of equal findings.
        for signature, finding in once.items():
            by_signature.setdefault(signature, []).append(finding)
    kept = [
        sorted(same, key=lambda finding: cost_of(finding) or 0)[(len(same) - 1) // 2]
        for same in by_signature.values()
        if 2 * len(same) > launches
    ]
    blind = [outcome for outcome in outcomes if outcome.status == "abstained" or outcome.reason is not None]
    reason = blind[0].reason if 2 * len(blind) >= launches else None
    if kept:
        return Outcome(
            rule=rule,
            status="flagged",
            reason=reason,
            findings=tuple(sorted(kept, key=lambda finding: -(cost_of(finding) or 0))),
        )
    return Outcome(rule=rule, status="clean" if reason is None else "abstained", reason=reason)


# The step time of two sets of launches: pairs if they ran in turns, else Welch's test, which fails no build.
#
# If all launches of one arm ran after the other arm, a machine that became slower looks the same. Simulated with a
# drift of 2%, two sets of ten "differ" in 41 of 100 comparisons of a program with itself. Launches in turns cancel the
# drift, as in ``compare commits``; so do sets whose times of recording show that they ran in turns.


class Turns(Struct, frozen=True, kw_only=True):
    """Pairs of launches: positions in the lists of base and head, in the order of the launches."""

    pairs: tuple[tuple[int, int], ...]
    alone: int
    """Launches without a partner."""
    base_first: int
    """Pairs in which base ran first."""

    @property
    def interleaved(self) -> bool:
        """Whether the two sets ran in turns."""
        return bool(self.pairs) and self.alone <= MOST_ALONE * (2 * len(self.pairs) + self.alone)

    @property
    def either_first(self) -> bool:
        """Whether each side ran first often enough."""
        least = min(self.base_first, len(self.pairs) - self.base_first)
        return least >= LEAST_EACH_FIRST * len(self.pairs)


def turns_of(base: Sequence[str], head: Sequence[str]) -> Turns:
    """Pair neighbours in time, one of each side. ``base`` and ``head``: start times of launches as sortable texts.

    From the first launch on, two neighbours of different sides form a pair. A launch followed by one of the same side
    has no partner.
    """
    ordered = sorted(
        [(when, 0, launch_index) for launch_index, when in enumerate(base)] + [(w, 1, p) for p, w in enumerate(head)]
    )
    pairs: list[tuple[int, int]] = []
    index = alone = base_first = 0
    while index < len(ordered):
        following = ordered[index + 1] if index + 1 < len(ordered) else None
        if following is None or following[1] == ordered[index][1]:
            alone += 1
            index += 1
            continue
        sides = {side: launch_index for _, side, launch_index in (ordered[index], following)}
        pairs.append((sides[0], sides[1]))
        base_first += ordered[index][1] == 0
        index += 2
    return Turns(pairs=tuple(pairs), alone=alone, base_first=base_first)


def judge_time(
    name: str, base: Sequence[float], head: Sequence[float], turns: Turns, *, no_gate: str | None = None
) -> MetricResult:
    """Judge the step time from one number per launch, ns.

    ``no_gate``: why it must not fail a build, whatever the pairs.

    ``ValueError`` if a number is not positive.
    """
    if not turns.interleaved:
        return _unpaired(name, base, head, no_gate)
    result = from_pairs(
        name,
        [base[mine] for mine, _ in turns.pairs],
        [head[theirs] for _, theirs in turns.pairs],
        alpha=ALPHA,
        estimator=ESTIMATOR,
    )
    remarks = [no_gate] if no_gate is not None else []
    if result.verdict in ("regression", "improvement") and (result.p_sign_flip is None or result.p_sign_flip >= ALPHA):
        result = replace(result, verdict="inconclusive")
        remarks.append("the pairs do not agree well enough on a direction, and no second batch can confirm it")
    if len(turns.pairs) < LEAST_GATING:
        remarks.append(f"{len(turns.pairs)} pairs of launches: it fails no build below {LEAST_GATING}")
    elif not turns.either_first:
        remarks.append(SAME_ORDER)
    if turns.alone:
        remarks.append(f"{turns.alone} launches without a neighbour of the other side are not in the pairs")
    gating = no_gate is None and len(turns.pairs) >= LEAST_GATING and turns.either_first
    return replace(result, known="paired launches" if gating else "sets of runs", remarks=(*remarks, *result.remarks))


def _unpaired(name: str, base: Sequence[float], head: Sequence[float], no_gate: str | None) -> MetricResult:
    """Apply Welch's t to the logarithms (Biometrika 34, 1947) with his degrees of freedom; low confidence."""
    times = [np.asarray(side, float) for side in (base, head)]
    if not all(np.all(np.isfinite(side) & (side > 0)) for side in times):
        raise ValueError(f"{name}: a time is not a positive number")
    sides = [np.log(side) for side in times]
    change = float(sides[1].mean() - sides[0].mean()) if min(side.size for side in sides) else None
    effect = None if change is None else math.expm1(change)
    before, after = levels(base, head, effect)
    remarks = [NOT_IN_TURNS, *([no_gate] if no_gate is not None else [])]
    result = MetricResult(
        name=name,
        unit="ns",
        better="lower",
        verdict="inconclusive",
        known="sets of runs",
        base=before,
        head=after,
        effect=effect,
        pairs=min(side.size for side in sides),
        estimator=ESTIMATOR,
        least=STEP_LEAST,
        remarks=tuple(remarks),
    )
    if change is None:
        return result
    if min(side.size for side in sides) < 2:
        return replace(result, remarks=(*remarks, "one launch on a side has no spread between launches"))
    errors = [float(side.var(ddof=1)) / side.size for side in sides]
    error = math.sqrt(sum(errors))
    if not error:
        return replace(result, remarks=(*remarks, "all launches took exactly the same: no spread to judge by"))
    freedom = sum(errors) ** 2 / sum(part**2 / (side.size - 1) for part, side in zip(errors, sides, strict=True))
    whole = max(1, math.floor(freedom))
    p = estimators.two_sided_p(change / error, whole)
    low, high = (change + sign * estimators.quantile(1 - ALPHA / 2, whole) * error for sign in (-1, 1))
    narrow = estimators.quantile(1 - ALPHA, whole) * error
    bound = math.log1p(STEP_LEAST)
    verdict: Verdict = "inconclusive"
    if p < ALPHA and abs(change) >= bound:
        verdict = "regression" if change > 0 else "improvement"
    elif -bound < change - narrow and change + narrow < bound:
        verdict = "no change"
    return replace(
        result,
        verdict=verdict,
        low=math.expm1(low),
        high=math.expm1(high),
        level=1 - ALPHA,
        p=p,
        remarks=tuple(remarks),
    )


class SetsComparison(Struct, frozen=True, kw_only=True):
    """Comparison of two sets."""

    comparison: Comparison
    kernels: tuple[Kernel, ...]
    """Kernels, changed ones first; empty with fewer than four launches per side."""
    turns: Turns
    launches: tuple[document.Launch, ...]
    """Launches in the order of their start."""
    environment: Mapping[str, str]
    commits: tuple[str | None, str | None]
    """Commits of base and head; ``None`` if their launches are of several commits, or unknown."""
    command: tuple[str, ...]
    remarks: tuple[str, ...]


def _likely(step: MetricResult | None) -> Direction | None:
    """Return the direction of a step time that fails no build but changed far more than launches drift."""
    if step is None or step.gates or step.effect is None or abs(step.effect) < LIKELY_LEAST:
        return None
    return "regression" if step.verdict == "regression" else "improvement" if step.verdict == "improvement" else None


def compare_sets(base: RunSet, head: RunSet, *, read: Callable[[Path], Sequence[Trace]] = load_all) -> SetsComparison:
    """Compare the launches of two sides; ``read`` returns the traces of a run. ``UsageError`` for two kinds of runs."""
    sides = base.launches, head.launches
    middle = middle_of(sides[0]), middle_of(sides[1])
    chosen = sides[0][middle[0]], sides[1][middle[1]]
    check_alike(chosen[0].summary, chosen[1].summary)
    traces = read(chosen[0].run), read(chosen[1].run)
    time = time_change(*traces)
    if time is not None:
        time = replace(time, median=_steadied(time.median, sides))
    when = [[f"{launch.created_utc} {launch.run.name}" for launch in side] for side in sides]
    turns = turns_of(when[0], when[1])
    environment, no_gate = _environment(sides), _no_gate(sides)
    step, times = _step(sides, turns, no_gate)
    median, notes = (None, ()) if time is None else (time.median, time.notes)
    kernels = _kernels(sides, turns, median)
    built = structure_of([launch.exact for launch in sides[0]], [launch.exact for launch in sides[1]], middle=middle)
    step_ns = None if median is None or median.per != "step" else float(median.head_ns)
    outcomes = [of_most([launch.outcomes for launch in side]) for side in sides]
    findings = corroborated(findings_change(outcomes[0], outcomes[1], step_ns=step_ns), median, built)
    likely = _likely(step)
    faster = likely == "improvement" or (step is not None and step.gates and step.verdict == "improvement")
    findings = carrying(findings, step, likely)
    comparison = Comparison(
        base=msgspec.structs.replace(chosen[0].summary, paths=(base.path,)),
        head=msgspec.structs.replace(chosen[1].summary, paths=(head.path,)),
        step_time=step,
        exact=as_notes(built.metrics, faster=faster),
        likely=likely,
        carried=carried_by(findings, None, likely),
        settle="" if step is None or step.gates else SETTLE,
        time=time,
        causes=_judged_first(causes(median, built, findings), kernels),
        findings=findings,
        not_looked=built.not_looked,
        notes=tuple(dict.fromkeys((*_left_out(base, head), *notes, *built.notes))),
        cautions=tuple(differences(chosen[0].summary, chosen[1].summary)),
    )
    return SetsComparison(
        comparison=comparison,
        kernels=kernels,
        turns=turns,
        launches=tuple(_rows(sides, turns, times)),
        environment=environment,
        commits=(_commit(sides[0]), _commit(sides[1])),
        command=sides[1][0].command,
        remarks=tuple(_remarks(sides, turns, chosen)),
    )


def _steadied(change: StepChange, sides: Sequence[Sequence[Launch]]) -> StepChange:
    """Drop numbers of calls that differ among launches of one side."""
    varying = [
        {
            key
            for key in {key for launch in side for key in launch.calls}
            if len({launch.calls.get(key, 0) for launch in side}) > 1
        }
        for side in sides
    ]
    parts = tuple(
        replace(part, countable=False)
        if varying[0].intersection(part.base.keys) or varying[1].intersection(part.head.keys)
        else part
        for part in change.parts
    )
    return replace(change, parts=parts)


def _step(
    sides: tuple[Sequence[Launch], Sequence[Launch]], turns: Turns, no_gate: str | None
) -> tuple[MetricResult | None, tuple[list[float | None], list[float | None]]]:
    """Return the verdict on the step and the number of each launch."""
    every = [*sides[0], *sides[1]]
    for way, name in TIMED:
        if not all(way in one.times for one in every):
            continue
        times = tuple(
            [None if launch.unsteady and way == "untraced" else launch.times[way] for launch in side] for side in sides
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
    """Return the pairs in which both launches have a time, by their positions among the launches with a time."""
    if all(base) and all(head):
        return turns
    places = [[sum(one is not None for one in side[:index]) for index in range(len(side))] for side in (base, head)]
    kept = [(one, other) for one, other in turns.pairs if base[one] is not None and head[other] is not None]
    pairs = tuple((places[0][one], places[1][other]) for one, other in kept)
    lost = len(turns.pairs) - len(pairs)
    return replace(turns, pairs=pairs, base_first=max(0, turns.base_first - lost))


def _kernels(
    sides: tuple[Sequence[Launch], Sequence[Launch]], turns: Turns, change: StepChange | None
) -> tuple[Kernel, ...]:
    """Return work that the two median launches share, or that is new or gone, over all launches."""
    pairs = turns.pairs if turns.interleaved else tuple((index, index) for index in range(min(map(len, sides))))
    if change is None or len(pairs) < LEAST_PAIRS:
        return ()
    arms = [sides[0][index] for index, _ in pairs], [sides[1][other] for _, other in pairs]
    times: dict[str, tuple[list[float], list[float]]] = {}
    for part in change.parts:
        if part.kind == "idle":
            continue
        part_times = times.setdefault(name_of(part), ([0.0] * len(pairs), [0.0] * len(pairs)))
        for row, arm, keys in zip(part_times, arms, (part.base.keys, part.head.keys), strict=True):
            for index, launch in enumerate(arm):
                row[index] += sum(launch.parts.get(key, 0.0) for key in keys)
    totals = [[sum(launch.parts.values()) for launch in arm] for arm in arms]
    return tuple(sorted(judge_many(times, (totals[0], totals[1])), key=lambda kernel: not _changed(kernel)))


def _changed(change: Kernel) -> bool:
    return change.verdict in ("regression", "improvement")


def name_of(part: PartChange) -> str:
    """Return the name of a part among the kernels: op or kernel, phase and place."""
    key = part.key()
    phase = f" ({key.phase})" if key.phase else ""
    place = key.place()
    return f"{key.name()}{phase} at {place}" if place else f"{key.name()}{phase}"


def _judged_first(found: Sequence[Cause], kernels: Sequence[Kernel]) -> tuple[Cause, ...]:
    """Sort causes that only times show: work that changed in all launches first, by its change."""
    changed = {kernel.name: abs(kernel.change_ns) for kernel in kernels if _changed(kernel)}

    def order(cause: Cause) -> tuple[bool, float]:
        if cause.exact:
            return False, 0.0
        return True, -max((changed.get(name_of(part), 0.0) for part in cause.parts), default=0.0)

    return tuple(sorted(found, key=order))


def _environment(sides: tuple[Sequence[Launch], Sequence[Launch]]) -> dict[str, str]:
    facts = {}
    for name in (*MACHINE, *SOFTWARE):
        values = [", ".join(_values(side, name)) or "-" for side in sides]
        if values != ["-", "-"]:
            facts[name] = values[0] if values[0] == values[1] else f"base {values[0]}, head {values[1]}"
    return facts


def _values(side: Sequence[Launch], name: str) -> list[str]:
    return list(dict.fromkeys(launch.environment[name] for launch in side if name in launch.environment))


def _no_gate(sides: tuple[Sequence[Launch], Sequence[Launch]]) -> str | None:
    """Return why the times of these launches must fail no build, or ``None``."""
    for name in MACHINE:
        every = list(dict.fromkeys(launch.environment.get(name, "-") for side in sides for launch in side))
        if len(every) > 1:
            return f"launches ran on different machines ({name}: {', '.join(every)}): it fails no build"
    for which, side in zip(SIDES, sides, strict=True):
        commits = list(dict.fromkeys(launch.commit for launch in side))
        if len(commits) > 1:
            return f"launches of {which} are of {len(commits)} commits: it fails no build"
        for name in SOFTWARE:
            if len(_values(side, name)) > 1:
                return f"launches of {which} ran with several versions of {name}: it fails no build"
    return None


def _commit(side: Sequence[Launch]) -> str | None:
    commits = {launch.commit for launch in side}
    return commits.pop() if len(commits) == 1 else None


def _left_out(base: RunSet, head: RunSet) -> Iterator[str]:
    for which, side in zip(SIDES, (base, head), strict=True):
        yield from (f"{which}: {remark}" for remark in side.remarks)


def _remarks(
    sides: tuple[Sequence[Launch], Sequence[Launch]], turns: Turns, chosen: tuple[Launch, Launch]
) -> Iterator[str]:
    how = f"in turns, {len(turns.pairs)} pairs" if turns.interleaved else "not in turns"
    yield f"{len(sides[0])} launches of base and {len(sides[1])} of head, {how}"
    yield f"parts of the step: {chosen[0].run.name} and {chosen[1].run.name}, each in the middle of its side"
    if min(map(len, sides)) < LEAST_PAIRS:
        yield f"kernels have no probability with fewer than {LEAST_PAIRS} launches a side"


def _rows(
    sides: tuple[Sequence[Launch], Sequence[Launch]],
    turns: Turns,
    times: tuple[Sequence[float | None], Sequence[float | None]],
) -> Iterator[document.Launch]:
    pair_of = [{pair[side]: number for number, pair in enumerate(turns.pairs)} for side in (0, 1)]
    every = [
        (launch.created_utc, launch.run.name, side, index)
        for side, launches in enumerate(sides)
        for index, launch in enumerate(launches)
    ]
    for number, (_, _, side, index) in enumerate(sorted(every)):
        pair = pair_of[side].get(index, number) if turns.interleaved else number
        yield document.Launch(arm="head" if side else "base", phase="measure", pair=pair, ns=times[side][index])
