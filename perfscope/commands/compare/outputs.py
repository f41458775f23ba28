"""Code shared by all forms of `perfscope compare`: gates, output files and terminal, and the exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from perfscope.commands.options import STDOUT, announce, checkout_folder, quiet_option, screen, verbose_option
from perfscope.model.documents.run_folders import STAMP
from perfscope.model.errors import DONE, GATE_NOT_MET, INCONCLUSIVE, DataError, UsageError

if TYPE_CHECKING:
    from perfscope.analyzers.compare import Comparison
    from perfscope.model.documents.comparison import Document

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FORMS = ("json", "markdown", "html", "junit")
_HELP = {
    "json": "Write the comparison as JSON (- for stdout, alone).",
    "markdown": "Write it as a comment on a pull request.",
    "html": "Write it as one HTML file.",
    "junit": "Write it as JUnit XML.",
}


GATES = ("regression", "inconclusive", "finding:low", "finding:medium", "finding:high")
NOTHING = "none"
"""No gate, not even the default gates of programs for one target."""
RESULT_FILE = "result.json"


class Outputs(NamedTuple):
    """Requested output files; ``-`` is stdout, alone. Also the gates, and how much is printed."""

    json: str | None = None
    markdown: str | None = None
    html: str | None = None
    junit: str | None = None
    github: bool = False
    """Annotations on stdout, and the job's summary."""
    fail_on: tuple[str, ...] = ()
    strict: bool = False
    """Exit 3 if a metric could not be judged."""
    quiet: bool = False
    verbose: bool = False

    def files(self) -> dict[str, str]:
        """Form -> file, without stdout."""
        return {form: file for form, file in self._files().items() if file != STDOUT}

    def on_stdout(self) -> str | None:
        """The form that has stdout for itself."""
        return next((form for form, file in self._files().items() if file == STDOUT), None)

    def check(self) -> None:
        """Before the work: ``UsageError`` if two outputs have one path, ``DataError`` if a folder is missing."""
        files = [file if file == STDOUT else os.path.abspath(file) for file in self._files().values()]
        twice = next((file for file in files if files.count(file) > 1), None)
        if twice is not None:
            raise UsageError(f"{twice}: two reports cannot go there")
        if self.github and self.on_stdout() is not None:
            raise UsageError("--github: its annotations go to stdout, and another report has it alone")
        for file in self.files().values():
            if not Path(file).parent.is_dir():
                raise DataError(f"{file}: cannot be written: no such folder")

    def _files(self) -> dict[str, str]:
        result = {form: getattr(self, form) for form in FORMS}
        return {form: file for form, file in result.items() if file is not None}


def output_options(fail_on: str, known: Sequence[str] | None = None) -> Callable[[Decorated], Decorated]:
    """The options of every comparison: files, ``--github``, ``--fail-on``, ``--strict``, ``-q`` and ``-v``.

    The command gets ``outputs: Outputs``, checked (``Outputs.check``) before it does anything. ``fail_on``: the help of
    ``--fail-on``; ``known``: its gates, where click checks them.
    """

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def wrapped(*args: Any, **options: Any) -> Any:
            outputs = Outputs(
                **{form: options.pop(f"{form}_file") for form in FORMS},
                **{name: options.pop(name) for name in ("github", "fail_on", "strict", "quiet", "verbose")},
            )
            outputs.check()
            return command(*args, outputs=outputs, **options)

        made: Any = quiet_option(verbose_option(wrapped))
        made = click.option("--strict", is_flag=True, help="Exit 3 if a metric could not be judged.")(made)
        kind = None if known is None else click.Choice(known)
        made = click.option("--fail-on", type=kind, multiple=True, metavar="WHAT", help=fail_on)(made)
        help_text = "In a GitHub job: annotate lines, and add to the job's summary."
        made = click.option("--github", is_flag=True, help=help_text)(made)
        for form in reversed(FORMS):
            made = click.option(f"--{form}", f"{form}_file", metavar="FILE", help=_HELP[form])(made)
        return made  # type: ignore[no-any-return]

    return decorate


