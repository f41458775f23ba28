"""The content of every report of an analysis: which sections and findings, in which order.

Values and sentences only; the renderer of a format masks, cuts and escapes them.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.coverage import (
    logs_alone,
    memory_alone,
    not_evaluated,
    plugins_alone,
    programs_alone,
    recordable,
)
from perfscope.analyzers.savings import Spread, reservations, step_spread, step_time
from perfscope.dashboards.report.blocks import Listing, Section, Text
from perfscope.dashboards.report.renderers.values import place_end, span_text
from perfscope.dashboards.report.results import table_sections
from perfscope.dashboards.report.sections.account import account_sections, busy_fact, explained_share, host_sections
from perfscope.dashboards.report.sections.collectives import collectives_sections
from perfscope.dashboards.report.sections.compile import compile_sections
from perfscope.dashboards.report.sections.compile import headline as compile_fact
from perfscope.dashboards.report.sections.cores import core_facts, reservation_facts
from perfscope.dashboards.report.sections.critical_path import critical_path_sections, what_if_sections
from perfscope.dashboards.report.sections.devices import DeviceRow, device_rows
from perfscope.dashboards.report.sections.estimate import estimate_fact, estimate_sections, estimate_tile
from perfscope.dashboards.report.sections.findings import finding_blocks, recording_sections
from perfscope.dashboards.report.sections.generation import generation_fact, generation_sections
from perfscope.dashboards.report.sections.hardware_counters import counted_sections
from perfscope.dashboards.report.sections.jax_compile import jax_compile_fact, jax_compile_sections
from perfscope.dashboards.report.sections.large_parts import large_sections
from perfscope.dashboards.report.sections.memory import memory_fact, memory_sections, memory_tile
from perfscope.dashboards.report.sections.plan import plan_sections
from perfscope.dashboards.report.sections.plugins import plugin_facts, plugin_sections
from perfscope.dashboards.report.sections.programs import hot_line_sections, programs_sections, ran_on_cpu
from perfscope.dashboards.report.sections.top_work import line_sections, top_sections, utilization_sentences
from perfscope.model.documents.run import failure_of
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.analyzers.savings import Reservation
    from perfscope.dashboards.report.blocks import FindingBlock, Tile
    from perfscope.model.documents.step_time import StepTime
    from perfscope.model.trace import Source

NO_FINDINGS = "no findings"
IN_RECORDED = "no findings in the recorded steps"
"""Shown if the recorded steps do not represent the run."""
ON_BUSY_MACHINE = "nothing found besides the missing cores"
DOUBTED = "the device is not judged, and nothing else was found"
"""Shown if the device times cannot be true."""

PATH_LIMIT = 64
"""Characters of the path in the headline, which is one line; the table of sources has the full path."""

NAME_LIMIT = 60
"""Characters of the description of a step."""

AGAIN, AGAIN_SHORT = "-v for evidence and advice", "-v: more"
"""How to see more if the full command has no room, and its form for a narrow terminal."""

_HOW: dict[str, str] = {
    "window": "without a profiler, waited for at both ends",
    "unprofiled": "without a profiler",
    "profiled": "while profiled",
}
"""How the steps of a step time were timed, in words."""

_NUMBER = re.compile(r"\d[\d,.]*")


class Summary(Struct, frozen=True, kw_only=True):
    """The content of a report of an analysis, in the order shown."""

    subject: str
    """The full path of the analysed recording."""
    read: str
    """Its format, ranks and size: ``' (kineto, rank 0, 120,345 events)'``."""
    warnings: tuple[str, ...]
    """Reasons to doubt the numbers: the program failed, the device cannot be judged, the machine was busy, or the
    recorded steps do not represent the run. They come first in every report."""
    facts: tuple[str, ...]
    """Sentences on the whole: step time, how busy the devices were."""
    devices: tuple[DeviceRow, ...]
    findings: tuple[FindingBlock, ...]
    """Findings with a time first, costliest first."""
    recording: tuple[Section, ...]
    """How to make a better recording; empty without suggestions."""
    clean: tuple[str, ...]
    blind: int
    """Rules that were not evaluated."""
    recordable: int
    """Number of these for which `perfscope run` would record the input."""
    abstained: tuple[tuple[str, tuple[str, ...]], ...]
    """(reason, rules) that were not evaluated."""
    partly: tuple[tuple[str, str], ...]
    """(rule, reason) of rules evaluated on some sources only."""
    again: str
    """How to see more: the full command, or the option alone if the path does not fit on a line."""
    remarks: tuple[str, ...]
    """Unplaced events, repairs and notes of the readers."""
    rank_sources: str = ""
    """How the ranks are known, and for how many sources; empty without ranks."""
    account: tuple[Section, ...] = ()
    """Account of the step on the device that computes least; empty without an account."""
    large: tuple[Section, ...] = ()
    """Parts of at least a fifth of the step without a finding, each with the reason; without findings the largest
    parts."""
    memory_alone: bool = False
    """Whether there are only memory snapshots, without a recording of a run."""
    lines: tuple[Section, ...] = ()
    """The costliest source lines; empty if no line is known."""
    hot_lines: tuple[Section, ...] = ()
    """Source lines of compiled programs, for a first screen without ``lines``; ``sections`` has them all."""
    top: tuple[Section, ...] = ()
    """The costliest kernels, ops and modules; empty if unknown."""
    representative: bool = True
    """Whether the recorded steps represent the run: other steps are similar, and the host had its cores."""
    none_found: str = NO_FINDINGS
    """Sentence shown without findings."""
    explained: str = ""
    """Share of the time with a known cause; ``''`` if unknown."""
    nothing: str = ""
    """Without findings: number of rules evaluated, and share of the step that the account explains."""
    sections: tuple[Section, ...] = ()
    """Plans, modelled time, programs, compilation, collectives and memories, if present."""
    tiles: tuple[Tile, ...] = ()
    """Additional figures at the top: modelled time, peak memory."""

    @property
    def headline(self) -> str:
        """The analysed recording in one line."""
        return self.titled(PATH_LIMIT)

    def titled(self, limit: int) -> str:
        """``headline`` with at most ``limit`` characters of the path."""
        return f"{place_end(sanitize(self.subject, TEXT_LIMIT), limit)}{self.read}"

    @property
    def leading(self) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
        """(sections above the findings, the other sections): the account, or for snapshots the fullest memory."""
        if self.account or not self.memory_alone:
            return self.account, self.sections
        return self.sections[:1], self.sections[1:]

    @property
    def timed(self) -> tuple[FindingBlock, ...]:
        """Findings whose time is known."""
        return tuple(block for block in self.findings if block.saves is not None and block.saves.unit == "ns")


def _warnings(analysis: Analysis, reserved: Sequence[Reservation]) -> tuple[str, ...]:
    return (
        *_failed(analysis),
        *(doubt.text for doubt in analysis.doubts),
        *core_facts(analysis.of("cores")),
        *reservation_facts(reserved),
    )


def summarize(analysis: Analysis) -> Summary:
    """Summarise the analysis as rows and sentences."""
    subject, read = _titled(analysis)
    findings = finding_blocks(analysis)
    reserved = reservations(analysis)
    representative = not reserved and not any(summary.busy for summary in analysis.of("cores"))
    warnings = _warnings(analysis, reserved)
    compiled = "" if analysis.compile.detail is None else compile_fact(analysis.compile)
    known = explained_share(analysis.accounts) if representative else None
    return Summary(
        subject=subject,
        read=read,
        warnings=warnings,
        facts=(
            *warnings,
            *_part(analysis),
            *_facts(analysis),
            *filter(
                None,
                (
                    generation_fact(analysis.of("generations")),
                    *plugin_facts(analysis),
                    estimate_fact(analysis.estimate),
                    compiled,
                    jax_compile_fact(analysis.compile.jax),
                    memory_fact(analysis.memory),
                ),
            ),
        ),
        devices=device_rows(analysis),
        account=account_sections(analysis.warm_accounts),
        large=large_sections(analysis.large, findings=bool(findings)),
        memory_alone=memory_alone(analysis),
        explained="" if known is None else f"{100 * known:.1f}%",
        representative=representative,
        none_found=_none_found(analysis, representative=representative),
        nothing="" if findings else _nothing(analysis, representative=representative),
        lines=line_sections(analysis.top),
        hot_lines=hot_line_sections(analysis.programs),
        top=(
            *what_if_sections(analysis.what_ifs),
            *counted_sections(analysis.of("hardware_counters")),
            *top_sections(analysis.top),
        ),
        findings=findings,
        recording=recording_sections(analysis),
        clean=tuple(outcome.rule for outcome in analysis.outcomes if outcome.status == "clean"),
        blind=sum(outcome.status == "abstained" for outcome in analysis.outcomes),
        recordable=recordable(analysis),
        abstained=not_evaluated(analysis),
        partly=tuple(_partly(analysis)),
        again=_again(analysis),
        remarks=tuple(remarks(analysis)),
        rank_sources=rank_sources(analysis.sources),
        sections=sections(analysis),
        tiles=tuple(filter(None, (estimate_tile(analysis.estimate), memory_tile(analysis.memory)))),
    )


def _partly(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Rules that were evaluated on some sources only, with the reason."""
    for outcome in analysis.outcomes:
        if outcome.status == "flagged" and outcome.reason:
            yield outcome.rule, outcome.reason


