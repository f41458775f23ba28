"""Figures for notebooks: pure functions from a table to a plotly ``Figure``.

Figures need plotly, which is loaded when one is drawn: ``pip install 'perfscope[ui]'``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.memory.picture import memory_picture
from perfscope.dashboards.report.charts import FREE_COLOR, PARTS, TOO_MUCH, TRACED_COLOR
from perfscope.dashboards.report.sections.devices import fold_devices
from perfscope.dashboards.report.sections.memory_picture import (
    COLORS,
    ORDER,
    RESERVED_COLOR,
    UNSEEN_COLOR,
    category_words,
)
from perfscope.dashboards.report.sections.sweep import choice_words, colors_of, drawn, headline, words
from perfscope.dashboards.report.summary import FEW_STEPS
from perfscope.model.documents.sweep import Sweep, load
from perfscope.model.errors import UsageError
from perfscope.model.units import format_bytes
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from perfscope.analyzers.engine import Step
    from perfscope.analyzers.time import DeviceTime
    from perfscope.model.memory import MemoryTimeline
    from perfscope.model.trace import Trace

__all__ = ["device_time", "kernel_time", "memory_timeline", "pareto", "step_times", "timeline"]

MS = 1_000_000
"""ns of a millisecond: axes are in ms."""

HEIGHT = 360
"""Pixels of a figure without rows: two fit on a laptop's screen."""

LABEL_LIMIT = 60
"""Characters of a name on an axis: more leaves no room for the bars."""


def graph_objects() -> Any:
    """``plotly.graph_objects``; ``UsageError`` names the extra where plotly is not installed."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise UsageError("figures need plotly: pip install 'perfscope[ui]'") from error
    return plotly.graph_objects


def plain(text: str) -> str:
    """``text`` as plotly shows it literally: plotly reads a subset of HTML in every label."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def laid_out(figure: go.Figure, *, title: str, x: str, y: str | None = None, rows: int | None = None) -> go.Figure:
    """The figure with its titles and, of horizontal bars, a height that fits ``rows`` of them."""
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


def device_time(devices: Sequence[DeviceTime]) -> go.Figure:
    """A bar a device (``analysis.devices``): compute, exposed communication and copies, idle; in ms.

    Where there are many devices those that are alike share a bar, as in the reports.
    """
    plotly = graph_objects()
    rows = fold_devices(devices)
    labels = [plain(row.device if row.ranks == "-" else f"rank {row.ranks} · {row.device}") for row in rows]
    figure = plotly.Figure()
    for name, attribute, color in PARTS:
        times = [getattr(row, attribute) / MS for row in rows]
        figure.add_bar(name=name, y=labels, x=times, orientation="h", marker={"color": color})
    figure.update_layout(barmode="stack", yaxis={"autorange": "reversed"})
    return laid_out(figure, title="Device time", x="ms", rows=len(rows))


def kernel_time(trace: Trace, top: int = 20) -> go.Figure:
    """The ``top`` kernels by summed time in ms, and the rest as one bar. ``ValueError`` unless ``top`` > 0.

    Sums count parallel streams side by side, so together they may exceed the time the device was busy.
    """
    if top < 1:
        raise ValueError(f"top is {top}; it must be at least 1")
    plotly = graph_objects()
    kernels = trace.rows["kernels"]
    names, inverse, counts = np.unique(kernels["name"], return_inverse=True, return_counts=True)
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, inverse, kernels["end_ns"] - kernels["start_ns"])
    order = np.argsort(-totals, kind="stable")
    shown_rows, rest = order[:top], order[top:]
    labels = [sanitize(trace.text(int(names[row])), LABEL_LIMIT) or "(no name)" for row in shown_rows]
    times, calls = [int(totals[row]) for row in shown_rows], [int(counts[row]) for row in shown_rows]
    if len(rest):
        labels.append(f"{len(rest):,} other kernels")
        times.append(int(totals[rest].sum()))
        calls.append(int(counts[rest].sum()))
    figure = plotly.Figure()
    figure.add_bar(
        y=[f"{index + 1}. {plain(label)}" for index, label in enumerate(labels)],
        x=[time / MS for time in times],
        customdata=calls,
        hovertemplate="%{y}<br>%{x:.3f} ms in %{customdata} launches<extra></extra>",
        orientation="h",
        marker={"color": PARTS[0][2]},
    )
    figure.update_layout(yaxis={"autorange": "reversed"})
    return laid_out(figure, title="Kernel time", x="ms, summed over streams", rows=len(labels))


