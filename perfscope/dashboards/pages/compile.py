"""Compile: what torch.compile did, and the compiled programs of XLA."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.pages import Asked
from perfscope.dashboards.pages._cards import cards

TITLE = "Compile"
VIEW = "compile"


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page."""
    return cards(TITLE, view, nothing="Nothing here was compiled, or its log was not kept: perfscope run keeps it.")
