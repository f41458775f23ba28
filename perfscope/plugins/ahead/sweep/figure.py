"""The figure of a sweep: peak memory by time of each variant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.dashboards.figures.drawing import (
    MS,
    graph_objects,
    laid_out,
    plain,
)
from perfscope.dashboards.report.charts import TOO_MUCH
from perfscope.model.errors import UsageError
from perfscope.model.units import format_bytes
from perfscope.plugins.ahead.sweep.document import Sweep, load
from perfscope.plugins.ahead.sweep.sections import choice_words, colors_of, drawn, headline

if TYPE_CHECKING:
    import plotly.graph_objects as go


GIB = 1 << 30


def pareto(sweep: Sweep | str | Path) -> go.Figure:
    """Peak in GiB by modelled ms per step, coloured by choice, rings around the front. Both axes are logarithmic.

    ``sweep``: the document, or the path of a document or of a sweep's folder. ``UsageError`` if nothing was evaluated.
    """
    plotly = graph_objects()
    document = sweep if isinstance(sweep, Sweep) else load(Path(sweep))
    numbers = drawn(document)
    if not numbers:
        raise UsageError("no variant of the sweep has both a time and a peak")
    figure = plotly.Figure()
    sized = any(axis.kind == "size" for axis in document.axes)
    for name, color in colors_of(document).items():
        members = [number for number in numbers if choice_words(document, document.variants[number]) == name]
        ones = [document.variants[number] for number in members]
        if not ones:
            continue
        times = [(variant.step_ns or 0) / MS for variant in ones]
        figure.add_scatter(
            name=plain(name) or "variants",
            x=times,
            y=[(variant.peak_bytes or 0) / GIB for variant in ones],
            mode="markers+lines" if sized else "markers",
            line={"color": color, "width": 1, "dash": "dot"},
            marker={
                "size": 10,
                "color": [TOO_MUCH if variant.state == "does not fit" else color for variant in ones],
                "line": {"width": [2 if variant.on_front else 0 for variant in ones], "color": "#17202b"},
            },
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(variant.step_high_ns or 0) / MS - time for variant, time in zip(ones, times, strict=True)],
                "arrayminus": [
                    time - (variant.step_low_ns or 0) / MS for variant, time in zip(ones, times, strict=True)
                ],
                "color": color,
                "thickness": 1,
            },
            text=[plain(variant.words()) for variant in ones],
            hovertemplate="%{text}<br>%{x:.3g} ms, %{y:.3g} GiB<extra></extra>",
        )
    for memory in sorted({variant.memory_bytes for variant in document.variants if variant.memory_bytes}):
        figure.add_hline(y=memory / GIB, line={"dash": "dash", "width": 1}, annotation_text=format_bytes(memory))
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return laid_out(figure, title=f"{headline(document)}, modelled", x="ms per step", y="GiB at the peak")
