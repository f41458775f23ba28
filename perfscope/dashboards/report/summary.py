"""What every report says, decided once: which rows, in which order, with which words.

The faces differ in layout alone. All text here is already fit to be shown
but escaped for no format.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median, quantiles
from typing import TYPE_CHECKING

from perfscope.analyzers.time import HOST_AHEAD
from perfscope.dashboards.report.coverage import (
    REASON_LIMIT,
    logs_alone,
    memory_alone,
    not_evaluated,
    programs_alone,
    rank_sources,
    recordable,
    remarks,
)
from perfscope.dashboards.report.evidence import MOST_EVIDENCE, shown_rows
from perfscope.dashboards.report.prose import blocks
from perfscope.dashboards.report.renderers.values import place_end
from perfscope.dashboards.report.sections.account import account_sections, busy_fact, explained_share, host_sections
from perfscope.dashboards.report.sections.collectives import collectives_sections
from perfscope.dashboards.report.sections.compile import compile_sections
from perfscope.dashboards.report.sections.compile import headline as compile_fact
from perfscope.dashboards.report.sections.devices import DeviceRow, device_rows, span_text
from perfscope.dashboards.report.sections.estimate import estimate_fact, estimate_sections, estimate_tile
from perfscope.dashboards.report.sections.generation import generation_fact, generation_sections
from perfscope.dashboards.report.sections.memory import memory_fact, memory_sections, memory_tile
from perfscope.dashboards.report.sections.plan import plan_sections
from perfscope.dashboards.report.sections.programs import programs_sections, ran_on_cpu
from perfscope.dashboards.report.sections.top_work import top_sections, utilization_sentences
from perfscope.model.documents.run import failure_of
from perfscope.model.finding import source_label
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import Section
    from perfscope.model.finding import Cell, Finding, Severity


# What a saving is a share of.


class Wholes:
    """What costs are a share of: the mean step of the ranks that pay, else the longest span of their devices."""

    def __init__(self, analysis: Analysis) -> None:
        """Of an analysis' own steps and devices."""
        traced = any(step.traced for step in analysis.steps)
        self._steps: dict[int | None, tuple[int, int]] = {}
        """(summed ns, number) of steps by rank."""
        for step in analysis.steps:
            if step.traced == traced and not step.compiled:
                total, number = self._steps.get(step.rank, (0, 0))
                self._steps[step.rank] = (total + step.duration_ns, number + 1)
        self._spans: dict[int | None, int] = {}
        for device in analysis.devices:
            self._spans[device.rank] = max(device.span_ns, self._spans.get(device.rank, 0))
        for account in analysis.accounts:
            self._spans[account.rank] = max(account.whole_ns, self._spans.get(account.rank, 0))

        self._untraced: dict[int | None, list[int]] = {}
        for step in analysis.steps:
            if not step.traced:
                self._untraced.setdefault(step.rank, []).append(step.duration_ns)

    def untraced(self, finding: Finding) -> float | None:
        """Median step without a profiler of the ranks that pay, in ns; ``None`` where none was timed."""
        mine = {*finding.ranks, None}
        times = [time for rank, each in self._untraced.items() if not finding.ranks or rank in mine for time in each]
        return median(times) if times else None

    def of(self, finding: Finding) -> float | None:
        """ns, ``None`` if neither steps nor devices tell."""
        mine = {*finding.ranks, None}
        if finding.cost_ns_per_step is not None:
            sums = [pair for rank, pair in self._steps.items() if not finding.ranks or rank in mine]
            count = sum(number for _, number in sums)
            return sum(total for total, _ in sums) / count if count else None
        spans = [span for rank, span in self._spans.items() if not finding.ranks or rank in mine]
        return max(spans, default=None)


FEW_STEPS = 10
"""Below it the 10th and 90th percentile are extremes by another name: the range is shown instead."""

WAITED = "without a profiler, waited for at both ends"
"""How steps were timed whose work the devices go on with behind them."""

NO_TIME = "no time"
"""Stands where a saving would: the finding is known from the program alone."""