MOST_SYMBOLS = 40
"""Markers that plotly tells apart; of more ranks some share theirs."""


def step_times(steps: Sequence[Step]) -> go.Figure:
    """A point a step (``analysis.steps``) in ms, over its number; one colour a kind and a symbol a rank."""
    plotly = graph_objects()
    figure = plotly.Figure()
    kinds = sorted({(step.traced, -1 if step.rank is None else step.rank) for step in steps})
    for traced, rank in kinds:
        members = [
            step for step in steps if step.traced == traced and (step.rank if step.rank is not None else -1) == rank
        ]
        figure.add_scatter(
            name=("while traced" if traced else "no profiler on") + (f", rank {rank}" if rank >= 0 else ""),
            x=[step.number for step in members],
            y=[step.duration_ns / MS for step in members],
            mode="markers",
            marker={"color": TRACED_COLOR if traced else FREE_COLOR, "symbol": max(rank, 0) % MOST_SYMBOLS, "size": 9},
        )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(tickformat="d")
    if len({step.number for step in steps}) <= FEW_STEPS:
        figure.update_xaxes(dtick=1)
    return laid_out(figure, title="Step times", x="step", y="ms")


MOST_SPANS = 5_000
"""Bars that plotly still pans smoothly in a notebook."""


def timeline(
    trace: Trace, start_ns: int | None = None, end_ns: int | None = None, limit: int = MOST_SPANS
) -> go.Figure:
    """Kernels and copies that touch ``[start_ns, end_ns)``, a lane a stream, in ms from the window's start.

    Of more than ``limit`` the longest are drawn, and the title says how many there are. The window
    is on the trace's clock and spans everything if left out.
    """
    plotly = graph_objects()
    first, last = trace.span_ns()
    begin, finish = (first if start_ns is None else start_ns), (last if end_ns is None else end_ns)
    figure = plotly.Figure()
    parts = {"kernels": PARTS[0], "communication": PARTS[1], "copies": PARTS[2]}
    chosen = _longest_spans(trace, begin, finish, limit)
    total = sum(count for count, _ in chosen.values())
    for kind, (_, rows) in chosen.items():
        table = trace.rows["copies" if kind == "copies" else "kernels"]
        starts, ends = table["start_ns"][rows], table["end_ns"][rows]
        figure.add_bar(
            name=kind,
            base=(starts - begin) / MS,
            x=(ends - starts) / MS,
            y=[_lane(trace, int(table["device"][row]), int(table["stream"][row])) for row in rows],
            customdata=[plain(sanitize(trace.text(int(table["name"][row])), LABEL_LIMIT)) for row in rows],
            hovertemplate="%{customdata}<br>%{x:.4f} ms at %{base:.4f} ms<extra></extra>",
            orientation="h",
            marker={"color": parts[kind][2], "line": {"width": 0}},
        )
    drawn = sum(len(rows) for _, rows in chosen.values())
    title = "Timeline" if drawn == total else f"Timeline: the longest {drawn:,} of {total:,}"
    lanes = {lane for bar in figure.data for lane in bar.y}
    figure.update_layout(barmode="overlay")
    return laid_out(figure, title=title, x="ms", rows=len(lanes))


def _longest_spans(trace: Trace, begin: int, finish: int, limit: int) -> dict[str, tuple[int, np.ndarray]]:
    """(how many touch the window, rows of the longest) by kind, ``limit`` of all kinds together."""
    result: dict[str, np.ndarray] = {}
    for kind in ("kernels", "communication", "copies"):
        table = trace.rows["copies" if kind == "copies" else "kernels"]
        inside = (table["end_ns"] > begin) & (table["start_ns"] < finish)
        if kind != "copies":
            inside &= table["communication"] == (kind == "communication")
        result[kind] = np.flatnonzero(inside)
    durations = {
        kind: (table["end_ns"] - table["start_ns"])[rows]
        for kind, rows in result.items()
        for table in (trace.rows["copies" if kind == "copies" else "kernels"],)
    }
    everything = np.concatenate(list(durations.values()))
    if len(everything) > limit:
        kept = np.argsort(-everything, kind="stable")[:limit]
        keep = np.zeros(len(everything), bool)
        keep[kept] = True
        parts = np.split(keep, np.cumsum([len(rows) for rows in result.values()])[:-1])
        return {kind: (len(rows), rows[part]) for (kind, rows), part in zip(result.items(), parts, strict=True)}
    return {kind: (len(rows), rows) for kind, rows in result.items()}


