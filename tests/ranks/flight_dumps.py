"""Dumps of NCCL's flight recorder as torch writes them: one dictionary a rank."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WORLD = "default_pg"


def entry(
    name: str = "all_reduce",
    sequence: int = 1,
    *,
    group: str = "0",
    description: str = WORLD,
    state: str = "scheduled",
    sizes: Sequence[Sequence[int]] = ((1024,),),
    between: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """One call; ``name``: ``all_reduce``, ``send 0->1``."""
    return {
        "record_id": sequence, "pg_id": int(group), "process_group": (group, description),
        "collective_seq_id": 0 if between else sequence, "p2p_seq_id": sequence if between else 0, "op_id": sequence,
        "is_p2p": between, "profiling_name": f"nccl:{name}", "time_created_ns": 1_700_000_000_000_000_000 + sequence,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "state": state, "retired": False,
        "input_sizes": [list(size) for size in sizes], "input_dtypes": ["BFloat16"], "timeout_ms": 600_000, **more,
    }  # fmt: skip


def dump(
    entries: Sequence[dict[str, Any]] = (),
    groups: Mapping[str, Sequence[int]] | None = None,
    status: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """A rank's dump. ``groups``: name -> members (a world of two if left out); ``status``: (enqueued, completed)."""
    held = {"0": (0, 1)} if groups is None else groups
    return {
        "version": "2.9",
        "nccl_version": "2.21.5",
        "pg_config": {name: {"name": name, "desc": WORLD if name == "0" else f"GROUP_{name}",
                             "ranks": str(list(ranks))} for name, ranks in held.items()},
        "pg_status": {name: {"last_enqueued_collective": enqueued, "last_started_collective": -1,
                             "last_completed_collective": completed}
                      for name, (enqueued, completed) in (status or {}).items()},
        "entries": list(entries),
    }  # fmt: skip


def write_dumps(folder: Path, dumps: Mapping[int, dict[str, Any]]) -> Path:
    """The folder with one pickle a rank."""
    for rank, item in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(item, protocol=2))
    return folder
