"""Evaluate the rules on traces and merge the results of all ranks into one analysis."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.causes import MOST_ROWS, ROWS_OF_EACH, causes_of_sources, one_per_cause, without_explained
from perfscope.analyzers.consequences import causes_first
from perfscope.analyzers.critical_path import WhatIf, bounded_by_job, bounded_by_path
from perfscope.analyzers.doubts import doubt_of, doubts_of, for_original
from perfscope.analyzers.file_names import files_in_stacks, one_name_per_file
from perfscope.analyzers.large_parts import LargePart, large_parts, merge_large_parts
from perfscope.analyzers.merge_programs import merge_programs, merged_outcome
from perfscope.analyzers.ops import DISTORTED, TopWork, distortion, merge_top_work, top_work
from perfscope.analyzers.readers import ReadTrace
from perfscope.analyzers.registry import chosen_rules, recorded_by
from perfscope.analyzers.results import merged_rows, result_homes, results_of, rows_of
from perfscope.analyzers.sections import (
    NO_COLLECTIVES,
    NO_COMPILE,
    NO_ESTIMATE,
    NO_MEMORY,
    NO_PLANS,
    NO_PROGRAMS,
    CollectivesSection,
    CompileSection,
    EstimateSection,
    MemorySection,
    PlanSection,
    ProgramsSection,
    collectives_section,
    compile_section,
    estimate_section,
    memory_section,
    plan_section,
    programs_section,
)
from perfscope.analyzers.source_code import with_code
from perfscope.analyzers.time import (
    DeviceDoubt,
    DeviceTime,
    StepAccount,
    adjusted,
    device_times,
    late_span_ns,
    step_accounts,
    step_windows,
    steps_work,
    warm_accounts,
    whole_ns,
)
from perfscope.model import hooks
from perfscope.model.errors import log_failure
from perfscope.model.finding import (
    AbstainError,
    Cell,
    Finding,
    Outcome,
    Rule,
    Scope,
    Span,
    source_label,
)
from perfscope.model.results import ResultRows
from perfscope.model.severity import SEVERITIES
from perfscope.model.trace import MISSING, Source, Trace, recording_words

if TYPE_CHECKING:
    import pandas as pd

NOTHING_TO_JUDGE = "there are no"
"""Beginning of the reason if a rule found no records to evaluate."""

_log = logging.getLogger(__name__)

FRAME_COLUMNS = {
    "rule": "string", "severity": "string", "basis": "string", "title": "string", "file": "string", "line": "Int64",
    "op": "string", "kernel": "string", "module": "string", "cost_ns_per_step": "Int64", "cost_ns": "Int64",
    "cost_bytes": "Int64", "count": "int64", "ranks": "object", "silenced": "string", "subject": "string",
    "advice": "string", "detail": "string",
}  # fmt: skip
"""Column name and dtype of `Analysis.to_frame`."""

MOST_PLACES = 2_000
"""Maximum number of spans of such a finding."""


class Step(Struct, frozen=True, kw_only=True):
    """One step. ``traced``: whether a profiler was on."""

    rank: int | None
    """Rank in the job, null if unknown."""
    number: int
    """Number the program gave it; of untraced steps their position."""
    duration_ns: int
    """How long it took."""
    traced: bool
    """A profiler was on. Traced and untraced steps must not be compared."""
    start_ns: int | None = None
    """On the clock of its trace; null for untraced steps."""
    compiled: bool = False
    """Whether it compiled although other steps of its recording did not; averages exclude it."""
    what: str = ""
    """Kind of the step if the program marked no steps: ``'executions of jit_train_step'``."""
    host_ns: int | None = None
    """Length of the host's mark, if the step's time is that of the work launched in it; else ``None``."""
    mark_ns: int | None = None
    """Length of the mark on the devices in that case, if the profiler recorded it."""


class TimedWindow(Struct, frozen=True, kw_only=True):
    """Consecutive steps without a profiler; the devices were synchronized before the first and after the last."""

    rank: int | None
    """Rank in the job, null if unknown."""
    duration_ns: int
    """From the first step's begin to the end of the last one's work."""
    steps: int
    """Steps in it."""


class Analysis(Struct, frozen=True, kw_only=True):
    """Content of a report: sources, device time, steps and outcomes.

    ``print`` shows the text report; a notebook shows the HTML report.
    """

    sources: tuple[Source, ...]
    """The traces that were read, by rank."""
    devices: tuple[DeviceTime, ...]
    """Time of each accelerator of each rank."""
    steps: tuple[Step, ...]
    """Steps, those seen by a profiler first."""
    outcomes: tuple[Outcome, ...]
    """Answers of the rules, one per chosen rule."""
    run: Mapping[str, Any] | None = field(default=None)
    """Manifest of the run (allow-listed parts), if the sources are a run of ours."""
    windows: tuple[TimedWindow, ...] = ()
    """Duration of steps without a profiler, including their device work, if measured."""
    programs: ProgramsSection = NO_PROGRAMS
    """Compiled XLA programs and the time of their parts."""
    compile: CompileSection = NO_COMPILE
    """Results of torch.compile."""
    collectives: CollectivesSection = NO_COLLECTIVES
    """Collectives, waiting times and bandwidth of the ranks of a job."""
    memory: MemorySection = NO_MEMORY
    """Memories, their peaks, and the owners of their contents."""
    estimate: EstimateSection = NO_ESTIMATE
    """Modelled time of programs compiled for a target."""
    plans: PlanSection = NO_PLANS
    """PyTorch programs as torch.compile would compile them for a target: planned, not measured."""
    accounts: tuple[StepAccount, ...] = ()
    """Time of the steps by device and cause."""
    warm_accounts: tuple[StepAccount, ...] = ()
    """The same without the steps that compiled: what averages are of."""
    top: TopWork | None = None
    """The costliest kernels, ops, modules and lines of all sources."""
    large: tuple[LargePart, ...] = ()
    """Ops, kernels, instructions, lines and idle causes that take a fifth of the step, with the finding or the reason
    of each; else the largest part."""
    results: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Records by name of the result (`analyzers/results.py`), one per recording that has it."""
    what_ifs: tuple[WhatIf, ...] = ()
    """Effects of the changes that the user requested with ``--what-if``."""
    starts_ns: tuple[int, ...] = ()
    """Begin of each source's first event on its own clock; reports show ``start_ns`` of evidence relative to it."""
    doubts: tuple[DeviceDoubt, ...] = ()
    """Yield one note per kind of impossible device data."""
    tables: Mapping[str, ResultRows] = field(default_factory=dict)
    """Result tables by name, those that have rows."""
    problems: tuple[str, ...] = ()
    """Result tables that could not be derived, with the reason."""
    settings: tuple[str, ...] = ()
    """Changes by the user's configuration (pyproject.toml), a sentence each."""

    def of(self, result: str) -> tuple[Any, ...]:
        """The records of a result, one per recording that has it."""
        return self.results.get(result, ())

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        """Number of outcomes."""
        return len(self.outcomes)

    def __getitem__(self, rule: str) -> Outcome:
        """Return the outcome of a rule, by id; ``KeyError`` if it was not evaluated."""
        for outcome in self.outcomes:
            if outcome.rule == rule.replace("-", "_"):
                return outcome
        raise KeyError(rule)

    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Return (rule, finding) for the program, costliest first; findings without a time are last.

        A cause is listed before its consequences (`consequences`).

        Silenced findings and findings about the recording (``of_recording``) are excluded.
        """
        return tuple(pair for pair in self._pairs() if pair[1].silenced is None and pair[1].about == "program")

    def of_recording(self) -> tuple[tuple[str, Finding], ...]:
        """Return (rule, finding) about the recording itself: its fix makes no step faster."""
        return tuple(pair for pair in self._pairs() if pair[1].silenced is None and pair[1].about == "recording")

    def silenced(self) -> tuple[tuple[str, Finding], ...]:
        """Return (rule, finding) that a comment in the code or the configuration silences, costliest first."""
        return tuple(pair for pair in self._pairs() if pair[1].silenced is not None)

    def _pairs(self) -> list[tuple[str, Finding]]:
        pairs = [(outcome.rule, finding) for outcome in self.outcomes for finding in outcome.findings]
        return causes_first(sorted(pairs, key=lambda pair: _cost_order(pair[1])), lambda pair: pair)

    def to_frame(self, *, silenced: bool = False) -> pd.DataFrame:
        """Return the findings as a pandas frame, one row each, costliest first.

        ``silenced``: append the silenced findings.

        Columns: rule, severity, basis, title, file, line, op, kernel, module, cost_ns_per_step, cost_ns (ns, over the
        trace, or over one run of a program alone), cost_bytes, count, ranks, silenced (the reason), subject, advice,
        detail.
        """
        import pandas as pd

        pairs = (*self.findings(), *(self.silenced() if silenced else ()))
        rows = [
            (rule, finding.severity, finding.basis, finding.title, finding.where.file, finding.where.line,
             finding.where.op, finding.where.kernel, finding.where.module, finding.cost_ns_per_step, finding.cost_ns,
             finding.cost_bytes, finding.count, finding.ranks, finding.silenced, finding.subject, finding.advice,
             finding.detail)
            for rule, finding in pairs
        ]  # fmt: skip
        frame = pd.DataFrame.from_records(rows, columns=list(FRAME_COLUMNS))
        return frame.astype(FRAME_COLUMNS)

    def __repr__(self) -> str:
        states = Counter(outcome.status for outcome in self.outcomes)
        path = f"{self.sources[0].path!r}: " if self.sources else ""
        return (
            f"<Analysis of {path}{len(self.findings())} findings, {states['clean']} rules clean, "
            f"{states['abstained']} not evaluated>"
        )

    def __str__(self) -> str:
        return str(hooks.call("analysis_text", self))

    def _repr_html_(self) -> str:
        return str(hooks.call("analysis_html", self))


class Examined(ReadTrace, frozen=True, kw_only=True):
    """Results of one trace on its own: everything that needs its tables, except comparisons."""

    devices: tuple[DeviceTime, ...]
    accounts: tuple[StepAccount, ...]
    warm_accounts: tuple[StepAccount, ...]
    top: TopWork | None
    large: tuple[LargePart, ...]
    results: Mapping[str, Any]
    steps: tuple[Step, ...]
    outcomes: tuple[Outcome, ...]
    """One a rule, in the order of the rules."""
    tables: Mapping[str, ResultRows] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Result tables that failed."""
    start_ns: int = 0
    """Begin of its first event on its clock, ns."""


