"""A defect and its twin as one small SVG: a traced step of both runs at one time scale, the finding marked in red.

Rows are threads and streams of the timeline (`perfscope.dashboards.web.timeline`) with the colours of its categories;
of nested events the innermost is drawn. A job has one row per rank, its busiest thread. The step is the shortest of
those with events of the finding, because a busy machine makes steps longer.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.time.steps import account_windows
from perfscope.dashboards.report.sections.findings import finding_blocks
from perfscope.dashboards.web.timeline.index import Index, build, edges_of
from perfscope.dashboards.web.timeline.lanes import CATEGORY_WORDS, COLORS, Category, events_of
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

WIDE = 340
"""Width of the picture, px: it fits on a phone; one column of it is one px."""
ROW, GAP, HEAD, MARK = 12, 2, 17, 4
"""Heights: of a row, between rows, of the words above them, and of the marks."""
MOST_ROWS, MOST_RANKS = 3, 4
LEAST_BUSY = 0.02
"""Least share of the window in which a further thread works, to have its own row."""
LEAST_FILLED = 0.15
"""Least share of a column that its work fills; otherwise it is empty."""
UNSEEN = (Category.STEP, Category.ANNOTATION, Category.MODULE, Category.OVERHEAD)
"""Categories of frames around the work."""
MARKED = "#e02020"

Columns = npt.NDArray[np.int64]
"""Category of each column, -1: empty. Shape (WIDE,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """One trace of a run."""

    index: Index
    start_ns: int
    end_ns: int
    """Ends of the step."""
    marks: tuple[tuple[int, int], ...]
    """Start and end of the events of the finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """What is drawn of one run."""

    tracks: tuple[_Track, ...]

    @property
    def window_ns(self) -> int:
        """Length of the longest step."""
        return max(track.end_ns - track.start_ns for track in self.tracks)


def strip_of(traces: Sequence[Trace], analysis: Analysis, rules: Container[str]) -> Strip | None:
    """The strip of a run, with the first finding of ``rules`` marked; ``None`` without steps on a clock."""
    found = next((block.finding for block in finding_blocks(analysis) if block.rule in rules), None)
    tracks = [
        _Track(index=build(events_of(trace)), start_ns=start, end_ns=end, marks=marks)
        for number, trace in enumerate(traces)
        for marks in (_marks(found, number),)
        for start, end in _step(trace, marks)
    ]
    return Strip(tracks=tuple(tracks)) if tracks else None


def _marks(finding: Finding | None, source: int) -> tuple[tuple[int, int], ...]:
    spans = () if finding is None else finding.spans
    return tuple((span.start_ns, span.end_ns) for span in spans if span.source == source)


def _step(trace: Trace, marks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The shortest step that holds a mark, of all if none does; empty without steps."""
    windows = trace.fact(account_windows)
    steps = sorted(zip(windows.starts.tolist(), windows.ends.tolist(), strict=True), key=lambda step: step[1] - step[0])
    marked = [step for step in steps if any(start < step[1] and end > step[0] for start, end in marks)]
    return (marked or steps)[:1]


def svg(defect: Strip, twin: Strip | None) -> str:
    """Both runs, one above the other."""
    window = max(strip.window_ns for strip in (defect, twin) if strip is not None)
    parts, y = [], 2
    for name, strip in (("with the defect", defect), ("its twin", twin)):
        if strip is not None:
            drawn, y = _strip(name, strip, window, y)
            parts += drawn
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE + 8} {y + 2}" width="{WIDE + 8}" height="{y + 2}"'
        ' font-family="system-ui,sans-serif" font-size="11.5">\n'
        f'<rect width="100%" height="100%" rx="3" fill="#fff"/>\n<g transform="translate(4)">\n{body}\n</g>\n</svg>\n'
    )


