"""A comparison of two sets of runs as a document ``perfscope.compare/1``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.compare import json
from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.compare.runs.many import KernelChange
    from perfscope.analyzers.compare.runs.sets import SetsComparison

KIND = "sets of runs"
PHASE = "measure"

MOST_KERNELS = 200
"""Rows of kernels that are written: those that changed, then those that contribute most."""


def document(found: SetsComparison, *, failed: Sequence[str] = (), gates: Sequence[str] = ()) -> dict[str, Any]:
    """The document as plain dicts and lists, secrets masked; ``gates`` and ``failed`` as in ``compare_json``."""
    held = json.document(found.comparison, failed=failed, gates=gates)
    step = found.comparison.step_time
    added: dict[str, Any] = sanitize_value(
        {
            "kernels": [_kernel(one) for one in found.kernels[:MOST_KERNELS]],
            "method": {
                "kind": KIND,
                "base_ref": None,
                "base_commit": found.commits[0],
                "head_ref": None,
                "head_commit": found.commits[1],
                "command": list(found.command),
                "pairs": len(found.turns.pairs) if found.turns.interleaved else 0,
                "confirming_pairs": 0,
                "profiled": min(sum(one.side == side for one in found.launches) for side in ("base", "head")),
                "estimator": None if step is None else step.estimator,
                "least": None if step is None else step.least,
                "seed": None,
                "level": None if step is None else step.level,
                "launches": [
                    {
                        "arm": one.side,
                        "phase": PHASE,
                        "pair": place if one.pair is None else one.pair,
                        "ns": one.ns,
                        "seconds": None,
                    }
                    for place, one in enumerate(found.launches)
                ],
                "remarks": list(found.remarks),
                "environment": dict(found.environment),
            },
        }
    )
    return held | added


def _kernel(one: KernelChange) -> dict[str, Any]:
    row = asdict(one)
    return {f"{key}_ns" if key in ("base", "head", "change") else key: value for key, value in row.items()}
