"""Runs that a kept comparison was made of, as far as they lie here: whose timelines can stand side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from perfscope.dashboards.web.server.shelf import Item, Shelf
from perfscope.dashboards.web.server.works import Stored

SIDES = ("base", "head")
_ARM = re.compile(r"-(base|head)-(\d{1,6})-[0-9a-f]{4}$")
"""The end of a run's name that ``perfscope compare --ab`` profiled: its arm and the number of its pair."""


def launches_of(
    kept: Stored, named: Mapping[str, Sequence[str]], shelf: Shelf, *, sets: bool = False
) -> dict[str, tuple[Item, ...]]:
    """Runs of each side, by pair where launches ran in turns.

    Of an A/B those that it profiled; of any other comparison those open here that one of its paths (``named``, by side)
    leads to by name; of ``sets`` all runs of the folder of that name. A name that several have stands for none.
    """
    found: dict[str, list[tuple[int, Item]]] = {side: [] for side in SIDES}
    for item in shelf.profiled(kept.path.parent):
        if told := _ARM.search(item.path.name):
            found[told[1]].append((int(told[2]), item))
    if not any(found.values()):
        runs = [(item.path.parent if sets else item.path, item) for item in shelf.items()]
        for side in SIDES:
            parts = {part for path in named.get(side, ()) for part in PurePath(path).parts[-1:]}
            homes = {place for place, item in runs if place.name in parts and (item.kind == "run" or not sets)}
            if len(homes) == len({place.name for place in homes}):
                held = sorted((item for place, item in runs if place in homes), key=lambda one: one.path.name)
                found[side] = list(enumerate(held))
    return {side: tuple(item for _, item in sorted(held, key=lambda pair: pair[0])) for side, held in found.items()}