def sections(analysis: Analysis) -> tuple[Section, ...]:
    """The sections after the account, findings and top work, in order."""
    return (
        *host_sections(analysis.of("hosts"), analysis.warm_accounts),
        *generation_sections(analysis.of("generations")),
        *plugin_sections(analysis),
        *critical_path_sections(analysis.of("critical_paths")),
        *plan_sections(analysis.plans),
        *estimate_sections(analysis.estimate),
        *programs_sections(analysis.programs),
        *compile_sections(analysis.compile),
        *jax_compile_sections(analysis.compile.jax),
        *collectives_sections(analysis.collectives),
        *memory_sections(analysis.memory),
        *table_sections(analysis.tables),
    )


def _none_found(analysis: Analysis, *, representative: bool) -> str:
    if analysis.doubts:
        return DOUBTED
    if any(summary.busy for summary in analysis.of("cores")):
        return ON_BUSY_MACHINE
    return NO_FINDINGS if representative else IN_RECORDED


def _nothing(analysis: Analysis, *, representative: bool) -> str:
    """Sentence on the absence of findings and its reliability: rules that were not evaluated found nothing either.

    ``representative``: the recorded steps represent the run.
    """
    clean = sum(outcome.status == "clean" for outcome in analysis.outcomes)
    blind = sum(outcome.status == "abstained" for outcome in analysis.outcomes)
    if not clean:
        return "no rule could be evaluated: nothing is known to be clean"
    evaluated = f"{clean} rule{'' if clean == 1 else 's'} evaluated and clean"
    known = explained_share(analysis.accounts) if representative else None
    share = "" if known is None else f"; causes are known for {100 * known:.1f}% of the time"
    none = _none_found(analysis, representative=representative)
    return f"{none}: {evaluated}{f', {blind} not evaluated' if blind else ''}{share}"


