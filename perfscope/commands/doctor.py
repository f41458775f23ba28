"""``perfscope doctor``: captures that are possible on this machine, and what prevents the others."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from perfscope.model.environment import Check

SCHEMA = "perfscope.doctor/1"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--self-test",
    "tests_itself",
    is_flag=True,
    help="Capture programs that do work of known amount and compare every count; exit code 1 if one is wrong.",
)
def doctor(*, as_json: bool, tests_itself: bool) -> int:
    """Show which captures are possible here, and what prevents the others."""
    if tests_itself:
        return _self_test(as_json=as_json)
    from perfscope.profiler.doctor import examine

    found = examine()
    if as_json:
        from msgspec import to_builtins

        report = {"schema": SCHEMA, "captures": found.captures, "checks": to_builtins(found.machine)}
        added = {key: to_builtins(checks) for key, (_, checks) in found.plugins.items()}
        click.echo(json.dumps(report | added, indent=1))
        return 0
    click.echo("captures")
    for tool, reason in found.captures.items():
        click.echo(f"  {'ok' if reason is None else 'no':8}{tool}{'' if reason is None else f': {_shown(reason)}'}")
    for title, checks in found.plugins.values():
        _show(title, checks)
    _show("this machine", found.machine)
    return 0


def _self_test(*, as_json: bool) -> int:
    checks = run_self_test()
    if as_json:
        from msgspec import to_builtins

        click.echo(json.dumps({"schema": SCHEMA, "self_test": to_builtins(checks)}, indent=1))
    else:
        _show("self-test", checks, red=True)
    return int(any(check.status == "problem" for check in checks))


def run_self_test() -> list[Check]:
    """The checks of every installed framework."""
    from perfscope.analyzers.self_test import Captured, judge
    from perfscope.model.environment import Check
    from perfscope.profiler.doctor import PROGRAMS, SECONDS, capture_known, installed

    end = time.monotonic() + SECONDS
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="perfscope-self-test-") as scratch:
        for framework in PROGRAMS:
            if not installed(framework):
                checks.append(Check(name=framework, status="absent", text="not installed for this Python"))
                continue
            captures = []
            for twin in (False, True):
                taken = capture_known(framework, Path(scratch), twin=twin, seconds=end - time.monotonic())
                if isinstance(taken, Check):
                    checks.append(taken)
                    break
                captures.append(Captured(run=taken[0], truth=taken[1]))
            else:
                checks += judge(*captures)
    if all(check.status == "absent" for check in checks):
        checks.append(Check(name="self-test", status="problem", text="neither torch nor jax is installed"))
    return checks


def _show(title: str, checks: list[Check], *, red: bool = False) -> None:
    click.echo(title)
    for check in checks:
        line = f"  {check.status:8}{check.name}: {_shown(check.text)}"
        click.echo(click.style(line, fg="red") if red and check.status == "problem" else line)
        if check.advice is not None:
            click.echo(f"          {check.advice}")


def _shown(text: str) -> str:
    from perfscope.model.untrusted_text import sanitize

    return sanitize(text)