PATH_LIMIT = 64
"""Characters of the path in the headline, which is one line; the table of sources holds all."""

FIX_LIMIT = 160
"""Characters of a fix in one sentence."""

SENTENCE_END = re.compile(r"(?<=[a-z0-9)`'\]][.;])\s")
"""A space after the end of a sentence or clause."""

CODE_INDENT = 40
"""Columns of indentation that are kept of a line of code."""

NAME_LIMIT = 60
"""Characters of what a step is."""

TITLE_LIMIT = 320
"""Characters of a title: a sentence and a kernel name in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding as a row. ``share`` says what it is of: the step, a run, the device's span; ``''`` if unknown."""

    rule: str
    title: str
    severity: Severity
    saves: str
    """``'6.90 ms'`` per step, ``'6.90 ms in all'``, ``'6.90 ms per run'`` of a program without a recording, or ``''``
    where no time is known."""
    share: str
    where: str
    place: tuple[tuple[str, str], ...]
    """All that is known of the place: ``('at', 'train.py:88')``, ``('op', 'aten::item')`` ..."""
    basis: str
    traced: str
    """``'10.7 ms while traced'`` where ``saves`` is of steps without a profiler and the title of slower traced ones."""
    on_ranks: str
    """``' (ranks 0-7)'``, ``''`` where there is one source only."""
    bytes: str
    """What it moves through memory."""
    memory: str
    """What a fix gives back of the memory at its peak, ``''`` where that is not what the rule is about."""
    of_memory: bool
    """Whether it is about memory that is held, which a page of its own shows over time."""
    detail: str
    """What the title has no room for; ``''`` where it says all."""
    advice: str
    fix: str
    """The first sentence of the advice."""
    code: str
    """The line of the program, ``''`` where it is not known."""
    around: tuple[str, ...]
    """That line and two before and after it, each with its number; a mark stands before that of the finding."""
    link: str
    """``file:`` address of the source file on this machine; ``''`` where it is not here."""
    evidence: tuple[Mapping[str, Cell], ...]
    """The first rows, without columns that hold nothing."""
    evidence_left: int
    """Rows that are not in ``evidence``."""

    @property
    def gain(self) -> str:
        """What a fix saves: time where that is known, else memory, else that no time is known."""
        return self.saves or self.memory or NO_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle of some durations and how far they spread: the range, or 10th to 90th percentile."""

    count: int
    median_ns: float
    low_ns: float
    high_ns: float
    how: str
    """``'min-max'`` or ``'p10-p90'``."""

    @classmethod
    def of(cls, durations_ns: Sequence[int]) -> Spread | None:
        """``None`` if there are no durations."""
        if not durations_ns:
            return None
        low, high, how = float(min(durations_ns)), float(max(durations_ns)), "min-max"
        if len(durations_ns) >= FEW_STEPS:
            deciles = quantiles(durations_ns, n=10, method="inclusive")
            low, high, how = deciles[0], deciles[-1], "p10-p90"
        return cls(count=len(durations_ns), median_ns=median(durations_ns), low_ns=low, high_ns=high, how=how)

    def text(self, when: str) -> str:
        """``'41.2 ms (median of 20 while traced, p10-p90 40.8 ms to 41.9 ms)'``."""
        middle = format_ns(self.median_ns)
        if self.count == 1:
            return f"{middle} (one, {when})"
        spread = f"{self.how} {format_ns(self.low_ns)} to {format_ns(self.high_ns)}"
        return f"{middle} (median of {self.count:,} {when}, {spread})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All a report shows of an analysis, in the order in which it shows it."""

    subject: str
    """The path of what was analysed, in full."""
    read: str
    """Its format, ranks and size: ``' (kineto, rank 0, 120,345 events)'``."""
    facts: tuple[str, ...]
    """Sentences on the whole: step time, how busy the devices were."""
    devices: tuple[DeviceRow, ...]
    timed: tuple[FindingRow, ...]
    """Findings with a time, the costliest first."""
    untimed: tuple[FindingRow, ...]
    """Findings known from the program alone: no time is known."""
    clean: tuple[str, ...]
    blind: int
    """Rules that were not evaluated."""
    recordable: int
    """How many of these `perfscope run` would record something for."""
    abstained: tuple[tuple[str, tuple[str, ...]], ...]
    """(reason, rules) that were not evaluated."""
    partly: tuple[tuple[str, str], ...]
    """(rule, reason) of rules evaluated on some sources only."""
    again: str
    """How to see more: the command, or where the path does not fit a line the option."""
    remarks: tuple[str, ...]
    """Unplaced events, repairs and notes of the readers."""
    rank_sources: str = ""
    """What tells the ranks, and of how many sources; empty without ranks."""
    account: tuple[Section, ...] = ()
    """Where the step went, of the device that computes least; empty where nothing tells."""
    memory_alone: bool = False
    """Memory snapshots, and no recording of a run."""
    top: tuple[Section, ...] = ()
    """The costliest kernels, ops, modules and lines; empty where none is known."""
    explained: str = ""
    """Share of the time with a known cause; ``''`` where nothing tells."""
    nothing: str = ""
    """Where there is no finding: how many rules were evaluated, and how much of the step the account explains."""
    sections: tuple[Section, ...] = ()
    """Plans, modelled time, programs, compilation, collectives and memories: those that there are."""
    tiles: tuple[tuple[str, str, str], ...] = ()
    """Name, value and note of further numbers at the top: modelled time, the peak of memory."""

    @property
    def headline(self) -> str:
        """What was analysed, in one line."""
        return self.titled(PATH_LIMIT)

    def titled(self, limit: int) -> str:
        """``headline`` with at most ``limit`` characters of the path."""
        return f"{place_end(self.subject, limit)}{self.read}"

    @property
    def leading(self) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
        """(what stands before the findings, the other sections): the account, else the fullest memory of snapshots."""
        if self.account or not self.memory_alone:
            return self.account, self.sections
        return self.sections[:1], self.sections[1:]

    @property
    def findings(self) -> tuple[FindingRow, ...]:
        """All findings: with a time first."""
        return (*self.timed, *self.untimed)


