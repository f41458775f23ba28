"""Downloads: an item in the formats of `perfscope export` and as a report, each made once, by a child, and kept.

``python -m perfscope.dashboards.web.server.exports PATH FORM FOLDER`` is the child: it starts the command, packs what
is a folder, and tells how far it is. An export is a work like others for the workshop, so it waits its turn, ends with
the server, is shared by all servers, and is made again when the files of its item have changed.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.dashboards.web.server.child import Child, run_alone
from perfscope.dashboards.web.server.shelf import Item, read_view
from perfscope.dashboards.web.server.workshop import State, Workshop
from perfscope.model.documents.run_folders import directory_label
from perfscope.model.errors import DataError, UsageError

MADE = "export"
"""Stem of the file that is made."""
ABOUT = "about"
_PREFIX = "perfscope: "
_SUFFIXES = (".gz", ".xz", ".json", ".pb", ".xplane", ".sqlite", ".nsys-rep", ".pickle", ".pftrace", ".trace")
"""Of traces: a download of ``rank0.json.gz`` begins with ``rank0``."""
MOST_LINE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """``word``: for a person. ``suffix``: of the download. ``folder``: the command writes one, which is zipped."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A work of the workshop (`works.Work`)."""

    item: Item
    form: str

    @property
    def key(self) -> str:
        """``ITEM.FORM``: no item's, since the digits that end a key come first."""
        return f"{self.item.key}.{self.form}"

    @property
    def path(self) -> Path:
        """Of the item."""
        return self.item.path

    @property
    def name(self) -> str:
        """Of the file for who downloads it: letters, digits, dots and dashes."""
        stem = self.item.title
        for suffix in _SUFFIXES:
            stem = stem.removesuffix(suffix) or stem
        return f"{directory_label(stem)[:64] or 'trace'}{FORMS[self.form].suffix}"

    def fingerprint(self) -> str | None:
        """Of the item."""
        return self.item.fingerprint()

    def running(self) -> bool:
        """Whether the item's files still grow."""
        return self.item.running()

    def command(self) -> tuple[str, ...]:
        """As `works.Work.command`."""
        return "perfscope.dashboards.web.server.exports", str(self.item.path), self.form


def export_of(item: Item, form: str) -> Export:
    """``UsageError`` if there is no such form."""
    if form not in FORMS:
        raise UsageError("there is no download of that name")
    return Export(item=item, form=form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One of: ``file``, made; ``problem``, why it cannot be; else it is under way. ``told``: for a person."""

    told: str
    file: Path | None = None
    problem: bool = False
    remarks: tuple[str, ...] = ()


def ask(workshop: Workshop, export: Export, *, retry: bool = False) -> Answer:
    """The export, begun if nobody has; ``retry``: also where it failed or was cancelled before."""
    state = workshop.state(export, start=not retry)
    if retry:
        if state.stage in ("failed", "cancelled"):
            workshop.again(export)
        state = workshop.state(export)
    return _answer(export, state)


def _answer(export: Export, state: State) -> Answer:
    word = FORMS[export.form].word
    # Of what is gone, and of a run that grows faster than it is read, the newest that was made.
    if state.folder is not None and state.stage in ("ready", "gone"):
        file = made_file(state.folder, export.form)
        if file.is_file():
            held = read_view(state.folder, ABOUT) or {}
            return Answer(told="", file=file, remarks=tuple(held.get("remarks", ())))
    if state.stage in ("failed", "cancelled", "gone"):
        return Answer(told=state.told, problem=True)
    if state.stage == "waiting":
        return Answer(told=f"{word}: {state.told or 'waits'}")
    return Answer(told=f"{word}: {state.told if state.told != 'reading' else 'begins'}, {state.seconds:.0f} s")


def made_file(folder: Path, form: str) -> Path:
    """Where the child puts it."""
    held = FORMS[form]
    return folder / f"{MADE}{'.zip' if held.folder else held.suffix}"


class Work(Child):
    """One export."""

    def __init__(self, path: str, form: str, folder: Path) -> None:
        """``folder`` is there."""
        super().__init__(path, folder)
        self._form = form

    def run(self) -> None:
        """Start the command and pack what it wrote. ``DataError``: the command's own line of why it failed."""
        form = FORMS[self._form]
        self.tell("working", "reading and writing")
        final = made_file(self.folder, self._form)
        target = self.folder / MADE if form.folder else final
        done = subprocess.run(
            self._line(form, target), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        texts = [line.removeprefix(_PREFIX)[:MOST_LINE] for line in done.stderr.decode("utf-8", "replace").splitlines()]
        if done.returncode < 0:
            raise DataError(f"{self.path}: what exported it was killed by signal {-done.returncode} (out of memory?)")
        if done.returncode:
            raise DataError(texts[-1] if texts else f"{self.path}: what exported it ended with {done.returncode}")
        if form.folder:
            self.tell("working", "packing")
            pack(target, final)
        # Where it lies is the server's affair, in the line of that and in the one of how to open it.
        remarks = [line for line in texts if not line.startswith("wrote ") and f"/{MADE}" not in line]
        self.write(ABOUT, {"remarks": remarks})
        self.tell("ready", "")

    def _line(self, form: Form, target: Path) -> Sequence[str]:
        program = (sys.executable, "-m", "perfscope")
        if form.report:  # one rank at a time in memory, as everywhere in the server
            return *program, "analyze", self.path, "--jobs", "1", "-o", str(target)
        return *program, "export", self.path, "--to", self._form, "-o", str(target)


def pack(folder: Path, target: Path) -> None:
    """A ZIP of a folder's files, there whole or not at all; what is packed already is not packed twice."""
    scratch = target.with_name(f".{target.name}.part")
    with zipfile.ZipFile(scratch, "w") as packed:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            how: Any = zipfile.ZIP_STORED if file.suffix == ".parquet" else zipfile.ZIP_DEFLATED
            packed.write(file, file.relative_to(folder), compress_type=how, compresslevel=1)
    scratch.replace(target)


def main(arguments: Sequence[str]) -> int:
    """Export ``PATH`` as ``FORM`` into ``FOLDER``; the exit code."""
    path, form, folder = arguments
    return run_alone(Work(path, form, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
