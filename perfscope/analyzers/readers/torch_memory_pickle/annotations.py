"""The annotations that a snapshot carries beside its history: ranges of the program on the same clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscope.analyzers.readers.kineto_json.nesting import nesting_order, parents
from perfscope.analyzers.readers.torch_memory_pickle.stacks import Strings
from perfscope.analyzers.trace import TABLES, Rows, SliceKind
from perfscope.analyzers.trace.columns import MISSING, Array

_STEP = re.compile(r"(?:perfscope\.step#|ProfilerStep\s?#)(\d{1,15})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Tables ``threads``, ``slices`` and ``steps`` of them."""

    rows: dict[str, Rows]
    unplaced: dict[str, int]

    def around(self, times_ns: Array) -> Array | None:
        """Row of the innermost range around each time, (n,) int32; ``None`` if there are no ranges."""
        slices = self.rows["slices"]
        if not len(slices):
            return None
        start, end = slices["start_ns"], slices["end_ns"]
        edges = np.unique(np.concatenate((start, end)))
        inner = np.full(len(edges), MISSING, np.int32)
        for row in range(len(slices)):  # callers stand in front of what they call, which then paints over them
            inner[np.searchsorted(edges, start[row]) : np.searchsorted(edges, end[row])] = row
        place = np.searchsorted(edges, times_ns, side="right") - 1
        return np.where(place >= 0, inner[np.maximum(place, 0)], MISSING).astype(np.int32)


def annotations_of(found: Any, strings: Strings) -> Annotations:
    """Ranges of ``external_annotations``: START and END of one name on one device, the last begun ends first."""
    opened: dict[tuple[int, str], list[int]] = {}
    ranges: list[tuple[int, int, int, str]] = []
    lost = 0
    for one in found if type(found) is list else ():
        name, stage, time = (one.get(key) for key in ("name", "stage", "time_us")) if type(one) is dict else (None,) * 3
        if type(name) is not str or type(time) is not int or not 0 <= time < 2**63 // 1000:
            lost += 1
            continue
        device = one.get("device")
        key = (device if type(device) is int else MISSING, name)
        if stage == "START":
            opened.setdefault(key, []).append(time)
        elif stage == "END" and opened.get(key):
            start = opened[key].pop()
            ranges.append((start * 1000, max(start, time) * 1000, key[0], name))
        else:
            lost += 1
    lost += sum(map(len, opened.values()))
    return Annotations(
        rows=_rows(ranges, strings), unplaced={"annotations without their other end": lost} if lost else {}
    )


def _rows(ranges: list[tuple[int, int, int, str]], strings: Strings) -> dict[str, Rows]:
    if not ranges:
        return {name: Rows(TABLES[name], {}) for name in ("threads", "slices", "steps")}
    devices = sorted({device for _, _, device, _ in ranges})
    start, end = (np.array([one[at] for one in ranges], np.int64) for at in (0, 1))
    thread = np.array([devices.index(device) for _, _, device, _ in ranges], np.int32)
    name = np.array([strings.code(text) for _, _, _, text in ranges], np.int32)
    order = nesting_order(thread, start, end)
    start, end, thread, name = start[order], end[order], thread[order], name[order]
    steps = [(row, found) for row, code in enumerate(name.tolist()) if (found := _STEP.fullmatch(strings.texts[code]))]
    places = np.array([row for row, _ in steps], np.int64)
    return {
        "threads": Rows(TABLES["threads"], {
            "process": np.full(len(devices), strings.code("memory snapshot")),
            "thread": [strings.code(f"annotations of device {device}") for device in devices],
        }),
        "slices": Rows(TABLES["slices"], {
            "start_ns": start, "end_ns": end, "name": name, "thread": thread,
            "kind": np.full(len(start), SliceKind.ANNOTATION), "parent": parents(thread, start, end),
        }),
        "steps": Rows(TABLES["steps"], {
            "start_ns": start[places], "end_ns": end[places], "name": name[places],
            "number": np.array([int(found[1]) for _, found in steps], np.int64),
        }),
    }  # fmt: skip