def summarize(analysis: Analysis) -> Summary:
    """The analysis as rows and sentences."""
    wholes, several, alone = Wholes(analysis), len(analysis.sources) > 1, programs_alone(analysis)
    starts = starts_by_label(analysis)
    subject, read = _titled(analysis)
    rows = [
        _finding_row(rule, finding, wholes, starts, several=several, alone=alone)
        for rule, finding in analysis.findings()
    ]
    return Summary(
        subject=subject,
        read=read,
        facts=(
            *_failed(analysis),
            *_facts(analysis),
            *filter(
                None,
                (
                    generation_fact(analysis.generations),
                    estimate_fact(analysis.estimate),
                    _compiled(analysis),
                    memory_fact(analysis.memory),
                ),
            ),
        ),
        devices=device_rows(analysis),
        account=account_sections(analysis.warm_accounts),
        memory_alone=memory_alone(analysis),
        explained="" if (known := explained_share(analysis.accounts)) is None else f"{100 * known:.1f}%",
        nothing="" if rows else _nothing(analysis),
        top=top_sections(analysis.top),
        timed=tuple(row for row in rows if row.saves),
        untimed=tuple(row for row in rows if not row.saves),
        clean=tuple(sanitize(outcome.rule) for outcome in analysis.outcomes if outcome.status == "clean"),
        blind=sum(outcome.status == "abstained" for outcome in analysis.outcomes),
        recordable=recordable(analysis),
        abstained=not_evaluated(analysis),
        partly=tuple(
            (sanitize(outcome.rule), sanitize(outcome.reason, REASON_LIMIT))
            for outcome in analysis.outcomes
            if outcome.status == "flagged" and outcome.reason
        ),
        again=_again(analysis),
        remarks=tuple(remarks(analysis)),
        rank_sources=rank_sources(analysis.sources),
        sections=sections(analysis),
        tiles=tuple(filter(None, (estimate_tile(analysis.estimate), memory_tile(analysis.memory)))),
    )


