"""Memory: peaks, who holds them, the picture over time."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.pages import Asked
from perfscope.dashboards.pages._cards import cards

TITLE = "Memory"
VIEW = "memory"


def layout(asked: Asked, view: dict[str, Any]) -> Any:
    """The page."""
    return cards(
        TITLE,
        view,
        nothing="No memory was recorded. perfscope run records it; torch.profiler does with profile_memory=True.",
    )
