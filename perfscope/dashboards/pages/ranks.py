"""Ranks: collectives side by side, who waited for whom, bandwidth."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.pages import Asked
from perfscope.dashboards.pages._cards import cards

TITLE = "Ranks"
VIEW = "ranks"


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page."""
    return cards(
        TITLE,
        view,
        nothing="One process: there are no ranks to compare. Open the folder that holds the traces of all ranks.",
    )
