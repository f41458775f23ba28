"""Which device of the job is at which place of a program: its device assignment, kept with it in the profile.

```
HloProto { hlo_module (1): HloModuleProto { device_assignment (15): {
    replica_count (1), computation_count (2), computation_devices (3): { replica_device_ids (1) } per partition } } }
```

Ids are global: the same on every process. The n-th partition's list holds the device of each of its replicas.
"""

from __future__ import annotations

from perfscope.analyzers.hlo.limits import MAX_GROUP_IDS
from perfscope.analyzers.readers.xspace.framing import Part, numbers, parts

_MODULE, _ASSIGNMENT, _PARTITIONS, _IDS = 1, 15, 3, 1


def device_assignment(proto: bytes, shown: str) -> tuple[int, ...]:
    """Global ids of the devices by place (replica x partitions + partition); empty where no sound ones are told.

    ``proto``: a serialized ``HloProto``. ``DataError`` if it is cut off or corrupt.
    """
    by_partition: list[list[int]] = []
    held = 0
    for module in _fields(proto, 0, len(proto), _MODULE, shown):
        for assignment in _fields(proto, module.start, module.end, _ASSIGNMENT, shown):
            for partition in _fields(proto, assignment.start, assignment.end, _PARTITIONS, shown):
                ids = [
                    one
                    for part in _fields(proto, partition.start, partition.end, _IDS, shown)
                    for one in numbers(proto, part, shown)
                ]
                held += len(ids)
                if held > MAX_GROUP_IDS:
                    return ()
                by_partition.append(ids)
    replicas = {len(ids) for ids in by_partition}
    if len(replicas) != 1:
        return ()
    places = tuple(ids[replica] for replica in range(replicas.pop()) for ids in by_partition)
    return places if len(set(places)) == len(places) else ()


def _fields(data: bytes, start: int, end: int, number: int, shown: str) -> list[Part]:
    return [part for part in parts(data, start, end, shown) if part.number == number]
