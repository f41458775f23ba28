"""The row of a trace in the list of runs, which has no manifest: made from its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfscope.model.documents.run_list import reported
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis

LISTED_VIEW = "listed"
"""Name of the file that the child writes."""
DEVICE_CHARS = 60


def listed_row(analysis: Analysis, report: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as in the row of a run; ``steps`` and ``ranks``: recorded ones, ``None`` if the trace has none."""
    ranks = {source.rank for source in analysis.sources if source.rank is not None}
    return {
        **reported(report),
        "devices": [sanitize(device.name, DEVICE_CHARS) for device in analysis.devices],
        "steps": len({step.number for step in analysis.steps}) or None,
        "ranks": len(ranks) or None,
    }
