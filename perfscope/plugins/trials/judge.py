"""Interventions that were tried: whether the results stay the same, the measured saving, and the predicted saving.

Times are judged like those of two commits (`judge.py`), values by `results.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from perfscope.analyzers.compare import EARLY_LOOK, MEAN, AbJudge, MetricResult, estimator_for
from perfscope.analyzers.engine import Analysis
from perfscope.model.documents.ab import Launch, Pair, Pairs
from perfscope.plugins.trials.attempts import Attempt, Unchanged
from perfscope.plugins.trials.document import Baseline, Results, Trial, TrialState, Try
from perfscope.plugins.trials.interventions.base import Intervention
from perfscope.plugins.trials.results import TOLERANCES, compare_results

STATES: Mapping[str, TrialState] = {
    "improvement": "gain",
    "regression": "slower",
    "no change": "no gain",
    "inconclusive": "cannot tell",
}
"""Verdict on the step time -> state of an intervention."""
GARBAGE_COLLECTION = "garbage collection"
"""Sign of the interventions that answer garbage collection."""
LEAST_COLLECTED = 0.02
"""Smallest share of a step in the garbage collector that is a sign; a smaller share could not change the step enough.
"""
PEAK_COUNTER = "allocated_bytes.all.peak"
ALLOCATOR, PROCESS = "peak of the allocator", "peak of the process"


class TrialJudge:
    """Judge of pairs like those of two commits, without a second batch, and of the recorded values.

    It looks at the pairs of an intervention after 4, 6, 10, 15, 20, 30 and 45, each time at the same level (Pocock,
    Biometrika 64, 1977): of 20 interventions without an effect at most one is called a gain or slower, however the
    pairs end (`perfscope.analyzers.compare.statistics.paired.looks_for`; tests/compare/test_early_look.py).
    """

    def __init__(self, *, pairs: int, least: float, tolerance: float | None = None) -> None:
        """``tolerance``: relative tolerance of the user, in place of the dtype's."""
        self._pairs, self._least = pairs, least
        self._usual = self._judge(None)
        self._by_mean = self._judge(MEAN)
        self.tolerance = tolerance

    def _judge(self, estimator: str | None) -> AbJudge:
        return AbJudge(
            pairs=self._pairs, least=self._least, confirm=False, give_up=True, early=True, estimator=estimator
        )

    def settle(self, unchanged: Unchanged) -> None:
        """Choose the estimator of a launch: by the calibration, or without one by how busy the machine is."""
        self._usual = self._judge(None if unchanged.calibration else estimator_for([unchanged.first]))

    def so_far(self, intervention: Intervention, pairs: Sequence[Pair]) -> str:
        """Return the change by the pairs so far in one line, with its interval from `EARLY_LOOK` pairs on."""
        measured = Pairs(calibration=(), measured=tuple(pairs), confirming=())
        step = self.of(intervention).result(measured).step
        after = f"{len(pairs)} pair{'s' * (len(pairs) != 1)}"
        if step.effect is None:
            return f"{intervention.name}: no step time after {after}"
        interval = f"no interval before {EARLY_LOOK} pairs"
        if len(pairs) >= EARLY_LOOK and step.low is not None and step.high is not None:
            interval = f"[{step.low:+.1%}, {step.high:+.1%}]"
        return f"{intervention.name}: step time {step.effect:+.1%} after {after} ({interval})"

    def of(self, intervention: Intervention | None) -> AbJudge:
        """Return the judge of an intervention's pairs, or of the calibration."""
        return self._by_mean if intervention is not None and intervention.by_mean else self._usual

    def results(self, base: Launch, head: Launch) -> Results:
        """Return the values of ``head`` compared with those of ``base``."""
        return compare_results(base.reports, head.reports, widened=self.tolerance)

    def rejects(self, base: Launch, head: Launch) -> str | None:
        """Return why the values of ``head`` differ from ``base``; ``None`` if they are equal or cannot be compared."""
        results = self.results(base, head)
        return results.reason if results.state == "different" else None

    def helped(self, attempt: Attempt) -> bool:
        """Return whether the attempt was measured and the head is faster."""
        if attempt.pairs is None:
            return False
        return self.of(attempt.intervention).result(attempt.pairs).step.verdict == "improvement"


class Promise(Struct, frozen=True, kw_only=True):
    """Largest saving per step that the findings of a rule predict.

    ``ns`` is ``None`` if the findings have no time.
    """

    findings: int
    ns: int | None