def _lane(trace: Trace, device: int, stream: int) -> str:
    return f"device {int(trace.rows['devices']['ordinal'][device])} · stream {stream}"


MIB = 1 << 20
"""Bytes of the unit of the axis."""


def memory_timeline(trace: Trace, label: str | None = None) -> go.Figure:
    """Bytes in use by category as stacked areas in MiB: over ms, events or instructions, whatever the memory has.

    ``label``: which memory (``cuda:0``, ``host``, a program's name), the one with the highest peak if left out.
    At most 400 moments; of each part of the axis its highest is among them. ``UsageError`` if there is none.
    """
    plotly = graph_objects()
    timeline = _memory_named(trace, label)
    picture = memory_picture(trace, timeline)
    scale = MS if timeline.axis == "ns" else 1
    x = [(position - timeline.first) / scale for position in (*picture.positions.tolist(), timeline.last + 1)]
    held = dict(zip(picture.categories, picture.bytes.tolist(), strict=True))
    figure = plotly.Figure()

    def add(name: str, values: list[int], color: str) -> None:
        y = [value / MIB for value in (*values, values[-1])]
        figure.add_scatter(
            name=name, x=x, y=y, mode="lines", stackgroup="in use", line={"shape": "hv", "width": 0}, fillcolor=color
        )

    if picture.unseen_bytes:
        add("held before", [picture.unseen_bytes] * len(picture.positions), UNSEEN_COLOR)
    for category in ORDER:
        if any(held.get(category, ())):
            add(category_words(category), held[category], COLORS[category])
    if picture.reserved is not None:
        reserved = [value / MIB for value in (*picture.reserved.tolist(), int(picture.reserved[-1]))]
        figure.add_scatter(
            name="reserved", x=x, y=reserved, mode="lines", line={"shape": "hv", "color": RESERVED_COLOR}
        )
    position, bytes_ = timeline.peak()
    figure.add_scatter(
        name=f"peak {format_bytes(bytes_)}",
        x=[(position - timeline.first) / scale],
        y=[bytes_ / MIB],
        mode="markers",
        marker={"color": "#17202b", "size": 9},
    )
    unit = "ms" if timeline.axis == "ns" else timeline.axis
    title = f"Memory of {plain(sanitize(timeline.label, LABEL_LIMIT))}, {timeline.basis}"
    return laid_out(figure, title=title, x=unit, y="MiB")


def _memory_named(trace: Trace, label: str | None) -> MemoryTimeline:
    timelines = [timeline for timeline in trace.fact(memory_timelines) if label is None or timeline.label == label]
    if not timelines:
        known = ", ".join(sanitize(timeline.label) for timeline in trace.fact(memory_timelines)) or "none"
        raise UsageError(f"no such memory in the trace; it has: {known}")
    return max(timelines, key=lambda timeline: timeline.peak()[1])


GIB = 1 << 30


def pareto(sweep: Sweep | str | Path) -> go.Figure:
    """Peak in GiB against modelled ms of a step, a colour a choice, rings around the front. Both axes are logarithmic.

    ``sweep``: the document, or the path of one or of a sweep's folder. ``UsageError`` where nothing was judged.
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
            text=[plain(words(document, number)) for number in members],
            hovertemplate="%{text}<br>%{x:.3g} ms, %{y:.3g} GiB<extra></extra>",
        )
    for memory in sorted({variant.memory_bytes for variant in document.variants if variant.memory_bytes}):
        figure.add_hline(y=memory / GIB, line={"dash": "dash", "width": 1}, annotation_text=format_bytes(memory))
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return laid_out(figure, title=f"{headline(document)}, modelled", x="ms per step", y="GiB at the peak")