def _failed(analysis: Analysis) -> Iterator[str]:
    """Yield that the run's program failed, with its error."""
    run = analysis.run or {}
    failed = failure_of(str(run.get("state")), run.get("exit_code"), run.get("error"))
    if failed is not None:
        yield failed


def _again(analysis: Analysis) -> str:
    path = analysis.sources[0].path if len(analysis.sources) == 1 else ""
    # there is no single path to repeat
    several = bool(path) and analysis.sources[0].programs is not None and ", " in path
    if not path or several or len(path) > PATH_LIMIT or sanitize(path) != path:
        return AGAIN
    return f"perfscope analyze -v {shlex.quote(path)}"


def _titled(analysis: Analysis) -> tuple[str, str]:
    """The analysed path, and the text after it: number of traces, formats, ranks and events."""
    sources = analysis.sources
    if not sources:
        return "nothing was read", ""
    unit = "instructions" if programs_alone(analysis) else "records" if logs_alone(analysis) else "events"
    events = f"{sum(source.events_read for source in sources):,} {unit}"
    formats = ", ".join(sorted({source.format for source in sources}))
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
    """Location of the files: the file, their folder, or the first file and the number of others."""
    folders = {str(PurePath(file).parent) for file in files}
    if len(set(files)) == 1:
        return files[0], "" if len(files) == 1 else f", {len(files):,} {what}"
    if len(folders) == 1:
        return folders.pop(), f", {len(files):,} {what}"
    return files[0], f" and {len(files) - 1:,} more"


