"""Interventions tried on a program: the gain of each, whether results stayed equal, and the code to write."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfscope.analyzers.compare import EARLY_LOOK
from perfscope.dashboards.report.blocks import (
    Badge,
    Block,
    Code,
    Column,
    Effect,
    Listing,
    Report,
    Section,
    Table,
    Text,
    table,
    tables,
)
from perfscope.dashboards.report.renderers.markdown import escape, open_section, sections_markdown
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.dashboards.report.renderers.values import amount_text, percent
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.trials.document import Try

if TYPE_CHECKING:
    from perfscope.dashboards.report.blocks import Tone, Value
    from perfscope.plugins.trials.document import Results, Trial
    from perfscope.plugins.trials.interventions.base import Intervention

TONES: dict[str, Tone] = {
    "gain": "better",
    "slower": "worse",
    "no gain": "plain",
    "cannot tell": "open",
    "rejected": "worse",
    "not applicable": "plain",
    "not applied": "plain",
    "failed": "worse",
    "not reached": "open",
}
UPPER = {"rejected": "REJECTED"}
MOST_PAIRS = 60
"""Largest number of pairs that `--pairs` accepts."""
BAR = "█"
LADDER_WIDTH = 40
"""Columns of the unchanged program's bar."""
UNTRIED = ("not applicable", "not applied", "not reached")


