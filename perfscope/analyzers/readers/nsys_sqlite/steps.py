"""Which ranges are the steps of the program's loop: perfscope's own, a profiler's, or ranges named like steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.readers.kineto_json import categories
from perfscope.analyzers.readers.kineto_json.grown import Columns
from perfscope.analyzers.trace import SliceKind
from perfscope.analyzers.trace.columns import MISSING, Array

_OWN_DOMAIN, _OWN_NAME = "perfscope", "step"
"""What ``perfscope.step()`` records: ``perfscope/profiler/annotate.py``."""

_WORDS = r"(?:train(?:ing)?|global|inference|decode)?[ _.:/-]*(?:step|iteration|iter)"
"""An optimizer's step is a part of a step."""
_NUMBERED = re.compile(rf"{_WORDS}[ _.:#=/-]*(\d{{1,12}})", re.IGNORECASE)
_PLAIN = re.compile(_WORDS, re.IGNORECASE)

LEAST = 2
"""Ranges of a guessed name: a single one may be the whole loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one process, and a word on how they were found where they were guessed from names."""

    columns: Columns
    guessed: str | None


def find_steps(slices: Columns, domains: Array, strings: list[str]) -> Steps:
    """The steps among ``slices`` (by thread, then start); ``domains``: code of each one's NVTX domain.

    Steps do not overlap: where ranges of one name do, those of the thread with most of them are taken, the
    outermost alone.
    """
    ranges = np.flatnonzero(slices["kind"] == int(SliceKind.ANNOTATION)) if slices else np.empty(0, np.int64)
    texts = {code: strings[code] for code in np.unique(slices["name"][ranges]).tolist()} if len(ranges) else {}
    own = [code for code in np.unique(domains).tolist() if code != MISSING and strings[code] == _OWN_DOMAIN]
    mine = ranges[np.isin(domains[ranges], own)] if own else ranges[:0]
    for rows, numbers, guessed in (
        (mine, {code: MISSING for code, text in texts.items() if text == _OWN_NAME}, False),
        *((ranges, _numbers(texts, pattern, full=False), False) for pattern in categories.STEP_NAMES),
        (ranges, _numbers(texts, _NUMBERED, full=True), True),
        (ranges, {code: MISSING for code, text in texts.items() if _PLAIN.fullmatch(text)}, True),
    ):
        chosen = rows[np.isin(slices["name"][rows], list(numbers))] if numbers else rows[:0]
        chosen = _apart(slices, chosen)
        if len(chosen) >= (LEAST if guessed else 1):
            named = [numbers[code] for code in slices["name"][chosen].tolist()]
            counted = [index if number == MISSING else number for index, number in enumerate(named)]
            columns = {name: slices[name][chosen] for name in ("start_ns", "end_ns", "name")}
            columns["number"] = np.array(counted, np.int64)
            return Steps(columns=columns, guessed=texts[int(slices["name"][chosen[0]])] if guessed else None)
    return Steps(columns={}, guessed=None)


def _numbers(texts: dict[int, str], pattern: re.Pattern[str], *, full: bool) -> dict[int, int]:
    match = pattern.fullmatch if full else pattern.match
    return {code: int(found[1][:18]) for code, text in texts.items() if (found := match(text)) is not None}


def _apart(slices: Columns, rows: Array) -> Array:
    """Of ``rows`` those of the thread with most, by start, without what begins before the one in front ended."""
    if not len(rows):
        return rows
    threads, counts = np.unique(slices["thread"][rows], return_counts=True)
    rows = rows[slices["thread"][rows] == threads[np.argmax(counts)]]
    rows = rows[np.lexsort((-slices["end_ns"][rows], slices["start_ns"][rows]))]
    kept, until = [], -(2**63)
    for row, start, end in zip(
        rows.tolist(), slices["start_ns"][rows].tolist(), slices["end_ns"][rows].tolist(), strict=True
    ):
        if start >= until:
            kept.append(row)
            until = end
    return np.array(kept, np.int64)