def _part(analysis: Analysis) -> list[str]:
    """The part of the recordings that the user selected; of several sources the first one's part."""
    parts = [source.part for source in analysis.sources if source.part is not None]
    return [f"only a part of {'it' if len(parts) == 1 else 'each'} was judged: {parts[0]}"] if parts else []


def _facts(analysis: Analysis) -> list[str]:
    if programs_alone(analysis):
        return _assumed_devices(analysis)
    if logs_alone(analysis) or memory_alone(analysis) or plugins_alone(analysis):
        return []
    sentences = []
    timed = step_time(analysis)
    if timed is not None:
        sentences.append(
            f"step {step_text(analysis, timed)}{_steps_are(analysis)}{_left_out(analysis)}{_host_marks(analysis)}"
        )
    else:
        cut = any(source.part is not None for source in analysis.sources)
        sentences.append(
            f"no {'whole ' if cut else ''}steps in it: savings are over {'that part' if cut else 'the whole trace'}"
        )
    spans = sum(device.span_ns for device in analysis.devices)
    busy_words = busy_fact(analysis.warm_accounts)
    if analysis.doubts and not analysis.accounts:
        return sentences
    if busy_words and (analysis.devices or not analysis.programs.on_cpu):
        sentences.append(busy_words)
    elif spans:
        busy = format_share(sum(device.busy_ns for device in analysis.devices), spans)
        count = len(analysis.devices)
        sentences.append(f"device busy {busy}" if count == 1 else f"devices busy {busy} (mean of {count})")
    elif not analysis.devices and analysis.programs.on_cpu:
        sentences.append(ran_on_cpu(analysis.programs, sum(step.traced for step in analysis.steps)))
    elif not analysis.devices:
        sentences.append("no accelerator work in it")
    return [*sentences, *utilization_sentences(analysis.top)]


def _steps_are(analysis: Analysis) -> str:
    """How steps are defined if the program did not mark them; taken from the first of several sources."""
    what = next((step.what for step in analysis.steps if step.what), "")
    return f"; steps: {sanitize(what, NAME_LIMIT)}" if what else ""


def _host_marks(analysis: Analysis) -> str:
    """Remark that steps were timed by their work, with the times of their marks on the host and devices."""
    host = Spread.of([step.host_ns for step in analysis.steps if step.host_ns is not None])
    if host is None:
        return ""
    mark = Spread.of([step.mark_ns for step in analysis.steps if step.mark_ns is not None])
    devices = "" if mark is None else f", on the devices {format_ns(mark.median_ns)}"
    return f"; by the work launched in a step, as its mark on the host lasts {format_ns(host.median_ns)}{devices}"


def _left_out(analysis: Analysis) -> str:
    """Number of steps that compiled and are in no average."""
    count = sum(step.compiled for step in analysis.steps)
    return f"; {count:,} that compiled {'is' if count == 1 else 'are'} left out" if count else ""


def _assumed_devices(analysis: Analysis) -> list[str]:
    """How findings are ordered if the recording does not name the device."""
    labels = {program.least.device for program in analysis.programs.programs if program.least and program.least.assumed}
    return [
        f"times and their order are modelled on {label}; --device NAME judges for another" for label in sorted(labels)
    ]


def step_text(analysis: Analysis, timed: StepTime) -> str:
    """``'41.2 ms (median of 20 without a profiler, p10-p90 40.8 ms to 41.9 ms)'``."""
    how = _HOW[timed.of]
    if timed.count == 1:
        return f"{format_ns(timed.ns)} (one, {how})"
    spread = step_spread(analysis, timed)
    around = "" if spread is None else f", {range_words(spread)}"
    return f"{format_ns(timed.ns)} ({timed.statistic} of {timed.count:,} {how}{around})"


def range_words(spread: Spread) -> str:
    """``'p10-p90 40.8 ms to 41.9 ms'``."""
    return f"{spread.how} {format_ns(spread.low_ns)} to {format_ns(spread.high_ns)}"


