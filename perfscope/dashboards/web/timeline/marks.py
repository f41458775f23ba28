"""Findings on the clocks of their traces: the sections named by a rule, else the events it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from perfscope.dashboards.report.blocks import FindingBlock
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.dashboards.report.sections.findings import finding_blocks
from perfscope.dashboards.web.timeline.index import Index, load
from perfscope.dashboards.web.timeline.lanes import TABLES
from perfscope.dashboards.web.timeline.names import NAME_CHARS
from perfscope.dashboards.web.views import Gathered, Job
from perfscope.model.finding import MOST_SPANS, Finding
from perfscope.model.trace import Source
from perfscope.model.untrusted_text import sanitize

MOST_MARKED = 300
"""Most findings, costliest first; as many as the page of findings shows."""
_WORK = tuple(TABLES.index(table) for table in ("kernels", "copies"))


def ordered(job: Job) -> tuple[FindingBlock, ...]:
    """Findings in the order in which pages number them."""
    return finding_blocks(job.analysis)[:MOST_MARKED]


def numbers(sources: Sequence[Source], gathered: Sequence[Gathered]) -> dict[int, int]:
    """Position of a source in the analysis -> number of its trace: reading and display order differ."""
    free: dict[tuple[str, str, int | None], list[int]] = {}
    for item in gathered:
        free.setdefault(_key(item.source), []).append(item.place.number)
    result = {}
    for index, source in enumerate(sources):
        if held := free.get(_key(source)):
            result[index] = held.pop(0)
    return result


def _key(source: Source) -> tuple[str, str, int | None]:
    return source.path, source.format, source.rank


def spans_in(finding: Finding, known: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(trace, start, end) of the sections named by the rule, on each trace's clock; ``known``: from `numbers`."""
    return [(known[span.source], span.start_ns, span.end_ns) for span in finding.spans if span.source in known]


def marks(job: Job) -> list[dict[str, Any]]:
    """One finding each that has a time, by its number: rows of the picture, and their texts.

    ``how``: ``piece``: sections named by the rule; ``line`` or ``name``: the longest events of its line, or of its
    kernel or op. ``cut``: there may be more than these, which are the costliest. Times are texts, because a browser's
    numbers cannot hold them.
    """
    return [
        {
            "finding": index,
            "rule": words.rule,
            "title": (words.title + words.on_ranks).replace("`", ""),
            "severity": words.severity,
            "gain": words.gain,
            "known_by": words.basis,
            "how": item.how,
            "cut": len(item.spans) >= MOST_SPANS,
            "spans": [[trace, str(start), str(end)] for trace, start, end in item.spans],
        }
        for index, item in enumerate(marked(job, [item for item in job.gathered if item.held["events"]]))
        if item.spans
        for words in (finding_words(item.block),)
    ]


class Marked(Struct, frozen=True, kw_only=True):
    """A finding and its position in time. ``how``: as in `marks`."""

    block: FindingBlock
    how: str
    spans: Sequence[tuple[int, int, int]]
    """(trace, start, end), costliest or longest first; empty if nothing recorded belongs to it."""


def marked(job: Job, indexed: Sequence[Gathered]) -> Iterator[Marked]:
    """All findings as pages number them. ``indexed``: traces with events, in the order of the timeline's index."""
    known, events = numbers(job.analysis.sources, job.gathered), [_Events(item) for item in indexed]
    for block in ordered(job):
        how, spans = "piece", spans_in(block.finding, known)
        if not spans:
            how, spans = _by_place(block.finding, events)
        yield Marked(block=block, how=how, spans=spans)


class _Events:
    """The index of one trace with its lines and names, read once."""

    def __init__(self, item: Gathered) -> None:
        folder = item.place.folder
        self.number = item.place.number
        self.rank = item.source.rank
        self.index: Index = load(folder)
        self.site = np.load(folder / "site.npy")
        self.recorded = self.index.table != TABLES.index("frames")  # a sampled call may last as long as its step
        self.lines = {
            each["label"]: index for index, each in enumerate(_plain(folder / "sites.json", list[dict[str, str]]))
        }
        self.names = {text: code for code, text in _plain(folder / "texts.json", dict[int, str]).items()}

    def longest(self, rows: Any) -> list[tuple[int, int, int, int]]:
        """(length, trace, start, end) of the longest; device work only, if there is any, because its time counts."""
        work = rows[np.isin(self.index.table[rows], _WORK)]
        chosen = work if len(work) else rows
        length = self.index.end[chosen] - self.index.start[chosen]
        order = np.argsort(-length, kind="stable")[:MOST_SPANS]
        return [
            (int(length[at]), self.number, int(self.index.start[chosen[at]]), int(self.index.end[chosen[at]]))
            for at in order.tolist()
        ]

    def of_line(self, label: str) -> Any:
        index = self.lines.get(sanitize(label, NAME_CHARS))
        return np.flatnonzero((self.site == index) & self.recorded) if index is not None else np.empty(0, np.int64)

    def of_name(self, name: str) -> Any:
        code = self.names.get(sanitize(name, NAME_CHARS))
        return np.flatnonzero((self.index.name == code) & self.recorded) if code is not None else np.empty(0, np.int64)


def _by_place(finding: Finding, events: Sequence[_Events]) -> tuple[str, list[tuple[int, int, int]]]:
    """Events of the finding's subject, on the ranks that have it."""
    where = finding.where
    mine = [event for event in events if not finding.ranks or event.rank is None or event.rank in finding.ranks]
    looks = [("line", where.label())] if where.file is not None and where.line is not None else []
    looks += [("name", name) for name in (where.kernel, where.op) if name]
    for how, label in looks:
        results = [
            each
            for item in mine
            for each in item.longest(item.of_line(label) if how == "line" else item.of_name(label))
        ]
        if results:
            results.sort(key=lambda each: -each[0])
            return how, [(trace, start, end) for _, trace, start, end in results]
    return "piece", []


def _plain(path: Path, kind: Any) -> Any:
    return msgspec.json.decode(path.read_bytes(), type=kind)