def sections(analysis: Analysis) -> tuple[Section, ...]:
    """The parts of a report after its account, findings and top work, in their order."""
    return (
        *host_sections(analysis.hosts, analysis.warm_accounts),
        *generation_sections(analysis.generations),
        *plan_sections(analysis.plans),
        *estimate_sections(analysis.estimate),
        *programs_sections(analysis.programs),
        *compile_sections(analysis.compile),
        *collectives_sections(analysis.collectives),
        *memory_sections(analysis.memory),
    )


def _nothing(analysis: Analysis) -> str:
    """That there are no findings, and how much that is worth: rules that were not evaluated found nothing either."""
    clean = sum(outcome.status == "clean" for outcome in analysis.outcomes)
    blind = sum(outcome.status == "abstained" for outcome in analysis.outcomes)
    if not clean:
        return "no rule could be evaluated: nothing is known to be clean"
    evaluated = f"{clean} rule{'' if clean == 1 else 's'} evaluated and clean"
    known = explained_share(analysis.accounts)
    share = "" if known is None else f"; causes are known for {100 * known:.1f}% of the time"
    return f"no findings: {evaluated}{f', {blind} not evaluated' if blind else ''}{share}"


def _failed(analysis: Analysis) -> Iterator[str]:
    """That the program of the run failed, with its error."""
    run = analysis.run or {}
    failed = failure_of(str(run.get("state")), run.get("exit_code"), run.get("error"))
    if failed is not None:
        yield sanitize(failed, TEXT_LIMIT)


def _compiled(analysis: Analysis) -> str:
    return "" if analysis.compile.detail is None else compile_fact(analysis.compile)


AGAIN, AGAIN_SHORT = "-v for evidence and advice", "-v: more"
"""How to see more, where no command that can be pasted has room; on a narrow terminal."""


def _again(analysis: Analysis) -> str:
    path = analysis.sources[0].path if len(analysis.sources) == 1 else ""
    several = bool(path) and analysis.sources[0].programs is not None and ", " in path  # no one path to give again
    if not path or several or len(path) > PATH_LIMIT or sanitize(path) != path:
        return AGAIN
    return f"perfscope analyze -v {shlex.quote(path)}"


def _titled(analysis: Analysis) -> tuple[str, str]:
    """The path of what was analysed, and what stands behind it: how many traces, formats, ranks and events."""
    sources = analysis.sources
    if not sources:
        return "nothing was read", ""
    unit = "instructions" if programs_alone(analysis) else "records" if logs_alone(analysis) else "events"
    events = f"{sum(source.events_read for source in sources):,} {unit}"
    formats = ", ".join(sorted({sanitize(source.format) for source in sources}))
    ranks = [source.rank for source in sources if source.rank is not None]
    if len(sources) == 1:
        files = sources[0].path.split(", ") if (sources[0].programs or 0) > 1 else [sources[0].path]
        path, many = _place(files, "files")
        rank = f", rank {ranks[0]}" if ranks else ""
        if (programs := sources[0].programs or 0) > 1:
            rank = f", {programs:,} compiled programs"
        return path, f"{many} ({formats}{rank}, {events})"
    whose = f"ranks {span_text(ranks)}" if len(ranks) == len(sources) else f"{len(sources)} sources"
    path, many = _place([source.path for source in sources], "traces")
    return path, f"{many} ({formats}, {whose}, {events})"


def _place(files: Sequence[str], what: str) -> tuple[str, str]:
    """Where files lie: the file, their folder, or the first of them; and how many they are."""
    folders = {str(PurePath(file).parent) for file in files}
    if len(set(files)) == 1:
        return sanitize(files[0], TEXT_LIMIT), "" if len(files) == 1 else f", {len(files):,} {what}"
    if len(folders) == 1:
        return sanitize(folders.pop(), TEXT_LIMIT), f", {len(files):,} {what}"
    return sanitize(files[0], TEXT_LIMIT), f" and {len(files) - 1:,} more"


