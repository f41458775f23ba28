"""``perfscope rules``: the list of rules, and one rule's page."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_rules
from perfscope.commands.options import IN_PLACE_OF_RULES, show, verbose_option

if TYPE_CHECKING:
    from perfscope.model.finding import Rule


@click.command()
@click.argument("rule_id", required=False, metavar="[ID]", shell_complete=complete_rules)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@verbose_option
def rules(rule_id: str | None, as_json: bool, verbose: bool) -> int:
    """List the rules, or show the page of one as `perfscope explain` does."""
    from perfscope.analyzers.registry import load_rule, rule_ids

    instead = click.get_current_context().meta.get(IN_PLACE_OF_RULES)
    if instead is not None:
        return int(instead(rule_id, as_json=as_json, verbose=verbose))

    chosen = [load_rule(name) for name in ([rule_id] if rule_id is not None else rule_ids())]
    if as_json:
        click.echo(json.dumps([_plain(rule) for rule in chosen], indent=2))
    elif rule_id is not None:
        from perfscope.commands.explain import show_page

        show_page(chosen[0])
    else:
        _show_list(chosen)
    return 0


def _plain(rule: Rule) -> dict[str, object]:
    return {"id": rule.id, "summary": summary_of(rule), "needs": list(rule.needs), "page": inspect.cleandoc(rule.doc)}


def summary_of(rule: Rule) -> str:
    """The first line of the rule's docstring."""
    return inspect.cleandoc(rule.doc).partition("\n")[0].strip()


def _show_list(chosen: list[Rule]) -> None:
    from rich.table import Table

    from perfscope.model.trace import recording_words

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rule", no_wrap=True, style="bold")
    table.add_column("finds", ratio=3)
    table.add_column("needs", ratio=2)
    for rule in chosen:
        table.add_row(rule.id, summary_of(rule), "; ".join(recording_words(key) for key in rule.needs) or "-")
    show(table)
