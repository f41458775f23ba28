"""Pages without data on an item, with the reason, known from their views before a page is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

EMPTY_VIEW = "empty"
"""Name under which the result is stored next to the pages' data."""

_EMPTY: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "timeline": (
        "no event with a time was recorded",
        lambda view: bool(view["modelled"]) or any(item["events"] for item in view["traces"]),
    ),
    "kernels": (
        "no kernels, ops or instructions with a time were recorded",
        lambda view: any(view["tables"][kind]["rows"] for kind in ("kernels", "ops", "instructions")),
    ),
    "flame": (
        "no stacks and no ops were recorded",
        lambda view: any(tree is not None for tree in view["trees"].values()),
    ),
    "roofline": (
        "nothing has FLOPs and bytes that are known",
        lambda view: any(table["rows"] for table in view["tables"].values()),
    ),
    "memory": ("no memory was recorded", lambda view: bool(view["memories"] or view["html"] or view["planned"])),
    "ranks": (
        "one rank was recorded, without collectives",
        lambda view: bool(view["html"] or view["jobs"] or view["busy"]),
    ),
    "graph": ("no graph of the program is known", lambda view: bool(view["subjects"])),
    "compile": (
        "nothing was compiled, or its log is missing",
        lambda view: bool(view["html"]) or any(table["rows"] for table in view["tables"].values()),
    ),
    "results": ("no result table has rows", lambda view: bool(view["tables"])),
}
"""Page -> reason why it is empty, if the function of its view is false."""


def empty_pages(views: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Page -> reason why it is empty; ``views``: the data of pages by name, as far as it could be made."""
    return {name: why for name, (why, there) in _EMPTY.items() if name in views and not there(views[name])}
