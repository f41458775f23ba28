"""Downloads of an item in the formats of `perfscope export` and as a report, each made once by a child and kept.

An export is a work of the workshop: it waits its turn, ends with the server, is shared by all servers, and is made
again if the files of its item have changed.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from perfscope.dashboards.web.server.shelf import Item, read_view
from perfscope.dashboards.web.server.workshop import State, Workshop
from perfscope.model.documents.run_folders import directory_label
from perfscope.model.errors import UsageError

MADE = "export"
"""Stem of the file that is made."""
ABOUT = "about"
_SUFFIXES = (".gz", ".xz", ".json", ".pb", ".xplane", ".sqlite", ".nsys-rep", ".pickle", ".pftrace", ".trace")
"""Suffixes of traces: a download of ``rank0.json.gz`` begins with ``rank0``."""


class Form(Struct, frozen=True, kw_only=True):
    """``word``: label. ``suffix``: of the download. ``folder``: the command writes a folder, which is zipped."""

    word: str
    suffix: str
    folder: bool = False
    report: bool = False


FORMS: dict[str, Form] = {
    "perfetto": Form(word="Perfetto", suffix=".pftrace.gz"),
    "chrome": Form(word="Chrome trace", suffix=".trace.json.gz"),
    "speedscope": Form(word="speedscope", suffix=".speedscope.json"),
    "parquet": Form(word="Parquet", suffix="-parquet.zip", folder=True),
    "tensorboard": Form(word="TensorBoard", suffix="-tensorboard.zip", folder=True),
    "json": Form(word="JSON report", suffix=".json", report=True),
    "html": Form(word="HTML report", suffix=".html", report=True),
}


class Export(Struct, frozen=True, kw_only=True):
    """A work of the workshop (`works.Work`)."""

    item: Item
    form: str

    @property
    def key(self) -> str:
        """``ITEM.FORM``; it differs from the key of any item, because that ends in digits."""
        return f"{self.item.key}.{self.form}"

    @property
    def path(self) -> Path:
        """Path of the item."""
        return self.item.path

    @property
    def name(self) -> str:
        """Name of the downloaded file: letters, digits, dots and dashes."""
        stem = self.item.title
        for suffix in _SUFFIXES:
            stem = stem.removesuffix(suffix) or stem
        return f"{directory_label(stem)[:64] or 'trace'}{FORMS[self.form].suffix}"

    def fingerprint(self) -> str | None:
        """Fingerprint of the item."""
        return self.item.fingerprint()

    def running(self) -> bool:
        """Whether the item's files still grow."""
        return self.item.running()

    def command(self) -> tuple[str, ...]:
        """As `works.Work.command`."""
        return "export", str(self.item.path), self.form


def export_of(item: Item, form: str) -> Export:
    """Return the export; ``UsageError`` if the form does not exist."""
    if form not in FORMS:
        raise UsageError("unknown download")
    return Export(item=item, form=form)


class Answer(Struct, frozen=True, kw_only=True):
    """One of: ``file`` is ready; ``problem``: why it failed; else it is in progress. ``words``: state in words."""

    words: str
    file: Path | None = None
    problem: bool = False
    remarks: tuple[str, ...] = ()


def export_state(workshop: Workshop, export: Export, *, retry: bool = False) -> Answer:
    """Return the state of the export, starting it if necessary; ``retry``: also after a failure or cancellation."""
    state = workshop.state(export, start=not retry)
    if retry:
        if state.stage in ("failed", "cancelled"):
            workshop.again(export)
        state = workshop.state(export)
    return _answer(export, state)


def _answer(export: Export, state: State) -> Answer:
    word = FORMS[export.form].word
    # For a deleted item, or a run that grows faster than it is read: the newest export.
    if state.folder is not None and state.stage in ("ready", "gone"):
        file = made_file(state.folder, export.form)
        if file.is_file():
            held = read_view(state.folder, ABOUT) or {}
            return Answer(words="", file=file, remarks=tuple(held.get("remarks", ())))
    if state.stage in ("failed", "cancelled", "gone"):
        return Answer(words=state.words, problem=True)
    if state.stage == "waiting":
        return Answer(words=f"{word}: {state.words or 'waits'}")
    return Answer(words=f"{word}: {state.words if state.words != 'reading' else 'begins'}, {state.seconds:.0f} s")


def made_file(folder: Path, form: str) -> Path:
    """The path of the file that the child makes."""
    held = FORMS[form]
    return folder / f"{MADE}{'.zip' if held.folder else held.suffix}"