def _facts(analysis: Analysis) -> list[str]:
    if programs_alone(analysis):
        return _assumed_devices(analysis)
    if logs_alone(analysis) or memory_alone(analysis):
        return []
    said = []
    free = Spread.of([step.duration_ns for step in analysis.steps if not step.traced])
    traced = Spread.of([step.duration_ns for step in analysis.steps if step.traced and not step.compiled])
    more = f"{_steps_are(analysis)}{_left_out(analysis)}"
    if free is not None:
        slower = "" if traced is None else f"; {format_ns(traced.median_ns)} while traced{more}"
        said.append(f"step {free.text('without a profiler')}{slower}")
    whole = timed_window(analysis, None if free is None else free.median_ns)
    if whole is not None:
        said.append(whole)
    if traced is not None and free is None:
        said.append(f"step {traced.text('while traced')}{more}")
    if free is None and traced is None and whole is None:
        said.append("no steps in it: savings are over the whole trace")
    spans = sum(device.span_ns for device in analysis.devices)
    busy_words = busy_fact(analysis.warm_accounts)
    if busy_words and (analysis.devices or not analysis.programs.on_cpu):
        said.append(busy_words)
    elif spans:
        busy = format_share(sum(device.busy_ns for device in analysis.devices), spans)
        count = len(analysis.devices)
        said.append(f"device busy {busy}" if count == 1 else f"devices busy {busy} (mean of {count})")
    elif not analysis.devices and analysis.programs.on_cpu:
        said.append(ran_on_cpu(analysis.programs, sum(step.traced for step in analysis.steps)))
    elif not analysis.devices:
        said.append("no accelerator work in it")
    return [*said, *utilization_sentences(analysis.top)]


def _steps_are(analysis: Analysis) -> str:
    """What a step is, where the program did not mark any; the first of several sources tells."""
    what = next((step.what for step in analysis.steps if step.what), "")
    return f"; steps: {sanitize(what, NAME_LIMIT)}" if what else ""


def _left_out(analysis: Analysis) -> str:
    """How many steps compiled and are in no average."""
    count = sum(step.compiled for step in analysis.steps)
    return f"; {count:,} that compiled {'is' if count == 1 else 'are'} left out" if count else ""


def _assumed_devices(analysis: Analysis) -> list[str]:
    """What findings are ordered by where nothing names the device."""
    labels = {program.least.device for program in analysis.programs.programs if program.least and program.least.assumed}
    return [
        f"times and their order are modelled on {label}; --device NAME judges for another" for label in sorted(labels)
    ]


def window_mean(analysis: Analysis, host_ns: float | None) -> tuple[float, int] | None:
    """(mean step in ns, steps) with the devices waited for, unless the host's own (``host_ns``) says the same."""
    steps = sum(window.steps for window in analysis.windows)
    if not steps:
        return None
    mean_ns = sum(window.duration_ns for window in analysis.windows) / steps
    return None if host_ns is not None and mean_ns < HOST_AHEAD * host_ns else (mean_ns, steps)


def timed_window(analysis: Analysis, host_ns: float | None) -> str | None:
    """``window_mean`` in words."""
    results = window_mean(analysis, host_ns)
    return None if results is None else f"step {format_ns(results[0])} (mean of {results[1]:,} {WAITED})"


def starts_by_label(analysis: Analysis) -> dict[str, int]:
    """When each source begins, by what evidence calls it; ``""``: the only one."""
    if len(analysis.starts_ns) == 1:
        return {"": analysis.starts_ns[0]}
    labels = [source_label(source.rank, index) for index, source in enumerate(analysis.sources)]
    return dict(zip(labels, analysis.starts_ns, strict=False))  # one made by hand has none