def _strip(name: str, strip: Strip, window: int, y: int) -> tuple[list[str], int]:
    lines = [f'<text y="{y + 12}" fill="#333">{name}, {format_ns(strip.window_ns)}</text>']
    y += HEAD
    several = len(strip.tracks) > 1
    rows: list[tuple[_Track, Columns]] = []
    for track in strip.tracks[:MOST_RANKS]:
        rows += [(track, columns) for columns in _rows(track, window)[: 1 if several else MOST_ROWS]]
    marked: set[int] = set()
    for track, columns in rows:
        if track.marks and id(track) not in marked:
            marked.add(id(track))
            lines.append(_path(MARKED, MARK - 1, y + 1, _marked(track, window)))
            y += MARK
        end = _pixel(track, track.end_ns, window)
        lines.append(f'<rect y="{y}" width="{max(end, 1)}" height="{ROW}" fill="#eef0f3"/>')
        lines += [
            _path(COLORS["light"][category], ROW, y + ROW // 2, columns == category)
            for category in np.unique(columns[columns >= 0]).tolist()
        ]
        y += ROW + GAP
    return lines, y + 3


def _pixel(track: _Track, time: int, window: int) -> int:
    return round(WIDE * (time - track.start_ns) / max(window, 1))


def _marked(track: _Track, window: int) -> npt.NDArray[np.bool_]:
    filled = np.zeros(WIDE, bool)
    for start, end in track.marks:
        low, high = _pixel(track, start, window), _pixel(track, end, window)
        if start < track.end_ns and end > track.start_ns:
            filled[max(low, 0) : max(high, low + 1)] = True
    return filled


def _path(color: str, height: int, y: int, filled: npt.NDArray[np.bool_]) -> str:
    """Runs of filled columns as one stroke."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], filled.astype(np.int8), [0]))))
    place, words = 0, [f"M0 {y}"]
    for low, high in edges.reshape(-1, 2).tolist():
        words.append(f"m{low - place} 0h{high - low}")
        place = high
    return f'<path stroke="{color}" stroke-width="{height}" d="{"".join(words)}"/>'


def _rows(track: _Track, window: int) -> list[Columns]:
    """The busiest threads and streams, the busiest first."""
    edges = edges_of(track.start_ns, track.start_ns + max(window, WIDE), WIDE)
    inside = edges[:-1] < track.end_ns
    busiest = []
    for lanes in _lines(track.index):
        columns = _columns(track.index, lanes, edges)
        busiest.append((float((columns[inside] >= 0).mean()), np.where(inside, columns, -1)))
    busiest.sort(key=lambda each: -each[0])
    return [columns for number, (busy, columns) in enumerate(busiest) if busy and (not number or busy > LEAST_BUSY)]


def _lines(index: Index) -> Iterator[list[int]]:
    """Lanes of each thread or stream, outermost first; Python frames of a thread come with it."""
    held: dict[tuple[str, str], list[int]] = {}
    for number, lane in enumerate(index.lanes):
        if lane.group:
            label = lane.label.removesuffix(", Python").replace("sampled stack ", "thread ")
            held.setdefault((lane.group, label), []).append(number)
    yield from held.values()


def _columns(index: Index, lanes: Iterable[int], edges: npt.NDArray[np.int64]) -> Columns:
    """Category of the innermost work in each column."""
    size = np.diff(edges).astype(np.float64)
    own = np.zeros((len(CATEGORY_WORDS), len(size)))
    work = [lane for lane in lanes if not _of_python(index, lane)]
    layers = [index.busy(lane, edges) for lane in work]
    totals = [busy.sum(axis=0) for _, busy in layers] + [np.zeros(len(size))]
    for (kinds, busy), total, below in zip(layers, totals, totals[1:], strict=False):
        kept = np.maximum(total - below, 0) / np.maximum(total, 1)
        for kind, time in zip(kinds, busy, strict=True):
            own[kind] += time * kept
    own[list(UNSEEN)] = 0
    filled = own.sum(axis=0)
    python = np.zeros(len(size))
    for lane in lanes:
        if _of_python(index, lane):
            python = np.maximum(python, index.busy(lane, edges)[1].sum(axis=0))
    own[Category.PYTHON] += np.maximum(python - filled, 0)
    return np.where(own.max(axis=0) >= LEAST_FILLED * size, own.argmax(axis=0), -1)


def _of_python(index: Index, lane: int) -> bool:
    label = index.lanes[lane].label
    return label.endswith(", Python") or label.startswith("sampled stack ")


def legend() -> str:
    """The colours of the pictures in words, as a picture."""
    shown = [*range(len(CATEGORY_WORDS))]
    words = [(COLORS["light"][kind], CATEGORY_WORDS[kind]) for kind in shown if Category(kind) not in UNSEEN]
    words.append((MARKED, "events of the first finding"))
    parts, x, y = [], 4.0, 4
    for color, text in words:
        width = 18 + 6.2 * len(text)
        if x + width > 2 * WIDE:
            x, y = 4.0, y + 17
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="11" height="11" fill="{color}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="{y + 10}" fill="#333">{escape(text)}</text>')
        x += width + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDE + 8} {y + 18}" width="{2 * WIDE + 8}"'
        f' height="{y + 18}" font-family="system-ui,sans-serif" font-size="11.5">\n'
        f'<rect width="100%" height="100%" rx="3" fill="#fff"/>\n{"".join(parts)}\n</svg>\n'
    )
