"""Data of the pages as plain values: name -> module. One module per page.

A child of the server (``dashboards/web/server/child.py``) makes the data once and stores it; a page never reads a
trace. A module has ``view(job)``, which returns JSON values, and optionally ``gather(trace, place)``, which reads one
rank's tables while they are in memory (one rank at a time).
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
    "results": "perfscope.dashboards.web.views.results",
    "roofline": "perfscope.dashboards.web.views.roofline",
    "timeline": "perfscope.dashboards.web.views.timeline",
}


class Place(Struct, frozen=True, kw_only=True):
    """Where a view may write data too large for JSON: a folder per rank."""

    folder: Path
    number: int
    """Number of the trace, in reading order."""


class Gathered(Struct, frozen=True, kw_only=True):
    """The result of ``gather`` for one trace."""

    source: Source
    place: Place
    held: Any


class Job(Struct, frozen=True, kw_only=True):
    """All traces after judging. ``traces`` of a set hold only what comparing needs; ``report``: the JSON report."""

    analysis: Analysis
    traces: Sequence[Trace]
    report: Mapping[str, Any]
    gathered: Sequence[Gathered]
    """Output of this view's ``gather``, one per trace with all its tables, in reading order."""
    folder: Path
    """Where this view may write data too large for JSON."""


def view_module(name: str) -> ModuleType:
    """Return the module of a view; ``KeyError`` if the view does not exist."""
    return importlib.import_module(VIEWS[name])
