"""Collectives of compiled XLA programs: the bytes they move, and which of them the device waits for.

XLA splits a collective into a start and a done. Work scheduled between the two runs while the data move. A collective
blocks nevertheless if it was not split, if the backend marked it synchronous (GPU:
``collective_backend_config.is_sync``), or if the schedule has nothing between start and done.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.analyzers.hlo.module import MAX_GROUP_IDS, MAX_RANK, Computation, HloModule, Instruction
from perfscope.analyzers.hlo.program import Runs, control_runs
from perfscope.analyzers.hlo.views import MOVES_NOTHING
from perfscope.model.trace import Trace

Groups = tuple[tuple[int, ...], ...]
SubAxis = tuple[int, int, int]
"""Axis, product of the parts before it, its size: ``(0, 2, 4)`` is the inner 4 of an axis of 8. Size 0: the whole axis.
"""

_LISTED = re.compile(r"\{([\d,\s]*+)\}")
_IOTA = re.compile(r"\[([\d,\s]+)\]<=\[([\d,\s]+)\](?:T\(([\d,\s]+)\))?")
_MESH = re.compile(
    r"mesh\[([^\]]*+)\](?:\s*,\s*device_ids=\((?:\[([\d,\s]+)\](?:T\(([\d,\s]+)\))?|([\d,\s]+))\))?\s*\{([^}]*+)\}"
)
_AXIS = re.compile(r"'([^']*)'\s*=\s*(\d+)")
_USED = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")

KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip

Blocks = Literal["never split into start and done", "marked synchronous", "nothing scheduled between start and done"]

MOST_SEARCHED = 512
"""Maximum number of blocking collectives per module for which independent work is searched: each search is one pass
over a computation, and the relevant collectives are the largest.
"""


# Replica groups, written out, in every notation: lists, iota with a transpose, axes of a mesh.
#
# ```
# {{0,1},{2,3}}                              listed
# [2,4]<=[8]            [2,4]<=[4,2]T(1,0)   iota: count up, reshape, transpose, split into 2 groups of 4
# mesh['x'=2,'y'=4] {'y'}                    devices that differ only along the named axes of the mesh;
# mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y':(2)2}    its devices in another order, a part of an axis
# ```


class GroupReader:
    """Writes groups out, each notation once, and rejects a module whose groups have too many ids."""

    def __init__(self) -> None:
        self._known: dict[object, Groups | None] = {}
        self._ids = 0

    def text(self, spelling: str) -> Groups | None:
        """Parse the groups of an attribute; ``None`` for ``{}`` (all devices). ``ValueError`` for invalid text."""
        if spelling not in self._known:
            self._known[spelling] = self._parsed(spelling.strip())
        return self._known[spelling]

    def listed(self, groups: Groups) -> Groups | None:
        """Return groups that are already written out; ``None`` if empty."""
        self._count(sum(map(len, groups)))
        return groups or None

    def iota(self, groups: int, size: int, dims: Sequence[int], transposed: Sequence[int] = ()) -> Groups:
        """Return ``groups`` groups of ``size`` ids: 0, 1, 2 ... in shape ``dims``, axes ordered by ``transposed``."""
        key = (groups, size, tuple(dims), tuple(transposed))
        if key not in self._known:
            ids = self._counted(dims, transposed)
            if groups < 0 or size < 0 or groups * size != ids.size:
                raise ValueError(f"{groups:,} replica groups of {size:,} do not hold {ids.size:,} devices")
            self._known[key] = _rows(ids.reshape(groups, size))
        found = self._known[key]
        assert found is not None
        return found

    def mesh(
        self,
        sizes: Sequence[int],
        used: Sequence[SubAxis],
        dims: Sequence[int] = (),
        transposed: Sequence[int] = (),
        device_ids: Sequence[int] = (),
    ) -> Groups:
        """Return groups of the devices that differ only along the ``used`` axes of a mesh of ``sizes``.

        The mesh's devices count up, are an iota of ``dims`` and ``transposed``, or are ``device_ids``.
        """
        ids = self._mesh_ids(sizes, dims, transposed, device_ids)
        split, inner = _split_axes(sizes, used)
        outer = [axis for axis in range(len(split)) if axis not in inner]
        arranged = ids.reshape(split).transpose([*outer, *inner])
        return _rows(arranged.reshape(-1, math.prod(split[axis] for axis in inner)))

    def tiles(
        self,
        sizes: Sequence[int],
        used: Sequence[Sequence[SubAxis]],
        dims: Sequence[int] = (),
        transposed: Sequence[int] = (),
        device_ids: Sequence[int] = (),
    ) -> tuple[list[int], list[int]]:
        """Return the number of parts of each dimension of a value that is divided over axes of a mesh, and the devices.

        ``used``: the axes of each dimension. The devices are in the order of the parts; those of a part are adjacent.
        """
        ids = self._mesh_ids(sizes, dims, transposed, device_ids)
        split, inner = _split_axes(sizes, [axis for dimension in used for axis in dimension])
        outer = [axis for axis in range(len(split)) if axis not in inner]
        parts = [math.prod(size or sizes[axis] for axis, _, size in dimension) for dimension in used]
        return parts, [int(number) for number in ids.reshape(split).transpose([*inner, *outer]).ravel()]

    def _mesh_ids(
        self, sizes: Sequence[int], dims: Sequence[int], transposed: Sequence[int], device_ids: Sequence[int]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        total = math.prod(sizes)
        if device_ids:
            self._count(len(device_ids))
            ids = np.array(device_ids, dtype=np.int64)
        else:
            ids = self._counted(dims or [total], transposed).ravel()
        if ids.size != total or len(sizes) > MAX_RANK:
            raise ValueError(f"a mesh of {total:,} places for {ids.size:,} devices")
        return ids

    def _parsed(self, spelling: str) -> Groups | None:
        iota = _IOTA.fullmatch(spelling)
        if iota is not None:
            shape = _ints(iota[1])
            if len(shape) != 2:
                raise ValueError(f"replica groups of {len(shape)} dimensions")
            return self.iota(shape[0], shape[1], _ints(iota[2]), _ints(iota[3] or ""))
        mesh = _MESH.fullmatch(spelling)
        if mesh is not None:
            return self._mesh_of(mesh)
        if not spelling.startswith("{") or not spelling.endswith("}"):
            raise ValueError(f"unknown spelling of replica groups {spelling[:60]!r}")
        return self.listed(tuple(_ints(group) for group in _LISTED.findall(spelling[1:-1])))

    def _mesh_of(self, mesh: re.Match[str]) -> Groups:
        axes = _AXIS.findall(mesh[1])
        places = {name: axis for axis, (name, _) in enumerate(axes)}
        used = []
        for name, before, size in _USED.findall(mesh[5]):
            if name not in places:
                raise ValueError(f"replica groups along {name[:40]!r}, which is not an axis of their mesh")
            used.append((places[name], int(before or 1), int(size or 0)))
        sizes = [int(size) for _, size in axes]
        return self.mesh(sizes, used, _ints(mesh[2] or ""), _ints(mesh[3] or ""), _ints(mesh[4] or ""))

    def _counted(
        self, dims: Sequence[int], transposed: Sequence[int]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return 0, 1, 2 ... in the shape ``dims`` with reordered axes.

        The size is checked before the array is allocated.
        """
        if len(dims) > MAX_RANK or any(size < 1 for size in dims):
            raise ValueError("replica groups with an invalid shape")
        self._count(math.prod(dims))
        if transposed and sorted(transposed) != list(range(len(dims))):
            raise ValueError(f"replica groups: {list(transposed)} is not a permutation of {len(dims)} axes")
        counted = np.arange(math.prod(dims), dtype=np.int64).reshape(tuple(dims))
        return counted.transpose(tuple(transposed)) if transposed else counted

    def _count(self, ids: int) -> None:
        self._ids += ids
        if self._ids > MAX_GROUP_IDS:
            raise ValueError(f"replica groups of {self._ids:,} devices: more than any machine has")


