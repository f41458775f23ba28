"""What a reader of the report must know of an export: what was recorded as a whole, guessed, or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.readers.nsys.database import Export
from perfscope.analyzers.readers.nsys.device import Device
from perfscope.analyzers.readers.nsys.steps import Steps
from perfscope.model.trace import CopyKind, Rows, TraceBuilder
from perfscope.model.units import format_bytes, format_ns

KNOWN_MAJOR = "3"
"""Of the export's schema. Another one may mean something else by the same names."""

_CUDA_TABLES = "CUPTI_ACTIVITY_KIND_"


def notes_of(
    database: Export,
    trace: TraceBuilder,
    device: Device,
    steps: Steps,
    ranks: str | None,
) -> tuple[str, ...]:
    """One sentence each. ``ranks``: how ranks were told."""
    rows = trace.rows
    notes = [ranks] if ranks else []
    major = _setting(database, "EXPORT_SCHEMA_VERSION_MAJOR")
    if major not in (None, KNOWN_MAJOR):
        version = _setting(database, "EXPORT_SCHEMA_VERSION")
        notes.append(
            f"the export's schema is {version}, newer or older than any known one: numbers may mean other things"
        )
    notes += _absent(database, rows)
    notes += trace.orphans(
        " (launched before the capture began, or not recorded); they are kept and counted as device time"
    )
    if device.graphs:
        notes.append(
            f"{device.graphs:,} runs of CUDA graphs were recorded as one piece each and are shown as one kernel; "
            "`nsys profile --cuda-graph-trace=node` records the kernels in them, at some cost"
        )
    if device.nodes:
        notes.append(f"{device.nodes:,} kernels ran inside graphs and are attributed to their graph launch")
    if steps.guessed is not None:
        notes.append(f"steps are taken from NVTX ranges by their name, such as `{steps.guessed}`")
    if steps.unfinished:
        notes.append(
            "not counted as steps: ranges that were still open when the program or the recording ended "
            f"({steps.unfinished:,})"
        )
    if len(rows["memory"]):
        notes.append("memory events are those of the driver (cudaMalloc, cudaFree), not of a framework's allocator")
    return (*notes, *_peers(rows["copies"], trace.strings))


def _setting(database: Export, key: str) -> str | None:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        found = database.settings(table, (key,))
        if found:
            return found[key]
    return None


def _absent(database: Export, rows: Mapping[str, Rows]) -> list[str]:
    """Why there is no device work: tables without rows are not written, so one that is absent says little."""
    if len(rows["kernels"]) or len(rows["copies"]):
        return []
    key = "PROCESS_0:COLLECT_CUDA_TRACE"
    told = database.settings("META_DATA_CAPTURE", (key,)).get(key, "").lower()
    if told in ("true", "1"):
        return ["CUDA was traced, and no work on a device was recorded"]
    if told in ("false", "0"):
        return ["CUDA was not traced (`nsys profile --trace=cuda,nvtx,osrt`)"]
    if any(table.startswith(_CUDA_TABLES) and len(rows["calls"]) for table in database.tables):
        return ["calls of CUDA were recorded, and no work on a device"]
    return ["nothing of CUDA was recorded: it was not traced, or the program did not use it"]


def _peers(copies: Rows, strings: list[str]) -> list[str]:
    """What copies from device to device reached, by pair: bytes over the time the copies took."""
    peers = copies["kind"] == int(CopyKind.PEER_TO_PEER)
    notes = []
    for code in np.unique(copies["name"][peers]).tolist():
        mine = peers & (copies["name"] == code) & (copies["bytes"] > 0)
        moved = int(copies["bytes"][mine].sum())
        took = int((copies["end_ns"][mine] - copies["start_ns"][mine]).sum())
        if took > 0:
            notes.append(
                f"{strings[code]}: {int(mine.sum()):,} copies between devices moved {format_bytes(moved)} in "
                f"{format_ns(took)} of copying: {moved / took:.1f} GB/s"
            )
    return notes
