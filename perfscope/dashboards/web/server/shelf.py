"""Items that a server has open: runs of a folder, runs, trace files, folders of traces. Pages use their keys only."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import PROFILED_FOLDER
from perfscope.model.errors import UsageError
from perfscope.model.plugins import named

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""Form of a key: never a path, never hidden."""

MOST_FILES = 20_000
"""Most files of a folder whose changes are noticed; a larger folder does not hold the traces of a job."""

LOOKED_AT = 4096
"""Bytes at the start of a file that are searched for a document's schema, its first key."""
COMPARISON = "compare"
"""`document_name` of ``perfscope compare --json``."""
_SCHEMA = re.compile(rb'"schema"\s*:\s*"perfscope\.(\w+)/')

Kind = Literal["run", "file", "folder"]

STATE_FILE = "state.json"
LOCK_FILE = "lock"
"""Locked by the child while it lives, so that the server can distinguish a working child from a dead one."""


class Item(Struct, frozen=True, kw_only=True):
    """Something that can be shown. ``key`` identifies it in addresses."""

    key: str
    title: str
    path: Path
    kind: Kind

    def fingerprint(self) -> str | None:
        """16 hexadecimal digits that change with its files or the configuration; ``None`` if it is gone."""
        try:
            held = sorted(_files(self.path))
        except OSError:
            return None
        if not held:
            return None
        return hashlib.sha256(repr((held, _configured())).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def growth(self) -> str:
        """Changes with the manifests of a run, one per rank; cheaper than the fingerprint."""

        def changed() -> Iterator[str]:
            for file in (*run_folders.manifests(self.path), self.path / run_folders.COMPILED_FILE, self.path):
                try:
                    yield str(file.stat().st_mtime_ns)
                except OSError:  # deleted in the meantime
                    continue

        return " ".join(changed())

    def running(self) -> bool:
        """Whether it is a run whose program has not ended."""
        if self.kind != "run":
            return False
        return any(
            run_folders.is_alive(self.path, run_folders.task_of_file(file)) for file in run_folders.manifests(self.path)
        )

    def command(self) -> tuple[str, ...]:
        """As `works.Work.command`."""
        return "item", str(self.path)


def _configured() -> str:
    """A text that changes with the configuration; for an invalid one its error, which the child reports."""
    from perfscope.analyzers.configuration import find_configuration  # `serve` listens before it is needed

    try:
        return repr(find_configuration())
    except UsageError as error:
        return str(error)


class Shelf:
    """Items below the paths that the server was started with; a folder of runs is listed again each time."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        """``DataError`` if a path does not exist."""
        self._places = tuple(Path(os.path.abspath(path)) for path in paths)
        for given, path in zip(paths, self._places, strict=True):
            if not path.exists():
                raise run_folders.missing(given)
        self._seen: dict[str, Item] = {}
        """Every item ever open, so that the page of a deleted one can say so."""

    @property
    def places(self) -> tuple[Path, ...]:
        """The paths that the server was started with."""
        return self._places

    def items(self) -> tuple[Item, ...]:
        """Everything that is open, runs of a folder newest first, then the traces in it; each key once."""
        held: dict[str, Item] = {}
        for item in self._found():
            held.setdefault(item.key, item)
        self._seen |= held
        return tuple(held.values())

    def find(self, key: str) -> Item | None:
        """The item of a key, also a deleted one; ``None`` for any other key."""
        if not KEY.fullmatch(key):
            return None
        item = next((item for item in self.items() if item.key == key), self._seen.get(key))
        return item or next((item for item in self._aside() if item.key == key), None)

    def profiled(self, folder: Path) -> tuple[Item, ...]:
        """Runs that an A/B test kept below ``folder``, which must be inside an open path; lists of runs omit them."""
        home = folder / PROFILED_FOLDER
        if not home.is_dir() or not any(home.resolve().is_relative_to(path.resolve()) for path in self._places):
            return ()
        items = tuple(_item(directory.resolve(), "run") for directory in run_folders.directories(home))
        self._seen |= {item.key: item for item in items}
        return items

    def _aside(self) -> Iterator[Item]:
        for path in self._places:
            for folder in (path, *path.glob("ab-*")) if path.is_dir() else ():
                yield from self.profiled(folder)

    def _found(self) -> Iterator[Item]:
        for path in self._places:
            if not path.exists() or is_document(path) or document_name(path / "result.json") == COMPARISON:
                continue
            if path.is_dir() and (run_folders.is_run(path) or run_folders.is_compiled(path)):
                yield _item(path.resolve(), "run")
                continue
            runs = run_folders.kept_directories(path) if path.is_dir() else []
            for directory in runs:
                if directory.resolve().is_relative_to(path.resolve()):
                    yield _item(directory, "run")
            if runs:
                yield from (_item(file, "file") for file in sorted(path.iterdir()) if _is_loose_trace(file))
            elif path.is_file() or any(_below(path)):  # an empty folder will hold runs
                yield _item(path, "folder" if path.is_dir() else "file")


def _item(path: Path, kind: Kind) -> Item:
    return Item(key=key_of(path), title=path.name, path=path, kind=kind)


def _is_loose_trace(path: Path) -> bool:
    """Whether an entry of a folder of runs is a file that can be shown by itself. Links and hidden files are not."""
    if path.name.startswith(".") or path.is_symlink() or not path.is_file() or is_document(path):
        return False
    try:
        return _has_reader(path, path.stat().st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=1024)
def _has_reader(path: Path, changed_ns: int) -> bool:
    from perfscope.analyzers.readers import reader_of  # its readers are needed in folders with such files only

    return reader_of(path) is not None


def is_document(path: Path) -> bool:
    """Whether a file is a comparison or a document of a plug-in, and not a trace."""
    return document_name(path) in {COMPARISON, *named("documents")}


def document_name(path: Path) -> str:
    """``try`` of a JSON file whose schema is ``perfscope.try/1``; ``""`` for any other file."""
    if path.suffix != ".json" or not path.is_file():
        return ""
    try:
        return _schema(path, path.stat().st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=1024)
def _schema(path: Path, changed_ns: int) -> str:
    with path.open("rb") as stream:
        found = _SCHEMA.search(stream.read(LOOKED_AT))
    return "" if found is None else found[1].decode()


@lru_cache(maxsize=4096)
def key_of(path: Path) -> str:
    """The key of a path: its name as far as allowed, and six digits that distinguish equal names."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name).strip("-._")[:64] or "trace"
    return f"{name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, bytes, modification time) of a file, or of the files of a folder; ``OSError`` if it is gone."""
    if path.is_file():
        yield _entry(path, path.name)
        return
    if not path.is_dir():
        raise FileNotFoundError(path)
    for index, file in enumerate(_below(path)):
        if index >= MOST_FILES:
            return
        try:
            yield _entry(file, str(file.relative_to(path)))
        except FileNotFoundError:  # deleted in the meantime
            continue


def _below(folder: Path) -> Iterable[Path]:
    for top, folders, names in os.walk(folder):
        folders.sort()
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(top, name)


def _entry(file: Path, name: str) -> tuple[str, int, int]:
    status = file.stat()
    return name, status.st_size, status.st_mtime_ns


# The files that a child writes for an item.


def read_view(folder: Path, name: str) -> dict[str, Any] | None:
    """``{"view": ...}`` or ``{"problem": ...}`` as the child wrote it; ``None`` if it does not exist yet."""
    if not KEY.fullmatch(name):
        return None
    try:
        content = (folder / f"{name}.json").read_bytes()
    except OSError:
        return None
    held: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    return held