def analyze(traces: Sequence[Trace] | Trace, rules: Iterable[str] | None = None) -> Analysis:
    """Analyze one trace or the traces of one job's ranks; ``rules``: ids, by default all.

    ``TypeError`` for a path; ``perfscope.load`` reads it.
    """
    if isinstance(traces, str | PathLike):
        raise TypeError("analyze takes traces: perfscope.analyze(perfscope.load(path))")
    all_traces = (traces,) if isinstance(traces, Trace) else tuple(traces)
    chosen = chosen_rules(rules, recorded=recorded_by(all_traces))
    return conclude([examine(trace, chosen) for trace in all_traces], chosen)


def examine(trace: Trace, rules: Sequence[Rule]) -> Examined:
    """Evaluate the rules on one trace."""
    outcomes = {rule.id: _over_programs(rule, trace) for rule in rules if rule.rest is None}
    for rule in sorted((rule for rule in rules if rule.rest is not None), key=lambda rule: rule.last):
        found = [(other, finding) for other, outcome in outcomes.items() for finding in outcome.findings]
        outcomes[rule.id] = _over_programs(rule, trace, found)
    top = top_work(trace)
    problems: list[str] = []
    return Examined(
        trace=trace,
        devices=tuple(trace.fact(device_times)),
        accounts=tuple(trace.fact(step_accounts)),
        warm_accounts=trace.fact(warm_accounts),
        top=top,
        large=large_parts(trace, top, tuple(outcomes.values())),
        results=results_of(trace, problems),
        steps=tuple(_steps(trace)),
        outcomes=tuple(outcomes[rule.id] for rule in rules),
        tables=rows_of(trace, problems),
        problems=tuple(problems),
        start_ns=trace.span_ns()[0] if trace.part is None else trace.part.origin_ns,
    )


