"""Comparison of two runs: metrics with verdicts, parts of the step's change, causes, findings, missing data."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.gates import gates_not_met, program_gate
from perfscope.analyzers.compare.programs.pairs import NO_TARGETS, TargetOfSide, program_changes, targets
from perfscope.analyzers.compare.programs.row import ProgramChange
from perfscope.analyzers.compare.runs.causes import Cause, causes, corroborated, findings_change
from perfscope.analyzers.compare.runs.change import TimeChange, account_change, time_change
from perfscope.analyzers.compare.runs.likely import (
    LIKELY,
    SETTLE,
    as_notes,
    carried_by,
    carrying,
    likely_change,
)
from perfscope.analyzers.compare.runs.result_tables import table_changes
from perfscope.analyzers.compare.runs.structure import ExactMetric, structure
from perfscope.analyzers.compare.runs.trees import path_change, tree_change
from perfscope.analyzers.compare.statistics import estimators
from perfscope.analyzers.compare.statistics.paired import Better, Verdict
from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST, MetricResult
from perfscope.analyzers.compare.statistics.warm_up import steady_part
from perfscope.analyzers.devices import find_device
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.savings import step_time
from perfscope.analyzers.time import device_times
from perfscope.model.documents.comparison import Headline, Side, Sides
from perfscope.model.documents.step_time import StepTime
from perfscope.model.errors import UsageError
from perfscope.model.severity import SEVERITIES, Severity
from perfscope.model.trace import Trace

# Two single captures: an interval that allows for steps resembling their neighbours. It never fails a build.
#
# One launch per side does not show how much launches differ. The moving-block bootstrap (Kuensch 1989) accounts for
# the resemblance of consecutive steps, but not for memory layout, clocks and other processes, which all steps of a
# launch share. In simulations it reports a change in more than half of the comparisons of equal programs.


RESAMPLES = 1000
MOST_STEPS = 2000
"""Maximum number of steps of a capture, the last ones; more cost time and add nothing about the next launch."""
MOST_AT_ONCE = 1 << 18
"""Maximum number of resampled values in memory at once."""
LEAST_STEPS = 5
"""Minimum number of steady steps for an interval; three profiled steps do not show a spread."""
LOW_CONFIDENCE = "one launch on each side: differences between launches are not in the interval, so it fails no build"


class Resemblance(Struct, frozen=True, kw_only=True):
    """Resemblance of consecutive steps. ``effective``: equivalent number of independent steps."""

    correlation: float
    """Correlation of a step and the next."""
    effective: float
    block: int
    """Number of steps per block."""


def resemblance(values: np.ndarray) -> Resemblance:
    """Use lag-1 correlation phi: n_eff = n (1 - phi) / (1 + phi), n^(1/3) (1 + phi) / (1 - phi) steps per block.

    phi is computed on ranks, so that a few interrupted steps have no effect, and corrected for bias (Kendall 1954).
    """
    count = values.size
    centred = np.argsort(np.argsort(values, kind="stable"), kind="stable") - (count - 1) / 2
    power = float(centred @ centred) if np.ptp(values) else 0.0
    correlation = float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0
    correlation += (1 + 3 * correlation) / count if power > 0 else 0.0
    # A slope makes any series look perfectly correlated; assume at least two independent values.
    correlation = min(max(correlation, 0.0), 1 - 4 / (count + 2) if count > 2 else 0.0)
    memory = (1 + correlation) / (1 - correlation)
    block = min(max(1, math.ceil(count ** (1 / 3) * memory)), max(1, count // 2))
    return Resemblance(correlation=correlation, effective=count / memory, block=block)


def from_single_captures(
    name: str,
    base: Sequence[float],
    head: Sequence[float],
    *,
    unit: str = "ns",
    better: Better = "lower",
    least: float = STEP_LEAST,
    seed: int = 0,
    levels: tuple[float, float] | None = None,
    by_mean: bool = False,
) -> MetricResult:
    """Compare the medians of two launches' steps, in order, with warm-up. 95% interval by blocks; low confidence.

    Inconclusive, with the reason, if steps are too few or times are not positive. ``levels``: displayed values instead
    of those of the steady steps. ``by_mean``: use means instead of medians.
    """
    steady, problems = _steady(base, head)
    location = np.mean if by_mean else np.median
    typical = [float(location(values)) if values.size and np.all(values > 0) else None for values in steady]
    if levels is not None:
        typical = list(levels)
    effect = low = high = None
    if typical[0] is not None and typical[1] is not None:
        effect = typical[1] / typical[0] - 1
    verdict: Verdict = "inconclusive"
    remarks = [LOW_CONFIDENCE, *problems]
    if not problems:
        rng = np.random.default_rng(seed)
        alike = [resemblance(values) for values in steady]
        centre = math.log(typical[1] / typical[0]) if typical[0] and typical[1] else 0.0
        half = _half_width(steady, alike, rng, by_mean=by_mean)
        low, high = centre - half, centre + half
        verdict = _verdict(low, high, effect or 0.0, least, better)
        low, high = math.expm1(low), math.expm1(high)
        remarks.append(
            "steps that say as much if they were independent: "
            + ", ".join(
                f"{resemblance.effective:.0f} of {values.size} in {which}"
                for which, values, resemblance in zip(("base", "head"), steady, alike, strict=True)
            )
        )
    return MetricResult(
        name=name,
        unit=unit,
        better=better,
        verdict=verdict,
        known="single captures",
        base=typical[0],
        head=typical[1],
        effect=effect,
        low=low,
        high=high,
        level=None if low is None else 0.95,
        estimator=f"{'mean' if by_mean else 'median'} of the steps",
        least=least,
        remarks=tuple(remarks),
    )


def _steady(base: Sequence[float], head: Sequence[float]) -> tuple[list[np.ndarray], list[str]]:
    """Return the steady steps of both sides, and reasons against an interval."""
    steady, problems = [], []
    for which, times in (("base", base), ("head", head)):
        part = steady_part(times)
        if part.problem is not None:
            problems.append(f"{which}: {part.problem}")
        elif part.kept < LEAST_STEPS:
            problems.append(f"{which}: {part.kept} steady steps are too few for an interval, {LEAST_STEPS} are needed")
        steady.append(np.asarray(times, float)[part.dropped :][-MOST_STEPS:])
    return steady, problems


def _half_width(
    steady: Sequence[np.ndarray], alike: Sequence[Resemblance], rng: np.random.Generator, *, by_mean: bool
) -> float:
    """Return half of the 95% interval of the log ratio: the bootstrap's standard error times Student's t.

    Percentiles of few long blocks are too close. Two corrections make up for it: t with the degrees of freedom of the
    independent steps, and the variance that blocks of b of n steps miss (n / (n - b)).
    """
    variance = 0.0
    for values, resemblance in zip(steady, alike, strict=True):
        logs = np.log(_resampled(values, resemblance.block, rng, by_mean=by_mean))
        variance += float(logs.var(ddof=1)) * values.size / max(values.size - resemblance.block, 1)
    freedom = max(1, math.floor(min(resemblance.effective for resemblance in alike)) - 1)
    return estimators.quantile(0.975, freedom) * math.sqrt(variance)


def _resampled(values: np.ndarray, block: int, rng: np.random.Generator, *, by_mean: bool) -> np.ndarray:
    """Return medians (or means) of resamples of blocks of consecutive values."""
    per_sample = math.ceil(values.size / block)
    offsets = np.arange(block)
    chunk = max(1, MOST_AT_ONCE // values.size)
    medians = []
    for first in range(0, RESAMPLES, chunk):
        starts = rng.integers(0, values.size - block + 1, (min(chunk, RESAMPLES - first), per_sample))
        chosen = (starts[:, :, None] + offsets).reshape(len(starts), -1)[:, : values.size]
        medians.append((np.mean if by_mean else np.median)(values[chosen], axis=1))
    return np.concatenate(medians)


def _verdict(low: float, high: float, effect: float, least: float, better: Better) -> Verdict:
    bound = math.log1p(least)
    if (low > 0 or high < 0) and abs(math.log1p(effect)) >= bound:
        return "regression" if (effect > 0) is (better == "lower") else "improvement"
    return "no change" if -bound < low and high < bound else "inconclusive"


STEP_TIME = "step time"

OTHER_TARGETS = "compiled for other targets, {base} against {head}: gates do not apply to the programs"

NO_NAME = "a device without a name"

Kind = Literal[
    "PyTorch recording", "JAX recording", "device recording", "compiled programs", "planned programs",
    "memory snapshot", "compile log", "flight record", "op graph", "recording",
]  # fmt: skip
"""Kind of a side. Only sides of one kind are compared."""


class Comparison(Sides, frozen=True, kw_only=True):
    """Result of comparing two sides. ``account``, ``tree`` and ``path`` are those of the median rank."""

    step_time: MetricResult | None
    """``None`` if a side has no times."""
    exact: tuple[ExactMetric, ...]
    time: TimeChange | None
    causes: tuple[Cause, ...]
    programs: tuple[ProgramChange, ...] = ()
    """Compiled programs of both sides, compared by instruction."""
    targets: TargetOfSide = NO_TARGETS

    @property
    def metrics(self) -> tuple[MetricResult, ...]:
        """All metrics, step time first."""
        timed = () if self.step_time is None else (self.step_time,)
        return (*timed, *(exact_metric.result for exact_metric in self.exact))

    @property
    def headline(self) -> Headline:
        """Overall result of the metrics that may fail a build: regression, else improvement, else inconclusive.

        A step time with one launch per side is *likely* worse or better, or *not judged*. *No change* requires that the
        step time was judged, or that neither side has one.
        """
        verdicts = [metric.verdict for metric in self.metrics if metric.gates and metric.unit != "text"]
        step, likely = self.step_time, self.likely
        judged = step is not None and step.gates
        if "regression" in verdicts:
            return "regression"
        if likely == "regression":
            return "regression likely"
        if "improvement" in verdicts:
            return "improvement"
        if likely == "improvement":
            return "improvement likely"
        if step is not None and not judged:
            return "not judged"
        if judged and step is not None and step.verdict == "inconclusive":
            return "inconclusive"
        return "no change" if "no change" in verdicts else "inconclusive"

    def gates(self, fail_on: Iterable[str]) -> tuple[str, ...]:
        """Reasons to fail a build, one line each.

        ``fail_on``: ``regression``, ``inconclusive``, ``finding:SEVERITY``, or gates of compiled programs
        (`PROGRAM_GATES`), which do not apply to programs for different targets. A finding fails it if it is new or
        costs more than before, and a count or the step time changed with it.
        """
        wanted = list(dict.fromkeys(fail_on))
        lines: list[str] = []
        for gate in wanted:
            parsed = program_gate(gate)
            if parsed:
                lines += gates_not_met(self.programs, parsed) if not self.targets.differ else []
            elif gate == "regression":
                lines += [
                    f"{metric.name}: regression" for metric in self.metrics if metric.gates and metric.verdict == gate
                ]
                if self.likely == gate and self.step_time is not None:
                    effect = self.step_time.effect or 0.0
                    launches = self.step_time.pairs or 1
                    many = "one launch" if launches == 1 else f"{launches} launches"
                    lines.append(f"{self.step_time.name}: regression likely, {effect:+.1%} ({many} each)")
            elif gate == "inconclusive":
                lines += [f"{name}: inconclusive" for name in self.inconclusive]
            else:
                least = SEVERITIES.index(severity_named(gate))
                lines += [
                    f"{change.rule}: {change.change}, {change.shown.severity}"
                    for change in self.findings
                    if change.is_worse and SEVERITIES.index(change.shown.severity) >= least
                ]
        return tuple(dict.fromkeys(lines))

    @property
    def inconclusive(self) -> tuple[str, ...]:
        """Metrics that could not be judged, among them the step time of single captures."""
        step = self.step_time
        timed = () if step is None or (step.gates and step.verdict != "inconclusive") else (step.name,)
        open_ones = (exact_metric.result for exact_metric in self.exact if not exact_metric.neutral)
        return (*timed, *(result.name for result in open_ones if result.verdict == "inconclusive"))


def severity_named(gate: str) -> Severity:
    """Return the severity in ``finding:high``; ``UsageError`` if it is missing or unknown."""
    for severity in SEVERITIES:
        if gate == f"finding:{severity}":
            return severity
    raise UsageError(f"--fail-on {gate}: not one of regression, inconclusive, finding:low|medium|high")


def compare(base: Sequence[Trace], head: Sequence[Trace], *, busy: bool = False) -> Comparison:
    """Compare the traces of two runs, each of one job's ranks. ``busy``: other programs used the machine meanwhile.

    ``UsageError`` if their kinds differ (a recording and a compiled program) or a side is empty.
    """
    sides = side_summary(base), side_summary(head)
    check_alike(*sides)
    analyses = analyze(base), analyze(head)
    time = time_change(base, head) if sides[0].kind in _RECORDINGS else None
    programs, machines = program_changes(base, head), targets(base, head)
    built = structure(base, head, {program.base_fingerprint: program.lines for program in programs})
    step_ns = None if time is None or time.median.per != "step" else float(time.median.head_ns)
    median = None if time is None else time.median
    remarks = [OTHER_TARGETS.format(base=machines.base, head=machines.head)] if machines.differ else []
    remarks += _checkpoints(base, head)
    findings = corroborated(findings_change(*analyses, step_ns=step_ns), median, built)
    step = None if time is None else _step_time(analyses, time)
    account = None if time is None else account_change(time.median)
    one_machine = sides[0].devices == sides[1].devices
    verdict = likely_change(step, time, findings, account, built.metrics, busy=busy) if one_machine else None
    if verdict is not None and step is not None:
        step = replace(step, verdict=verdict, remarks=(LIKELY, *step.remarks))
    findings = carrying(findings, step, verdict)
    return Comparison(
        base=sides[0],
        head=sides[1],
        step_time=step,
        exact=as_notes(built.metrics, faster=verdict == "improvement", other_vendors=other_vendors(*sides)),
        time=time,
        causes=causes(median, built, findings),
        findings=findings,
        not_looked=built.not_looked,
        notes=tuple(dict.fromkeys((*(time.notes if time is not None else ()), *built.notes, *remarks))),
        cautions=tuple(differences(*sides)),
        programs=programs,
        targets=machines,
        account=account,
        tree=None if time is None else tree_change(*_ranks_of(base, head, time)),
        path=None if time is None else path_change(*_ranks_of(base, head, time)),
        likely=verdict,
        carried=carried_by(findings, account, verdict),
        settle="" if step is None or step.gates else SETTLE,
        tables=table_changes(*analyses),
    )


def _ranks_of(base: Sequence[Trace], head: Sequence[Trace], time: TimeChange) -> tuple[Trace, Trace]:
    """Return the traces of the median rank; the first ones if it is unknown."""
    chosen = [
        next((trace for trace in side if trace.source.rank == time.median.rank), side[0]) for side in (base, head)
    ]
    return chosen[0], chosen[1]


def _checkpoints(*sides: Sequence[Trace]) -> list[str]:
    """Return a note if `perfscope compile --checkpoint` set different policies of layers on the two sides."""
    policies = [
        " and ".join(dict.fromkeys(trace.checkpoint or "the program's own" for trace in side)) for side in sides
    ]
    if len(set(policies)) == 1:
        return []
    return [
        f"checkpoint policies of layers: {policies[0]} in base, {policies[1]} in head (perfscope compile --checkpoint)"
    ]


_KNOWN: tuple[tuple[str, str, bool], ...] = (
    ("window_mean", f"{STEP_TIME} (mean of a window)", False),
    ("unprofiled_median", STEP_TIME, False),
    ("profiled_mean", f"{STEP_TIME} (profiled)", True),
)
"""Ways of timing steps, best first: key of ``StepTime.known_ns``, name of the metric, whether a profiler ran."""


def timed_name(timed: StepTime) -> str:
    """Return the metric's name for a run's step time."""
    return next(name for key, name, _ in _KNOWN if key.startswith(timed.of))


def _step_time(analyses: tuple[Analysis, Analysis], time: TimeChange) -> MetricResult:
    """Compare the step times of both reports if they were timed alike, else by the best way common to both.

    Confidence is low with one launch per side. Means are compared if the program itself causes slow steps.
    """
    timed = [step_time(analysis) for analysis in analyses]
    base, head = timed
    if base is None or head is None:
        name = STEP_TIME if time.median.per == "step" else "time of the trace"
        return from_single_captures(name, [time.median.base_ns], [time.median.head_ns])
    if base.of == head.of:
        ways = [(key, name, traced) for key, name, traced in _KNOWN if key.startswith(base.of)]
    else:
        ways = [way for way in _KNOWN if way[0] in base.known_ns and way[0] in head.known_ns]
    if not ways:
        return from_single_captures(STEP_TIME, [base.ns], [head.ns])
    key, name, traced = ways[0]
    by_mean = key == "unprofiled_median" and "mean" in (base.statistic, head.statistic)
    if by_mean:
        key, name = "unprofiled_mean", f"mean {STEP_TIME}"
    levels = base.known_ns[key], head.known_ns[key]
    if key == "window_mean":
        return from_single_captures(name, [levels[0]], [levels[1]])
    steps = [_steps(analysis, each.rank, traced=traced) for analysis, each in zip(analyses, (base, head), strict=True)]
    return from_single_captures(name, steps[0], steps[1], levels=levels, by_mean=by_mean)


def _steps(analysis: Analysis, rank: int | None, *, traced: bool) -> list[float]:
    """Return the steps of a rank in order, without those that compiled."""
    return [
        float(step.duration_ns)
        for step in analysis.steps
        if step.traced is traced and step.rank == rank and not step.compiled
    ]


def kind_of(trace: Trace) -> Kind:
    """Return the kind of a trace from its content."""
    recorded = trace.recorded
    if trace.torch_plans:
        return "planned programs"
    if trace.source.programs is not None or recorded == {"hlo"}:
        return "compiled programs"
    if {"hlo", "compile_events", "host_reads"} & recorded or len(trace.rows["hlo_ops"]):
        return "JAX recording"
    if "device_work" in recorded and not {"host_ops", "op_links"} & recorded:
        return "device recording"
    if "host_ops" in recorded:
        return "PyTorch recording" if {"autograd", "op_links", "shapes", "op_graph"} & recorded else "recording"
    alone: tuple[tuple[str, Kind], ...] = (
        ("memory_state", "memory snapshot"),
        ("memory", "memory snapshot"),
        ("compile_log", "compile log"),
        ("flight_record", "flight record"),
        ("op_graph", "op graph"),
    )
    return next((kind for key, kind in alone if key in recorded), "recording")


_RECORDINGS = frozenset({"PyTorch recording", "JAX recording", "device recording", "recording"})


def side_summary(traces: Sequence[Trace]) -> Side:
    """Summarize the traces of a side. ``UsageError`` without traces."""
    if not traces:
        raise UsageError("nothing to compare: a side holds no trace")
    kinds = dict.fromkeys(map(kind_of, traces))
    names = dict.fromkeys(
        device_time.name or NO_NAME
        for trace in traces
        for device_time in trace.fact(device_times)
        if device_time.span_ns
    )
    return Side(
        paths=tuple(dict.fromkeys(trace.source.path for trace in traces)),
        formats=tuple(dict.fromkeys(trace.source.format for trace in traces)),
        kind=next(iter(kinds)),
        ranks=len(traces),
        devices=tuple(names),
    )


def check_alike(base: Side, head: Side) -> None:
    """Raise ``UsageError``, in one line, if two sides cannot be compared."""
    if base.kind == head.kind:
        return
    plain = {base.kind, head.kind}
    if plain <= _RECORDINGS and not ("JAX recording" in plain and "PyTorch recording" in plain):
        return
    kinds = f"{base.paths[0]} is a {base.kind.removesuffix('s')}, {head.paths[0]} a {head.kind.removesuffix('s')}"
    if plain <= _RECORDINGS:
        each = " and ".join(f"`perfscope analyze {shlex.quote(side.paths[0])}`" for side in (base, head))
        raise UsageError(
            f"{kinds}: their ops and kernels have no names in common, so compare step time, causes and memory of the "
            f"reports ({each}), and their results with `perfscope parity TORCH.py:make JAX.py:make`"
        )
    raise UsageError(f"{kinds}: compare two of one kind")


def other_vendors(base: Side, head: Side) -> bool:
    """Return whether the devices of both sides are known and have no vendor in common."""
    vendors = [
        {device.vendor for name in side.devices if (device := find_device(name)) is not None} for side in (base, head)
    ]
    return all(vendors) and not vendors[0] & vendors[1]


def differences(base: Side, head: Side) -> list[str]:
    """Return the differences of two comparable sides that a reader must know, one sentence each."""
    sentences = []
    if base.kind != head.kind:
        sentences.append(f"base is a {base.kind}, head a {head.kind}: what only one of them records is not compared")
    if base.devices != head.devices and (base.devices or head.devices):
        mine, theirs = (", ".join(side.devices) or "no device" for side in (base, head))
        other = f"other devices, {mine} against {theirs}: the change of time is theirs as much as the program's"
        if other_vendors(base, head):
            each = " and ".join(f"`perfscope analyze {shlex.quote(side.paths[0])}`" for side in (base, head))
            other += (
                "; their vendors differ, and with them the kernels, so compare step time, causes and ops, and the "
                f"distance of each from its own peak in {each}"
            )
        sentences.append(other)
    if base.ranks != head.ranks:
        sentences.append(f"{base.ranks} ranks against {head.ranks}: what a rank does may differ")
    return sentences
