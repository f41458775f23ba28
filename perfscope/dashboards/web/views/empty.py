"""Which pages have nothing to show of an item, and why: of their data, before any of them is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

EMPTY_VIEW = "empty"
"""The name that it is kept under, beside the data of pages."""

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
        "nothing was compiled, or no log of it is there",
        lambda view: bool(view["html"]) or any(table["rows"] for table in view["tables"].values()),
    ),
}
"""Page -> why it is empty where the function of its view is false."""


def empty_pages(views: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Page -> why it has nothing; ``views``: the data of pages by name, those that could be made."""
    return {name: why for name, (why, there) in _EMPTY.items() if name in views and not there(views[name])}