def conclude(examined: Sequence[Examined], rules: Sequence[Rule], ignore: Sequence[str] = ()) -> Analysis:
    """Merge the results of all traces. ``rules``: the rules that each trace was evaluated with.

    ``ignore``: path patterns; findings in matching files are silenced.
    """
    judged = tuple(item.trace for item in examined)
    paths = [trace.source.path for trace in judged]
    outcomes = without_explained(
        [
            _compared(merge_outcomes([item.outcomes[index] for item in examined], judged), rule, judged)
            for index, rule in enumerate(rules)
        ]
    )
    return Analysis(
        sources=tuple(trace.source for trace in judged),
        devices=tuple(device for item in examined for device in item.devices),
        steps=tuple(step for item in examined for step in item.steps),
        windows=tuple(
            TimedWindow(rank=trace.source.rank, duration_ns=trace.window_ns, steps=trace.window_steps)
            for trace in judged
            if trace.window_ns is not None
        ),
        outcomes=with_code(one_name_per_file(outcomes, paths, files_in_stacks(judged)), paths, ignore),
        programs=programs_section(judged),
        compile=compile_section(judged),
        collectives=collectives_section(judged),
        memory=memory_section(judged),
        estimate=estimate_section(judged),
        plans=plan_section(judged),
        accounts=tuple(account for item in examined for account in item.accounts),
        warm_accounts=tuple(account for item in examined for account in item.warm_accounts),
        top=merge_top_work([item.top for item in examined if item.top is not None]),
        large=merge_large_parts([(item.large, item.warm_accounts) for item in examined]),
        results={
            name: tuple(item.results[name] for item in examined if item.results.get(name) is not None)
            for name in result_homes()
        },
        starts_ns=tuple(item.start_ns for item in examined),
        doubts=doubts_of(judged),
        tables=merged_rows([item.tables for item in examined]),
        problems=tuple(problem for item in examined for problem in item.problems),
    )


