"""Where a comparison goes besides the screen: options that `compare` and `compare --ab` share, and the writing."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfscope.model.errors import DataError, UsageError

if TYPE_CHECKING:
    from perfscope.dashboards.report.compare.document import Document

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

STDOUT = "-"
FORMS = ("json", "markdown", "html", "junit")
_HELP = {
    "json": "Write the comparison as JSON (- for stdout, alone).",
    "markdown": "Write it as a comment on a pull request.",
    "html": "Write it as one HTML file.",
    "junit": "Write it as JUnit XML.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files that were asked for; ``-`` is stdout, alone."""

    json: str | None = None
    markdown: str | None = None
    html: str | None = None
    junit: str | None = None
    github: bool = False
    """Annotations on stdout, and the job's summary."""

    def files(self) -> dict[str, str]:
        """Form -> file, of those that are files."""
        return {form: file for form, file in self._asked().items() if file != STDOUT}

    def on_stdout(self) -> str | None:
        """The form that has stdout for itself."""
        return next((form for form, file in self._asked().items() if file == STDOUT), None)

    def check(self) -> None:
        """Before the work: ``AskedWronglyError`` where two go to one place, ``DataError`` where a folder is missing."""
        asked = [file if file == STDOUT else os.path.abspath(file) for file in self._asked().values()]
        twice = next((file for file in asked if asked.count(file) > 1), None)
        if twice is not None:
            raise UsageError(f"{twice}: two reports cannot go there")
        if self.github and self.on_stdout() is not None:
            raise UsageError("--github: its annotations go to stdout, and another report has it alone")
        for file in self.files().values():
            if not Path(file).parent.is_dir():
                raise DataError(f"{file}: cannot be written: no such folder")

    def _asked(self) -> dict[str, str]:
        found = {form: getattr(self, form) for form in FORMS}
        return {form: file for form, file in found.items() if file is not None}


def output_options(command: Decorated) -> Decorated:
    """``--json``, ``--markdown``, ``--html``, ``--junit FILE`` and ``--github``; the command gets ``outputs: Outputs``.

    They are checked (``Outputs.check``) before the command does anything.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, github: bool, **options: Any) -> Any:
        outputs = Outputs(github=github, **{form: options.pop(f"{form}_file") for form in FORMS})
        outputs.check()
        return command(*args, outputs=outputs, **options)

    made: Any = click.option(
        "--github", is_flag=True, help="In a GitHub job: annotate lines, and add to the job's summary."
    )(wrapped)
    for form in reversed(FORMS):
        made = click.option(f"--{form}", f"{form}_file", metavar="FILE", help=_HELP[form])(made)
    return made  # type: ignore[no-any-return]


def write_outputs(held: dict[str, Any], outputs: Outputs, *, quiet: bool = False) -> bool:
    """Write the document in every form that was asked for, and say where.

    Whether stdout is taken by one: nothing else may be printed there then. ``DataError``: a file cannot be written.
    """
    from perfscope.dashboards.report import write
    from perfscope.dashboards.report.compare import document as compare_document
    from perfscope.model.untrusted_text import sanitize

    document = compare_document.of(held)  # what nobody could read is not written
    for form, file in outputs.files().items():
        write(file, _text(form, held, document))
        if not quiet:
            click.echo(f"perfscope: wrote {sanitize(file)}", err=True)
    if outputs.github:
        tell_github(document)
    alone = outputs.on_stdout()
    if alone is None:
        return False
    click.echo(_text(alone, held, document), nl=False)
    return True


def show_screen(document: Document, failed: Sequence[str] = (), *, verbose: bool = False) -> None:
    """Print the comparison for the terminal, and below it on stderr the gates that were not met.

    In a GitHub job no line of it can be a command of the runner.
    """
    from perfscope.commands.options import color_wanted, width_of
    from perfscope.dashboards.report.compare import text
    from perfscope.dashboards.report.compare.github import inert
    from perfscope.model.untrusted_text import sanitize

    screen = text.render(document, width=width_of(sys.stdout), color=color_wanted(sys.stdout), verbose=verbose)
    click.echo(inert(screen), nl=False, color=True)
    if failed:
        said = "".join(f"perfscope: gate not met: {sanitize(line)}\n" for line in failed)
        click.echo(inert(said), nl=False, err=True)


def _text(form: str, held: dict[str, Any], document: Document) -> str:
    if form == "json":
        from perfscope.dashboards.report.compare import json as compare_json

        return compare_json.as_text(held)
    return rendered(document, form)


def rendered(document: Document, form: str, **options: Any) -> str:
    """A document as ``markdown``, ``html`` or ``junit``; ``options`` are those of the form's module."""
    from perfscope.dashboards.report.compare import html as compare_html
    from perfscope.dashboards.report.compare import junit as compare_junit
    from perfscope.dashboards.report.compare import markdown as compare_markdown

    render: Callable[..., str] = {
        "markdown": compare_markdown.render,
        "html": compare_html.render,
        "junit": compare_junit.render,
    }[form]
    return render(document, **options)


def tell_github(document: Document, *, link: str | None = None) -> None:
    """Annotations on stdout, and the summary of the job."""
    from perfscope.dashboards.report.compare import github as compare_github

    click.echo(compare_github.annotated(document, top()), nl=False)
    problem = compare_github.summarize(document, link=link)
    if problem is not None:
        click.echo(f"perfscope: {problem}", err=True)


def top() -> Path:
    """The checkout that annotations are about: the runner's, else the nearest folder above that git keeps."""
    named = os.environ.get("GITHUB_WORKSPACE")
    here = Path.cwd()
    if named and Path(named).is_dir():
        return Path(named)
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
