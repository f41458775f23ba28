"""Two runs side by side: metrics with verdicts, the change of the step in parts, causes, findings, what is unknown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.compare.programs.gates import gates_not_met, program_gate
from perfscope.analyzers.compare.programs.pairs import NO_TARGETS, TargetOfSide, program_changes, targets
from perfscope.analyzers.compare.programs.row import ProgramChange
from perfscope.analyzers.compare.runs.blocks import from_single_captures
from perfscope.analyzers.compare.runs.causes import Cause, causes, corroborated
from perfscope.analyzers.compare.runs.findings import FindingChange, findings_change
from perfscope.analyzers.compare.runs.ranks import TimeChange, time_change
from perfscope.analyzers.compare.runs.structure import ExactMetric, NotLooked, structure
from perfscope.analyzers.compare.statistics.verdict import MetricResult
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.time import HOST_AHEAD, device_times
from perfscope.model.errors import UsageError
from perfscope.model.finding import SEVERITIES, Severity
from perfscope.model.trace import Trace

STEP_TIME = "step time"

OTHER_TARGETS = "compiled for other targets, {base} against {head}: no gate is asked of the programs"

NO_NAME = "a device without a name"

Kind = Literal[
    "PyTorch recording", "JAX recording", "device recording", "compiled programs", "planned programs",
    "memory snapshot", "compile log", "flight record", "op graph", "recording",
]  # fmt: skip
"""What a side is. Only sides of one kind are compared."""

Headline = Literal["regression", "improvement", "no change", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSummary:
    """What stands on one side."""

    paths: tuple[str, ...]
    formats: tuple[str, ...]
    kind: Kind
    ranks: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that is known of two sides."""

    base: SideSummary
    head: SideSummary
    step_time: MetricResult | None
    """None where a side has no times."""
    exact: tuple[ExactMetric, ...]
    time: TimeChange | None
    causes: tuple[Cause, ...]
    findings: tuple[FindingChange, ...]
    not_looked: tuple[NotLooked, ...]
    notes: tuple[str, ...]
    programs: tuple[ProgramChange, ...] = ()
    """Compiled programs that both sides have, explained by instruction."""
    targets: TargetOfSide = NO_TARGETS

    @property
    def metrics(self) -> tuple[MetricResult, ...]:
        """Every metric: the step's time first."""
        timed = () if self.step_time is None else (self.step_time,)
        return (*timed, *(one.result for one in self.exact))

    @property
    def headline(self) -> Headline:
        """Of the metrics that may fail a build: a regression of any, else an improvement of any, else no change.

        Inconclusive where there is none of them, or where the time of the step may fail a build and is not settled.
        """
        said = [one.verdict for one in self.metrics if one.gates and one.unit != "text"]
        for verdict in ("regression", "improvement"):
            if verdict in said:
                return verdict
        if self.step_time is not None and self.step_time.gates and self.step_time.verdict == "inconclusive":
            return "inconclusive"
        return "no change" if "no change" in said else "inconclusive"

    def gates(self, fail_on: Iterable[str]) -> tuple[str, ...]:
        """Why a build must fail, one line each.

        ``fail_on``: ``regression``, ``inconclusive``, ``finding:SEVERITY``, or gates of compiled programs
        (`program_gates.GATES`), which ask nothing of programs for different targets. Times of single captures never
        fail one. A finding fails it where it is new or costs more than before, and something that can be counted
        changed with it.
        """
        wanted = list(dict.fromkeys(fail_on))
        said: list[str] = []
        for one in wanted:
            asked = program_gate(one)
            if asked:
                said += gates_not_met(self.programs, asked) if not self.targets.differ else []
            elif one == "regression":
                said += [
                    f"{metric.name}: regression" for metric in self.metrics if metric.gates and metric.verdict == one
                ]
            elif one == "inconclusive":
                said += [f"{name}: inconclusive" for name in self.inconclusive]
            else:
                least = SEVERITIES.index(severity_named(one))
                said += [
                    f"{change.rule}: {change.change}, {change.shown.severity}"
                    for change in self.findings
                    if change.is_worse and SEVERITIES.index(change.shown.severity) >= least
                ]
        return tuple(dict.fromkeys(said))

    @property
    def inconclusive(self) -> tuple[str, ...]:
        """Metrics that could not be judged: the time of single captures is among them."""
        step = self.step_time
        timed = () if step is None or (step.gates and step.verdict != "inconclusive") else (step.name,)
        open_ones = (one.result for one in self.exact if not one.neutral)
        return (*timed, *(one.name for one in open_ones if one.verdict == "inconclusive"))


def severity_named(gate: str) -> Severity:
    """The severity of ``finding:high``; ``AskedWronglyError`` where it names none."""
    for severity in SEVERITIES:
        if gate == f"finding:{severity}":
            return severity
    raise UsageError(f"--fail-on {gate}: not one of regression, inconclusive, finding:low|medium|high")