def judge(rule: Rule, trace: Trace) -> Outcome:
    """Evaluate one rule on one trace. A rule that fails abstains with the error; it never counts as clean."""
    return _compared(_over_programs(rule, trace), rule, [trace])


def _over_programs(rule: Rule, trace: Trace, found: Sequence[tuple[str, Finding]] = ()) -> Outcome:
    """Evaluate programs that were given together one by one, because shares refer to one program."""
    if not trace.hlo:
        return _checked(rule, trace, found)
    from perfscope.analyzers.hlo import program_labels, programs_apart

    parts = trace.fact(programs_apart)
    if len(parts) == 1:
        return _checked(rule, trace, found)
    merged = merge_programs([_checked(rule, part) for part in parts], program_labels(trace.hlo))
    return replace(merged, findings=tuple(sorted(merged.findings, key=_cost_order)))


def _compared(outcome: Outcome, rule: Rule, traces: Sequence[Trace]) -> Outcome:
    """Add the findings that the rule makes only by comparing; clean if it examined anything."""
    outcome = _with_findings(outcome, rule, traces)
    if outcome.status == "abstained" or rule.compared is None:
        return _with_evidence(outcome)
    try:
        scope = rule.compared([trace for trace in traces if doubt_of(rule, trace) is None])
    except AbstainError:  # the result of each trace alone stays
        return _with_evidence(outcome)
    except Exception as error:  # same as in _checked
        log_failure(_log, f"rule {rule.id} failed to count what it compares", error)
        reason = f"the rule failed to compare: {type(error).__name__}: {error}"
        return replace(outcome, status="flagged" if outcome.findings else "abstained", reason=reason)
    what = scope.what if scope.count or not outcome.examined else outcome.examined_what
    return _with_evidence(replace(outcome, examined=outcome.examined + scope.count, examined_what=what))


