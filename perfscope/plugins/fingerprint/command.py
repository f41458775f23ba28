"""`perfscope parity RUN RUN` for runs with fingerprints."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from perfscope.commands.options import STDOUT, screen, write_answers
from perfscope.model.errors import DONE, GATE_NOT_MET, INCONCLUSIVE


def compare_folders(a: Path, b: Path, settings: Mapping[str, Any]) -> int:
    """Compare two runs, write and print the answers, and return the exit code."""
    from perfscope.plugins.fingerprint.compare import compare_runs
    from perfscope.plugins.fingerprint.result import dump
    from perfscope.plugins.fingerprint.sections import render_markdown, render_text

    document = compare_runs(a, b, tolerance=settings["tolerance"], shift=settings["shift"])
    answers = [
        (settings["json_file"], lambda: dump(document).decode()),
        (settings["markdown"], lambda: render_markdown(document)),
    ]
    write_answers(answers, quiet=settings["quiet"])
    if STDOUT not in (settings["json_file"], settings["markdown"]):
        click.echo(render_text(document, **screen(sys.stdout), verbose=settings["verbose"]), nl=False, color=True)
    if document.verdict == "differs" and settings["fail_on"]:
        return GATE_NOT_MET
    return INCONCLUSIVE if settings["strict"] and any("ends within" in note for note in document.notes) else DONE
