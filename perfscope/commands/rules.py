"""``perfscope rules``: what is looked for, and one rule's page."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import verbose_option
from perfscope.commands.terminal import color_wanted, width_of

if TYPE_CHECKING:
    from rich.console import Console

    from perfscope.analyzers.finding import Rule


@click.command()
@click.argument("rule_id", required=False, metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@verbose_option
def rules(rule_id: str | None, as_json: bool, verbose: bool) -> int:
    """List the rules, or show the page of one: why it costs, how it is found, how to fix it."""
    from perfscope.analyzers.rules import load_rule, rule_ids

    asked = [load_rule(name) for name in ([rule_id] if rule_id is not None else rule_ids())]
    if as_json:
        click.echo(json.dumps([_plain(rule) for rule in asked], indent=2))
    elif rule_id is not None:
        _show_page(asked[0])
    else:
        _show_list(asked)
    return 0


def _plain(rule: Rule) -> dict[str, object]:
    return {"id": rule.id, "summary": summary_of(rule), "needs": list(rule.needs), "page": inspect.cleandoc(rule.doc)}


def summary_of(rule: Rule) -> str:
    """The first line of the rule's docstring."""
    return inspect.cleandoc(rule.doc).partition("\n")[0].strip()


def _console() -> Console:
    from rich.console import Console

    color = color_wanted(sys.stdout)
    return Console(
        width=width_of(sys.stdout),
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _show_list(asked: list[Rule]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rule", no_wrap=True, style="bold")
    table.add_column("finds")
    table.add_column("needs")
    for rule in asked:
        table.add_row(rule.id.replace("_", "-"), summary_of(rule), ", ".join(rule.needs))
    _console().print(table)


def _show_page(rule: Rule) -> None:
    """The docstring as it is, headed by the id, with what the rule needs in words."""
    from rich.text import Text

    from perfscope.analyzers.trace import RECORDED

    console = _console()
    console.print(Text(rule.id.replace("_", "-"), style="bold"))
    for line in inspect.cleandoc(rule.doc).splitlines():
        is_heading = line.endswith(":") and line[:1].isupper() and not line.startswith(" ")
        console.print(Text(line, style="bold" if is_heading else ""))
    console.print()
    needs = "; ".join(RECORDED.get(key, key) for key in rule.needs)
    console.print(Text(f"Needs: {needs or 'nothing in particular'}"))
