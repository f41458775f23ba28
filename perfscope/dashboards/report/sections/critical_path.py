"""The critical path of the steps by part, its largest members, and the modelled effect of changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from perfscope.analyzers.critical_path import PARTS
from perfscope.dashboards.report.blocks import Column, Section, table, tables
from perfscope.model.documents.causes import LEAST_SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.critical_path import PathRow, PathSummary, WhatIf

_WORDS = {
    "communication": "communication",
    "dependency": "gaps on the device",
    "host_op": "ops of the host",
    "launch": "launching",
    "other_host": "other host work",
    "sync": "return from waits",
}
MOST_ROWS = 12
MOST_PARTS = 6


def critical_path_sections(paths: Sequence[PathSummary]) -> tuple[Section, ...]:
    """One section: the path of a single recording, or one row per recording with its path by part."""
    known = [path for path in paths if path.whole_ns]
    if len(known) > 1:
        return (_by_rank(known),)
    return tuple(map(_section, known))


def _by_rank(paths: Sequence[PathSummary]) -> Section:
    total = {part: sum(path.parts_ns.get(part, 0) for path in paths) for part in PARTS}
    least = LEAST_SHARE * sum(total.values())
    parts = sorted((part for part in PARTS if total[part] > least), key=lambda part: -total[part])[:MOST_PARTS]
    columns: list[Column[PathSummary]] = [
        Column("rank", lambda path: path.rank, "count"),
        Column("step", lambda path: path.whole_ns // max(path.steps, 1), "ns"),
        *(Column(part_words(part), partial(_share, part), "share") for part in parts),
    ]
    return Section(
        title="Critical paths",
        summary=f"what limits a step of each rank by itself: {len(paths)} ranks",
        blocks=tables(table(columns, paths, few=8)),
    )


def _share(part: str, path: PathSummary) -> float:
    return path.parts_ns.get(part, 0) / path.whole_ns


def _section(path: PathSummary) -> Section:
    steps = max(path.steps, 1)
    shown = (part for part, time in path.parts_ns.items() if time >= LEAST_SHARE * path.whole_ns)
    parts = sorted(shown, key=lambda part: (-path.parts_ns[part], PARTS.index(part)))
    largest = ", ".join(f"{part_words(part)} {100 * path.parts_ns[part] / path.whole_ns:.1f}%" for part in parts[:3])
    columns: tuple[Column[str], ...] = (
        Column("part", part_words),
        Column("time", lambda part: path.parts_ns[part] // steps, "ns"),
        Column("share", lambda part: path.parts_ns[part] / path.whole_ns, "share"),
    )
    rows: tuple[Column[PathRow], ...] = (
        Column("on the path", lambda row: row.name, "code"),
        Column("in", lambda row: row.where),
        Column("time", lambda row: row.total_ns // steps, "ns"),
        Column("share", lambda row: row.total_ns / path.whole_ns, "share"),
        Column("launched by", lambda row: row.op, "code", drop=1),
        Column("line", lambda row: row.line, "place", drop=2),
    )
    return Section(
        title="Critical path",
        summary=f"what limits {'a step, mean of all' if path.steps else 'the capture'}: {largest}",
        blocks=tables(
            table(columns, parts, few=len(parts), bar="shares", detail=True),
            table(rows, path.rows[:MOST_ROWS], few=5),
        ),
    )


def what_if_sections(what_ifs: Sequence[WhatIf]) -> tuple[Section, ...]:
    """A section for the changes given with ``--what-if``; empty without changes."""
    if not what_ifs:
        return ()
    columns: tuple[Column[WhatIf], ...] = (
        Column("if", lambda answer: answer.text, "code"),
        Column("a step takes", lambda answer: answer.after_ns // answer.steps, "ns"),
        Column("now", lambda answer: answer.before_ns // answer.steps, "ns"),
        Column("change", lambda answer: -answer.saved_ns / answer.before_ns if answer.before_ns else None, "change"),
        Column("pieces changed", lambda answer: answer.nodes, "count"),
    )
    return (
        Section(
            title="Effect of changes",
            summary="modelled: the dependencies of the traced steps are played again, all else as it was",
            blocks=tables(table(columns, what_ifs, few=len(what_ifs))),
        ),
    )


def part_words(part: str) -> str:
    """A part of the path in words."""
    return _WORDS.get(part, part.replace("_", " "))