def compare(base: Sequence[Trace], head: Sequence[Trace]) -> Comparison:
    """Compare the traces of two runs, each of one job's ranks.

    ``AskedWronglyError``: they are of different kinds (a recording and a compiled program), or nothing is there.
    """
    sides = side_summary(base), side_summary(head)
    check_alike(*sides)
    analyses = analyze(base), analyze(head)
    time = time_change(base, head) if sides[0].kind in _RECORDINGS else None
    programs, machines = program_changes(base, head), targets(base, head)
    built = structure(base, head, {one.base_fingerprint: one.lines for one in programs})
    step_ns = None if time is None or time.median.per != "step" else float(time.median.head_ns)
    median = None if time is None else time.median
    told = [OTHER_TARGETS.format(base=machines.base, head=machines.head)] if machines.differ else []
    told += _checkpoints(base, head)
    findings = corroborated(findings_change(*analyses, step_ns=step_ns), median, built)
    return Comparison(
        base=sides[0],
        head=sides[1],
        step_time=None if time is None else _step_time(analyses, time),
        exact=built.metrics,
        time=time,
        causes=causes(median, built, findings),
        findings=findings,
        not_looked=built.not_looked,
        notes=tuple(
            dict.fromkeys((*differences(*sides), *(time.notes if time is not None else ()), *built.notes, *told))
        ),
        programs=programs,
        targets=machines,
    )


def _checkpoints(*sides: Sequence[Trace]) -> list[str]:
    """Where `perfscope compile --checkpoint` set the policy of layers on one side, or another on either."""
    said = [" and ".join(dict.fromkeys(one.checkpoint or "the program's own" for one in side)) for side in sides]
    if len(set(said)) == 1:
        return []
    return [f"checkpoint policies of layers: {said[0]} in base, {said[1]} in head (perfscope compile --checkpoint)"]


def _step_time(analyses: tuple[Analysis, Analysis], time: TimeChange) -> MetricResult:
    """Low confidence: from one launch on each side. Steps without a profiler where both have them, else with it.

    Where a step only queues its work (JAX), the windows that waited for it at both ends are the step time.
    """
    windows = [[one.duration_ns / one.steps for one in analysis.windows[:1] if one.steps] for analysis in analyses]
    waited = from_single_captures(f"{STEP_TIME} (mean of a window)", *windows) if all(windows) else None
    for name, traced in ((STEP_TIME, False), (f"{STEP_TIME} (profiled)", True)):
        steps = [_steps(one, time.median.rank, traced=traced) for one in analyses]
        queued = [
            bool(held and own) and held[0] > HOST_AHEAD * statistics.median(own)
            for held, own in zip(windows, steps, strict=True)
        ]
        if all(steps) and not (waited is not None and any(queued)):
            return from_single_captures(name, steps[0], steps[1])
    if waited is not None:
        return waited
    name = STEP_TIME if time.median.per == "step" else "time of the trace"
    return from_single_captures(name, [time.median.base_ns], [time.median.head_ns])


def _steps(analysis: Analysis, rank: int | None, *, traced: bool) -> list[float]:
    """Steps of a rank in order (of the first where it has none); none where one took no time: it did not wait."""
    ranks = dict.fromkeys(step.rank for step in analysis.steps)
    rank = rank if rank in ranks else next(iter(ranks), None)
    found = [float(step.duration_ns) for step in analysis.steps if step.traced is traced and step.rank == rank]
    return found if all(ns > 0 for ns in found) else []


def kind_of(trace: Trace) -> Kind:
    """What a trace is, by what is in it."""
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


def side_summary(traces: Sequence[Trace]) -> SideSummary:
    """What the traces of a side are. ``AskedWronglyError`` where there are none."""
    if not traces:
        raise UsageError("nothing to compare: a side holds no trace")
    kinds = dict.fromkeys(map(kind_of, traces))
    names = dict.fromkeys(one.name or NO_NAME for trace in traces for one in trace.fact(device_times) if one.span_ns)
    return SideSummary(
        paths=tuple(dict.fromkeys(trace.source.path for trace in traces)),
        formats=tuple(dict.fromkeys(trace.source.format for trace in traces)),
        kind=next(iter(kinds)),
        ranks=len(traces),
        devices=tuple(names),
    )


def check_alike(base: SideSummary, head: SideSummary) -> None:
    """``AskedWronglyError``, in one line, where two sides cannot be compared."""
    if base.kind == head.kind:
        return
    plain = {base.kind, head.kind}
    if plain <= _RECORDINGS and not ("JAX recording" in plain and "PyTorch recording" in plain):
        return
    raise UsageError(
        f"{base.paths[0]} is a {base.kind.removesuffix('s')}, {head.paths[0]} a {head.kind.removesuffix('s')}: "
        "compare two of one kind"
    )


def differences(base: SideSummary, head: SideSummary) -> list[str]:
    """What a reader must know of two sides that can be compared, one sentence each."""
    said = []
    if base.kind != head.kind:
        said.append(f"base is a {base.kind}, head a {head.kind}: what only one of them records is not compared")
    if base.devices != head.devices and (base.devices or head.devices):
        mine, theirs = (", ".join(one.devices) or "no device" for one in (base, head))
        said.append(f"other devices, {mine} against {theirs}: the change of time is theirs as much as the program's")
    if base.ranks != head.ranks:
        said.append(f"{base.ranks} ranks against {head.ranks}: what a rank does may differ")
    return said
