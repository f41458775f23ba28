"""``perfscope explain``: a rule's page, its findings in a run, and the answer to a symptom."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_rules
from perfscope.commands.options import screen, show, verbose_option
from perfscope.model.documents.run_folders import LATEST
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.text import Text

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import FindingBlock
    from perfscope.model.finding import Finding, Rule

FIRST = ("", "Example", "Why it costs", "Fix")
"""Sections that come first; the others follow in the order of the docstring."""

MOST_LINES = 5
"""Most lines of a run that are shown before an example."""

NO_NEEDS = "nothing in every case; it uses the recorded data, and abstains with the reason if they are too little"


@click.command()
@click.argument("words", nargs=-1, metavar="[RULE [RUN] | QUESTION]", shell_complete=complete_rules)
@verbose_option
def explain(words: tuple[str, ...], verbose: bool) -> int:
    """Explain a rule, its findings in a run, or a symptom.

    `perfscope explain host_sync` has an example, the rule's cost, fix and decision, `perfscope explain host_sync
    latest` its findings in a run, with the code before and after a fix. In your own words, as in `perfscope explain
    GPU is idle`, it answers a question; without words it lists the known questions.
    """
    from perfscope.analyzers.registry import load_rule, rule_ids
    from perfscope.commands.symptoms import SYMPTOMS, is_question_word

    if not words:
        show(*(f"- {symptom.question}" for symptom in SYMPTOMS), "", "`perfscope explain WORDS` answers one of them.")
    elif words[0].replace("-", "_") in rule_ids():
        if len(words) > 2:
            raise UsageError("explain RULE RUN: give one run")
        if len(words) == 2:
            return show_findings(words[0].replace("-", "_"), words[1])
        show_page(load_rule(words[0]))
    elif len(words) == 1 and not is_question_word(words[0]):
        load_rule(words[0])  # the error names similar rules
    else:
        return show_symptoms(" ".join(words))
    return 0


def show_symptoms(question: str) -> int:
    """Print the answers to a question; ``UsageError`` if none fits."""
    from rich.text import Text

    from perfscope.commands.symptoms import find_symptoms

    found = find_symptoms(question)
    if not found:
        raise UsageError(
            f"{question}: no rule and no known question; `perfscope rules` and `perfscope explain` list them"
        )
    for symptom in found:
        show(Text(symptom.question, style="bold"), *symptom.lines(), "")
    return 0


def show_findings(rule_id: str, run: str) -> int:
    """Print the findings of a rule in a run, the code before and after a fix, and how to verify it."""
    from perfscope.analyzers.configuration import find_configuration
    from perfscope.analyzers.judge import judge_paths
    from perfscope.dashboards.report.renderers.text import finding_detail, finding_text
    from perfscope.dashboards.report.renderers.values import finding_words
    from perfscope.dashboards.report.sections.findings import finding_blocks

    analysis = judge_paths([run], configuration=find_configuration()).analysis
    blocks = [block for block in finding_blocks(analysis) if block.rule == rule_id]
    if not blocks:
        show(status_of(analysis, rule_id, run))
        return 0
    width = screen(sys.stdout)["width"]
    for number, block in enumerate(blocks, 1):
        words = finding_words(block)
        parts = finding_text(words, width, widths=(0, 0), number=number, code=not words.around)
        show(*parts, *finding_detail(words, block.evidence, width))
    show(*_before_and_after(rule_id, _lines_to_change(analysis, blocks)))
    show(f"To verify a fix: {_verification(analysis, run)}.")
    return 0


def _lines_to_change(analysis: Analysis, blocks: Sequence[FindingBlock]) -> dict[str, str]:
    """The code at the places that fixes change, by place; empty if the files changed or are not here."""
    from perfscope.analyzers.source_code import excerpts
    from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

    findings = [block.finding for block in blocks if block.finding.where.file is not None]
    places = dict.fromkeys(f"{one.where.file}:{one.fix_line or one.where.line}" for one in findings)
    code = excerpts(places, [source.path for source in analysis.sources])
    lines = {place: found.lines[int(place.rpartition(":")[2]) - found.first] for place, found in code.items()}
    return {sanitize(place, TEXT_LIMIT): sanitize(line.strip(), TEXT_LIMIT) for place, line in lines.items()}


def _before_and_after(rule_id: str, lines: Mapping[str, str]) -> Iterator[Text]:
    """The lines that a fix changes as they are, by place, and the form that the rule's example gives them."""
    from rich.text import Text

    from perfscope.analyzers.registry import load_rule
    from perfscope.analyzers.rule_page import example_of

    before, after = example_of(load_rule(rule_id).doc)
    if not after:
        return
    known = [f"{code}    # {place}" for place, code in list(lines.items())[:MOST_LINES]]
    parts = (
        ("Before", "in the recorded program" if known else "in the rule's example", known or before.splitlines()),
        ("After", "in the rule's example", after.splitlines()),
    )
    for title, where, shown in parts:
        yield Text(title, style="bold").append(f", {where}:", style="not bold")
        yield from (Text(f"    {line}") for line in shown)
    yield Text("")


def _verification(analysis: Analysis, run: str) -> str:
    """The commands that measure the effect of a fix; for a run with the program that it recorded."""
    known = analysis.run or {}
    recorded = known.get("command")
    if not recorded:
        return "record the program again, then `perfscope compare BEFORE AFTER`"
    from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

    return (
        f"`perfscope run {sanitize(shlex.join(map(str, recorded)), TEXT_LIMIT)}`, then `perfscope compare "
        f"{sanitize(shlex.quote(str(known.get('id', run)) if run == LATEST else run), TEXT_LIMIT)} latest`"
    )


