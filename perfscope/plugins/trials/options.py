"""``perfscope rules --calibration``."""

from __future__ import annotations

import json
import sys

import click

from perfscope.commands.options import IN_PLACE_OF_RULES, screen


def _remember(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        context.meta[IN_PLACE_OF_RULES] = show_calibration
    return value


CALIBRATION = click.Option(
    ["--calibration"],
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Compare predicted savings with those that `perfscope try` measured.",
)
"""Option of `perfscope rules`."""


def show_calibration(rule_id: str | None, *, as_json: bool, verbose: bool) -> int:
    """The table of this machine, of one rule if it is named."""
    from msgspec import to_builtins
    from msgspec.structs import replace

    from perfscope.analyzers.registry import load_rule, rule_ids
    from perfscope.plugins.trials.calibration import calibrate, of_machine
    from perfscope.plugins.trials.calibration_section import render_text
    from perfscope.plugins.trials.document import kept
    from perfscope.plugins.trials.interventions import intervention_names, load_intervention
    from perfscope.profiler.ab.machine import Gpus, machine_facts

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
