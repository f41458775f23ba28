"""Base of all figures: plotly, if it is installed, and the common layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.errors import UsageError
from perfscope.model.version import install_command

if TYPE_CHECKING:
    import plotly.graph_objects as go


MS = 1_000_000
"""ns per millisecond: axes are in ms."""

HEIGHT = 360
"""Pixels of a figure without rows: two fit on a laptop's screen."""

MARK, RULE, FAILED = "#7b8794", "rgba(123,135,148,.35)", "#c4372b"
"""Colours of lines, visible on light and dark pages."""

LABEL_LIMIT = 60
"""Characters of a name on an axis: longer names leave no room for the bars."""

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def graph_objects() -> Any:
    """Return ``plotly.graph_objects``; ``UsageError`` names the extra to install if plotly is missing."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise UsageError(f"figures need plotly: {install_command('ui')}") from error
    return plotly.graph_objects


def plain(text: str) -> str:
    """Escape ``text`` for plotly, which parses a subset of HTML in every label."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def byte_unit(highest: float) -> tuple[str, int]:
    """Unit of an axis that reaches ``highest`` bytes, and its size in bytes."""
    power = min(max(int(highest).bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return UNITS[power], 1 << (10 * power)


def laid_out(figure: go.Figure, *, title: str, x: str, y: str | None = None, rows: int | None = None) -> go.Figure:
    """Set the titles, and for horizontal bars a height that fits ``rows`` of them."""
    figure.update_layout(
        title={"text": plain(title)},
        xaxis={"title": {"text": x}},
        yaxis={"title": {"text": y}, "automargin": True},
        margin={"l": 10, "r": 10, "t": 80, "b": 40},
        height=HEIGHT if rows is None else 160 + 30 * max(rows, 2),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        template="plotly_white",
    )
    return figure
