"""What pages show, as plain data, a written list: name -> module. One page's data a file.

The data is made once, in a child of the server (``dashboards/web/server/child.py``), and kept on disk; a page never
sees a trace. A module has ``view(job)``, which returns what JSON can hold, and maybe ``gather(trace, place)``: what
it takes of one rank's tables while they are in memory (of many ranks never two at once are).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.model.trace import Source, Trace

VIEWS: dict[str, str] = {
    "compile": "perfscope.dashboards.web.views.compile",
    "findings": "perfscope.dashboards.web.views.findings",
    "flame": "perfscope.dashboards.web.views.flame",
    "graph": "perfscope.dashboards.web.views.graph",
    "kernels": "perfscope.dashboards.web.views.kernels",
    "memory": "perfscope.dashboards.web.views.memory",
    "overview": "perfscope.dashboards.web.views.overview",
    "ranks": "perfscope.dashboards.web.views.ranks",
    "roofline": "perfscope.dashboards.web.views.roofline",
    "timeline": "perfscope.dashboards.web.views.timeline",
}


class Place(Struct, frozen=True, kw_only=True):
    """Where a view may write what is too large for JSON: a folder of its own for this rank."""

    folder: Path
    number: int
    """Of the trace, in the order they are read."""


class Gathered(Struct, frozen=True, kw_only=True):
    """What ``gather`` returned for one trace."""

    source: Source
    place: Place
    held: Any


class Job(Struct, frozen=True, kw_only=True):
    """All traces judged. ``traces`` of a set hold only what comparing reads; ``report``: as the JSON report."""

    analysis: Analysis
    traces: Sequence[Trace]
    report: Mapping[str, Any]
    gathered: Sequence[Gathered]
    """Of this view, one per trace that has all its tables, in the order they were read."""
    folder: Path
    """Where this view may write what is too large for JSON."""


def view_module(name: str) -> ModuleType:
    """The module of a view; ``KeyError`` if there is none of that name."""
    return importlib.import_module(VIEWS[name])
