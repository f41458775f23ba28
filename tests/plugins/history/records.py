"""Records of runs as tests put them into stores."""

from __future__ import annotations

import hashlib
from typing import Any

from perfscope.plugins.history.stored_run import StoredFinding, StoredMetric, StoredRun, StoredSteps


def stored_run(number: int = 0, *, step_ns: float = 1e7, syncs: float = 2.0, **other: Any) -> StoredRun:
    """Run ``number`` of ``train``, one minute after the previous one, with a different commit."""
    run = f"20260101-{number // 60:02d}{number % 60:02d}00-train-{number:04x}"
    fields: dict[str, Any] = {
        "uid": hashlib.sha256(run.encode()).hexdigest()[:32],
        "id": run,
        "name": "train",
        "kind": "PyTorch recording",
        "created_utc": f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00",
        "branch": "main",
        "commit": hashlib.sha1(str(number).encode()).hexdigest(),
        "command": ("train.py",),
        "exit_code": 0,
        "hardware": {"gpu": "1 x Test GPU", "cpu": "Test CPU"},
        "software": {"torch": "2.6.0", "python": "3.11.7"},
        "perfscope": "0.1.0",
        "metrics": (
            StoredMetric(name="step time", unit="ns", known="single captures", value=step_ns),
            StoredMetric(name="host syncs per step", unit="count", known="exact", value=syncs),
            StoredMetric(name="program", unit="text", known="exact", text="0123456789abcdef"),
        ),
        "steps": (StoredSteps(rank=0, count=4, median_ns=step_ns),),
        "findings": (
            StoredFinding(rule="host_sync", subject="read", severity="high", basis="measured", title="a read",
                          cost_ns=5, file="train.py", line=3),
        ),
    }  # fmt: skip
    return StoredRun(**(fields | other))