def check_gates(fail_on: Sequence[str]) -> None:
    """``UsageError`` if one of them is not a gate."""
    from perfscope.analyzers.compare import PROGRAM_GATES, program_gate

    for gate in fail_on:
        if gate not in (*GATES, NOTHING) and not program_gate(gate):
            known = ", ".join((*GATES, *PROGRAM_GATES, NOTHING))
            raise UsageError(f"--fail-on {gate}: not one of {known}")
    if NOTHING in fail_on and len(fail_on) > 1:
        raise UsageError(f"--fail-on {NOTHING}: and {next(gate for gate in fail_on if gate != NOTHING)}?")


def own_gates(comparison: Comparison, fail_on: tuple[str, ...]) -> tuple[str, ...]:
    """The requested gates; without any, the default gates of programs that were compiled for one target."""
    if fail_on:
        return tuple(gate for gate in fail_on if gate != NOTHING)
    return ("programs",) if comparison.programs and comparison.targets.known else ()


def finish(
    values: dict[str, Any], outputs: Outputs, *, unsettled: bool, directory: Path | None = None, kept: str = ""
) -> int:
    """Write the document in every requested form, show it, and return the exit code.

    ``unsettled``: a metric could not be judged. ``directory``: also keep it there; ``kept``: description of its files.
    ``DataError``: a file cannot be written.
    """
    from perfscope.dashboards.report import write
    from perfscope.dashboards.report.compare import json as compare_json
    from perfscope.model.documents import comparison as compare_document

    document = compare_document.of(values)  # a document that cannot be read back is not written
    texts = {"json": compare_json.as_text(values)}
    if directory is not None:
        write(directory / RESULT_FILE, texts["json"])
    for form, file in outputs.files().items():
        write(file, texts.get(form) or rendered(document, form))
        announce(f"wrote {file}", quiet=outputs.quiet)
    if outputs.github:
        annotate_github(document)
    alone = outputs.on_stdout()
    if alone is not None:
        click.echo(texts.get(alone) or rendered(document, alone), nl=False)
    else:
        show_screen(document, document.failed, verbose=outputs.verbose)
        if directory is not None:
            announce(f"{kept} kept in {directory}", quiet=outputs.quiet)
    if document.failed:
        return GATE_NOT_MET
    return INCONCLUSIVE if outputs.strict and unsettled else DONE


def new_folder(root: Path, kind: str) -> Path:
    """A new folder for a comparison, ``ab-...``; `latest` still names a run. ``DataError``: it cannot be made."""
    path = root / f"{kind}-{datetime.now(UTC).strftime(STAMP)}-{os.urandom(2).hex()}"
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be made: {error.strerror or error}") from error
    return path


def show_screen(document: Document, failed: Sequence[str] = (), *, verbose: bool = False) -> None:
    """Print the comparison for the terminal, and below it on stderr the gates that were not met.

    In a GitHub job no line of it can be a command of the runner.
    """
    from perfscope.dashboards.report.compare.render import render_text
    from perfscope.dashboards.report.github import inert
    from perfscope.model.untrusted_text import sanitize

    text = render_text(document, **screen(sys.stdout), verbose=verbose)
    click.echo(inert(text), nl=False, color=True)
    if failed:
        sentence = "".join(f"perfscope: gate not met: {sanitize(line)}\n" for line in failed)
        click.echo(inert(sentence), nl=False, err=True)


def rendered(document: Document, form: str, **options: Any) -> str:
    """A document as ``markdown``, ``html`` or ``junit``; ``options`` are passed to its function."""
    from perfscope.dashboards.report.compare import junit
    from perfscope.dashboards.report.compare.render import render_html, render_markdown

    render: Callable[..., str] = {"markdown": render_markdown, "html": render_html, "junit": junit.render}[form]
    return render(document, **options)


def annotate_github(document: Document, *, link: str | None = None) -> None:
    """Annotations on stdout, and the summary of the job."""
    from perfscope.dashboards.report import github

    click.echo(github.annotated(document, checkout_folder()), nl=False)
    problem = github.add_to_summary(document, link=link)
    if problem is not None:
        announce(problem)