def promises(analysis: Analysis) -> dict[str, Promise]:
    """Return rule -> promise, for rules with findings that are not silenced."""
    found = {}
    for outcome in analysis.outcomes:
        findings = [finding for finding in outcome.findings if finding.silenced is None]
        costs = [
            cost
            for finding in findings
            if (cost := finding.untraced_ns_per_step or finding.cost_ns_per_step) is not None
        ]
        if findings:
            found[outcome.rule] = Promise(findings=len(findings), ns=sum(costs) if costs else None)
    return found


def signs(unchanged: Unchanged, evident: Sequence[str]) -> dict[str, Promise]:
    """Return signs in the launches besides findings: garbage collection during steps, and costly settings.

    ``evident``: names of interventions that found such a setting.
    """
    found = {name: Promise(findings=1, ns=None) for name in evident}
    collected = [trial.gc_ns_per_step or 0 for trial in unchanged.first.reports]
    times = unchanged.first.times_ns()
    if collected and times and max(collected) >= LEAST_COLLECTED * statistics.median(times):
        found[GARBAGE_COLLECTION] = Promise(findings=1, ns=min(max(collected), round(statistics.fmean(times))))
    return found


def answered(intervention: Intervention, promised: Mapping[str, Promise]) -> tuple[tuple[str, ...], int | None]:
    """Return (rules with a finding and signs that it answers, the largest of their promises in ns per step).

    The largest, not the sum, because several rules see the same time.
    """
    rules = tuple(rule for rule in (*intervention.answers, *intervention.signs, intervention.name) if rule in promised)
    costs = [cost for rule in rules if (cost := promised[rule].ns) is not None]
    return rules, max(costs, default=None)


def best_first(interventions: Iterable[Intervention], promised: Mapping[str, Promise]) -> list[Intervention]:
    """Sort interventions: a setting that is known to cost first, then by promise, then those without a promise.

    The promise is divided by the effort, so that a result comes soon. With equal promises, the intervention that
    answers more rules is first, and one with `after` is later.
    """

    def rank(one: Intervention) -> tuple[bool, float, int, bool]:
        rules, ns = answered(one, promised)
        return one.name not in promised, -(ns or 0) / one.effort, -len(rules), bool(one.after)

    return sorted(interventions, key=rank)


def unanswered(interventions: Sequence[Intervention], promised: Mapping[str, Promise]) -> tuple[str, ...]:
    """Return rules with a finding that none of the ``interventions`` answers."""
    known = {rule for one in interventions for rule in (*one.answers, *one.signs, one.name)}
    return tuple(sorted(set(promised) - known))


class Trials(Struct, frozen=True, kw_only=True):
    """Everything that was launched. ``head``: the fields of the document that do not follow from it."""

    unchanged: Unchanged
    attempts: tuple[Attempt, ...]
    together: Attempt | None
    promised: Mapping[str, Promise]
    ladder: bool


def document_of(trials: Trials, judge: TrialJudge, least: float, **head: object) -> Try:
    """Return the document. ``head``: its other fields (schema, command, created_utc, machine, record_steps, ...)."""
    unchanged = trials.unchanged
    recorded = [launch for launch in (unchanged.first, unchanged.second) if launch is not None]
    alike = unchanged.calibration or neighbours(trials.attempts)
    alone = judge.of(None).result(Pairs(calibration=alike, measured=alike, confirming=())) if alike else None
    widened = judge.tolerance
    made = [trial_of(attempt, trials, judge) for attempt in trials.attempts]
    together = None if trials.together is None else trial_of(trials.together, trials, judge)
    if trials.ladder:
        made = list(_rungs(made))
        if together is not None and together.effect is not None:
            together = msgspec.structs.replace(together, remaining=1 + together.effect)
    return Try(
        ladder=trials.ladder,
        estimator="" if alone is None else alone.estimator.reason(),
        least=least,
        tolerances=dict(TOLERANCES) if widened is None else dict.fromkeys(TOLERANCES, widened),
        baseline=Baseline(
            step_ns=_level(None if alone is None else alone.step),
            launches=len(recorded) + 2 * len(unchanged.calibration),
            peak_bytes=_peak(recorded)[0],
            results=Results(state="not compared", reason="it was launched once")
            if unchanged.second is None
            else judge.results(unchanged.first, unchanged.second),
        ),
        trials=tuple(made),
        together=together,
        **head,  # type: ignore[arg-type]
    )


def neighbours(attempts: Sequence[Attempt]) -> tuple[Pair, ...]:
    """Return the unchanged program against itself: the launches without an intervention of every two pairs in turn.

    They took turns with the launches that are judged, on the same machine at the same time.
    """
    alike: list[Pair] = []
    for attempt in attempts:
        if attempt.pairs is not None and not attempt.base and not attempt.intervention.by_mean:
            bases = [base for base, _ in attempt.pairs.measured]
            alike += [(bases[place], bases[place + 1]) for place in range(0, len(bases) - 1, 2)]
    return tuple(alike)


