"""``perfscope explain``: a rule's page, its findings in a run, and the answer to a symptom."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_rules
from perfscope.commands.options import screen, show, verbose_option
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.analyzers.engine import Analysis
    from perfscope.model.finding import Rule

FIRST = ("", "Why it costs", "Fix")
"""Sections that come first; the others follow in the order of the docstring."""

NO_NEEDS = "nothing in every case; it uses the recorded data, and abstains with the reason if they are too little"


@click.command()
@click.argument("words", nargs=-1, metavar="[RULE [RUN] | QUESTION]", shell_complete=complete_rules)
@verbose_option
def explain(words: tuple[str, ...], verbose: bool) -> int:
    """Explain a rule, its findings in a run, or a symptom.

    `perfscope explain host_sync` has the rule's finding, cost, fix and decision, `perfscope explain host_sync latest`
    its findings in a run, with their lines. In your own words, as in `perfscope explain GPU is idle`, it answers
    a question; without words it lists the known questions.
    """
    from perfscope.analyzers.registry import load_rule, rule_ids
    from perfscope.commands.symptoms import SYMPTOMS, is_asked

    if not words:
        show(*(f"- {symptom.question}" for symptom in SYMPTOMS), "", "`perfscope explain WORDS` answers one of them.")
    elif words[0].replace("-", "_") in rule_ids():
        if len(words) > 2:
            raise UsageError("explain RULE RUN: give one run")
        if len(words) == 2:
            return show_findings(words[0].replace("-", "_"), words[1])
        show_page(load_rule(words[0]))
    elif len(words) == 1 and not is_asked(words[0]):
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
    """Print the findings of a rule in a run, each with its lines, and how to verify a fix."""
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
    show("To verify a fix: `perfscope run` the program again, then `perfscope compare BEFORE AFTER`.")
    return 0


def status_of(analysis: Analysis, rule_id: str, run: str) -> str:
    """Return a sentence about a rule without findings in a run: clean or not evaluated, and why."""
    outcome = next((outcome for outcome in analysis.outcomes if outcome.rule == rule_id), None)
    why = "" if outcome is None or outcome.reason is None else f": {outcome.reason}"
    status = "not evaluated" if outcome is None or outcome.status != "clean" else "clean"
    return f"{rule_id} is {status} in {run}{why}"


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
        lead = f"{title}: " if title else ""
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
