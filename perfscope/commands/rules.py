"""``perfscope rules``: the list of rules, and one rule's page."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_rules
from perfscope.commands.options import screen, show, verbose_option

if TYPE_CHECKING:
    from perfscope.model.finding import Rule


@click.command()
@click.argument("rule_id", required=False, metavar="[ID]", shell_complete=complete_rules)
@click.option("--calibration", is_flag=True, help="Compare predicted savings with those that `perfscope try` measured.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@verbose_option
def rules(rule_id: str | None, calibration: bool, as_json: bool, verbose: bool) -> int:
    """List the rules, or show the page of one as `perfscope explain` does."""
    from perfscope.analyzers.registry import load_rule, rule_ids

    if calibration:
        return _show_calibration(rule_id, as_json=as_json, verbose=verbose)

    asked = [load_rule(name) for name in ([rule_id] if rule_id is not None else rule_ids())]
    if as_json:
        click.echo(json.dumps([_plain(rule) for rule in asked], indent=2))
    elif rule_id is not None:
        from perfscope.commands.explain import show_page

        show_page(asked[0])
    else:
        _show_list(asked)
    return 0


def _show_calibration(rule_id: str | None, *, as_json: bool, verbose: bool) -> int:
    """The table of this machine, of one rule if it is named."""
    from msgspec import to_builtins
    from msgspec.structs import replace

    from perfscope.analyzers.compare.ab.calibration import calibrate, of_machine
    from perfscope.analyzers.registry import load_rule, rule_ids
    from perfscope.dashboards.report.sections.calibration import render_text
    from perfscope.model.documents.trials import kept
    from perfscope.profiler.ab.machine import Gpus, machine_facts
    from perfscope.profiler.interventions import intervention_names, load_intervention

    documents = kept()
    here = of_machine(documents, machine_facts(Gpus()))
    answered = {rule for name in intervention_names() for rule in load_intervention(name).answers}
    wanted = rule_ids() if rule_id is None else (load_rule(rule_id).id,)
    made = calibrate(here, {rule: rule in answered for rule in wanted}, others=len(documents) - len(here))
    if rule_id is not None:
        made = replace(made, rows=tuple(row for row in made.rows if row.rule == rule_id))
    if as_json:
        click.echo(json.dumps(to_builtins(made), indent=2))
    else:
        click.echo(render_text(made, **screen(sys.stdout), verbose=verbose), nl=False, color=True)
    return 0


def _plain(rule: Rule) -> dict[str, object]:
    return {"id": rule.id, "summary": summary_of(rule), "needs": list(rule.needs), "page": inspect.cleandoc(rule.doc)}


def summary_of(rule: Rule) -> str:
    """The first line of the rule's docstring."""
    return inspect.cleandoc(rule.doc).partition("\n")[0].strip()


def _show_list(asked: list[Rule]) -> None:
    from rich.table import Table

    from perfscope.model.trace import recording_words

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rule", no_wrap=True, style="bold")
    table.add_column("finds", ratio=3)
    table.add_column("needs", ratio=2)
    for rule in asked:
        table.add_row(rule.id, summary_of(rule), "; ".join(recording_words(key) for key in rule.needs) or "-")
    show(table)
