"""A program at the stages of its compiler: ops with their source lines, independent of the framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from perfscope.plugins.lower.document import Fate, Op, What

MOST_FILE_BYTES = 4 << 20
"""Largest source file that is read; larger ones are generated."""


class StageOp(Op, frozen=True, kw_only=True):
    """An op of a stage with its source line."""

    file: str | None = None
    line: int | None = None
    scope: str = ""
    """Path of the op in the framework's names, for ``--op``."""

    @property
    def place(self) -> str:
        """``file:line`` or an empty text."""
        return place_of(self.file, self.line)


class ProgramStage(Struct, frozen=True, kw_only=True):
    """A stage: its ops, or the reason why it is missing."""

    name: str
    ops: tuple[StageOp, ...] = ()
    file: str = ""
    missing: str = ""
    stem: str = ""
    """Begin of the names of its files, for code of kernels."""
    size: int | None = None
    """Number of ops, if it is not that of `ops`."""


class Program(Struct, frozen=True, kw_only=True):
    """One compiled program or graph."""

    name: str
    stages: tuple[ProgramStage, ...]
    fates: tuple[Fate, ...] = ()
    notes: tuple[str, ...] = ()
    weight: float = 0.0
    """Bytes that one run moves, and FLOPs at the rate of `FLOPS_PER_BYTE`: the order of programs."""


class Grouped(Struct):
    """Instructions of one kind at one line, while they are collected."""

    bytes: int = 0
    flops: int = 0
    count: int = 0
    names: list[str] = field(default_factory=list)
    kernels: dict[str, None] = field(default_factory=dict)
    phases: dict[str, None] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)

    def add(self, name: str, *, bytes_: int = 0, flops: int = 0, kernel: str = "", phase: str = "") -> None:
        """Count an instruction."""
        self.count += 1
        self.bytes += bytes_
        self.flops += flops
        self.names.append(name)
        if kernel:
            self.kernels[kernel] = None
        if phase:
            self.phases[phase] = None


FLOPS_PER_BYTE = 100
"""FLOPs that count as one byte in orders: between a CPU (about 10) and an H100 (295, bfloat16)."""

MOST_NAMES = 20
"""Most names of instructions and kernels in a row: enough to find the others."""


def names(values: Iterable[str]) -> tuple[str, ...]:
    """The first names, each once."""
    return tuple(dict.fromkeys(values))[:MOST_NAMES]


def place_of(file: str | None, line: int | None) -> str:
    """``file:line`` or an empty text."""
    return f"{file}:{line}" if file and line else ""


def listed(places: Sequence[str]) -> str:
    """``train.py:5, 6, model.py:3``: a file is named once for its lines in a row."""
    parts, last = [], ""
    for place in places:
        file, _, line = place.rpartition(":")
        parts.append(line if file == last else place)
        last = file
    return ", ".join(parts)


def is_at(place: str, asked: str) -> bool:
    """Whether a place is at an asked line: ``12``, ``train.py:12`` or a longer end of its path."""
    file, _, line = place.rpartition(":")
    wanted, _, number = asked.rpartition(":")
    if line != number:
        return False
    return not wanted or file == wanted or file.endswith(f"/{wanted}") or wanted.endswith(f"/{file}")


def code_at(place: str) -> str:
    """Text of a line; empty if its file cannot be read."""
    file, _, line = place.rpartition(":")
    lines = _lines(file) if file else ()
    number = int(line) if line.isdecimal() else 0
    return lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""


@lru_cache(maxsize=256)
def _lines(file: str) -> Sequence[str]:
    path = Path(file)
    try:
        if path.suffix != ".py" or path.stat().st_size > MOST_FILE_BYTES:
            return ()
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()


def fate(
    what: What, program: str, where: str, group: Grouped, reason: str, *, times: int = 0, before: str = "",
    after: str = "", by: Literal["program", "compiler"] = "program",
) -> Fate:  # fmt: skip
    """The fate of a line from its group."""
    return Fate(
        what=what, program=program, place=where, code=code_at(where), phases=tuple(group.phases),
        times=times or group.count, before=before, after=after, bytes=group.bytes, flops=group.flops, reason=reason,
        by=by, ops=names(group.names), kernels=names(group.kernels),
    )  # fmt: skip