def spread_text(spread: Spread, when: str) -> str:
    """``'41.2 ms (median of 20 while profiled, p10-p90 40.8 ms to 41.9 ms)'``."""
    middle = format_ns(spread.median_ns)
    if spread.count == 1:
        return f"{middle} (one, {when})"
    mean = f", mean {format_ns(spread.mean_ns)}" if spread.skewed else ""
    return f"{middle} (median of {spread.count:,} {when}, {range_words(spread)}{mean})"


# Notes on the sources, and rules that were not evaluated.


def remarks(analysis: Analysis) -> Iterator[str]:
    """One line per note: silenced findings and configured thresholds, then notes on sources with summed counts."""
    if silenced := analysis.silenced():
        counts = Counter((rule, finding.where.label(), finding.silenced) for rule, finding in silenced)
        named = "; ".join(f"{rule} {where}: {reason}" for rule, where, reason in counts)
        count = f"{len(silenced)} finding{'' if len(silenced) == 1 else 's'}"
        yield f"silenced: {count} ({named})"
    yield from (f"configured: {text}" for text in analysis.settings)
    yield from analysis.problems
    yield from _of_sources(analysis.sources)


def _of_sources(sources: Sequence[Source]) -> Iterator[str]:
    """Notes on the sources: counts are summed, and notes that differ only in numbers are merged."""
    unplaced = sum(source.events_unplaced for source in sources)
    if unplaced:
        why = _counted([source.unplaced for source in sources])
        read = sum(source.events_read for source in sources)
        yield f"unplaced: {unplaced:,} of {read:,} events" + (f" ({why})" if why else "")
    if repairs := _counted([source.repairs for source in sources]):
        yield f"repaired: {repairs}"
    ranks = Counter(source.rank for source in sources if source.rank is not None)
    if twice := [rank for rank, count in ranks.items() if count > 1]:
        yield f"note: several traces of rank {span_text(twice)}: judged as one job, which they may not be"
    yield from _notes(sources)


def rank_sources(sources: Sequence[Source]) -> str:
    """How the ranks of the sources are known; if it differs, with the number of sources for each way."""
    counts = Counter(source.rank_source for source in sources if source.rank is not None and source.rank_source)
    names = (f"{name}{_of_many(count, len(sources))}" for name, count in sorted(counts.items()))
    return ", ".join(names)


def _counted(parts: Sequence[Mapping[str, int]]) -> str:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return "; ".join(f"{count:,} {reason}" for reason, count in sorted(total.items()))


def _notes(sources: Sequence[Source]) -> Iterator[str]:
    """Each kind of note in its first wording; with many sources, the number that have it."""
    kinds: dict[str, tuple[str, int]] = {}
    for source in sources:
        for note in source.notes:
            kind = _NUMBER.sub("#", note)
            first, count = kinds.get(kind, (note, 0))
            kinds[kind] = (first, count + 1)
    for first, count in kinds.values():
        yield f"note: {first}{_of_many(count, len(sources))}"


def _of_many(count: int, sources: int) -> str:
    return "" if count == sources else f" ({count} of {sources} sources)"


def coverage_sections(summary: Summary) -> tuple[Section, ...]:
    """Rules that are clean, and rules that were not evaluated with the reasons as details."""
    made = []
    if summary.clean:
        count = len(summary.clean)
        names = Text(f"rules: {', '.join(summary.clean)}", detail=True)
        made.append(Section(title="Evaluated and clean", summary=_rules(count), blocks=(names,)))
    if summary.abstained or summary.partly:
        items = [f"{', '.join(rules)}: {reason}" for reason, rules in summary.abstained]
        items += [f"{rule}, in part: {reason}" for rule, reason in summary.partly]
        partly = f", {len(summary.partly)} in part only" if summary.partly else ""
        blocks = (
            Text("these rules lack their input; whether their problems occur is unknown", detail=True),
            Listing(items=tuple(items), few=len(items), rest="reasons"),
        )
        made.append(Section(title="Not evaluated", summary=f"{_rules(summary.blind)}{partly}", blocks=blocks))
    return tuple(made)


def _rules(count: int) -> str:
    return f"{count:,} rule{'' if count == 1 else 's'}"
