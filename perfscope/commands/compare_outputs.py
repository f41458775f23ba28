"""Where a comparison goes besides the screen: options that `compare` and `compare --ab` share, and the writing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from perfscope.profiler.errors import AskedWronglyError, DataError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

STDOUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files that were asked for; ``-`` is stdout, alone."""

    json: str | None = None

    def files(self) -> dict[str, str]:
        """Form -> file, of those that are files."""
        return {form: file for form, file in self._asked().items() if file != STDOUT}

    def on_stdout(self) -> str | None:
        """The form that has stdout for itself."""
        return next((form for form, file in self._asked().items() if file == STDOUT), None)

    def check(self) -> None:
        """Before the work: ``AskedWronglyError`` where two go to one place, ``DataError`` where a folder is missing."""
        asked = list(self._asked().values())
        twice = next((file for file in asked if asked.count(file) > 1), None)
        if twice is not None:
            raise AskedWronglyError(f"{twice}: two reports cannot go there")
        for file in self.files().values():
            if not Path(file).parent.is_dir():
                raise DataError(f"{file}: cannot be written: no such folder")

    def _asked(self) -> dict[str, str]:
        return {form: file for form, file in (("json", self.json),) if file is not None}


def output_options(command: Decorated) -> Decorated:
    """``--json FILE``; the command gets ``outputs: Outputs``, checked."""

    @functools.wraps(command)
    def wrapped(*args: Any, json_file: str | None, **options: Any) -> Any:
        outputs = Outputs(json=json_file)
        outputs.check()
        return command(*args, outputs=outputs, **options)

    return click.option(  # type: ignore[return-value]
        "--json", "json_file", metavar="FILE", help="Write the comparison as JSON (- for stdout, alone)."
    )(wrapped)


def write_outputs(held: dict[str, Any], outputs: Outputs, *, quiet: bool = False) -> bool:
    """Write the document in every form that was asked for, and say where.

    Whether stdout is taken by one: nothing else may be printed there then. ``DataError``: a file cannot be written.
    """
    from perfscope.dashboards.reports import compare_document, compare_json, write
    from perfscope.dashboards.shown import shown

    compare_document.of(held)  # what nobody could read is not written
    for file in outputs.files().values():
        write(file, compare_json.as_text(held))
        if not quiet:
            click.echo(f"perfscope: wrote {shown(file)}", err=True)
    if outputs.on_stdout() is None:
        return False
    click.echo(compare_json.as_text(held), nl=False)
    return True
