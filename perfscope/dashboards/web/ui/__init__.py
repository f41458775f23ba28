"""The Dash components of perfscope, drawn by the plain JavaScript in this folder: no npm, no build, no network."""

from __future__ import annotations

import sys
from typing import Any

from dash.development.base_component import Component

SCRIPTS = (
    "fragment.js",
    "handoff.js",
    "timeline_wire.js",
    "source.js",
    "timeline_draw.js",
    "timeline_picture.js",
    "timeline_findings.js",
    "timeline_linked.js",
    "timeline_walk.js",
    "timeline_input.js",
    "timeline_panel.js",
    "timeline.js",
    "flame.js",
    "graph.js",
)
"""Scripts in loading order."""

# Dash searches the scripts of a component in the top package of its module.
sys.modules["perfscope"]._js_dist = [  # type: ignore[attr-defined]
    {"relative_package_path": f"dashboards/web/ui/{name}", "namespace": "perfscope"} for name in SCRIPTS
]


def _component(name: str, doc: str, *properties: str) -> Any:
    """The class of a component that ``window.perfscope_ui`` draws under this name."""
    names = ["id", *properties]
    attributes = {
        "__doc__": doc,
        "__module__": __name__,
        "_children_props": [],
        "_base_nodes": ["children"],
        "_namespace": "perfscope_ui",
        "_type": name,
        "_prop_names": names,
        "_valid_wildcard_attributes": [],
        "available_properties": names,
        "available_wildcard_properties": [],
    }
    return type(name, (Component,), attributes)


Fragment = _component(
    "Fragment",
    """HTML that one of our reports made: its texts are escaped there. Never untrusted text.

    ``links``: of rows of a waterfall, by their text: ``{"href", "find": {side: pattern}}``, to the timelines of a
    comparison on the page where there are any, else to the address. ``source``: ``{"place", "path"}`` of a line in it
    that opens in the editor.
    """,
    "html",
    "links",
    "source",
)
Exports = _component(
    "Exports",
    """The menu of downloads.

    ``url``: where they are. ``item``: ``{"key", "title"}`` of what is shown, or ``None``. ``forms``: ``{"form",
    "word"}`` each. ``perfetto``: port of Perfetto's page on this host, or ``None``.
    """,
    "url",
    "item",
    "forms",
    "perfetto",
)
Timeline = _component(
    "Timeline",
    """The timeline of an item on a canvas.

    ``url``: address of its tiles. ``at``: ``{"t0", "t1", "sel", ...}``, initial parameters of the address.
    ``findings``: the address of the page of findings.
    """,
    "url",
    "at",
    "findings",
)
Flame = _component(
    "Flame",
    """A tree of times as an icicle.

    ``tree``: arrays as in `views.flame`, parents first; ``timeline``: address of the page that searches a name;
    ``find``: initial search; ``order``: ``time`` (largest first) or ``start``; ``fold``: frames of launchers share a
    row; ``look``: ``categories``, ``colors`` and ``code`` of the view; ``flat``: names do not shade the colours, and
    keys go to the graph only if it has the focus. ``tree`` may have ``said``: the words of each node.
    """,
    "tree",
    "timeline",
    "find",
    "order",
    "fold",
    "look",
)
Graph = _component(
    "Graph",
    """A small graph in layers.

    ``graph``: from `views._graphs.Subject.plain`; ``named``: its kind; ``timeline``: address of the page that searches
    a name, ``""``: none; ``sel``: the node selected in the address.
    """,
    "graph",
    "named",
    "timeline",
    "sel",
)
