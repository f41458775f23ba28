"""Plan: the meshes of a plan, from a document of `perfscope plan --json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.pages._documents import documents_mark, documents_page
from perfscope.dashboards.web.server.works import documents
from perfscope.plugins.plan.document import FILE, load
from perfscope.plugins.plan.sections import report_of

TITLE = "Plan"
VIEW = None
KEY = "n"
NOTHING = (
    "No plan is open here. Write one with perfscope plan --model config.json --target h100x64 --json plan.json, and "
    "open it with perfscope serve plan.json."
)


def layout(request: PageRequest, view: None) -> Any:
    """The page; ``plan`` in the address selects one of several documents."""
    return documents_page(request, _files(request), lambda file: report_of(load(file)), title=TITLE, nothing=NOTHING)


def mark(request: PageRequest) -> str:
    """Changes with the documents."""
    return documents_mark(_files(request))


def _files(request: PageRequest) -> tuple[Path, ...]:
    """Plans in the paths that the server was started with, newest first."""
    return documents(request.shelf, "plan", FILE, "*-plan*")