def _with_evidence(outcome: Outcome) -> Outcome:
    """Return the outcome, abstained instead of clean if the rule examined no records."""
    if outcome.status != "clean" or outcome.examined:
        return outcome
    return replace(outcome, status="abstained", reason=f"{NOTHING_TO_JUDGE} {outcome.examined_what}")


def _with_findings(outcome: Outcome, rule: Rule, traces: Sequence[Trace]) -> Outcome:
    traces = [trace for trace in traces if doubt_of(rule, trace) is None]
    if rule.compare is None or not traces:
        return outcome
    try:
        findings = tuple(rule.compare(traces))
    except AbstainError as cause:  # the rule cannot compare these; findings of single traces stay
        if outcome.findings or outcome.status == "abstained":
            return outcome
        return replace(outcome, status="abstained", reason=str(cause), missing=cause.missing)
    except Exception as error:  # same as in _checked
        log_failure(_log, f"rule {rule.id} failed to compare", error)
        reason = f"the rule failed to compare: {type(error).__name__}: {error}"
        status = outcome.status if outcome.findings else "abstained"
        return replace(outcome, status=status, reason="; ".join(filter(None, (outcome.reason, reason))))
    if not findings:
        return outcome
    findings = tuple(bounded_by_job(traces, replace(item, spans=_placed(item.spans, traces))) for item in findings)
    texts = {finding.subject for finding in findings} if rule.replaces else set()
    kept = [finding for finding in outcome.findings if finding.subject not in texts]
    return replace(outcome, status="flagged", findings=tuple(sorted((*kept, *findings), key=_cost_order)))


def _checked(rule: Rule, trace: Trace, others: Sequence[tuple[str, Finding]] = ()) -> Outcome:
    planned = rule.plan is not None and "torch_plan" in trace.recorded
    if (doubt := doubt_of(rule, trace)) is not None:
        return Outcome(rule=rule.id, status="abstained", reason=doubt.text)
    absent = [] if planned else [key for key in rule.needs if key not in trace.recorded]
    if "device_work" in absent:
        absent = ["device_work"]  # missing links and calls of missing work are not a second reason
    if absent:
        reason = f"not recorded: {'; '.join(map(recording_words, absent))}"
        return Outcome(rule=rule.id, status="abstained", reason=reason, missing=tuple(absent))
    if rule.id in DISTORTED and (distorted := trace.fact(distortion)) is not None:
        return Outcome(rule=rule.id, status="abstained", reason=distorted)
    try:
        check = rule.plan if planned and rule.plan is not None else rule.check
        found = check(trace) if rule.rest is None else rule.rest(trace, others)
        findings = [
            for_original(trace, adjusted(trace, rule.id, bounded_by_path(trace, finding)))
            for finding in one_per_cause(sorted(found, key=_cost_order), whole_ns(trace))
        ]
        scope = Scope(trace.source.events_read, "records") if rule.examined is None else rule.examined(trace)
    except AbstainError as cause:
        return Outcome(rule=rule.id, status="abstained", reason=str(cause), missing=cause.missing)
    except Exception as error:  # an error in a third-party rule must not affect the other rules
        log_failure(_log, f"rule {rule.id} failed on {trace.source.path}", error)
        return Outcome(rule=rule.id, status="abstained", reason=f"the rule failed: {type(error).__name__}: {error}")
    return Outcome(
        rule=rule.id,
        status="flagged" if findings else "clean",
        findings=tuple(sorted(findings, key=_cost_order)),
        examined=scope.count,
        examined_what=scope.what,
    )


