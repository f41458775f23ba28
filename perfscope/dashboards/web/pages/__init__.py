"""Pages of the dashboard in the order of the menu: name -> module. One module per page.

A page's module has ``TITLE``, ``VIEW`` (name in ``views.VIEWS`` of the data it shows, or ``None`` for a page without an
item), ``layout(asked, view)``, and optionally ``GRIDS`` (names of its grids), ``CHART`` (name of its chart) and
``register(app)`` for its own callbacks. A page without an item may have ``mark(asked)``: a text that changes when the
page must be redrawn; without it the page is drawn once.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from msgspec import Struct

if TYPE_CHECKING:
    from perfscope.dashboards.web.server.shelf import Item, Shelf
    from perfscope.dashboards.web.server.workshop import Workshop

PAGES: dict[str, str] = {
    "overview": "perfscope.dashboards.web.pages.overview",
    "timeline": "perfscope.dashboards.web.pages.timeline",
    "kernels": "perfscope.dashboards.web.pages.kernels",
    "flame": "perfscope.dashboards.web.pages.flame",
    "roofline": "perfscope.dashboards.web.pages.roofline",
    "memory": "perfscope.dashboards.web.pages.memory",
    "ranks": "perfscope.dashboards.web.pages.ranks",
    "graph": "perfscope.dashboards.web.pages.graph",
    "compile": "perfscope.dashboards.web.pages.compile",
    "results": "perfscope.dashboards.web.pages.results",
    "compare": "perfscope.dashboards.web.pages.compare",
    "history": "perfscope.dashboards.web.pages.history",
    "tries": "perfscope.dashboards.web.pages.tries",
    "findings": "perfscope.dashboards.web.pages.findings",
    "runs": "perfscope.dashboards.web.pages.runs",
}


PAGE_KEYS: dict[str, str] = {
    "overview": "o", "timeline": "t", "kernels": "k", "flame": "f", "roofline": "r", "memory": "m", "ranks": "a",
    "graph": "g", "compile": "c", "results": "e", "compare": "d", "history": "h", "tries": "y",
    "findings": "i", "runs": "u",
}  # fmt: skip
"""Page -> the key that opens it after ``g``; `assets/keys.js` reads these from the menu."""


class Asked(Struct, frozen=True, kw_only=True):
    """A parsed address. ``parameters`` are untrusted; ``item`` and ``folder``: for a page with a view.

    ``came_from``: on a page without an item, the item shown before; the menu leads back to it.
    """

    page: str
    parameters: Mapping[str, str]
    base_path: str
    shelf: Shelf
    workshop: Workshop
    item: Item | None = None
    folder: Path | None = None
    came_from: Item | None = None

    @property
    def whose(self) -> str | None:
        """The key of the page's item, or of the item shown before."""
        item = self.item or self.came_from
        return None if item is None else item.key

    def link(self, page: str, **parameters: str) -> str:
        """The address of a page on the same item."""
        return address(self.base_path, page, self.whose, **parameters)


def address(base_path: str, page: str, key: str | None, **parameters: str) -> str:
    """The address of a page. It contains the whole state of the page, so that it can be sent to a colleague."""
    held = {"run": key} if key is not None else {}
    query = urlencode({**held, **parameters})
    return f"{base_path}{page}" + (f"?{query}" if query else "")


def page_module(name: str) -> ModuleType:
    """Return the module of a page; ``KeyError`` if the page does not exist."""
    return importlib.import_module(PAGES[name])
