"""The compiled programs in ``/host:metadata``: a module per metadata entry, in its stat ``Hlo Proto``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.hlo import MAX_GROUP_IDS, MAX_PROTO_BYTES, HloModule
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.planes import Line, Plane, numbers, parts, signed
from perfscope.model.errors import DataError
from perfscope.model.intervals import distinct_rows, numbered
from perfscope.model.trace import MISSING, Rows
from perfscope.model.trace.columns import Array
from perfscope.model.wire import Field

Assignments = Mapping[tuple[int, int], tuple[int, ...]]
"""(Code of a program's name, its number) -> global ids of its devices by place."""

_LOCAL = re.compile(r"\[(\d{1,6})\] ")

_MODULE, _ASSIGNMENT, _PARTITIONS, _IDS = 1, 15, 3, 1

_STAT = "Hlo Proto"

_NONE = np.empty(0, np.int64), np.empty(0, np.int64)


# Place of each recorded device in its programs, and the process's index in the job.
#
# The device assignment of a program lists global ids by place (`device_assignment`). Instructions of the CPU backend
# have the global id. On accelerators they belong to a plane, which is numbered in the process; launches have the global
# id:
#
# ```
# Execute (jit_step)        num_addressable_devices=4                  (jax 0.9 and later, tried on the CPU)
# [1] Execute (jit_step)    global_device_id=2049                      on the process's second device
# ```


class Placement:
    """Collector of the facts of launches; ``place`` writes the column ``place`` of ``hlo_ops``."""

    def __init__(self) -> None:
        self._devices: set[tuple[int, int]] = set()
        """(Local device, global device)."""
        self._own: set[int] = set()
        """Devices of this process."""

    def add(self, plane: Plane, line: Line) -> None:
        """Add the launches on one line of the host."""
        _, own = line.stats.get("num_addressable_devices", _NONE)
        self._own.update(number for number in numbered(own)[0].tolist() if number > 0)
        rows, device = line.stats.get("global_device_id", _NONE)
        events = line.ids[line.place[rows]]
        first, _ = distinct_rows(events, device)
        for event, number in zip(events[first].tolist(), device[first].tolist(), strict=True):
            local = _LOCAL.match(plane.names.get(event, ""))
            if local is not None:
                self._devices.add((int(local[1]), number))

    def place(self, ops: Rows, assignments: Assignments) -> tuple[int, int] | None:
        """Fill the known values of ``place``; return (index of the process, processes) if programs run on several.

        ``None`` if the devices of the process cannot be separated from those of others, or are in two processes.
        """
        if not len(ops) or not assignments:
            return None
        at = {key: {device: index for index, device in enumerate(ids)} for key, ids in assignments.items()}
        local: dict[int, set[int]] = {}
        for number, device in self._devices:
            local.setdefault(number, set()).add(device)
        known = {number: devices.pop() for number, devices in local.items() if len(devices) == 1}
        hosted = ops["slice"] != MISSING
        keys = (ops["module"], ops["program_id"], ops["ordinal"], hosted.astype(np.int64))
        first, inverse = distinct_rows(*keys)
        result, devices = [], set()
        for module, program, ordinal, on_host in zip(*(key[first].tolist() for key in keys), strict=True):
            device = ordinal if on_host else known.get(ordinal, MISSING)
            index = at.get((module, program), {}).get(device, MISSING) if device != MISSING else MISSING
            result.append(index)
            devices |= {device} if index != MISSING else set()
        ops["place"][:] = np.asarray(result, np.int64)[inverse]
        largest: tuple[int, ...] = max(assignments.values(), key=len)
        return self._process(devices, sorted(largest), hosted) if devices else None

    def _process(self, devices: set[int], whole: list[int], hosted: Array) -> tuple[int, int] | None:
        """Return the process and their number. ``whole``: the global ids of the largest program's devices, ascending.

        XLA leaves a gap between the ids of CPU devices of two processes; those of accelerators are consecutive.
        """
        cuts = (np.flatnonzero(np.diff(whole) > 1) + 1).tolist()
        if not cuts and not hosted.any() and len(self._own) == 1:
            (own,) = self._own
            cuts = list(range(own, len(whole), own)) if len(whole) % own == 0 else []
        if not cuts:
            return None
        index = {int(np.searchsorted(cuts, whole.index(device), side="right")) for device in devices if device in whole}
        return (index.pop(), len(cuts) + 1) if len(index) == 1 else None


# Device of the job at each place of a program: its device assignment, stored with it in the profile.
#
# ```
# HloProto { hlo_module (1): HloModuleProto { device_assignment (15): {
# replica_count (1), computation_count (2), computation_devices (3): { replica_device_ids (1) } per partition } } }
# ```
#
# Ids are global: the same on every process. The n-th partition's list holds the device of each of its replicas.


def device_assignment(proto: bytes, shown: str) -> tuple[int, ...]:
    """Return global ids of the devices by place (replica x partitions + partition); empty without valid ones.

    ``proto``: a serialized ``HloProto``. ``DataError`` if it is truncated or corrupt.
    """
    by_partition: list[list[int]] = []
    held = 0
    for module in _fields(proto, 0, len(proto), _MODULE, shown):
        for assignment in _fields(proto, module.start, module.end, _ASSIGNMENT, shown):
            for partition in _fields(proto, assignment.start, assignment.end, _PARTITIONS, shown):
                ids = [
                    number
                    for part in _fields(proto, partition.start, partition.end, _IDS, shown)
                    for number in numbers(proto, part, shown)
                ]
                held += len(ids)
                if held > MAX_GROUP_IDS:
                    return ()
                by_partition.append(ids)
    replicas = {len(ids) for ids in by_partition}
    if len(replicas) != 1:
        return ()
    positions = tuple(ids[replica] for replica in range(replicas.pop()) for ids in by_partition)
    return positions if len(set(positions)) == len(positions) else ()


def _fields(data: bytes, start: int, end: int, number: int, shown: str) -> list[Field]:
    return [part for part in parts(data, start, end, shown) if part.number == number]


class Programs(Struct):
    """Modules found so far, and the errors of unreadable ones."""

    modules: list[HloModule] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    bytes_read: int = 0
    devices: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """(Name, number) -> the program's devices by place, if recorded."""

    def add(self, plane: Plane, shown: str) -> None:
        """Add every module of the plane. A module that is corrupt or beyond the limit is left out and reported."""
        for key, stats in plane.metadata_stats.items():
            proto = stats.get(_STAT)
            if not isinstance(proto, bytes):
                continue
            name = plane.names.get(key, "")
            if self.bytes_read + len(proto) > MAX_PROTO_BYTES:
                self.problems.append(f"the program {name} was not read: {self.bytes_read:,} bytes of programs were")
                continue
            self._add(name, proto, stats.get("program_id"), shown)

    def _add(self, name: str, proto: bytes, program: object, shown: str) -> None:
        from perfscope.analyzers.hlo import module_of_proto

        if not isinstance(program, int) or isinstance(program, bool):
            _, program = names.numbered_program(name)
        self.bytes_read += len(proto)
        try:
            module = module_of_proto(proto, f"{shown}: {name}")
            devices = device_assignment(proto, f"{shown}: {name}")
        except DataError as error:
            self.problems.append(f"the program {name} was not read: {str(error).rpartition(': ')[2]}")
            return
        self.modules.append(replace(module, program_id=None if program is None else signed(program)))
        if devices and program is not None:
            self.devices[module.name, signed(program)] = devices

    def name_starts(self, ops: Rows, strings: Sequence[str], code: Callable[[str], int]) -> None:
        """Rename wrapped collectives of a GPU, whose kernel has the name of the inner operation, to their start.

        XLA annotates the launch with the wrapped instruction (``ThunkInfo::WithProfileAnnotation(inst)``), which is not
        in any computation that runs: ``reduce-scatter.60`` of ``reduce-scatter-start``, an ``async-start`` in the
        program.
        """
        codes = {text: index for index, text in enumerate(strings)}
        on_device = ops["slice"] == MISSING
        for module in self.modules:
            if module.platform == "tpu" or module.name not in codes:  # A TPU's rows are of the start itself.
                continue
            of_it = on_device & (ops["module"] == codes[module.name])
            of_it &= (ops["program_id"] == module.program_id) | (ops["program_id"] == MISSING)
            for inside, start in started(module).items():
                mine = of_it & (ops["name"] == codes.get(inside, MISSING))
                if mine.any():
                    ops["name"][mine] = code(start)

    def placed(self, ops: Rows, strings: Sequence[str]) -> tuple[HloModule, ...]:
        """Return the modules; one without a platform is the CPU's if it ran on threads of the host.

        XLA's CPU compiler leaves no mark in many programs, before jax 0.10 in most. ``ops``: the table ``hlo_ops``;
        only the CPU backend's rows are slices of the host.
        """
        on_host = _programs_of(ops, ops["slice"] != MISSING, strings) if len(ops) else set()
        on_device = _programs_of(ops, ops["slice"] == MISSING, strings) if len(ops) else set()
        ran = on_host - on_device
        return tuple(
            replace(module, platform="cpu")
            if module.platform is None and module.is_scheduled and (module.name, module.program_id) in ran
            else module
            for module in self.modules
        )


def started(module: HloModule) -> dict[str, str]:
    """Return operation that XLA made asynchronous -> the start instruction that replaces it."""
    return {instruction.wraps: instruction.name for _, instruction in module.instructions() if instruction.wraps}


def _programs_of(ops: Rows, chosen: npt.NDArray[np.bool_], strings: Sequence[str]) -> set[tuple[str, int]]:
    """Return name and number of the programs of some instructions, without those that lack either."""
    chosen = chosen & (ops["module"] != MISSING) & (ops["program_id"] != MISSING)
    modules, programs = ops["module"][chosen], ops["program_id"][chosen]
    first, _ = distinct_rows(modules, programs)
    named = zip(modules[first].tolist(), programs[first].tolist(), strict=True)
    return {(strings[module], program) for module, program in named}
