"""Pages of the dashboard in the order of the menu: name -> module. One module per page; plug-ins add theirs.

A page's module has ``TITLE``, ``VIEW`` (name in ``views.VIEWS`` of the data it shows, or ``None`` for a page without an
item), ``layout(request, view)``, and optionally ``GRIDS`` (names of its grids), ``CHART`` (name of its chart) and
``register(app)`` for its own callbacks. A page without an item may have ``mark(request)``: a text that changes when the
page must be redrawn; without it the page is drawn once. The page of a plug-in may have ``KEY``, a letter as in
``PAGE_KEYS``.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from msgspec import Struct

from perfscope.model.errors import log_failure
from perfscope.model.plugins import load, named

if TYPE_CHECKING:
    from perfscope.dashboards.web.server.shelf import Item, Shelf
    from perfscope.dashboards.web.server.workshop import Workshop

_log = logging.getLogger(__name__)

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
    "findings": "perfscope.dashboards.web.pages.findings",
    "runs": "perfscope.dashboards.web.pages.runs",
}
FIRST_AFTER_PLUGINS = "findings"
"""First page of the menu after those of plug-ins."""

PAGE_KEYS: dict[str, str] = {
    "overview": "o", "timeline": "t", "kernels": "k", "flame": "f", "roofline": "r", "memory": "m", "ranks": "a",
    "graph": "g", "compile": "c", "results": "e", "compare": "d",
    "findings": "i", "runs": "u",
}  # fmt: skip
"""Page -> the key that opens it after ``g``; `assets/keys.js` reads these from the menu."""


class PageRequest(Struct, frozen=True, kw_only=True):
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


def pages() -> dict[str, str]:
    """All pages in the order of the menu: name -> module. A plug-in's page that cannot be imported is left out."""
    added = {name: home for name, home in named("pages").items() if name not in PAGES and _loads(name, home)}
    place = list(PAGES).index(FIRST_AFTER_PLUGINS)
    own = list(PAGES.items())
    return dict([*own[:place], *added.items(), *own[place:]])


def page_module(name: str) -> ModuleType:
    """Return the module of a page; ``KeyError`` if the page does not exist."""
    return importlib.import_module(PAGES.get(name) or named("pages")[name])


def page_key(name: str) -> str:
    """The key that opens a page after ``g``; ``""`` if it has none."""
    return PAGE_KEYS.get(name) or str(getattr(page_module(name), "KEY", ""))


@cache
def _loads(name: str, home: str) -> bool:
    try:
        load(home)
    except Exception as error:  # another author's broken page must not take the others along
        log_failure(_log, f"page {name} cannot be loaded", error)
        return False
    return True
