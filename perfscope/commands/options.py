"""Options that several verbs share."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

import click

from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from perfscope.analyzers.devices import Device
    from perfscope.model.plugins import Plugin


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Flags:
    """Options of the command line that ``main()`` needs when a command fails."""

    def __init__(self) -> None:
        self.verbose = False


def _remember_verbose(context: click.Context, _: click.Parameter, value: bool) -> bool:
    flags = context.find_object(Flags)
    if flags is not None and value:
        flags.verbose = True
        logging.getLogger("perfscope").setLevel(logging.DEBUG)
    return value


def verbose_option(command: Decorated) -> Decorated:
    """``-v``: show more, and the traceback of an error. The command gets ``verbose: bool``."""
    return click.option(
        "-v", "--verbose", is_flag=True, callback=_remember_verbose, help="Say more; show tracebacks of errors."
    )(command)


def quiet_option(command: Decorated) -> Decorated:
    """``-q``: print only the requested output. The command gets ``quiet: bool``."""
    return click.option("-q", "--quiet", is_flag=True, help="Print nothing but the answer.")(command)


def selection_options(command: Decorated) -> Decorated:
    """``--steps``, ``--ranks`` and ``--time``. The command gets ``steps``, ``ranks`` and ``time``: ``str | None``.

    ``analyzers.selection.parse_selection`` makes one value of them.
    """
    for name, form, help_text in (
        ("--time", "A:B", "Judge this stretch of the recording only, from its start: 1.2s:1.5s, 300ms:, :2s."),
        ("--ranks", "LIST", "Read these ranks only: 0,3-5. Files of others are not opened."),
        ("--steps", "A:B", "Judge these steps only, B not included: 20:25, 20:, :25."),
    ):
        command = click.option(name, metavar=form, help=help_text)(command)
    return command


def output_folder_option(what: str) -> Callable[[Decorated], Decorated]:
    """``-o``: the folder of runs, `perfscope-runs` by default. The command gets ``output: Path``."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        default=RUNS_FOLDER,
        show_default=True,
        help=f"Folder that keeps {what}.",
    )


RECORDERS = "perfscope.recorders"
"""Key of ``Context.meta``: the recorders of plug-ins that the user asked for, key of the recording -> class."""


def records(plugin: Plugin, key: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    """Callback of a flag of `perfscope run` that takes one of a plug-in's recordings in place of a profile."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> bool:
        if value:
            context.meta.setdefault(RECORDERS, {})[key] = plugin.recordings[key].recorder
        return value

    return remember


WATCHERS = "perfscope.watchers"
"""Key of ``Context.meta``: the watchers of plug-ins that the user asked for, name -> class."""

AFTER_RUN = "perfscope.after-run"
"""Key of ``Context.meta``: functions of plug-ins that get the folder of a run that has ended, after its report."""


class Sides(NamedTuple):
    """Paths of the two sides of a comparison, and remarks on how they were found."""

    base: str
    head: str
    notes: tuple[str, ...] = ()


AFTER_ANALYSIS = "perfscope.after-analysis"
"""Key of ``Context.meta``: functions of plug-ins that get each analysis that is reported, and the name of its run."""


SIDES = "perfscope.sides"
"""Key of ``Context.meta``: a plug-in's function that returns the ``Sides`` for BASE and HEAD as the user wrote them."""

IN_PLACE_OF_RULES = "perfscope.in-place-of-rules"
"""Key of ``Context.meta``: what `perfscope rules` shows in place of the list, a function like `rules` of a plug-in."""


# Requirements that several verbs have for their arguments.


def device_named(name: str) -> Device:
    """The device with that name; an error lists close names."""
    from perfscope.analyzers.devices import DEVICES, close_names, named_device

    device = named_device(name)
    if device is None:
        close = close_names(name)
        known = f"close: {', '.join(close)}" if close else f"known: {', '.join(device.name for device in DEVICES)}"
        raise UsageError(f"--device {name}: not in the hardware tables; {known}")
    return device


def spare(inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Refuse to write a report over a trace that it is about."""
    known = {Path(file).resolve() for file in inputs}
    for output in outputs:
        if Path(output).resolve() in known:
            raise UsageError(f"{output}: is the trace itself; what is written needs another file")


_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_time(option: str, text: str, unit: str = "s") -> float:
    """``90s``, ``20m``, ``1.5h``, or a number of ``unit``: seconds. ``UsageError`` for anything else."""
    match = _TIME.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text}: give a time such as 90s, 20m or 1.5h")
    return float(match[1]) * _SECONDS[match[2] or unit]


def checkout_folder() -> Path:
    """The checkout that annotations are about: the runner's, else the nearest folder above that git keeps."""
    named = os.environ.get("GITHUB_WORKSPACE")
    here = Path.cwd()
    if named and Path(named).is_dir():
        return Path(named)
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


# Messages besides the answer, and destinations of answers.

STDOUT = "-"


def announce(line: str, *, quiet: bool = False) -> None:
    """A line on stderr, fit to be shown; nothing with ``quiet``."""
    from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

    if not quiet:
        print(f"perfscope: {sanitize(line, TEXT_LIMIT)}", file=sys.stderr, flush=True)


def write_answers(answers: Iterable[tuple[str | None, Callable[[], str]]], *, quiet: bool) -> None:
    """Write each text to its file; ``-`` is stdout, and texts without a file are not made. ``DataError`` as `write`."""
    from perfscope.dashboards.report import write

    for file, make in answers:
        if file == STDOUT:
            click.echo(make(), nl=False)
        elif file is not None:
            write(file, make())
            announce(f"wrote {file}", quiet=quiet)


# Abilities of the terminal: its width, and whether colour is wanted.


PLAIN_WIDTH = 110
"""Columns if stdout is not a terminal, so that a log looks the same on every machine."""


def color_wanted(stream: TextIO) -> bool:
    """Whether to use colour: ``NO_COLOR`` forbids it, ``FORCE_COLOR`` forces it (no-color.org, force-color.org).

    Without either a terminal has it unless it is dumb.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """``COLUMNS`` if it is set, else the columns of the terminal of ``stream``, else ``PLAIN_WIDTH``."""
    if stream.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    return PLAIN_WIDTH


def screen(stream: TextIO) -> dict[str, Any]:
    """Width and colour as the renderers of text take them."""
    return {"width": width_of(stream), "color": color_wanted(stream)}


def show(*parts: RenderableType, piped_width: int = 0) -> None:
    """Print what rich lays out on stdout, without the blanks that fill its lines to the width.

    ``piped_width``: the least width if stdout is not a terminal.
    """
    from rich.console import Console

    color = color_wanted(sys.stdout)
    into = io.StringIO()
    console = Console(
        file=into,
        width=max(width_of(sys.stdout), 0 if sys.stdout.isatty() else piped_width),
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        console.print(part)
    click.echo("".join(f"{line.rstrip()}\n" for line in into.getvalue().splitlines()), nl=False, color=True)