def render_text(document: Try, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The document for a terminal."""
    return report_text(report_of(document), width=width, color=color, verbose=verbose)


def render_markdown(document: Try) -> str:
    """The document as a comment on a pull request."""
    report = report_of(document)
    facts = "\n".join(f"{escape(sanitize(fact))}  " for fact in report.facts)
    lead = "".join(f"{open_section(section)}\n\n" for section in report.sections[:1])
    title = f"### perfscope: {escape(sanitize(report.headline))}"
    return f"{title}\n\n{facts}\n\n{lead}{sections_markdown(report.sections[1:])}"


def report_of(document: Try, *, bars: bool = True) -> Report:
    """Return the document as blocks; ``bars``: draw the ladder in characters."""
    return Report(
        headline=_headline(document),
        facts=tuple(_facts(document)),
        sections=tuple(_sections(document, bars=bars)),
    )


def _headline(document: Try) -> str:
    gains = [trial for trial in document.trials if trial.state == "gain"]
    best = document.together if document.together is not None else None
    if best is None or best.state != "gain":
        best = min(gains, key=lambda trial: trial.effect or 0.0, default=None)
    launched = [trial for trial in document.trials if trial.state not in UNTRIED]
    tried = f"{len(launched)} intervention{'' if len(launched) == 1 else 's'} tried"
    if best is None or best.effect is None:
        return f"{tried}, and none made the step faster" if launched else "nothing was tried"
    return f"{tried}; {best.title if best.name == 'together' else best.name}: step time {percent(best.effect)}"


def _facts(document: Try) -> Iterator[str]:
    yield shlex.join(document.command)
    baseline = document.baseline
    if baseline.step_ns is not None:
        yield f"baseline {amount_text('ns', baseline.step_ns)} per step; {document.estimator}"
    yield f"the baseline against itself: {_results_text(baseline.results)}"
    if not document.complete:
        yield from document.notes


def _sections(document: Try, *, bars: bool) -> Iterator[Section]:
    tried = [trial for trial in document.trials if trial.state not in UNTRIED]
    rows = [*tried, *([document.together] if document.together is not None else [])]
    title = "Ladder" if document.ladder else "Interventions"
    if rows:
        yield Section(
            title=title, blocks=(*(_ladder(document) if bars else ()), *tables(_table(rows)), *_remarks(rows))
        )
    left = [trial for trial in document.trials if trial.state in UNTRIED]
    if left or document.unanswered:
        yield Section(title="Not tried", blocks=tuple(_left(left, document)))
    gains = [trial for trial in document.trials if trial.state == "gain" and trial.code]
    replaced = {name for trial in gains for name in trial.in_place_of}
    written = [trial for trial in gains if trial.name not in replaced]
    if written:
        yield Section(title="To write", blocks=tuple(block for trial in written for block in _code(trial)))
    yield Section(title="Method", blocks=tuple(_method(document)), detail=True)


def rungs(document: Try) -> list[tuple[str, float]]:
    """Names of the rungs from the bottom up, with the remaining step time as a share of the unchanged program's."""
    kept = [(_rung(trial), trial.remaining) for trial in document.trials]
    if document.together is not None:
        kept.append(("together, measured", document.together.remaining))
    steps = [(name, remaining) for name, remaining in kept if remaining is not None]
    return [("the unchanged program", 1.0), *steps] if steps else []


def _rung(trial: Trial) -> str:
    return f"+ {trial.name}" + (f" for {', '.join(trial.in_place_of)}" if trial.in_place_of else "")


def _ladder(document: Try) -> Iterator[Block]:
    """The interventions that were kept, as bars."""
    steps = rungs(document)
    if steps:
        bars = [(BAR * max(1, round(LADDER_WIDTH * min(1.0, remaining))), remaining, name) for name, remaining in steps]
        yield Code(tuple(f"{bar} {remaining:.0%} {name}" for bar, remaining, name in bars))


def _table(rows: Sequence[Trial]) -> Table:
    columns: list[Column[Trial]] = [
        Column("verdict", lambda trial: Badge(UPPER.get(trial.state, trial.state), TONES[trial.state])),
        Column("intervention", _name, "code"),
        Column("without", lambda trial: trial.base_ns, "ns", 4),
        Column("with", lambda trial: trial.head_ns, "ns", 3),
        Column("change", _effect, "change"),
        Column("pairs", lambda trial: trial.pairs or None, "count", 3),
        Column("results", _results, "text"),
        Column("predicted", lambda trial: None if trial.predicted_ns is None else -trial.predicted_ns, "signed_ns", 5),
        Column("memory", _memory, "text", 1),
        Column("starts later by", lambda trial: trial.startup_ns, "signed_ns", 2),
        Column("pays back after", _payback, "text", 2),
    ]
    return table(columns, rows, few=40)


def _name(trial: Trial) -> Value:
    return trial.title if trial.name == "together" else trial.name


def _effect(trial: Trial) -> Value:
    if trial.effect is None:
        return None
    tone: Tone = TONES[trial.state]
    return Effect(trial.effect, trial.low, trial.high, tone=tone)


def _results(trial: Trial) -> Value:
    if trial.state == "failed":
        return None
    if trial.results is None:
        return None
    if trial.results.state == "different":
        return f"differ at step {trial.results.first_step}"
    return trial.results.state


def _memory(trial: Trial) -> Value:
    if not trial.base_bytes or not trial.head_bytes:
        return None
    return percent(trial.head_bytes / trial.base_bytes - 1)


def _payback(trial: Trial) -> Value:
    if trial.payback_steps is None:
        return None
    return f"{trial.payback_steps:,} step{'s' * (trial.payback_steps != 1)}"


def _remarks(rows: Sequence[Trial]) -> Iterator[Block]:
    by_mean = [str(_name(trial)) for trial in rows if trial.estimator == "mean"]
    items = []
    if by_mean:
        items.append(f"{', '.join(by_mean)}: times are means of the steps of a launch, as time moves between steps")
    for trial in rows:
        if trial.reason and trial.state in ("failed", "rejected"):
            items.append(f"{trial.name} {trial.state}: {trial.reason}{_tolerance(trial)}")
        if trial.results is not None and trial.results.state == "not compared":
            items.append(f"{trial.name}: its results were not compared: {trial.results.reason}")
        if trial.results is not None and trial.results.state == "same" and trial.results.reason:
            items.append(f"{trial.name}: {trial.results.reason}")
        if trial.state == "cannot tell" and trial.pairs:
            items.append(f"{_name(trial)}: {_unclear(trial)}")
        if trial.in_place_of:
            items.append(f"{trial.name}: in place of {', '.join(trial.in_place_of)}")
        if trial.with_others:
            items.append(
                f"{_name(trial)}: {'all of' if trial.name == 'together' else 'on top of'} "
                f"{', '.join(trial.with_others)}"
            )
    if items:
        yield Listing(items=tuple(items), few=12)


def _unclear(trial: Trial) -> str:
    after = f"open after {trial.pairs} pair{'s' * (trial.pairs != 1)}"
    if trial.pairs < EARLY_LOOK:
        return f"{after}: an answer needs {EARLY_LOOK} or more"
    if trial.needed_pairs is None or trial.needed_pairs > MOST_PAIRS:
        return f"{after}: the launches scatter; a quieter machine or longer launches help more than more pairs"
    return f"{after}; about {trial.needed_pairs} would settle it (--pairs)"


def _tolerance(trial: Trial) -> str:
    if trial.results is None or trial.results.tolerance is None or trial.results.state != "different":
        return ""
    return f", the tolerance is {trial.results.tolerance:.0e}"


def _left(left: Sequence[Trial], document: Try) -> Iterator[Block]:
    columns: list[Column[Trial]] = [
        Column("intervention", lambda trial: trial.name, "code"),
        Column("why", lambda trial: trial.reason),
        Column("predicted", lambda trial: None if trial.predicted_ns is None else -trial.predicted_ns, "signed_ns"),
    ]
    yield from tables(table(columns, left, few=12))
    if document.unanswered:
        yield Text(f"no intervention addresses the findings of {', '.join(document.unanswered)}: see their advice")


def _code(trial: Trial) -> Iterator[Block]:
    yield Text(f"`{trial.name}`: {trial.may_change}")
    yield Code(tuple(trial.code.splitlines()))


def _method(document: Try) -> Iterator[Block]:
    tolerances = ", ".join(f"{dtype} {value:.0e}" for dtype, value in document.tolerances.items())
    yield Text(
        f"Values of the first {document.record_steps} steps were recorded in a separate launch and compared with "
        f"the baseline's; relative tolerance of the first step by dtype: {tolerances}; of step n it is n + 1 times "
        "as large. Times are of launches that record nothing, in pairs in random order. Predicted: the largest of the "
        "findings' savings, an upper bound."
    )
    if document.notes:
        yield Listing(items=document.notes, few=12)


def _results_text(results: Results) -> str:
    if results.state == "not compared":
        return f"not compared: {results.reason}"
    if results.state == "different":
        return f"it does not repeat its own results: {results.reason}"
    error = results.largest_error or 0.0
    return f"same results ({results.compared} values of {results.steps} steps, largest relative error {error:.1e})"


def render_list(interventions: Sequence[Intervention], *, width: int = WIDTH, color: bool = False) -> str:
    """All interventions: what they do and which rules they address."""
    columns: list[Column[Intervention]] = [
        Column("intervention", lambda intervention: intervention.name, "code"),
        Column("what it does", lambda intervention: intervention.title),
        Column("answers findings of", lambda intervention: ", ".join(intervention.answers), "text", 1),
    ]
    section = Section(title="Interventions", blocks=(table(columns, interventions, few=len(interventions)),))
    headline = f"{len(interventions)} interventions that `perfscope try` can make"
    return report_text(Report(headline=headline, sections=(section,)), width=width, color=color)
