"""Figures for notebooks: pure functions from a table to a plotly ``Figure``.

Figures need plotly, which is loaded when one is drawn: ``pip install 'perfscope[ui]'``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.memory.picture import memory_picture
from perfscope.analyzers.savings import FEW_STEPS
from perfscope.dashboards.report.charts import CAUSE_COLORS, FREE_COLOR, PARTS, TOO_MUCH, TRACED_COLOR
from perfscope.dashboards.report.sections.account import cause_words
from perfscope.dashboards.report.sections.devices import fold_devices
from perfscope.dashboards.report.sections.memory_picture import (
    COLORS,
    ORDER,
    PHASE_COLORS,
    RESERVED_COLOR,
    UNSEEN_COLOR,
    category_words,
)
from perfscope.dashboards.report.sections.sweep import choice_words, colors_of, drawn, headline, words
from perfscope.model.documents.sweep import Sweep, load
from perfscope.model.errors import UsageError
from perfscope.model.trace import MISSING
from perfscope.model.units import format_bytes, format_count, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go

    from perfscope.analyzers.engine import Step
    from perfscope.analyzers.time import Cause, DeviceTime, StepAccount
    from perfscope.model.memory import MemoryTimeline
    from perfscope.model.trace import Trace

__all__ = [
    "device_time", "heat_map", "kernel_time", "memory_curve", "memory_timeline", "pareto", "roofline",
    "step_account", "step_times", "timeline",
]  # fmt: skip

MS = 1_000_000
"""ns of a millisecond: axes are in ms."""

HEIGHT = 360
"""Pixels of a figure without rows: two fit on a laptop's screen."""

MARK, RULE, FAILED = "#7b8794", "rgba(123,135,148,.35)", "#c4372b"
"""Of lines: all are seen on a light and on a dark page."""

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


MOST_STEP_BARS = 300
"""Of an account: more are narrower than can be told apart; of several devices each has one bar then."""


def step_account(accounts: Sequence[StepAccount], links: Sequence[Sequence[str]] = ()) -> go.Figure:
    """A bar a step (``analysis.accounts``), stacked by cause, in ms: the causes sum to the step exactly.

    Devices and ranks stand side by side. Where all steps together are more than ``MOST_STEP_BARS``, a bar is the mean
    step of a device. ``links``: for each account an address for each step, kept as the ``customdata`` of its bars.
    """
    plotly = graph_objects()
    shown = [account for account in accounts if account.whole_ns]
    on_host = all(account.device == MISSING for account in shown)
    means = len(shown) > 1 and sum(max(1, len(account.numbers)) for account in shown) > MOST_STEP_BARS
    outer, inner, data = [], [], []
    for index, account in enumerate(shown):
        where = list(links[index]) if index < len(links) else []
        numbers = [f"step {number}" for number in account.numbers] or ["capture"]
        kept = ["mean step"] if means else numbers[:MOST_STEP_BARS]
        outer += [plain(_account_label(account, shown))] * len(kept)
        inner += kept
        data += (where + [""] * len(kept))[: len(kept)]
    one_each = len(inner) == len(shown)
    axis: Any = inner if len(shown) == 1 else outer if one_each else [outer, inner]
    figure = plotly.Figure()
    for cause, color in CAUSE_COLORS.items():
        values = [item for account in shown for item in _bars_of(account, cast("Cause", cause), means=means)]
        if any(values):
            whole = [item for account in shown for item in _wholes_of(account, means=means)]
            words = cause_words(cast("Cause", cause), on_host=on_host)
            text = [
                f"{words}: {format_ns(value)} ({format_share(value, total)})"
                for value, total in zip(values, whole, strict=True)
            ]
            figure.add_bar(
                name=f"{words} {format_share(sum(values), sum(whole))}", x=axis,
                y=[value / MS for value in values], customdata=data, hovertext=text,
                hovertemplate="%{x}<br>%{hovertext}<extra></extra>", marker={"color": color},
            )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.12)
    title = "Mean step by cause" if means else "Steps by cause"
    return laid_out(figure, title=title, x="", y="ms")


def _account_label(account: StepAccount, accounts: Sequence[StepAccount]) -> str:
    """The rank; the device where the rank has several, or is not known."""
    alone = account.rank is not None and sum(other.rank == account.rank for other in accounts) == 1
    device = "" if account.device == MISSING or alone else f"device {account.ordinal}"
    rank = "" if account.rank is None else f"rank {account.rank}"
    return sanitize(" ".join(filter(None, (rank, device))) or "host", LABEL_LIMIT)


