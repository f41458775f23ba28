"""Which ranges are the steps of the program's loop: perfscope's own, a profiler's, or ranges named like steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.readers.builder import Columns
from perfscope.analyzers.readers.kineto import categories
from perfscope.model.trace import SliceKind
from perfscope.model.trace.columns import MISSING, Array

_OWN_DOMAIN, _OWN_NAME, _OWN_EXIT = "perfscope", "step", "exit"
"""What ``perfscope.step()`` records (``profiler/session/annotate.py``). The exit closes a range that is not a step."""

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
    unfinished: int = 0
    """Ranges of the steps' name that the end of the recording or of the program closed: they are no steps."""


def find_steps(slices: Columns, domains: Array, strings: list[str], ended_ns: int | None) -> Steps:
    """The steps among ``slices`` (by thread, then start); ``domains``: code of each one's NVTX domain.

    ``ended_ns``: when the recording ended, if that is known: Nsight Systems closes then what is open.

    Steps do not overlap: where ranges of one name do, those of the thread with most of them are taken, the
    outermost alone.
    """
    if not slices:
        return Steps(columns={}, guessed=None)
    ranges = np.flatnonzero(slices["kind"] == int(SliceKind.ANNOTATION))
    texts = {code: strings[code] for code in np.unique(slices["name"][ranges]).tolist()}
    own = [code for code in np.unique(domains).tolist() if code != MISSING and strings[code] == _OWN_DOMAIN]
    mine = ranges[np.isin(domains[ranges], own)] if own else ranges[:0]
    exits = [row for row in mine.tolist() if texts[int(slices["name"][row])] == _OWN_EXIT]
    cut = _cut_off(slices, exits, ended_ns)
    for rows, numbers, guessed in (
        (mine, {code: MISSING for code, text in texts.items() if text == _OWN_NAME}, False),
        *((ranges, _numbers(texts, pattern, full=False), False) for pattern in categories.STEP_NAMES),
        (ranges, _numbers(texts, _NUMBERED, full=True), True),
        (ranges, {code: MISSING for code, text in texts.items() if _PLAIN.fullmatch(text)}, True),
    ):
        named_so = rows[np.isin(slices["name"][rows], list(numbers))] if numbers else rows[:0]
        chosen = _apart(slices, named_so[~cut[named_so]])
        if len(chosen) >= (LEAST if guessed else 1):
            named = [numbers[code] for code in slices["name"][chosen].tolist()]
            counted = [index if number == MISSING else number for index, number in enumerate(named)]
            columns = {name: slices[name][chosen] for name in ("start_ns", "end_ns", "name")}
            columns["number"] = np.array(counted, np.int64)
            return Steps(
                columns=columns,
                guessed=texts[int(slices["name"][chosen[0]])] if guessed else None,
                unfinished=int(cut[named_so].sum()),
            )
    return Steps(columns={}, guessed=None)


def _cut_off(slices: Columns, exits: list[int], ended_ns: int | None) -> Array:
    """Flag of each slice: its end is not its own. ``exits``: rows of the ranges that say so."""
    end = slices["end_ns"]
    cut = np.zeros(len(end), bool) if ended_ns is None else end >= ended_ns
    for row in exits:
        cut |= (
            (slices["start_ns"] < slices["start_ns"][row])
            & (end >= slices["start_ns"][row])
            & (end <= slices["end_ns"][row])
        )
    return cut


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
