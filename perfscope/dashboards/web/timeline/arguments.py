"""All recorded data on an event besides its time, stored next to the index and read for one event."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope.analyzers.ops import copy_costs, kernel_costs
from perfscope.analyzers.time import launch_sites
from perfscope.dashboards.web.timeline.lanes import TABLES as EVENT_TABLES
from perfscope.model.trace import MISSING, CallKind, CopyKind, SliceKind, Trace
from perfscope.model.trace.tables import TABLES
from perfscope.model.untrusted_text import sanitize

NOT_SHOWN = frozenset({"start_ns", "end_ns", "name", "thread", "device", "stream", "blocks", "encloses"})
"""Columns that the panel already shows in its head, in the lane's name or in its own words."""
MOST_TEXTS = 50_000
TEXT_CHARS = 2_000
MOST_FRAMES = 60
ENUMS = {"CallKind": CallKind, "CopyKind": CopyKind, "SliceKind": SliceKind}
COSTS = ("flops", "bytes", "roof_ns")
FILE = "arguments.json"

SAMPLED = ["basis", "sampled stacks: begin and end are between two samples", "text"]
"""Fact on a call that sampled stacks show."""
_SHAPES = ("input shapes", "input types", "input strides", "input values")
_WORDS = {
    "shapes": "input shapes", "dtypes": "input types", "strides": "input strides", "values": "input values",
    "external_id": "external id", "sequence": "sequence number", "occupancy": "occupancy",
}  # fmt: skip


def save(trace: Trace, folder: Path) -> None:
    """Write the columns of the tables whose rows are events, their texts, and modelled costs of device work."""
    codes: list[np.ndarray] = []
    for name in EVENT_TABLES:
        rows = trace.rows[name]
        if not len(rows) or (name == "frames" and not len(trace.rows["samples"])):
            continue
        for column in TABLES[name].columns:
            if column.name in NOT_SHOWN - {"name", "start_ns", "end_ns", "blocks"}:
                continue
            np.save(folder / f"of_{name}_{column.name}.npy", rows[column.name])
            if column.text:
                codes.append(np.unique(rows[column.name]))
    for name, costs in (("kernels", kernel_costs), ("copies", copy_costs)):
        if len(trace.rows[name]):
            known = trace.fact(costs)
            for key in COSTS:
                np.save(folder / f"cost_{name}_{key}.npy", getattr(known, key))
    every = np.unique(np.concatenate(codes)) if codes else np.empty(0, np.int64)
    wanted = every[every != MISSING][:MOST_TEXTS].tolist()
    texts = {int(code): sanitize(trace.text(int(code)), TEXT_CHARS) for code in wanted}
    (folder / FILE).write_bytes(msgspec.json.encode({"texts": texts, "modules": _modules(trace)}))


def _modules(trace: Trace) -> dict[int, str]:
    """Row of ``slices`` -> its module, for ops that launched device work."""
    return {
        op: sanitize(site.module, TEXT_CHARS)
        for op, site in trace.fact(launch_sites).items()
        if site.module is not None
    }


def of_row(folder: Path, table: str, row: int) -> dict[str, Any]:
    """``facts``: ``[[word, value, unit], ...]``, ``stack``: host spans around the launch or callers, innermost first.

    ``op``: the row of ``slices`` that launched device work, or ``None``. Values are numbers or texts.
    """
    kept = _kept(folder / FILE)
    values = _values(folder, table, row, kept)
    op = int(values.pop("op", MISSING))
    parent = int(values.pop("parent", MISSING))
    if table == "frames":
        return {"facts": [SAMPLED], "stack": _callers(folder, parent, kept), "op": None}
    facts = list(_launch(values)) if table == "kernels" else []
    facts += _plain(table, values)
    if op != MISSING:
        of_op = _values(folder, "slices", op, kept)
        facts += [fact for fact in _plain("slices", of_op) if fact[0] in _SHAPES]
        if module := kept.modules.get(op):
            facts.append(["module", module, "code"])
    facts += _costs(folder, table, row)
    facts += _of_others(folder, table, row, kept)
    first = op if op != MISSING else parent
    return {"facts": facts, "stack": _stack(folder, first, kept), "op": None if op == MISSING else op}


class _Kept(msgspec.Struct):
    texts: dict[int, str]
    modules: dict[int, str]


@lru_cache(maxsize=16)
def _kept(path: Path) -> _Kept:
    return msgspec.json.decode(path.read_bytes(), type=_Kept) if path.is_file() else _Kept({}, {})


@lru_cache(maxsize=1024)
def _column(path: Path) -> Any:
    return np.load(path, mmap_mode="r" if path.stat().st_size > 128 else None) if path.is_file() else None


