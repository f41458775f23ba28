"""At which place of its programs each device of the recording is, and which process of a job this is.

A program's device assignment names global ids by place (`assignment.py`). On the CPU backend instructions name the
global id. On accelerators they are of a plane, which is numbered in the process; what launches say tells the id:

```
Execute (jit_step)        num_addressable_devices=4                  (jax 0.9 and later, tried on the CPU)
[1] Execute (jit_step)    global_device_id=2049                      on the process's second device
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.readers.xspace.planes import Line, Plane
from perfscope.model.trace import Rows
from perfscope.model.trace.columns import MISSING, Array

Assignments = Mapping[tuple[int, int], tuple[int, ...]]
"""(Code of a program's name, its number) -> global ids of its devices by place."""

_LOCAL = re.compile(r"\[(\d{1,6})\] ")


class Placement:
    """Collects what launches say; ``place`` writes the column ``place`` of ``hlo_ops``."""

    def __init__(self) -> None:
        self._told: set[tuple[int, int]] = set()
        """(local device, global device)."""
        self._own: set[int] = set()
        """Devices of this process."""

    def add(self, plane: Plane, line: Line) -> None:
        """What the launches on one line of the host say."""
        own = line.number("num_addressable_devices")
        self._own.update(np.unique(own[own > 0]).tolist())
        device = line.number("global_device_id")
        launches = device != MISSING
        for event, number in np.unique(np.stack([line.metadata, device])[:, launches], axis=1).T.tolist():
            local = _LOCAL.match(plane.names.get(event, ""))
            if local is not None:
                self._told.add((int(local[1]), number))

    def place(self, ops: Rows, assignments: Assignments) -> tuple[int, int] | None:
        """Fill ``place`` where it is told; (index of the process, processes) where programs run on several.

        A process whose devices cannot be told apart from those of others, or lie in two, is none.
        """
        if not len(ops) or not assignments:
            return None
        at = {key: {device: place for place, device in enumerate(ids)} for key, ids in assignments.items()}
        local: dict[int, set[int]] = {}
        for number, device in self._told:
            local.setdefault(number, set()).add(device)
        known = {number: devices.pop() for number, devices in local.items() if len(devices) == 1}
        hosted = ops["slice"] != MISSING
        keys = np.stack([ops["module"].astype(np.int64), ops["program_id"], ops["ordinal"], hosted])
        distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
        found, devices = [], set()
        for module, program, ordinal, on_host in distinct.T.tolist():
            device = ordinal if on_host else known.get(ordinal, MISSING)
            place = at.get((module, program), {}).get(device, MISSING) if device != MISSING else MISSING
            found.append(place)
            devices |= {device} if place != MISSING else set()
        ops["place"][:] = np.asarray(found, np.int64)[inverse.reshape(-1)]
        largest: tuple[int, ...] = max(assignments.values(), key=len)
        return self._process(devices, sorted(largest), hosted) if devices else None

    def _process(self, devices: set[int], whole: list[int], hosted: Array) -> tuple[int, int] | None:
        """``whole``: the global ids of the largest program's devices, ascending.

        XLA leaves a gap between the ids of CPU devices of two processes; those of accelerators are in a row.
        """
        cuts = (np.flatnonzero(np.diff(whole) > 1) + 1).tolist()
        if not cuts and not hosted.any() and len(self._own) == 1:
            (own,) = self._own
            cuts = list(range(own, len(whole), own)) if len(whole) % own == 0 else []
        if not cuts:
            return None
        index = {int(np.searchsorted(cuts, whole.index(device), side="right")) for device in devices if device in whole}
        return (index.pop(), len(cuts) + 1) if len(index) == 1 else None
