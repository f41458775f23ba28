"""Dash components of our own, drawn by plain JavaScript beside this file: no npm, no build, nothing from a network."""

from __future__ import annotations

import sys
from typing import Any

from dash.development.base_component import Component

SCRIPTS = (
    "fragment.js",
    "handoff.js",
    "timeline_wire.js",
    "timeline_draw.js",
    "timeline_picture.js",
    "timeline_findings.js",
    "timeline_linked.js",
    "timeline_walk.js",
    "timeline_input.js",
    "timeline_panel.js",
    "timeline.js",
    "flame.js",
    "heat.js",
    "memory.js",
    "svg.js",
    "roofline.js",
    "graph.js",
)
"""In the order they are loaded."""

# Dash looks for the scripts of a component in the top package of its module.
sys.modules["perfscope"]._js_dist = [  # type: ignore[attr-defined]
    {"relative_package_path": f"dashboards/web/ui/{name}", "namespace": "perfscope"} for name in SCRIPTS
]


class Fragment(Component):
    """HTML that one of our reports made: its texts are escaped there. Never untrusted text.

    ``html``: what to show. ``links``: of rows of a waterfall, by their text: ``{"href", "find": {side: pattern}}``, to
    the timelines of a comparison on the page where there are any, else to the address.
    """

    _children_props: list[str] = []  # noqa: RUF012 (Dash reads it from the class)
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "Fragment"
    _prop_names = ["id", "html", "links"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "html", "links"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, html: str = "", **others: Any) -> None:
        """Hold what is shown."""
        super().__init__(html=html, **others)


class Exports(Component):
    """The menu of downloads.

    ``url``: where they are. ``item``: ``{"key", "title"}`` of what is shown, or ``None``. ``forms``: ``{"form",
    "word"}`` each. ``perfetto``: ``{"word", "url"}`` or ``{"word", "port"}`` of a page that is handed the trace, or
    ``None``.
    """

    _children_props: list[str] = []  # noqa: RUF012
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "Exports"
    _prop_names = ["id", "url", "item", "forms", "perfetto"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "url", "item", "forms", "perfetto"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, url: str = "", **others: Any) -> None:
        """Hold where they are."""
        super().__init__(url=url, **others)


class Timeline(Component):
    """The timeline of an item on a canvas.

    ``url``: where its tiles are. ``at``: ``{"t0", "t1", "sel", ...}``, the parameters of the address to begin with.
    ``findings``: the address of the page of findings.
    """

    _children_props: list[str] = []  # noqa: RUF012
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "Timeline"
    _prop_names = ["id", "url", "at", "findings"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "url", "at", "findings"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, url: str = "", **others: Any) -> None:
        """Hold where its tiles are."""
        super().__init__(url=url, **others)


class Flame(Component):
    """A tree of times as an icicle.

    ``tree``: arrays ``name``, ``parent``, ``ns``, ``own_ns``, ``count``, parents first; ``timeline``: where a name is
    looked for; ``find``: what is searched to begin with.
    """

    _children_props: list[str] = []  # noqa: RUF012
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "Flame"
    _prop_names = ["id", "tree", "timeline", "find"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "tree", "timeline", "find"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, tree: dict[str, Any] | None = None, **others: Any) -> None:
        """Hold the tree."""
        super().__init__(tree=tree, **others)


class HeatMap(Component):
    """A heat map of ranks.

    ``heat``: as of `views._heat`; ``kind``: ``wait`` or ``busy``; ``timeline``: the address of the timeline;
    ``origins``: what stands at 0 there, by trace; ``label``: what it is, for who cannot see it.
    """

    _children_props: list[str] = []  # noqa: RUF012
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "HeatMap"
    _prop_names = ["id", "heat", "kind", "timeline", "origins", "label"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "heat", "kind", "timeline", "origins", "label"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, heat: dict[str, Any] | None = None, **others: Any) -> None:
        """Hold what is drawn."""
        super().__init__(heat=heat, **others)


class MemoryCurve(Component):
    """What a memory holds over time, by category.

    ``memory``: as of `views._memory_parts`; ``timeline``: the address of the timeline, with its ``origin`` (``None``:
    the axis is no clock); ``at``: the position to begin with.
    """

    _children_props: list[str] = []  # noqa: RUF012
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "MemoryCurve"
    _prop_names = ["id", "memory", "timeline", "origin", "at"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "memory", "timeline", "origin", "at"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, memory: dict[str, Any] | None = None, **others: Any) -> None:
        """Hold what is drawn."""
        super().__init__(memory=memory, **others)


class Roofline(Component):
    """Points and roofs on logarithmic axes.

    ``table``: ``columns`` and ``rows`` of ``views/roofline.py``; ``devices``: its roofs; ``what``: the points are.
    ``timeline`` and ``graph``: where a name is looked for. ``most`` (percent of the time), ``find`` and ``sel``: what
    the address asks for.
    """

    _children_props: list[str] = []  # noqa: RUF012
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "Roofline"
    _prop_names = ["id", "table", "devices", "what", "timeline", "graph", "most", "find", "sel"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "table", "devices", "what", "timeline", "graph", "most", "find", "sel"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, table: dict[str, Any] | None = None, **others: Any) -> None:
        """Hold the points."""
        super().__init__(table=table, **others)


class Graph(Component):
    """A small graph in layers.

    ``graph``: as of `views._graphs.Subject.plain`; ``named``: its kind; ``timeline``: where a name is looked for;
    ``sel``: the node that the address asks for.
    """

    _children_props: list[str] = []  # noqa: RUF012
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "perfscope_ui"
    _type = "Graph"
    _prop_names = ["id", "graph", "named", "timeline", "sel"]  # noqa: RUF012
    _valid_wildcard_attributes: list[str] = []  # noqa: RUF012
    available_properties = ["id", "graph", "named", "timeline", "sel"]  # noqa: RUF012
    available_wildcard_properties: list[str] = []  # noqa: RUF012

    def __init__(self, graph: dict[str, Any] | None = None, **others: Any) -> None:
        """Hold what is drawn."""
        super().__init__(graph=graph, **others)