def _bars_of(account: StepAccount, cause: Cause, *, means: bool) -> list[int]:
    values = list(account.causes_ns.get(cause, ())) or [0] * max(1, len(account.numbers))
    return [sum(values) // len(values)] if means else values[:MOST_STEP_BARS]


def _wholes_of(account: StepAccount, *, means: bool) -> list[int]:
    values = [sum(step) for step in zip(*account.causes_ns.values(), strict=True)]
    return [sum(values) // len(values)] if means else values[:MOST_STEP_BARS]


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


UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
NEAR = 1.5
"""The device's size is drawn where the peak comes within it: else it would press all areas flat."""
MOST_STEP_NAMES = 12
"""Steps whose numbers stand above the areas: more would run into each other."""


def memory_timeline(trace: Trace, label: str | None = None) -> go.Figure:
    """The `memory_curve` of a memory of ``trace``: by time, events or instructions, whatever it has.

    ``label``: which memory (``cuda:0``, ``host``, a program's name), the one with the highest peak if left out.
    At most 400 moments; of each part of the axis its highest is among them. ``UsageError`` if there is none.
    """
    timeline = _memory_named(trace, label)
    figure = memory_curve(curve_of(trace, timeline))
    title = f"Memory of {plain(sanitize(timeline.label, LABEL_LIMIT))}, {timeline.basis}"
    return figure.update_layout(title={"text": title}, margin={"t": 110})


def curve_of(trace: Trace, timeline: MemoryTimeline) -> dict[str, Any]:
    """What `memory_curve` draws, as plain data. Positions are counted from ``first``, and bytes hold up to the next.

    ``first`` is a decimal number, since it may be beyond a float. ``areas``: bottom to top; they sum to what is in use.
    """
    picture = memory_picture(trace, timeline)
    first = timeline.first
    bytes_of = dict(zip(picture.categories, picture.bytes.tolist(), strict=True))
    areas = [
        {"name": category_words(category), "color": COLORS[category], "bytes": bytes_of[category]}
        for category in ORDER
        if any(bytes_of.get(category, ()))
    ]
    if picture.unseen_bytes:
        before = [picture.unseen_bytes] * len(picture.positions)
        areas.insert(0, {"name": "allocated before", "color": UNSEEN_COLOR, "bytes": before})
    position, peak_bytes = timeline.peak()
    return {
        "axis": timeline.axis,
        "first": str(first),
        "span": timeline.last - first + 1,
        "positions": (picture.positions - first).tolist(),
        "areas": areas,
        "reserved": None if picture.reserved is None else picture.reserved.tolist(),
        "capacity": timeline.capacity_bytes,
        "peak": {"place": int(np.flatnonzero(picture.positions == position)[0]), "bytes": peak_bytes},
        "steps": [{"name": band.name, "start": band.start - first, "end": band.end - first} for band in picture.steps],
        "phases": [
            {"name": band.name, "start": band.start - first, "end": band.end - first} for band in picture.phases
        ],
        "failed": [failure - first for failure in timeline.out_of_memory[:MOST_FAILURES]],
        "unseen": picture.unseen_bytes,
    }


MOST_FAILURES = 200
"""Failed allocations that are marked."""


def memory_curve(curve: Mapping[str, Any], at: int | None = None) -> go.Figure:
    """Bytes in use by category as stacked areas, with what is reserved, the peak, phases and steps.

    ``curve``: as of `curve_of`. ``at``: a position that is marked. The data of a point is its position.
    """
    figure = graph_objects().Figure()
    timed, positions = curve["axis"] == "ns", curve["positions"]
    scale = 1e9 if timed else 1
    x = [position / scale for position in (*positions, curve["span"])]
    highest = max(curve["peak"]["bytes"], *(curve["reserved"] or (0,)))
    power = min(max(highest.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    unit, size = UNITS[power], 1 << (10 * power)

    def add(name: str, values: Sequence[int], **options: Any) -> None:
        figure.add_scatter(
            name=name, x=x, y=[value / size for value in (*values, values[-1])], mode="lines",
            customdata=[*positions, positions[-1]], hovertemplate=f"%{{y:.4~g}} {unit}", **options,
        )  # fmt: skip

    for area in curve["areas"]:
        add(area["name"], area["bytes"], stackgroup="in use", line={"shape": "hv", "width": 0}, fillcolor=area["color"])
    if curve["reserved"]:
        add("reserved", curve["reserved"], line={"shape": "hv", "color": RESERVED_COLOR, "width": 1.5})
    peak = curve["peak"]
    top = f"peak {format_bytes(peak['bytes'])}"
    figure.add_scatter(
        name=top, x=[x[peak["place"]]], y=[peak["bytes"] / size], mode="markers", hoverinfo="skip",
        marker={"color": MARK, "size": 9}, customdata=[positions[peak["place"]]],
    )  # fmt: skip
    if at is not None:
        figure.add_vline(at / scale, line={"color": MARK, "width": 1.5})
    for failure in curve["failed"]:
        figure.add_vline(failure / scale, line={"color": FAILED, "dash": "dash", "width": 1.5})
    if curve["capacity"] and curve["capacity"] <= NEAR * highest:
        figure.add_hline(
            curve["capacity"] / size, line={"color": FAILED, "dash": "dash", "width": 1.5},
            annotation_text="size of the device",
        )  # fmt: skip
    for band in curve["phases"]:
        figure.add_shape(
            type="rect", yref="paper", x0=band["start"] / scale, x1=band["end"] / scale, y0=1.01, y1=1.05,
            fillcolor=PHASE_COLORS[band["name"]], line={"width": 0},
        )  # fmt: skip
    for name in dict.fromkeys(band["name"] for band in curve["phases"]):
        figure.add_bar(name=f"{name} (above)", x=[None], y=[None], marker={"color": PHASE_COLORS[name]})
    for number, band in enumerate(curve["steps"]):
        if number:
            figure.add_vline(band["start"] / scale, line={"color": RULE, "dash": "dot", "width": 1})
        if len(curve["steps"]) <= MOST_STEP_NAMES:
            figure.add_annotation(
                text=plain(f"step {band['name']}"), x=band["start"] / scale, y=1.06, yref="paper", showarrow=False,
                xanchor="left", yanchor="bottom",
            )  # fmt: skip
    laid_out(figure, title="", x="" if timed else curve["axis"], y=unit)
    figure.update_xaxes(range=[0, x[-1]], **({"tickformat": "~s", "ticksuffix": "s"} if timed else {}))
    return figure.update_layout(hovermode="x unified", hoverdistance=-1, margin={"t": 60}, legend={"y": 1.14})


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


BOUNDS = {
    "compute": ("arithmetic", "#4a86e0"),
    "memory": ("memory", "#c8731d"),
    "link": ("links", "#8f63d4"),
    "": ("no roof known", "#4f8a66"),
}
"""What holds a point back: its words and its colour."""
LEAST_DISC, MOST_DISC = 6, 46
"""Pixels across of the shortest and the longest point."""
LEAST_INTENSITY = 1e-3
"""FLOPs per byte. Fewer are a move with a counter beside it: no roof but that of memory is anywhere near."""


def roofline(
    points: Sequence[Mapping[str, Any]], devices: Sequence[Mapping[str, Any]], chosen: str | None = None
) -> go.Figure:
    """FLOP/s against FLOPs per byte on logarithmic axes: a disc a point, as large as its time, and the devices' roofs.

    ``points``: ``name``, ``line``, ``ns``, ``share``, ``basis``, ``rate`` (FLOP/s), ``intensity`` (FLOP/byte),
    ``of_roof`` and ``bound`` (of `BOUNDS`) each; those without a rate are left out. ``devices``: ``bandwidth``
    (bytes/s) and ``peaks`` (``label``, ``flops``) each. ``chosen``: the name of points that are marked. The data of a
    point is its name.
    """
    figure = graph_objects().Figure()
    drawn = [point for point in points if (point["rate"] or 0) > 0 and (point["intensity"] or 0) >= LEAST_INTENSITY]
    drawn.sort(key=lambda point: -point["ns"])  # so that small ones lie above large ones
    longest = max((point["ns"] for point in drawn), default=1)
    for device in devices:
        ridges = [(peak["flops"] / device["bandwidth"], peak) for peak in device["peaks"]]
        left = min((point["intensity"] for point in drawn), default=1) / 3
        right = 8 * max([left, *(ridge for ridge, _ in ridges), *(point["intensity"] for point in drawn)])
        lines: list[tuple[float | None, float | None]] = []
        for ridge, peak in ridges:
            start = left if peak is ridges[-1][1] else ridge
            lines += [(start, min(start * device["bandwidth"], peak["flops"])), (ridge, peak["flops"])]
            lines += [(right, peak["flops"]), (None, None)]
            figure.add_annotation(
                text=plain(f"{peak['label']} {format_count(peak['flops'])}FLOP/s"), x=np.log10(0.99 * right),
                y=np.log10(peak["flops"]), showarrow=False, xanchor="right", yanchor="bottom",
            )  # fmt: skip
        figure.add_scatter(
            name=f"roofs of {plain(device['name'])}", x=[x for x, _ in lines], y=[y for _, y in lines], mode="lines",
            line={"color": MARK, "width": 1.5}, hoverinfo="skip")  # fmt: skip
    for bound, (title, color) in BOUNDS.items():
        members = [point for point in drawn if (point["bound"] if point["bound"] in BOUNDS else "") == bound]
        if members:
            figure.add_scatter(
                name=title, x=[point["intensity"] for point in members], y=[point["rate"] for point in members],
                mode="markers", customdata=[point["name"] for point in members],
                text=[_point_words(point) for point in members], hovertemplate="%{text}<extra></extra>",
                marker={
                    "color": color, "opacity": 0.6,
                    "size": [max(LEAST_DISC, MOST_DISC * (point["ns"] / longest) ** 0.5) for point in members],
                    "line": {"color": MARK, "width": [4 if point["name"] == chosen else 0.7 for point in members]},
                },
            )  # fmt: skip
    for axis in ("x", "y"):
        marks = _round_marks([value for trace in figure.data for value in trace[axis] if value] or [1.0])
        texts = [
            f"{mark:g}" if axis == "x" else format_count(mark).replace(".00", "").replace(".0", "") for mark in marks
        ]
        figure.update_layout({f"{axis}axis": {"type": "log", "tickvals": marks, "ticktext": texts}})
    laid_out(figure, title="", x="FLOPs per byte of device memory", y="FLOP/s")
    return figure.update_layout(height=460, margin={"t": 40}, legend={"itemsizing": "constant"})


def _round_marks(values: Sequence[float]) -> list[float]:
    """Marks of a logarithmic axis around what is drawn: powers of ten, of few of them their double and half too."""
    powers = range(int(np.log10(min(values)) // 1) - 1, int(np.log10(max(values)) // 1) + 2)
    return [float(f"{step}e{power}") for power in powers for step in ((1, 2, 5) if len(powers) < 7 else (1,))]


def _point_words(point: Mapping[str, Any]) -> str:
    share = format_share(point["share"], 1)
    roof = [] if point["of_roof"] is None else [f"{format_share(point['of_roof'], 1)} of its roof"]
    rate = f"{format_count(point['rate'])}FLOP/s at {point['intensity']:.3g} FLOP/byte"
    lines = [point["name"], f"{format_ns(point['ns'])} ({share}), {point['basis']}", rate, *roof, point["line"]]
    return "<br>".join(plain(line) for line in lines if line)


WAIT_COLOR, BUSY_COLOR = "200,48,32", "52,120,214"
"""Red for waiting, which is lost, blue for work; faint where there is little of it, on a light and a dark page."""
SHADES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_ROW_PX, LEAST_MAP_PX, MOST_MAP_PX = 26, 90, 520


def heat_map(heat: Mapping[str, Any], kind: Literal["wait", "busy"]) -> go.Figure:
    """Ranks against collectives (``wait``: how long each waited) or steps (``busy``: share its device worked in).

    ``heat``: ``rows`` (``label`` each), ``columns`` (their number), ``labels`` (a column each) and ``value`` (row by
    row, ns or shares; ``None`` where there is none). Waits spread over decades: the colour is of their square root.
    """
    columns, rows = heat["columns"], heat["rows"]
    scale, color = (1e9, WAIT_COLOR) if kind == "wait" else (1, BUSY_COLOR)
    values = [None if value is None else value / scale for value in heat["value"]]
    figure = graph_objects().Figure()
    figure.add_heatmap(
        z=[values[index * columns : (index + 1) * columns] for index in range(len(rows))],
        x=_distinct(heat["labels"]),
        y=_distinct([row["label"] for row in rows]),
        zmin=0,
        zmax=1 if kind == "busy" else None,
        colorscale=[
            (share**2 if kind == "wait" else share, f"rgba({color},{0.06 + 0.94 * share:.2f})") for share in SHADES
        ],
        colorbar={"thickness": 12, "tickformat": ".2~s" if kind == "wait" else ".0%", "outlinewidth": 0}
        | ({"ticksuffix": "s"} if kind == "wait" else {}),
        hovertemplate="%{y}<br>%{x}<br>"
        + ("waited %{z:.3~s}s" if kind == "wait" else "device busy %{z:.1%}")
        + "<extra></extra>",
        hoverongaps=False,
        xgap=1 if columns < 120 else 0,
        ygap=1 if len(rows) < 64 else 0,
    )
    laid_out(figure, title="", x="collectives in order" if kind == "wait" else "")
    figure.update_xaxes(showticklabels=kind == "busy" and columns <= MOST_SYMBOLS, showgrid=False, type="category")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    height = min(max(LEAST_MAP_PX, MOST_ROW_PX * len(rows)), MOST_MAP_PX)
    return figure.update_layout(height=height + 60, margin={"t": 10})


def _distinct(labels: Sequence[str]) -> list[str]:
    """Labels of a category axis: plotly takes equal ones for one category."""
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append(plain(label if seen[label] == 1 else f"{label} ({seen[label]})"))
    return result
