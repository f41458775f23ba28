"""What makes two pieces of work of two traces the same: the key, and how much of it a level of matching asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from perfscope.analyzers.compare.kernel_names import without_counters, without_numbers, without_tiles, work_class

PartKind = Literal["compute", "communication", "copy", "idle", "host"]
"""What a part of the step is: the device computes, only communicates, only copies, or waits; or the host works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Where and what some work is. All texts as recorded; ``''`` where it is not known."""

    kind: PartKind
    phase: str = ""
    """``backward``, ``recompute``, or ``''``: forward, optimizer, or not known."""
    module: str = ""
    """Module (torch) or scope (JAX) that asked for it."""
    op: str = ""
    """Host op that launched it, or the primitive of a compiled instruction."""
    shapes: str = ""
    file: str = ""
    line: int = -1
    """-1: not known."""
    function: str = ""
    work: str = ""
    """Kernel, direction of a copy, operation of a collective, or why the device is idle."""

    def place(self) -> str:
        """``train.py:88``, else the module; ``''`` where neither is known."""
        if self.file:
            return f"{self.file}:{self.line}" if self.line >= 0 else self.file
        return self.module

    def name(self) -> str:
        """What it is, short: the op, and the work where it says more."""
        if self.kind in ("idle", "copy"):
            return f"{self.work} ({self.op})" if self.op else self.work
        if self.kind == "host":  # a range's arguments tell it from others: PjitFunction(step)
            return without_counters(self.op or self.work)
        return without_counters(self.op) or without_numbers(self.work) or self.kind


class Level(IntEnum):
    """How alike two keys are that were matched; the first level that finds a partner decides."""

    SAME = 0
    RENAMED = 1
    MOVED = 2
    OTHER_KERNEL = 3
    OTHER_SHAPES = 4
    SAME_OP = 5
    FUSED = 6
    SAME_CLASS = 7


LEVEL_WORDS: dict[Level, str] = {
    Level.SAME: "same place, op, shapes and kernel",
    Level.RENAMED: "kernel renamed (numbers, hashes, template arguments)",
    Level.MOVED: "its line moved in the same function",
    Level.OTHER_KERNEL: "same place, op and shapes, other kernels",
    Level.OTHER_SHAPES: "same place and op, other shapes",
    Level.SAME_OP: "same op elsewhere",
    Level.FUSED: "same line or module, other ops: fused or taken apart",
    Level.SAME_CLASS: "same class of work elsewhere",
}

Signature = tuple[str | int, ...]


def signature(key: Key, level: Level) -> Signature | None:
    """What two keys must share to be matched at a level; ``None``: this key cannot be matched there."""
    kind, phase, op = key.kind, key.phase, without_counters(key.op)
    if level is Level.SAME:
        return (kind, phase, key.module, key.op, key.shapes, key.file, key.line, key.function, key.work)
    if level is Level.RENAMED:
        return (kind, phase, key.module, op, key.shapes, key.file, key.line, key.function, _renamed(key))
    if level is Level.MOVED:
        return (kind, phase, key.module, op, key.shapes, key.file, key.function, _renamed(key))
    if kind == "idle":  # a wait for another reason, or in another op, is another wait
        return None
    if level is Level.OTHER_KERNEL:
        if not key.op:  # no host op known: the kernel is all there is
            return (kind, phase, key.module, without_tiles(key.work))
        return (kind, phase, key.module, op, key.shapes, key.file, key.function)
    if level is Level.OTHER_SHAPES:
        return (kind, phase, key.module, op, key.file, key.function) if op else None
    if level is Level.SAME_OP:
        return (kind, phase, op, work_class(key.work)) if op else None
    if level is Level.FUSED:
        place = key.file or key.module
        return (kind, phase, place, key.line) if place and kind == "compute" else None
    found = work_class(key.work)
    return (kind, phase, found) if kind in ("compute", "communication") and found != "other" else None


def _renamed(key: Key) -> str:
    """The work without what changes from build to build; of ranges on the host their arguments stay."""
    return without_counters(key.work) if key.kind == "host" else without_numbers(key.work)