def status_of(analysis: Analysis, rule_id: str, run: str) -> str:
    """Return a sentence about a rule without findings in a run: clean or not evaluated, and why."""
    outcome = next((outcome for outcome in analysis.outcomes if outcome.rule == rule_id), None)
    why = "" if outcome is None or outcome.reason is None else f": {outcome.reason}"
    if outcome is not None and outcome.findings:
        return _not_shown(rule_id, outcome.findings, run)
    status = "not evaluated" if outcome is None or outcome.status != "clean" else "clean"
    return f"{rule_id} is {status} in {run}{why}"


def _not_shown(rule_id: str, findings: Sequence[Finding], run: str) -> str:
    """Sentence on a rule whose findings are all silenced, or about the recording."""
    silenced = {finding.where.label(): finding.silenced for finding in findings if finding.silenced is not None}
    parts = [f"{place}: {reason}" for place, reason in silenced.items()]
    parts += [
        f"{finding.title}. {finding.record or finding.advice}" for finding in findings if finding.silenced is None
    ]
    count = f"{len(findings):,} finding{'' if len(findings) == 1 else 's'}"
    about = "silenced" if len(silenced) == len(parts) else "silenced or about the recording"
    return f"{rule_id} has {count} in {run}, {about}: {'; '.join(parts)}"


def show_page(rule: Rule) -> None:
    """Print the sections of the rule's docstring, its needs and thresholds, and how to silence it."""
    from rich.table import Table
    from rich.text import Text

    from perfscope.analyzers.rule_page import sections_of
    from perfscope.analyzers.thresholds import thresholds_of
    from perfscope.model.trace import recording_words

    sections = sections_of(inspect.cleandoc(rule.doc))
    lines = [Text(rule.id, style="bold")]
    for title in (*FIRST, *(title for title in sections if title not in FIRST)):
        if title not in sections:
            continue
        lead = "" if title in ("", "Example") else f"{title}: "
        body = [Text(re.sub(r"(^|:):$", r"\1", paragraph)) for paragraph in paragraphs(sections[title])]
        lines += [Text(lead, style="bold").append(body[0].plain, style="not bold"), *body[1:]]
    needs = "; ".join(recording_words(key) for key in rule.needs)
    lines.append(Text(f"Needs: {needs or NO_NEEDS}"))
    lines.append(Text(f"Silence: `# perfscope: ignore[{rule.id}] reason` at the end of the line that a finding names"))
    show(*lines)
    if thresholds := thresholds_of(rule):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("threshold", no_wrap=True)
        table.add_column("value", no_wrap=True, justify="right")
        table.add_column("reason", ratio=1)
        for item in thresholds:
            table.add_row(item.name, f"{item.value:,}", Text(" ".join(item.reason.split())))
        show(Text(""), table)


def paragraphs(doc: str) -> Iterator[str]:
    """Paragraphs on one line each, an empty one between them; indented lines and lists keep their lines."""
    lines: list[str] = []
    for line in [*doc.splitlines(), ""]:
        keeps = line.startswith((" ", "- ", "* "))
        if lines and (keeps or not line.strip()):
            yield " ".join(lines)
            lines = []
        if keeps or not line.strip():
            yield line.rstrip()
        else:
            lines.append(line.strip())
