"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from perfscope.model.documents.run_folders import RUNS_FOLDER

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(slots=True)
class Flags:
    """What ``main()`` must know of the command line when a command fails."""

    verbose: bool = False


def _remember_verbose(context: click.Context, _: click.Parameter, value: bool) -> bool:
    flags = context.find_object(Flags)
    if flags is not None and value:
        flags.verbose = True
    return value


def verbose_option(command: Decorated) -> Decorated:
    """``-v``: say more, and show the traceback of an error. The command gets ``verbose: bool``."""
    return click.option(
        "-v", "--verbose", is_flag=True, callback=_remember_verbose, help="Say more; show tracebacks of errors."
    )(command)


def quiet_option(command: Decorated) -> Decorated:
    """``-q``: print only what was asked for. The command gets ``quiet: bool``."""
    return click.option("-q", "--quiet", is_flag=True, help="Print nothing but the answer.")(command)


def output_folder_option(what: str) -> Callable[[Decorated], Decorated]:
    """``-o``: the folder that keeps runs, `perfscope-runs` unless said. The command gets ``output: Path``."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        default=RUNS_FOLDER,
        show_default=True,
        help=f"Folder that keeps {what}.",
    )
