"""The answers of ``perfscope explain`` name rules and commands of all plug-ins."""

from __future__ import annotations

import click

from perfscope.analyzers.registry import rule_ids
from perfscope.commands.group import cli
from perfscope.commands.symptoms import SYMPTOMS


def test_rules_and_commands_of_the_answers_exist() -> None:
    assert {rule for symptom in SYMPTOMS for rule in symptom.rules} <= set(rule_ids())
    assert {symptom.command.split()[1] for symptom in SYMPTOMS} <= set(cli.list_commands(click.Context(cli)))
