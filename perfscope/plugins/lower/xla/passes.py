"""Dumps after each pass of XLA: which pass added an instruction.

``--xla_dump_hlo_pass_re=.*`` writes ``module_0016.jit_step.0063.PIPELINE.after_layout-assignment.before_NEXT.txt`` for
each pass that changed the program.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from perfscope.analyzers.readers import open_bytes

_NAME = re.compile(r"^(?P<stem>.+?)\.(?P<number>\d{4})\.(?P<pipeline>[^.]+)\.after_(?P<after>.+?)"
                   r"(?:\.before_.+?)?\.txt(?:\.gz|\.xz)?$")  # fmt: skip
_DEFINED = re.compile(rb"^\s+(?:ROOT )?%?[\w.-]+ = (\w+)\[([\d,]*)\](\{[\d,]*[^}]*\})? ([a-z][\w-]*)\(", re.MULTILINE)
_NAMED = re.compile(rb"^\s+(?:ROOT )?%?([\w.-]+) = ", re.MULTILINE)
_MOST_BYTES = 256 << 20

_COPIES = frozenset({
    "call-inliner", "flatten-call-graph", "fusion", "fusion-wrapper", "multi_output_fusion", "priority-fusion",
    "call-graph-flattening", "while-loop-unroller", "inline",
})  # fmt: skip
"""Passes that copy instructions into their callers and fusions, and add none."""

Signature = tuple[str, str, int, str]
"""Opcode, dtype, number of elements, and order; an empty order means any order. Sizes change when views are merged."""


class Pass(Struct, frozen=True):
    """A dump, and the pass that ran before it."""

    name: str
    pipeline: str
    file: Path


class Passes:
    """The dumps of one program, in order; read once, when they are needed."""

    def __init__(self, found: Sequence[Pass]) -> None:
        self.found = tuple(found)
        self._counts: list[Counter[Signature]] | None = None

    def adder(self, opcode: str, dtype: str, elements: int, order: str = "") -> str:
        """The pass that added instructions of this kind for good; empty if they are the program's, or without dumps.

        Names change when code is inlined and fused, so instructions are counted: the last pass whose increase stays.
        """
        counts = [held[opcode, dtype, elements, order] for held in self._read()]
        found = ""
        for number in range(1, len(counts)):
            added = counts[number] > counts[number - 1] and min(counts[number:]) > counts[number - 1]
            if added and self.found[number].name not in _COPIES:
                found = found or self.found[number].name
        return found

    def remover(self, names: Iterable[str]) -> str:
        """The pass after which none of these instructions is left; empty if inlining renamed them, or without dumps."""
        wanted = frozenset(names)
        held = [bool(wanted & _names(item.file)) for item in self.found]
        if not any(held):
            return ""
        last = max(number for number, there in enumerate(held) if there)
        gone = self.found[last + 1].name if last + 1 < len(held) else ""
        return "" if gone in _COPIES else gone

    def _read(self) -> list[Counter[Signature]]:
        if self._counts is None:
            self._counts = [_counted(item.file) for item in self.found]
        return self._counts


def passes_of(folder: Path, stem: str) -> Passes:
    """The dumps of the program whose files begin with ``stem`` (``module_0016.jit_step``)."""
    found = []
    for file in folder.iterdir():
        match = _NAME.match(file.name)
        if match is not None and match["stem"] == stem:
            name = match["after"]
            shown = match["pipeline"] if name in ("pipeline-start", "pipeline-end") else name
            found.append((int(match["number"]), Pass(shown, match["pipeline"], file)))
    return Passes([item for _, item in sorted(found, key=lambda pair: pair[0])])


def is_pass_dump(name: str) -> bool:
    """Whether a file is the dump of a pass by its name."""
    return _NAME.match(name) is not None


@lru_cache(maxsize=1024)
def _names(file: Path) -> frozenset[str]:
    with open_bytes(file, _MOST_BYTES) as data:
        return frozenset(name.decode("utf-8", "replace") for name in _NAMED.findall(bytes(data)))


def _counted(file: Path) -> Counter[Signature]:
    """Instructions by signature, with the order and without it."""
    counts: Counter[Signature] = Counter()
    with open_bytes(file, _MOST_BYTES) as data:
        for dtype, sizes, order, opcode in _DEFINED.findall(bytes(data)):
            key = opcode.decode(), dtype.decode(), math.prod(int(size) for size in sizes.split(b",") if size)
            counts[(*key, "")] += 1
            counts[(*key, order.decode())] += 1
    return counts
