"""What a child of the server makes besides single items: comparisons of two, stored comparisons, histories.

Each has a key that no item can have (``~`` is in it), so that all of them share one workshop and one way to be
asked for.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Protocol

from msgspec import Struct

from perfscope.dashboards.web.server.shelf import Item, Shelf, is_comparison, is_try, key_of
from perfscope.model.commits import current_commit
from perfscope.model.documents import run_folders
from perfscope.model.documents.run_folders import STORE_FILE
from perfscope.model.documents.trials import FILE as TRY_FILE

APART = "~"
"""Between the keys of a pair, and before the key of what is stored."""
RESULT_FILE = "result.json"
"""Of ``perfscope compare commits``, in its folder."""
_STORE = "store"

HEAD_S = 2.0
"""For so long the answer of git stands."""
MOST_STORED = 200
"""Stored comparisons that are offered, the newest ones."""


class Work(Protocol):
    """What the workshop prepares: an item, or one of the below."""

    @property
    def key(self) -> str:
        """Stands for it in names of folders and in addresses."""

    @property
    def path(self) -> Path:
        """What is named where it fails."""

    def fingerprint(self) -> str | None:
        """16 hexadecimal digits that change when its files do; ``None`` where it is gone."""

    def running(self) -> bool:
        """Whether its files still grow."""

    def command(self) -> tuple[str, ...]:
        """A kind of `child.KINDS` and its arguments."""


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
        """The side that is gone, else the head's."""
        return self.base.path if self.base.fingerprint() is None else self.head.path

    def fingerprint(self) -> str | None:
        """Of both sides together."""
        sides = self.base.fingerprint(), self.head.fingerprint()
        if None in sides:
            return None
        return hashlib.sha256(f"{sides}".encode()).hexdigest()[:16]

    def running(self) -> bool:
        """Whether one side is."""
        return self.base.running() or self.head.running()

    def command(self) -> tuple[str, ...]:
        """As `Work.command`."""
        return "pair", str(self.base.path), str(self.head.path)


class Stored(Struct, frozen=True, kw_only=True):
    """A comparison that was made before: ``perfscope compare --json FILE``, or the result of ``--ab``."""

    title: str
    path: Path

    @property
    def key(self) -> str:
        """``~NAME``."""
        return f"{APART}{key_of(self.path.parent if self.path.name == RESULT_FILE else self.path)}"

    def fingerprint(self) -> str | None:
        """Of the file."""
        return _of_file(self.path)

    def running(self) -> bool:
        """It is whole."""
        return False

    def command(self) -> tuple[str, ...]:
        """As `Work.command`."""
        return "pair", str(self.path)


class Kept(Struct, frozen=True, kw_only=True):
    """The history in a local run store."""

    path: Path

    @property
    def key(self) -> str:
        """``~store~NAME``."""
        return f"{APART}{_STORE}{APART}{key_of(self.path.parent)}"

    def fingerprint(self) -> str | None:
        """Of the file with what was written last, and of the commit that is checked out, which orders its runs."""
        text = _of_file(self.path)
        if text is None:
            return None
        late = _of_file(self.path.with_name(f"{self.path.name}-wal"))
        held = text, late, _head(int(time.monotonic() / HEAD_S))
        return hashlib.sha256(repr(held).encode()).hexdigest()[:16]

    def running(self) -> bool:
        """What is in it stays."""
        return False

    def command(self) -> tuple[str, ...]:
        """As `Work.command`."""
        return "history", str(self.path)


def find_work(shelf: Shelf, key: str) -> Work | None:
    """What a key of an address stands for; ``None`` for any that nothing here has."""
    base, apart, head = key.partition(APART)
    if not apart:
        return shelf.find(key)
    if base:
        sides = shelf.find(base), shelf.find(head)
        return None if sides[0] is None or sides[1] is None else Pair(base=sides[0], head=sides[1])
    works: tuple[Work, ...] = stores(shelf) if head.startswith(f"{_STORE}{APART}") else stored(shelf)
    return next((work for work in works if work.key == key), None)


def stored(shelf: Shelf) -> tuple[Stored, ...]:
    """Comparisons that lie in what the server was started with, the newest first."""
    return tuple(
        Stored(title=file.parent.name if file.name == RESULT_FILE else file.name, path=file)
        for file in _documents(shelf, is_comparison, RESULT_FILE, "ab-*")
    )


def tries(shelf: Shelf) -> tuple[Path, ...]:
    """Documents of ``perfscope try`` that lie in what the server was started with, the newest first."""
    return _documents(shelf, is_try, TRY_FILE, "try-*")


def _documents(shelf: Shelf, is_one: Callable[[Path], bool], name: str, folders: str) -> tuple[Path, ...]:
    """Those named, in a folder or in the ``folders`` of it."""
    result: dict[Path, float] = {}
    for path in shelf.places:
        files = [path / name, *path.glob(f"{folders}/{name}")] if path.is_dir() else [path]
        for file in files:
            if is_one(file) and file.resolve().is_relative_to(path.resolve()):
                result[file] = file.stat().st_mtime
    return tuple(sorted(result, key=lambda file: -result[file])[:MOST_STORED])


def stores(shelf: Shelf) -> tuple[Kept, ...]:
    """Local run stores: beside the runs of each folder that the server was started with."""
    files = dict.fromkeys(
        folder / STORE_FILE for path in shelf.places for folder in _beside(path) if (folder / STORE_FILE).is_file()
    )
    return tuple(Kept(path=file) for file in files)


def _beside(path: Path) -> tuple[Path, ...]:
    """Folders of runs: the place, or what a single run lies in."""
    return (path, path.parent) if path.is_dir() and run_folders.is_run(path) else (path,)


@lru_cache(maxsize=2)
def _head(now: int) -> str | None:
    """The commit that is checked out where the server runs; git is asked again every `HEAD_S` seconds."""
    return current_commit()


def _of_file(path: Path) -> str | None:
    try:
        told = path.stat()
    except OSError:
        return None
    return hashlib.sha256(f"{told.st_size} {told.st_mtime_ns}".encode()).hexdigest()[:16]


# Runs that a kept comparison was made of, as far as they lie here: whose timelines can stand side by side.


SIDES = ("base", "head")
_ARM = re.compile(r"-(base|head)-(\d{1,6})-[0-9a-f]{4}$")
"""The end of a run's name that ``perfscope compare commits`` profiled: its arm and the number of its pair."""


def launches_of(
    kept: Stored, named: Mapping[str, Sequence[str]], shelf: Shelf, *, sets: bool = False
) -> dict[str, tuple[Item, ...]]:
    """Runs of each side, by pair where launches ran in turns.

    Of an A/B those that it profiled; of any other comparison those open here that one of its paths (``named``, by side)
    leads to by name; of ``sets`` all runs of the folder of that name. A name that several have stands for none.
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
