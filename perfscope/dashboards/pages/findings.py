"""Findings: each with its evidence, what to do about it, and what nobody looked at."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.pages import Asked
from perfscope.dashboards.pages._cards import cards

TITLE = "Findings"
VIEW = "findings"


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page."""
    return cards(TITLE, view, nothing="No rule was asked.")
