"""Launches of XLA's GPU runtime, in order: ``*.thunk_sequence.txt`` of a dump.

```
006: kWhile        [prev=005 (1) | next=026 (1)]
condition:
    007: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes
  body:
    012: kAsyncStart         [prev=009 (1) | next=017 (3)] stream=communication_stream[0], async_id=12
        011: kAllGather [source | sink] kAllGather
    015: kAsyncDone          [source       | sink        ] async_id=12
```

A kernel is called as its instruction, with ``_`` for ``.`` and ``-``; instructions that compile to one kernel share its
name. ``[source | next=029 (9)]`` are the edges that data make.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction

MAX_THUNKS = 1 << 20
"""Maximum number of thunks, more than any program launches; reading stops there."""

_LINE = re.compile(
    r"^(?P<indent> *)(?P<id>\d{1,9}): k(?P<kind>[A-Za-z]{1,40}) *\[(?P<before>[^\]|]{0,80})\|(?P<after>[^\]]{0,80})\]"
    r" ?(?P<rest>.{0,2000})$"
)
_EDGE = re.compile(r"(\d{1,9}) \(\d{1,9}\)")
_GRID = re.compile(r"^(?P<name>\S{1,400}) grid: \[(?P<grid>[\d, ]{1,40})\] threads: \[(?P<threads>[\d, ]{1,40})\]")
_STREAM = re.compile(r"stream=([\w\[\]]{1,80})")

RUNS = frozenset({"while", "conditional", "call"})
"""Opcodes that run the computations they call, one instruction after another."""


class Thunk(Struct, frozen=True, kw_only=True):
    """One launch, or a container of launches."""

    id: int
    kind: str
    """``CustomKernel``, ``Copy``, ``While``, ``AsyncStart``, ``AllGather``, ``Gemm`` ..., without the ``k``."""
    depth: int
    """Number of enclosing thunks."""
    name: str = ""
    """Name of a kernel."""
    blocks: int | None = None
    """Blocks of a kernel's grid; None for other thunks."""
    threads: int | None = None
    """Threads per block."""
    stream: str | None = None
    """``communication_stream[0]``; None for the stream of kernels."""
    before: int | None = None
    """The last thunk of its sequence that it needs; None if it needs none."""
    after: int | None = None
    """The first thunk of its sequence that needs it."""


class Thunks(Struct, frozen=True, kw_only=True):
    """All thunks of a program in file order: the contents of a loop follow it, one level deeper."""

    thunks: tuple[Thunk, ...]

    @property
    def has_command_buffers(self) -> bool:
        """Whether some of it is launched as a recorded graph."""
        return any(thunk.kind == "CommandBuffer" for thunk in self.thunks)

    def blocks(self) -> Mapping[str, int]:
        """Blocks of each kernel's grid, by name; for a shared name, the smaller number."""
        result: dict[str, int] = {}
        for thunk in self.thunks:
            if thunk.name and thunk.blocks is not None:
                result[thunk.name] = min(result.get(thunk.name, thunk.blocks), thunk.blocks)
        return result

    def streams_of(self, module: HloModule) -> Mapping[str, str]:
        """Return the stream of each asynchronous collective, by its start's name; empty if they cannot be matched.

        Both sides list starts in execution order; their numbers must be equal.
        """
        named = [thunk.stream for thunk in self.thunks if thunk.kind == "AsyncStart"]
        starts = [start.name for start in _starts(module, module.entry)]
        if len(named) != len(starts):
            return {}
        return {name: stream for name, stream in zip(starts, named, strict=True) if stream is not None}


def _starts(module: HloModule, name: str) -> Iterable[Instruction]:
    """Yield the asynchronous collectives in execution order, with loops and calls expanded in place."""
    for instruction in module.computations[name].instructions:
        if instruction.opcode in ("while", "conditional", "call"):
            for called in instruction.called:
                yield from _starts(module, called)
        elif instruction.opcode.endswith("-start") and not instruction.opcode.startswith(("copy", "send", "recv")):
            config = instruction.backend_config.get("collective_backend_config")
            if not (isinstance(config, dict) and config.get("is_sync") is True):
                yield instruction


def read_thunks(lines: Iterable[str]) -> Thunks:
    """Parse the thunks of a file's lines; other lines (``body:``) are ignored."""
    thunks: list[Thunk] = []
    indents: list[int] = []
    for line in lines:
        match = _LINE.match(line.rstrip("\r\n"))
        if match is None:
            continue
        if len(thunks) >= MAX_THUNKS:
            break
        indent = len(match["indent"])
        while indents and indents[-1] >= indent:
            indents.pop()
        thunks.append(_thunk(match, len(indents)))
        indents.append(indent)
    return Thunks(thunks=tuple(thunks))


def _thunk(match: re.Match[str], depth: int) -> Thunk:
    rest = match["rest"]
    kernel, stream = _GRID.match(rest), _STREAM.search(rest)
    before, after = _EDGE.search(match["before"]), _EDGE.search(match["after"])
    return Thunk(
        id=int(match["id"]),
        kind=match["kind"],
        depth=depth,
        name="" if kernel is None else kernel["name"],
        blocks=None if kernel is None else _product(kernel["grid"]),
        threads=None if kernel is None else _product(kernel["threads"]),
        stream=None if stream is None else stream[1],
        before=None if before is None else int(before[1]),
        after=None if after is None else int(after[1]),
    )


def _product(text: str) -> int:
    return math.prod(int(part) for part in text.replace(" ", "").split(",") if part)


# Execution order of the instructions in one run of a program, with loops and branches flattened.
# As in XLA's live ranges, the contents of a loop, a branch or a call come once, before the instruction that runs them.


class Schedule:
    """Positions of the instructions that run. Instructions in fusions and reductions have none."""

    def __init__(self, module: HloModule) -> None:
        """Linear in the module; readers reject cyclic or too deep calls."""
        self.computations: dict[str, Computation] = {}
        """Computations that run, each once, callees first."""
        self.positions: dict[str, int] = {}
        self.begins: dict[str, int] = {}
        """First position of the instruction's contents: its own position if it runs nothing."""
        self.instructions: dict[str, Instruction] = {}
        self._lay(module, module.entry)

    def __len__(self) -> int:
        return len(self.instructions)

    def _lay(self, module: HloModule, name: str) -> None:
        computation = module.computations[name]
        for instruction in computation.instructions:
            begin = len(self.instructions)
            for called in instruction.called if instruction.opcode in RUNS else ():
                if called not in self.computations:
                    self._lay(module, called)
            self.begins.setdefault(instruction.name, begin)
            self.positions.setdefault(instruction.name, len(self.instructions))
            self.instructions.setdefault(instruction.name, instruction)
            if instruction.wraps:  # buffers have the name of the operation that a start runs
                self.positions.setdefault(instruction.wraps, self.positions[instruction.name])
        self.computations[name] = computation
