"""Works of a child besides single items: comparisons of two, stored comparisons, and those of plug-ins.

Each key contains ``~``, which no item's key has, so that one workshop and one kind of request serve all of them. A
plug-in's kind of work is a module with ``works(shelf)``, a sequence of `Work` with keys ``~KIND~...`` and commands
``(KIND, PATH, ...)``, and ``prepare(child, arguments)``, which a child calls (`child.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Protocol

from msgspec import Struct

from perfscope.dashboards.web.server.shelf import COMPARISON, Item, Shelf, document_name, key_of
from perfscope.model.plugins import load, named

APART = "~"
"""Between the keys of a pair, and before the key of a stored comparison."""
RESULT_FILE = "result.json"
"""File name of the result of ``perfscope compare commits``."""
MOST_STORED = 200
"""Most stored comparisons offered, newest first."""

SIDES = ("base", "head")
_ARM = re.compile(r"-(base|head)-(\d{1,6})-[0-9a-f]{4}$")
"""End of the name of a run profiled by ``perfscope compare commits``: its arm and the number of its pair."""


class Work(Protocol):
    """A work of the workshop: an item, or one of the classes below."""

    @property
    def key(self) -> str:
        """Identifies it in names of folders and in addresses."""

    @property
    def path(self) -> Path:
        """Path named in error messages."""

    def fingerprint(self) -> str | None:
        """16 hexadecimal digits that change with its files; ``None`` if it is gone."""

    def running(self) -> bool:
        """Whether its files still grow."""

    def command(self) -> tuple[str, ...]:
        """A kind of `child.KINDS` or of a plug-in, and its arguments."""


class Pair(Struct, frozen=True, kw_only=True):
    """Two items, compared."""

    base: Item
    head: Item

    @property
    def key(self) -> str:
        """``BASE~HEAD``."""
        return f"{self.base.key}{APART}{self.head.key}"

    @property
    def path(self) -> Path:
        """Path of the missing side, else of the head."""
        return self.base.path if self.base.fingerprint() is None else self.head.path

    def fingerprint(self) -> str | None:
        """Fingerprint of both sides."""
        sides = self.base.fingerprint(), self.head.fingerprint()
        if None in sides:
            return None
        return hashlib.sha256(f"{sides}".encode()).hexdigest()[:16]

    def running(self) -> bool:
        """Whether a side is running."""
        return self.base.running() or self.head.running()

    def command(self) -> tuple[str, ...]:
        """As `Work.command`."""
        return "pair", str(self.base.path), str(self.head.path)


class Stored(Struct, frozen=True, kw_only=True):
    """A comparison made before: ``perfscope compare --json FILE``, or the result of ``perfscope compare commits``."""

    title: str
    path: Path

    @property
    def key(self) -> str:
        """``~NAME``."""
        return f"{APART}{key_of(self.path.parent if self.path.name == RESULT_FILE else self.path)}"

    def fingerprint(self) -> str | None:
        """Fingerprint of the file."""
        return file_fingerprint(self.path)

    def running(self) -> bool:
        """False: the file is complete."""
        return False

    def command(self) -> tuple[str, ...]:
        """As `Work.command`."""
        return "pair", str(self.path)


def find_work(shelf: Shelf, key: str) -> Work | None:
    """The work of a key in an address; ``None`` for an unknown key."""
    base, apart, head = key.partition(APART)
    if not apart:
        return shelf.find(key)
    if base:
        sides = shelf.find(base), shelf.find(head)
        return None if sides[0] is None or sides[1] is None else Pair(base=sides[0], head=sides[1])
    kind, apart, _ = head.partition(APART)
    home = named("works").get(kind) if apart else None
    works: Sequence[Work] = stored(shelf) if home is None else load(home).works(shelf)
    return next((work for work in works if work.key == key), None)


def stored(shelf: Shelf) -> tuple[Stored, ...]:
    """Comparisons in the paths that the server was started with, newest first."""
    return tuple(
        Stored(title=file.parent.name if file.name == RESULT_FILE else file.name, path=file)
        for file in documents(shelf, COMPARISON, RESULT_FILE, "ab-*")
    )


def documents(shelf: Shelf, kind: str, name: str, folders: str) -> tuple[Path, ...]:
    """Documents of a kind (`shelf.document_name`) in the paths of the shelf, newest first.

    In a folder they are files ``name``, in it or in its ``folders`` (a pattern).
    """
    result: dict[Path, float] = {}
    for path in shelf.places:
        files = [path / name, *path.glob(f"{folders}/{name}")] if path.is_dir() else [path]
        for file in files:
            if document_name(file) == kind and file.resolve().is_relative_to(path.resolve()):
                result[file] = file.stat().st_mtime
    return tuple(sorted(result, key=lambda file: -result[file])[:MOST_STORED])


def file_fingerprint(path: Path) -> str | None:
    """16 hexadecimal digits of size and time of change; ``None`` if the file is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]


# Runs of a stored comparison that are still here, so that their timelines can be shown side by side.


def launches_of(
    kept: Stored, named: Mapping[str, Sequence[str]], shelf: Shelf, *, sets: bool = False
) -> dict[str, tuple[Item, ...]]:
    """Runs of each side, in pairs if launches alternated.

    For an A/B test the profiled runs; for another comparison the open runs that match one of its paths (``named``, by
    side) by name; for ``sets`` all runs of the folder with that name. An ambiguous name matches nothing.
    """
    result: dict[str, list[tuple[int, Item]]] = {side: [] for side in SIDES}
    for item in shelf.profiled(kept.path.parent):
        if match := _ARM.search(item.path.name):
            result[match[1]].append((int(match[2]), item))
    if not any(result.values()):
        runs = [(item.path.parent if sets else item.path, item) for item in shelf.items()]
        for side in SIDES:
            parts = {part for path in named.get(side, ()) for part in PurePath(path).parts[-1:]}
            homes = {path for path, item in runs if path.name in parts and (item.kind == "run" or not sets)}
            if len(homes) == len({home.name for home in homes}):
                items = sorted((item for path, item in runs if path in homes), key=lambda item: item.path.name)
                result[side] = list(enumerate(items))
    return {side: tuple(item for _, item in sorted(held, key=lambda pair: pair[0])) for side, held in result.items()}
