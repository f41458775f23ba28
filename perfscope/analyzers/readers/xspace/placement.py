"""Which device of a job each device of the recording is, as the launches of programs tell it (jax 0.10 on the CPU).

```
Execute (jit_step)        num_replicas=1 num_partitions=8 num_addressable_devices=4
[1] Execute (jit_step)    replica=0 partition=5 global_device_id=2049        on the process's second device
```

The groups of a collective name partitions (or replicas), so that the same device is the same number on every process.
A device that different launches of one program put at different places is at none.
"""

from __future__ import annotations

import re

import numpy as np

from perfscope.analyzers.readers.xspace.planes import Line, Plane
from perfscope.analyzers.readers.xspace.pool import Pool
from perfscope.analyzers.trace import Rows
from perfscope.analyzers.trace.columns import MISSING

CPU_DEVICES_A_PROCESS = 2048
"""How XLA's CPU client numbers devices: those of a process begin at its index times this
(``kMaxCpuDevicesPerProcess``)."""

_LOCAL = re.compile(r"\[(\d{1,6})\] ")


class Placement:
    """Collects what launches say; ``place`` writes it into the table of instructions."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shapes: dict[int, set[tuple[int, int, int]]] = {}
        """Program's name -> (replicas, partitions, devices of this process)."""
        self._launches: set[tuple[int, int, int, int, int]] = set()
        """(program's name, local device, global device, replica, partition)."""

    def add(self, plane: Plane, line: Line) -> None:
        """What the launches on one line of the host say."""
        name = line.number("name")
        shape = [line.number(key) for key in ("num_replicas", "num_partitions", "num_addressable_devices")]
        for code, *told in _distinct([name, *shape]):
            self._shapes.setdefault(code, set()).add((told[0], told[1], told[2]))
        where = [line.number(key) for key in ("global_device_id", "replica", "partition")]
        for code, event, device, replica, partition in _distinct([name, line.metadata, *where]):
            local = _LOCAL.match(plane.names.get(event, ""))
            if local is not None:
                self._launches.add((code, int(local[1]), device, replica, partition))

    def place(self, ops: Rows) -> None:
        """Fill the column ``place`` of ``hlo_ops``.

        Instructions on the CPU name the global device, those on accelerators are of a plane: the local one.
        """
        places: dict[tuple[int, int, bool], set[int]] = {}
        for code, local, device, replica, partition in self._launches:
            for _, partitions, _ in self._shapes.get(code, ()):
                for number, hosted in ((device, True), (local, False)):
                    places.setdefault((code, number, hosted), set()).add(replica * partitions + partition)
        known = {key: found.pop() for key, found in places.items() if len(found) == 1}
        if not len(ops) or not known:
            return
        keys = np.stack([ops["module"].astype(np.int64), ops["ordinal"], ops["slice"] != MISSING])
        distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
        found = [known.get((module, device, bool(hosted)), MISSING) for module, device, hosted in distinct.T.tolist()]
        ops["place"][:] = np.array(found, np.int64)[inverse.reshape(-1)]

    def process(self, *, on_host: bool) -> tuple[int, int] | None:
        """(Index of the process, number of processes) where a program runs on devices of others too, else ``None``.

        ``on_host``: the devices are the CPU backend's. Those of accelerators are numbered in a row, process by process.
        """
        devices = sorted({device for _, _, device, _, _ in self._launches})
        shapes = {shape for shapes in self._shapes.values() for shape in shapes}
        replicas, partitions, own = max(shapes, key=lambda shape: shape[0] * shape[1], default=(1, 1, 1))
        world = replicas * partitions
        if not devices or own < 1 or world <= own or world % own:
            return None
        indices = {device // (CPU_DEVICES_A_PROCESS if on_host else own) for device in devices}
        (index,) = indices if len(indices) == 1 else (MISSING,)
        return (index, world // own) if 0 <= index < world // own else None


def _distinct(columns: list[np.ndarray]) -> list[list[int]]:
    """Distinct rows of which nothing is missing."""
    stacked = np.stack(columns)
    rows: list[list[int]] = np.unique(stacked[:, (stacked != MISSING).all(axis=0)], axis=1).T.tolist()
    return rows