def merge_outcomes(outcomes: Sequence[Outcome], traces: Sequence[Trace]) -> Outcome:
    """Merge the outcomes of all ranks. Clean means that every rank was examined and is clean."""
    if len(outcomes) == 1:
        outcome = outcomes[0]
        rank = traces[0].source.rank
        ranks = () if rank is None else (rank,)
        return replace(outcome, findings=tuple(replace(finding, ranks=ranks) for finding in outcome.findings))
    labels = [source_label(trace.source.rank, index) for index, trace in enumerate(traces)]
    blind = [(label, outcome) for label, outcome in zip(labels, outcomes, strict=True) if outcome.status == "abstained"]
    reason = None
    if blind:
        whose = "all sources" if len(blind) == len(outcomes) else ", ".join(label for label, _ in blind)
        reason = f"{whose}: {blind[0][1].reason}"
    return merged_outcome(outcomes, _merge_findings(outcomes, labels, traces), reason)


def _merge_findings(outcomes: Sequence[Outcome], labels: Sequence[str], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    groups: dict[object, list[tuple[int, Finding]]] = {}
    causes = causes_of_sources([outcome.findings for outcome in outcomes])
    for index, outcome in enumerate(outcomes):
        for cause, finding in zip(causes[index], outcome.findings, strict=True):
            groups.setdefault(cause, []).append((index, finding))
    merged = []
    for members in groups.values():
        members.sort(key=lambda pair: _cost_order(pair[1]))
        worst = members[0][1]
        rows: list[Mapping[str, Cell]] = [
            {"source": labels[index], **row} for index, finding in members for row in finding.evidence[:ROWS_OF_EACH]
        ]
        spans = ((index, span) for index, finding in members for span in finding.spans)
        placed = tuple(replace(span, source=index) for index, span in islice(spans, MOST_PLACES))
        ranks = sorted({rank for index, _ in members if (rank := traces[index].source.rank) is not None})
        merged.append(replace(worst, evidence=tuple(rows[:MOST_ROWS]), spans=placed, ranks=tuple(ranks)))
    return tuple(sorted(merged, key=_cost_order))


def _placed(spans: Iterable[Span], traces: Sequence[Trace]) -> tuple[Span, ...]:
    """Return the spans of ranks with their traces; spans of a rank with several traces are dropped."""
    ranks = [trace.source.rank for trace in traces]
    return tuple(
        span if span.rank is None else replace(span, source=ranks.index(span.rank))
        for span in spans
        if span.rank is None or ranks.count(span.rank) == 1
    )


def _cost_order(finding: Finding) -> tuple[int, int, int, int, str]:
    """Sort by time; findings without a time last, by severity and by the bytes they move."""
    cost = finding.ordering_ns
    if cost is not None:
        return (0, -cost, 0, 0, finding.title)
    return (1, 0, -SEVERITIES.index(finding.severity), -(finding.cost_bytes or 0), finding.title)


def _steps(trace: Trace) -> Iterator[Step]:
    what = trace.fact(step_windows).what
    cold = {number for account in trace.fact(step_accounts) for number in account.cold}
    for step in _traced_steps(trace):
        yield replace(step, compiled=step.number in cold, what=what)
    for number, duration in enumerate(trace.step_times_ns if late_span_ns(trace) is None else ()):
        yield Step(rank=trace.source.rank, number=number, duration_ns=duration, traced=False)


def _traced_steps(trace: Trace) -> Iterator[Step]:
    """Yield each step by its range on the host, or by the work launched in it if the host did not wait for it."""
    work, rank = trace.fact(steps_work), trace.source.rank
    if work is not None and work.late:
        for step in work.steps:
            yield Step(
                rank=rank,
                number=step.number,
                duration_ns=step.complete_ns,
                traced=True,
                start_ns=step.start_ns,
                host_ns=step.host_ns,
                mark_ns=None if step.mark_ns == MISSING else step.mark_ns,
            )
        return
    windows = trace.fact(step_windows)
    for begin, end, number in zip(windows.starts, windows.ends, windows.numbers, strict=True):
        yield Step(rank=rank, number=int(number), duration_ns=int(end - begin), traced=True, start_ns=int(begin))