def _finding_row(
    rule: str, finding: Finding, wholes: Wholes, starts: Mapping[str, int], *, several: bool, alone: bool
) -> FindingRow:
    cost, over = finding.cost_ns_per_step, ""
    if cost is None and finding.cost_ns is not None:
        cost, over = finding.cost_ns, " per run" if alone else " in all"
    whole = wholes.of(finding)
    if finding.untraced_ns_per_step is not None:
        cost, whole = finding.untraced_ns_per_step, wholes.untraced(finding)
    of = "of step" if finding.cost_ns_per_step is not None else "of span"
    if whole is None and finding.run_ns is not None:
        whole, of = finding.run_ns, "of run"
    share = "" if cost is None or not whole else f"{format_share(cost, whole)} {of}"
    if cost is None and finding.cost_bytes and finding.memory_bytes:
        share = f"{format_share(finding.cost_bytes, finding.memory_bytes)} of memory"
    code, around, link = _code_of(finding)
    line = finding.where.label() if finding.where.file is not None else None
    advice = shorten(clean(finding.advice), TEXT_LIMIT).strip()
    place = (
        ("at", line),
        ("module", finding.where.module),
        ("op", finding.where.op),
        ("kernel", finding.where.kernel),
    )
    return FindingRow(
        rule=sanitize(rule),
        title=sanitize(finding.title, TITLE_LIMIT) + (f" (worst of {finding.count:,})" if finding.count > 1 else ""),
        severity=finding.severity,
        saves="" if cost is None else f"{format_ns(cost)}{over}",
        share=share,
        where=sanitize(finding.where.label(), TEXT_LIMIT),
        place=tuple((what, sanitize(name, TEXT_LIMIT)) for what, name in place if name),
        basis=finding.basis,
        traced=_while_traced(finding),
        on_ranks=_on_ranks(finding.ranks) if several else "",
        bytes=format_bytes(finding.cost_bytes) if finding.cost_bytes and finding.bytes_are == "moved" else "",
        memory=format_bytes(finding.cost_bytes) if finding.cost_bytes and finding.bytes_are == "freed" else "",
        of_memory=finding.bytes_are != "moved",
        detail=sanitize(finding.detail, TEXT_LIMIT),
        advice=advice,
        fix=_first_sentence(advice),
        code=code,
        around=around,
        link=link,
        evidence=shown_rows(finding.evidence[:MOST_EVIDENCE], starts),
        evidence_left=max(0, len(finding.evidence) - MOST_EVIDENCE),
    )


def _code_of(finding: Finding) -> tuple[str, tuple[str, ...], str]:
    """``code``, ``around`` and ``link`` of a row."""
    excerpt = finding.excerpt
    if excerpt is None or finding.where.line is None:
        return "", (), ""
    lines = textwrap.dedent("\n".join(map(_code_line, excerpt.lines))).split("\n")
    numbered = [(excerpt.first + index, line) for index, line in enumerate(lines)]
    width = len(str(numbered[-1][0]))
    around = [f"{'>' if number == finding.where.line else ' '} {number:>{width}}  {line}" for number, line in numbered]
    return lines[finding.where.line - excerpt.first].strip(), tuple(around), PurePath(excerpt.path).as_uri()


def _code_line(line: str) -> str:
    """The line fit to be shown, with its indentation."""
    spread = line.expandtabs(4)
    words = sanitize(spread.strip(), TEXT_LIMIT)
    return " " * min(len(spread) - len(spread.lstrip()), CODE_INDENT) + words if words else ""


def _first_sentence(advice: str) -> str:
    """Of the first paragraph that is not code, at most ``FIX_LIMIT`` characters."""
    paragraph = next((block.text for block in blocks(advice) if not block.is_code), "")
    return shorten(SENTENCE_END.split(paragraph, maxsplit=1)[0].rstrip(".:;"), FIX_LIMIT)


def _while_traced(finding: Finding) -> str:
    traced, free = finding.cost_ns_per_step, finding.untraced_ns_per_step
    return "" if traced is None or free in (None, traced) else f"{format_ns(traced)} while traced"


def _on_ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f" (rank{'s' if len(ranks) > 1 else ''} {span_text(ranks)})"