def _values(folder: Path, table: str, row: int, kept: _Kept) -> dict[str, Any]:
    """Column -> value of a row; codes become texts, unknown values are left out."""
    result: dict[str, Any] = {}
    for column in TABLES[table].columns:
        held = _column(folder / f"of_{table}_{column.name}.npy")
        if held is None:
            continue
        value = held[row].item()
        if column.text:
            value = kept.texts.get(value, "")
        elif column.nullable and (value == MISSING or value != value):
            continue
        if value != "":
            result[column.name] = value
    return result


def _launch(values: dict[str, Any]) -> Iterator[list[Any]]:
    blocks, threads = values.pop("blocks", None), values.pop("threads_per_block", None)
    if blocks is not None:
        yield ["thread blocks of the grid", blocks, "count"]
    if threads is not None:
        yield ["threads of a block", threads, "count"]


def _plain(table: str, values: Mapping[str, Any]) -> list[list[Any]]:
    """Columns with their words and units, without those that refer to rows of other tables."""
    result = []
    for column in TABLES[table].columns:
        value = values.get(column.name)
        if value is None or column.name in NOT_SHOWN or column.refers is not None or value is False:
            continue
        word = _WORDS.get(column.name, column.name.replace("_", " "))
        if column.unit in ENUMS:
            result.append([word, ENUMS[column.unit](value).name.lower().replace("_", " "), "text"])
        elif column.text:
            text = _short_json(value) if word in _SHAPES else value
            if text:
                result.append([word, text, "code" if word in _SHAPES else "text"])
        elif column.dtype == "bool":
            result.append([word, "yes", "text"])
        elif not (column.name == "forward_thread" and value == 0):
            result.append([word, value, {"B": "bytes", "ns": "ns", "percent": "percent"}.get(column.unit, column.unit)])
    return result


def _short_json(text: str) -> str:
    """Shapes without empty ones at the end; ``''`` if all are empty."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, list):
        while value and value[-1] in ([], ""):
            value.pop()
        return json.dumps(value) if value else ""
    return text


def _costs(folder: Path, table: str, row: int) -> Iterator[list[Any]]:
    """Rates: FLOPs, bytes and roofline are modelled, the time is measured."""
    flops, moved, roof = (_column(folder / f"cost_{table}_{key}.npy") for key in COSTS)
    if moved is None or np.isnan(moved[row]):
        return
    start, end = (_column(folder / f"of_{table}_{key}.npy") for key in ("start_ns", "end_ns"))
    seconds = (int(end[row]) - int(start[row])) / 1e9
    yield ["bytes (modelled)" if table == "kernels" else "bytes through memory", float(moved[row]), "bytes"]
    if seconds > 0:
        if flops[row] > 0:
            yield ["FLOPs (modelled)", float(flops[row]), "number"]
            yield ["FLOP/s achieved", float(flops[row]) / seconds, "number"]
        yield ["bytes/s achieved", float(moved[row]) / seconds, "number"]
        if not np.isnan(roof[row]):
            yield ["of roofline", float(roof[row]) / (seconds * 1e9), "share"]


def _of_others(folder: Path, table: str, row: int, kept: _Kept) -> Iterator[list[Any]]:
    """For a kernel, copy or host span: its collective and its program instruction."""
    key = {"kernels": "kernel", "copies": "copy", "slices": "slice"}.get(table)
    for other in ("collectives", "hlo_ops"):
        rows = None if key is None else _column(folder / f"of_{other}_{key}.npy")
        found = np.flatnonzero(rows == row) if rows is not None else np.empty(0, np.int64)
        if len(found):
            values = _values(folder, other, int(found[0]), kept)
            name = values.get("name", "")
            yield ["collective" if other == "collectives" else "instruction", name, "code"]
            yield from _plain(other, values)


def _callers(folder: Path, first: int, kept: _Kept) -> list[str]:
    """A row of ``frames`` and its callers, as ``function file:line``."""
    result: list[str] = []
    row = first
    while row != MISSING and len(result) < MOST_FRAMES:
        values = _values(folder, "frames", row, kept)
        place = f"{values['file']}:{values.get('line', '')}".rstrip(":") if "file" in values else ""
        result.append(f"{values.get('name', '')} {place}".strip())
        row = int(values.get("parent", MISSING))
    return result


def _stack(folder: Path, first: int, kept: _Kept) -> list[str]:
    """Names of a row of ``slices`` and of the spans around it."""
    parents, names = (_column(folder / f"of_slices_{key}.npy") for key in ("parent", "name"))
    result: list[str] = []
    row = first
    while row != MISSING and parents is not None and len(result) < MOST_FRAMES:
        result.append(kept.texts.get(int(names[row]), ""))
        row = int(parents[row])
    return result