def _rungs(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Yield the trials that helped, with the remaining step time after each."""
    remaining = 1.0
    for trial in trials:
        if trial.state == "gain" and trial.effect is not None:
            remaining *= 1 + trial.effect
            yield msgspec.structs.replace(trial, remaining=remaining)
        else:
            yield trial


def _level(step: MetricResult | None) -> float | None:
    if step is None or not isinstance(step.base, float) or not isinstance(step.head, float):
        return None
    return math.sqrt(step.base * step.head)


def trial_of(attempt: Attempt, trials: Trials, judge: TrialJudge) -> Trial:
    """Return the result of one attempt."""
    intervention = attempt.intervention
    rules, predicted = answered(intervention, trials.promised)
    results = None
    if attempt.first is not None and attempt.first.problem is None and attempt.stop != "not applied":
        results = judge.results(trials.unchanged.first, attempt.first)
    measured: dict[str, object] = {}
    state: TrialState = attempt.stop or "cannot tell"
    if attempt.pairs is not None:
        judged = judge.of(intervention).result(attempt.pairs)
        state = STATES[judged.step.verdict]
        measured = _measured(attempt, judged.step) | {"remarks": (*judged.step.remarks, *judged.remarks)}
    together = intervention.name not in attempt.head
    others = attempt.head if together else tuple(name for name in attempt.head if name != intervention.name)
    return Trial(
        name=intervention.name,
        title=intervention.title,
        state=state,
        with_others=others,
        in_place_of=() if together else tuple(name for name in attempt.base if name not in attempt.head),
        answers=rules,
        reason=attempt.reason,
        changed=_changed(attempt),
        predicted_ns=predicted,
        promised_ns={rule: ns for rule in rules if (ns := trials.promised[rule].ns) is not None},
        results=results,
        may_change=intervention.may_change,
        code=intervention.code,
        **measured,  # type: ignore[arg-type]
    )


def _changed(attempt: Attempt) -> tuple[str, ...]:
    reports = () if attempt.first is None else attempt.first.reports
    names = [attempt.intervention.name] if attempt.intervention.name in attempt.head else list(attempt.head)
    return tuple(dict.fromkeys(text for report in reports for name in names for text in report.applied.get(name, ())))


def _measured(attempt: Attempt, step: MetricResult) -> dict[str, object]:
    assert attempt.pairs is not None
    pairs = attempt.pairs.measured
    base_bytes, what = _peak([base for base, _ in pairs])
    head_bytes, _ = _peak([head for _, head in pairs])
    startup = _startup(pairs, by_mean=attempt.intervention.by_mean)
    saved = step.base - step.head if isinstance(step.base, float) and isinstance(step.head, float) else 0.0
    payback = None
    if step.verdict == "improvement" and startup is not None and startup > 0 and saved > 0:
        payback = math.ceil(startup / saved)
    return {
        "base_ns": step.base,
        "head_ns": step.head,
        "effect": step.effect,
        "low": step.low,
        "high": step.high,
        "level": step.level,
        "estimator": step.estimator or "",
        "pairs": step.pairs,
        "needed_pairs": step.needed_pairs,
        "base_bytes": base_bytes,
        "head_bytes": head_bytes,
        "memory_of": what,
        "startup_ns": startup,
        "payback_steps": payback,
    }


def _startup(pairs: Sequence[tuple[Launch, Launch]], *, by_mean: bool) -> float | None:
    """Return the median over pairs of the head's extra time outside of its timed steps, in ns."""
    typical = statistics.fmean if by_mean else statistics.median
    outside = [[_outside_ns(launch, typical) for launch in pair] for pair in pairs]
    whole = [head - base for base, head in outside if base is not None and head is not None]
    return statistics.median(whole) if whole else None


def _outside_ns(launch: Launch, typical: Callable[[Sequence[float]], float]) -> float | None:
    """Return the time of a launch without its steps, each taken as the typical time; ``None`` without steps."""
    times = launch.times_ns()
    if not times:
        return None
    return launch.seconds * 1e9 - typical(times) * launch.steps_seen


def _peak(launches: Sequence[Launch]) -> tuple[int | None, str]:
    """Return the median peak of the launches: of the allocator if all launches have it, else of physical memory."""
    allocated = [launch.exact[PEAK_COUNTER] for launch in launches if launch.exact.get(PEAK_COUNTER)]
    if allocated and len(allocated) == len(launches):
        return round(statistics.median(allocated)), ALLOCATOR
    resident = [
        max(peaks) for launch in launches if (peaks := [t.peak_rss_bytes for t in launch.reports if t.peak_rss_bytes])
    ]
    return (round(statistics.median(resident)), PROCESS) if resident else (None, "")
