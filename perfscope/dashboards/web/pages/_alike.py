"""Items that an item can be compared with: runs of the same program, programs with programs, files of one kind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath

from perfscope.dashboards.web.server.shelf import Item
from perfscope.model.documents import run_folders
from perfscope.model.documents.run_list import ListedRun, listed_run

RUN_NAME = re.compile(r"\d{8}-\d{6}-(.+)-[0-9a-f]{4}")
"""Name of a run's folder in the store: time, program, and a number."""


def alike(items: Iterable[Item], item: Item) -> list[Item]:
    """The items that ``item`` can be compared with: earlier ones first, among them tagged ones first, newest first.

    ``items``: newest first. Runs that recorded nothing are left out.
    """
    every = list(items)
    index = next((index for index, each in enumerate(every) if each.key == item.key), 0)
    kind = _kind(item)
    before, after = (
        [each for each in side if each.key != item.key and _kind(each) == kind and _recorded(each)]
        for side in (every[index:], every[:index][::-1])
    )
    return [*sorted(before, key=lambda each: not tags(each)), *after]


def tags(item: Item) -> tuple[str, ...]:
    """The tags of a run, which mark it as a reference."""
    return run_folders.tags_of(item.path) if item.kind == "run" else ()


def _kind(item: Item) -> tuple[str, bool, bool, str]:
    """Runs by program and by what was compiled or planned in them; files by suffix."""
    folder = item.kind != "file"
    return (
        item.kind if folder else PurePath(item.path.name.removesuffix(".gz").removesuffix(".xz")).suffix,
        folder and (item.path / "programs").is_dir(),
        folder and (item.path / "plans").is_dir(),
        _program(item) if item.kind == "run" else "",
    )


def _program(item: Item) -> str:
    """The script of a run, else its name; without a readable manifest the name of its folder."""
    listed = _listed(item, item.growth())
    if listed.run is not None:
        return listed.run.script or listed.run.name
    if listed.compiled is not None:
        return listed.compiled.name
    named = RUN_NAME.match(item.path.name)
    return named[1] if named else item.path.name


def _recorded(item: Item) -> bool:
    run = _listed(item, item.growth()).run if item.kind == "run" else None
    return run is None or any(process.steps_seen or process.captures for process in run.processes)


@lru_cache(maxsize=2048)
def _listed(item: Item, growth: str) -> ListedRun:
    return listed_run(item.path)
