"""Compiled programs in the document of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.compare.program_units import UNITS

if TYPE_CHECKING:
    from perfscope.analyzers.compare.program_row import Amounts, ProgramChange, ProgramRow

MOST_ROWS = 2_000
"""Rows of a program that are written; the rest is one, so that they sum to the whole still."""

MOST_WRITTEN = 500


def programs(found: Iterable[ProgramChange]) -> list[dict[str, Any]]:
    """Each program as plain dicts and lists."""
    return [_program(one) for one in found]


def _program(change: ProgramChange) -> dict[str, Any]:
    kept, rest = change.rows[:MOST_ROWS], change.rows[MOST_ROWS:]
    left = {name: (_sum(rest, name, 0), _sum(rest, name, 1)) for name in change.totals}
    modelled = [None, None] if change.modelled_ns is None else [{"low": a, "high": b} for a, b in change.modelled_ns]
    return {
        "name": change.name,
        "base_fingerprint": change.base_fingerprint,
        "head_fingerprint": change.head_fingerprint,
        "identical": change.identical,
        "amounts": _amounts(change.totals),
        "rows": [_row(row) for row in kept],
        "other_rows": {
            "count": len(rest),
            "amounts": _amounts({name: held for name, held in left.items() if held[0] != held[1]}),
        },
        "written": None if change.written is None else [asdict(one) for one in change.written[:MOST_WRITTEN]],
        "base_modelled": modelled[0],
        "head_modelled": modelled[1],
        "notes": list(change.notes),
    }


def _sum(rows: Iterable[ProgramRow], name: str, side: int) -> int:
    return sum(row.amounts.get(name, (0, 0))[side] for row in rows)


def _amounts(held: Amounts) -> list[dict[str, Any]]:
    return [{"name": name, "unit": UNITS[name], "base": base, "head": head} for name, (base, head) in held.items()]


def _row(row: ProgramRow) -> dict[str, Any]:
    return {
        "change": row.change,
        "what": row.what,
        "place": row.place,
        "source": row.source,
        "phase": row.phase,
        "count": row.count,
        "amounts": _amounts(row.amounts),
        "lost": row.lost,
        "blocking": row.blocking,
        "base_names": list(row.base_names),
        "head_names": list(row.head_names),
        "said": list(row.said),
        "is_worse": row.is_worse,
    }
