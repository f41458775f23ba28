"""``perfscope explain``: one rule's page."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_rules
from perfscope.commands.options import show, verbose_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.model.finding import Rule

HEADING = re.compile(r"([A-Z][A-Za-z ]{2,40}):(?:\s+(.*))?$")
"""A section of a page: ``Why it costs:`` at the margin, its text after it or below."""

FIRST = ("", "Why it costs", "Fix")
"""Sections that come first; the others follow in the order of the docstring."""

NO_NEEDS = "nothing in every case; it uses the recorded data, and abstains with the reason if they are too little"


@click.command()
@click.argument("rule_id", metavar="RULE", shell_complete=complete_rules)
@verbose_option
def explain(rule_id: str, verbose: bool) -> int:
    """Explain a rule: its finding, cost and fix, its needs, and its decision."""
    from perfscope.analyzers.registry import load_rule

    show_page(load_rule(rule_id))
    return 0


def show_page(rule: Rule) -> None:
    """Print the sections of the rule's docstring, its needs and thresholds, and how to silence it."""
    from rich.table import Table
    from rich.text import Text

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


def sections_of(doc: str) -> dict[str, str]:
    """The text of each section of a page, at the margin; the text before the first heading is in ``""``."""
    sections: dict[str, list[str]] = {}
    title = ""
    for line in doc.splitlines():
        heading = HEADING.match(line)
        if heading is None:
            sections.setdefault(title, []).append(line)
        else:
            title = heading.group(1)
            sections[title] = [heading.group(2) or ""]
    return {title: inspect.cleandoc("\n".join(lines)) for title, lines in sections.items()}


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