def _split_axes(sizes: Sequence[int], used: Sequence[SubAxis]) -> tuple[list[int], list[int]]:
    """Return sizes in which every used part of an axis is an axis, and the indices of the used ones, in order."""
    cuts: dict[int, set[int]] = {axis: {1, size} for axis, size in enumerate(sizes)}
    for axis, before, size in used:
        if not 0 <= axis < len(sizes):
            raise ValueError("replica groups along an axis that their mesh lacks")
        if size:
            cuts[axis] |= {before, before * size}
    split: list[int] = []
    place: dict[tuple[int, int], int] = {}
    for axis, size in enumerate(sizes):
        steps = sorted(cuts[axis])
        if len(steps) == 1:
            place[axis, 1] = len(split)
            split.append(1)
        for low, high in itertools.pairwise(steps):
            if low < 1 or high % low:
                raise ValueError("replica groups along a part of an axis that does not divide it")
            place[axis, low] = len(split)
            split.append(high // low)
        if steps[-1] != max(size, 1):
            raise ValueError("replica groups along a part of an axis that is larger than it")
    inner: list[int] = []
    for axis, before, size in used:
        end = before * size if size else sizes[axis]
        inner.extend(index for (of, low), index in sorted(place.items()) if of == axis and before <= low < max(end, 2))
    if len(set(inner)) != len(inner):
        raise ValueError("replica groups along the same axis twice")
    return split, inner


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def _rows(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Groups:
    return tuple(tuple(row) for row in ids.tolist())


class Collective(Struct, frozen=True, kw_only=True):
    """One collective of a control computation."""

    module: HloModule
    computation: Computation
    start: Instruction
    """The start, or the collective itself if it is not split."""
    done: Instruction
    kind: str
    """Kind without wrappers: ``all-to-all`` and so on."""
    op: Instruction
    """Instruction that names its groups: the start, or the collective inside an ``async-start``."""
    bytes: int
    """Bytes that a device sends or receives per run: the larger of operands and result."""
    runs: Runs
    between: tuple[str, ...]
    """Launched instructions scheduled between start and done, without other collectives."""
    blocks: Blocks | None
    """Why the device waits for it; None if it overlaps other work, or if the program has no schedule."""

    @property
    def bytes_a_run(self) -> int:
        """Bytes in one run of the module."""
        return self.bytes * self.runs.times

    @property
    def group_size(self) -> int:
        """Number of devices in one exchange."""
        if self.op.replica_groups:
            return max(map(len, self.op.replica_groups))
        return max(self.module.num_partitions, self.module.num_replicas)


def collectives(trace: Trace) -> tuple[Collective, ...]:
    """Collectives of all modules, in schedule order."""
    return tuple(collective for module in trace.hlo for collective in collectives_of(module))


def collectives_of(module: HloModule) -> tuple[Collective, ...]:
    """Return the collectives of the computations that run. Collectives inside fusions are not found."""
    result = []
    wrapped = {
        name
        for _, instruction in module.instructions()
        if instruction.opcode == "async-start"
        for name in instruction.called
    }
    for name, runs in control_runs(module).items():
        if name not in wrapped:
            result += _of_computation(module, module.computations[name], runs)
    return tuple(result)


def _of_computation(module: HloModule, computation: Computation, runs: Runs) -> list[Collective]:
    position = {instruction.name: index for index, instruction in enumerate(computation.instructions)}
    done_of = _dones(computation)
    result = []
    for start in computation.instructions:
        op = _collective_in(module, start)
        if op is None:
            continue
        split = start.opcode.endswith("-start")
        done = done_of.get(start.name, start)
        between = computation.instructions[position[start.name] + 1 : position[done.name]]
        working = tuple(instruction.name for instruction in between if _computes(instruction))
        result.append(
            Collective(
                module=module,
                computation=computation,
                start=start,
                done=done,
                kind=op.opcode.removesuffix("-start"),
                op=op,
                bytes=max(sum(computation.by_name[name].shape.bytes for name in start.operands), done.shape.bytes),
                runs=runs,
                between=working,
                blocks=_blocks(start, op, split, bool(working)) if module.is_scheduled else None,
            )
        )
    return result


def _collective_in(module: HloModule, start: Instruction) -> Instruction | None:
    """Return the collective that an instruction is or starts; None for other instructions, including its done."""
    if start.opcode.removesuffix("-start") in KINDS:
        return start
    if start.opcode == "async-start" and start.called:
        body = module.computations[start.called[0]]
        return next((instruction for instruction in body.instructions if instruction.opcode in KINDS), None)
    return None


def _dones(computation: Computation) -> dict[str, Instruction]:
    """Map the name of a start to its done; updates between the two are followed."""
    started = {
        instruction.name: instruction.name
        for instruction in computation.instructions
        if instruction.opcode.endswith("-start")
    }
    result = {}
    for instruction in computation.instructions:
        origin = started.get(instruction.operands[0]) if instruction.operands else None
        if origin is not None and instruction.opcode == "async-update":
            started[instruction.name] = origin
        elif origin is not None and instruction.opcode.endswith("-done"):
            result[origin] = instruction
    return result


def _computes(instruction: Instruction) -> bool:
    name = instruction.opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")
    return (
        instruction.opcode not in MOVES_NOTHING and name not in KINDS and name not in ("async", "copy", "send", "recv")
    )


def _is_worth_it(instruction: Instruction) -> bool:
    """Whether it computes more than a loop's counter; a TPU's markers of asynchrony are excluded."""
    marker = (instruction.custom_call_target or "").startswith("AsyncCollective")
    return _computes(instruction) and instruction.shape.elements > 1 and not marker


def _blocks(start: Instruction, op: Instruction, split: bool, overlaps: bool) -> Blocks | None:
    if not split:
        return "never split into start and done"
    if _is_sync(start) or _is_sync(op):
        return "marked synchronous"
    return None if overlaps else "nothing scheduled between start and done"


def is_marked(collective: Collective) -> bool:
    """Whether XLA:GPU marked it as synchronous, split or not."""
    return _is_sync(collective.start) or _is_sync(collective.op)


def _is_sync(instruction: Instruction) -> bool:
    config = instruction.backend_config.get("collective_backend_config")
    return isinstance(config, dict) and config.get("is_sync") is True


def independent_work(collective: Collective) -> tuple[Instruction, ...]:
    """Return the work of the same computation that is independent of the collective, largest result first.

    All of it could run during the collective; only the order of the schedule prevents that.
    """
    computation = collective.computation
    before, after = {collective.start.name}, {collective.start.name, collective.done.name}
    for instruction in reversed(computation.instructions):
        if instruction.name in before:
            before.update(instruction.operands)
    for instruction in computation.instructions:
        if not after.isdisjoint(instruction.operands):
            after.add(instruction.name)
    free = (
        instruction
        for instruction in computation.instructions
        if instruction.name not in before and instruction.name not in after
    )
    return tuple(sorted(filter(_is_worth_it, free), key=lambda instruction: -instruction.shape.bytes))


def by_size(collectives: Iterable[Collective]) -> list[Collective]:
    """Sort by bytes moved per run, largest first."""
    return sorted(collectives, key=lambda collective: (-collective.bytes_a_run, collective.start.name))
