"""A history as JSON, ``perfscope.history/1`` (docs/store.md). Keys are only added within a schema version."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from perfscope.analyzers.compare.series import Change, History, Series

SCHEMA = "perfscope.history/1"


def render(found: History) -> str:
    """The history as indented JSON text."""
    return json.dumps(document(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(found: History) -> dict[str, Any]:
    """The history as plain dicts and lists; times are ns."""
    held: dict[str, Any] = sanitize_value(
        {
            "schema": SCHEMA,
            "runs": found.runs,
            "left_out": list(found.left_out),
            "notes": list(found.notes),
            "series": [_series(one) for one in found.series],
        }
    )
    return held


def _series(one: Series) -> dict[str, Any]:
    return {
        "metric": one.metric,
        "unit": one.unit,
        "known": one.known,
        "program": one.name,
        "command": list(one.command),
        "machine": one.machine,
        "hardware": dict(one.hardware),
        "ordered_by": one.ordered,
        "points": [asdict(point) for point in one.points],
        "changes": [_change(change) for change in one.changes],
        "newest": None if one.newest is None else asdict(one.newest),
        "remarks": list(one.remarks),
    }


def _change(one: Change) -> dict[str, Any]:
    return {
        "index": one.index,
        "after_commit": one.before.commit,
        "up_to_commit": one.after.commit,
        "after_run": one.before.run,
        "up_to_run": one.after.run,
        "old": one.old,
        "new": one.new,
        "change": one.change if one.change is None or math.isfinite(one.change) else None,
        "p": one.p,
        "same_commit": one.same_commit,
        "software": list(one.software),
    }
