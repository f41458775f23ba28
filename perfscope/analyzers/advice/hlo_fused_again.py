"""What XLA writes to memory of what a layer's backward computes again, instead of within its readers.

Where less is kept of a layer, its backward begins with the layer's forward, and XLA fuses both together anew. Nothing
of a program without the policy shows how: there what is kept is in memory. So both are put together here, as they are
before they are fused, and then fused as XLA does it (``hlo_fused.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from perfscope.analyzers.advice.hlo_fused import Op, written
from perfscope.analyzers.advice.hlo_fused_merged import merged, normalized
from perfscope.analyzers.advice.hlo_layers import Layers
from perfscope.analyzers.advice.hlo_policies import Keeps
from perfscope.analyzers.advice.hlo_same import Sames
from perfscope.analyzers.advice.hlo_sharing import ELEMENTWISE
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.module import Computation, Instruction

_POINTWISE = (ELEMENTWISE - {"bitcast"}) | {"convert"}
_MOVES = frozenset({"slice", "pad", "concatenate", "broadcast", "iota", "transpose"})
"""Opcodes that XLA computes within their readers as well. Parts of weights are in memory, for the barrier."""
_PARTS = frozenset({"slice", "dynamic-slice", "broadcast", "gather"})
"""Opcodes that read as many elements as they make, however large the operand is."""
_READERS = _POINTWISE | _MOVES | {"dynamic-slice", "reduce", "dynamic-update-slice", "gather", "reduce-window"}
_CYCLES = {
    "add": 7, "subtract": 7, "multiply": 3, "divide": 19, "exponential": 79, "exponential-minus-one": 190, "log": 166,
    "log-plus-one": 229, "rsqrt": 75, "sqrt": 75, "tanh": 467, "power": 510, "sine": 958, "cosine": 978, "cbrt": 178,
    "atan2": 431,
}  # fmt: skip
"""Cycles for an element of 32 bits, as XLA measured them on an H100 (hlo_op_profiles_data.h)."""
_FEW = 3
"""Of every other instruction, and of every type that was not measured."""
_BRANCH, _BRANCHES, _WARP = 6, 400, 32
"""Of a concatenation: cycles for an element, those where its parts are not whole warps, and their width."""
_DIMENSION = re.compile(r"\d+")
SMALL = 0.01
"""Share of the largest array from which on a value is looked at. It is the readers of a smaller one that count: XLA
makes one kernel of those that read the same, which is not followed here."""
MOST = 3_000
"""Instructions that are fused; of more it takes too long."""


def written_again(
    flow: Flow, layers: Layers, code: Computation, keeps: Keeps, stacks: Mapping[int, int], names: Iterable[str]
) -> dict[int, int]:
    """Values by number in ``Flow`` that XLA would write, each with the first of those that are the same.

    ``code``: what runs the backward, ``names``: those of its instructions that are the backward, ``stacks``: arrays of
    what was kept of all layers, and what one layer puts there. Without what products and loops read, which is in memory
    anyway.
    """
    found = _Together(flow, keeps, stacks)
    for name in names:
        found.take(code, code.by_name[name])
    if len(found.ops) > MOST:
        return {}
    readers = written(found.ops)
    gone = merged(found.ops, readers) | normalized(found.ops)
    least = SMALL * max((op.bytes for op in found.ops), default=0)
    kinds = {found.kinds[at] for at in readers if found.is_free(at) and at not in gone and found.ops[at].bytes >= least}
    first: dict[int, int] = {}
    numbers: dict[int, int] = {}
    for number, value in enumerate(flow.values):
        known = not value.names and value.computation.name in layers.within and found.sames.source(number) == number
        if known and value.instruction.shape.dims and found.sames.of(number) in kinds:
            numbers[number] = first.setdefault(found.sames.of(number), number)
    return numbers


class _Together:
    """Instructions of the backward and of what it reads of the forward, each once, as before they are fused."""

    def __init__(self, flow: Flow, keeps: Keeps, stacks: Mapping[int, int]) -> None:
        self._flow = flow
        self._keeps = keeps
        self.sames = Sames(flow, stacks)
        self.ops: list[Op] = []
        self.kinds: list[int] = []
        """By place in ``ops``: the number of ``sames``; -1 of views."""
        self._places: dict[int, int] = {}
        self._views: dict[tuple[int, tuple[int, ...]], int] = {}
        self._bound: set[int] = set()
        """Places of what a product or a loop reads."""

    def is_free(self, at: int) -> bool:
        """Whether it is up to XLA to write it."""
        return self.kinds[at] >= 0 and self.ops[at].produces and at not in self._bound

    def take(self, code: Computation, one: Instruction) -> None:
        """All that an instruction of the backward makes, and what that is computed from."""
        if one.opcode != "fusion":
            self._place(self._flow.numbers[code.name, one.name])
            return
        inside = self._flow.module.computations[one.called[0]]
        for name in inside.root.operands if inside.root.opcode == "tuple" else (inside.root.name,):
            self._place(self._flow.numbers[inside.name, name])

    def _place(self, number: int) -> None:
        waiting, opened = [self.sames.source(number)], set[int]()
        while waiting:
            one = waiting[-1]
            kind = self.sames.of(one)
            if kind in self._places:
                waiting.pop()
                continue
            behind = [] if self._is_held(one) else [self.sames.source(each) for each in self._operands(one)]
            missing = [each for each in behind if self.sames.of(each) not in self._places]
            if missing and kind not in opened:
                opened.add(kind)
                waiting += missing
                continue
            self._add(one, kind)
            waiting.pop()

    def _is_held(self, number: int) -> bool:
        """It is in memory: handed on by loops, an argument, or what the policy keeps."""
        value = self._flow.values[number]
        if value.carried or value.instruction.opcode == "parameter" or self._keeps(number):
            return True
        return bool(value.names) and value.instruction.opcode != "get-tuple-element"

    def _operands(self, number: int) -> tuple[int, ...]:
        value = self._flow.values[number]
        numbers = value.operands
        if value.instruction.opcode in ("while", "get-tuple-element"):
            numbers = self._begins(number)
        return tuple(one for one in numbers if self._flow.opcode(one) not in ("constant", "tuple"))

    def _begins(self, number: int) -> tuple[int, ...]:
        """What a loop begins with."""
        inside = self._flow.values[number].computation
        loop = self._flow.values[number].instruction
        while loop.opcode == "get-tuple-element":
            loop = inside.by_name[loop.operands[0]]
        start = inside.by_name[loop.operands[0]] if loop.opcode == "while" else loop
        if start.opcode != "tuple":
            return ()
        return tuple(self._flow.numbers[inside.name, name] for name in start.operands)

    def _add(self, number: int, kind: int) -> None:
        one = self._flow.values[number].instruction
        held = self._is_held(number)
        operands: dict[int, float] = {}
        for operand in () if held else self._operands(number):
            if self.sames.of(operand) not in self._places:
                continue  # a value that leads back to itself
            at, view = self._places[self.sames.of(operand)], self._seen_as(operand)
            if one.opcode not in _READERS:
                self._bound.add(at)
            share = one.shape.elements / max(self.ops[view].elements, 1) if one.opcode in _PARTS else 1.0
            if one.opcode == "dynamic-update-slice" and not operands:
                share = 0.0
            operands.setdefault(view, share)
        written_part = (
            self._flow.values[number].operands[1] if one.opcode == "dynamic-update-slice" and not held else number
        )
        shape = self._flow.values[written_part].instruction.shape
        cycles, widths = self._work(number, len(operands))
        self._places[kind] = len(self.ops)
        self.kinds.append(kind)
        self.ops.append(
            Op(
                operands=tuple(operands),
                uses=tuple(share * width for share, width in zip(operands.values(), widths, strict=True)),
                elements=max(shape.elements, 1),
                bytes=shape.bytes,
                cycles=0 if held else cycles,
                pointwise=one.opcode in _POINTWISE,
                produces=not held and one.opcode in _POINTWISE | _MOVES,
                consumes=not held and one.opcode in _READERS,
                reduces=not held and one.opcode == "reduce",
                broadcasts=not held and one.opcode == "broadcast",
            )
        )

    def _seen_as(self, operand: int) -> int:
        """The place of an operand, or of a view of it in other dimensions."""
        at = self._places[self.sames.of(operand)]
        dims = self._flow.values[operand].instruction.shape.dims
        source = self._flow.values[self.sames.source(operand)].instruction.shape.dims
        if dims == source or not dims:
            return at
        if (at, dims) not in self._views:
            self._views[at, dims] = len(self.ops)
            self.kinds.append(-1)
            op = self.ops[at]
            self.ops.append(
                Op(operands=(at,), uses=(1.0,), elements=op.elements, bytes=op.bytes, pointwise=False, view=True)
            )
        return self._views[at, dims]

    def _work(self, number: int, count: int) -> tuple[int, list[float]]:
        """Cycles for all elements, and by operand how much of its reads is idle."""
        one = self._flow.values[number].instruction
        plain = [1.0] * count
        if one.opcode == "concatenate":
            at = int((_DIMENSION.findall(one.attributes.get("dimensions", "")) or ["0"])[0])
            if not at:
                return _BRANCH * one.shape.elements, plain
            sizes = [self._flow.values[each].instruction.shape.dims[at] for each in self._flow.values[number].operands]
            cycles = _BRANCHES if any(size % _WARP for size in sizes) else _BRANCH
            if len(sizes) == count:
                plain = [-(-size // _WARP) * _WARP / size for size in sizes]
            return cycles * one.shape.elements, plain
        if one.opcode == "reduce":
            source = self._flow.values[self._flow.values[number].operands[0]].instruction.shape
            return _CYCLES["add"] * max(source.elements - one.shape.elements, 0), plain
        if one.opcode not in _POINTWISE:
            return 0, plain
        measured = one.shape.dtype in ("f32", "f16")
        return (_CYCLES.get(one.opcode, _FEW) if measured else _FEW) * one.shape.elements, plain
