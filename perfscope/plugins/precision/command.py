"""``perfscope advise precision``: which layers stay in float32, and which may go to bf16 or fp8."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.compare.outputs import new_folder
from perfscope.commands.completion import complete_runs
from perfscope.commands.options import (
    STDOUT,
    announce,
    device_named,
    quiet_option,
    screen,
    spare,
    verbose_option,
    write_answers,
)
from perfscope.model.errors import DONE, DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    from perfscope.analyzers.readers import Loaded


@click.command()
@click.argument("path", metavar="RUN|PROGRAM", shell_complete=complete_runs)
@click.option("--device", metavar="NAME", help="Device whose recipes count, and for which the gain is modelled.")
@click.option("--recipes", metavar="NAMES", help="Recipes that may be proposed, with commas: e4m3-row,mxfp8.")
@click.option("--json", "json_file", metavar="FILE", help="Write the advice here as JSON (- for stdout).")
@click.option("--markdown", metavar="FILE", help="Write the advice as a comment for a pull request.")
@quiet_option
@verbose_option
def precision(
    path: str,
    device: str | None,
    recipes: str | None,
    json_file: str | None,
    markdown: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Advise which layers stay in float32, and which may go to bf16 or fp8, with the measured error of each.

    RUN was recorded by `perfscope run --numerics` (`latest`, or its name). PROGRAM is `file.py:function` or
    `module:function` as for `perfscope parity`: it returns the model and its inputs, and is run here three times.
    """
    from perfscope.plugins.numerics import numerics_of
    from perfscope.plugins.precision import sections
    from perfscope.plugins.precision.advice import advise
    from perfscope.plugins.precision.document import dump

    chosen = None if device is None else device_named(device)
    allowed = _allowed(recipes)
    loaded = _loaded(path, quiet=quiet)
    numerics = next((found for trace in loaded.traces if (found := numerics_of(trace)) is not None), None)
    if numerics is None:
        raise DataError(f"{path}: no values of tensors: record it with perfscope run --numerics")
    if not any(product.losses for product in numerics.products):
        raise DataError(f"{path}: no product of matrices was measured{_why(numerics.notes)}")
    advice = advise(numerics, path, chosen, allowed)
    spare([trace.source.path for trace in loaded.traces], filter(None, (json_file, markdown)))
    answers = ((json_file, lambda: dump(advice).decode()), (markdown, lambda: sections.render_markdown(advice)))
    write_answers(answers, quiet=quiet)
    if STDOUT not in (json_file, markdown):
        click.echo(sections.render_text(advice, **screen(sys.stdout), verbose=verbose), nl=False, color=True)
    return DONE


def _allowed(names: str | None) -> tuple[str, ...]:
    from perfscope.plugins.precision.recipes import RECIPES

    wanted = tuple(name.strip() for name in (names or "").split(",") if name.strip())
    for name in wanted:
        if name not in RECIPES:
            hint = did_you_mean(name, tuple(RECIPES)) or f"; known: {', '.join(RECIPES)}"
            raise UsageError(f"--recipes {name}: no such recipe{hint}")
    return wanted


def _why(notes: tuple[str, ...]) -> str:
    return f": {notes[0]}" if notes else ": it has none, or recorded them with an older version"


def _loaded(path: str, *, quiet: bool) -> Loaded:
    """The recording, made first for a program."""
    from perfscope.analyzers.readers import load_path
    from perfscope.model.documents import run_folders

    where, _, function = path.rpartition(":")
    if not where or Path(path).exists():
        if path.endswith(".py"):
            raise UsageError(
                f"{path}: record it with perfscope run --numerics {path}, or name its function: {path}:make"
            )
        return load_path(path)
    if not function.isidentifier():
        raise UsageError(f"{path}: give a run, file.py:function or module:function")
    if where.endswith(".py") and not Path(where).is_file():
        raise DataError(f"{where}: no such file")
    announce(f"running {path} three times", quiet=quiet)
    folder = new_folder(Path(run_folders.RUNS_FOLDER), "precision")
    words = ["-m", "perfscope", "run", "--numerics", "--no-report", "-q", "-o", str(folder), "--run-id", "run"]
    words += ["-m", "perfscope.plugins.precision.drive", path]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise DataError(f"{path}: {lines[-1].strip() if lines else 'failed'}")
    return load_path(str(folder / "run"))
