"""One step of a program in one form for both frameworks: its pieces, which are ops or launched instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Phase = Literal["forward", "backward", "optimizer", "other"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "other")

Kind = Literal["product", "attention", "move", "cast", "repeat", "collective", "other"]
"""``move``: copies, transposes and slices; ``cast``: changes the floating-point type of what it reads; ``repeat``:
writes its input several times."""

Basis = Literal["measured", "modelled"]


class Weight(Struct, frozen=True, kw_only=True):
    """A parameter of the model."""

    name: str
    """Path in the parameters (JAX), or the module that uses it (PyTorch)."""
    elements: int
    """Elements of one layer, if the layers are stacked."""
    stacked: int = 1
    """Layers along its first axis, where a loop takes one in each turn."""


class Piece(Struct, frozen=True, kw_only=True):
    """An op of PyTorch or a launched instruction of XLA, with the amounts of one step."""

    name: str
    """``aten.mm.default``, or the name of the instruction."""
    op: str
    """Short name: ``mm``, ``dot_general``."""
    kind: Kind
    phase: Phase
    reads: tuple[int, ...] = ()
    """Earlier pieces whose values it reads. A value that a loop hands to its next turn counts as its first value."""
    weights: tuple[int, ...] = ()
    """Numbers of weights that it reads, directly or through moves and casts."""
    carries: bool = False
    """Its result is nothing but a weight in another layout or type."""
    data: bool = True
    """Its result is floating-point data: indices and masks do not tie an op to a layer."""
    flops: int = 0
    """FLOPs of matrix products, convolutions and attention."""
    bytes: int = 0
    launches: int = 1
    turns: int = 1
    """Turns of the loops around it: ``flops``, ``bytes`` and ``launches`` are the sum over them."""
    recompute: bool = False
    """Part of the forward pass that the backward pass runs again."""
    dtype: str = ""
    """Type in which its products are computed."""
    size: int = 0
    """Elements of its result; of a loop's, in one turn."""
    time_ns: int | None = None
    scope: str = ""
    """Innermost module, or the user's named scopes."""
    file: str | None = None
    line: int | None = None
    lines: tuple[tuple[str, int], ...] = ()
    """Lines of the user's calls from the outermost one to this op, if the program has them."""
    origin: int | None = None
    """In the backward pass: the piece of the forward pass that it differentiates, if the recording has it."""
    updates: tuple[int, ...] = ()
    """In the optimizer: numbers of weights that it reads to update them."""
    checkpoint: tuple[str, int] | None = None
    """File and line of the call that makes the backward pass run it again, if the recording has it."""
    added: bool = False
    """The compiler added it: it has no name in the program."""


_MOST_SHARE_A_CALL = 0.95
"""Share of pieces below one call from which it is the call of all: a few have the lines of an earlier trace, because
JAX keeps the traces of jitted functions."""


def common_call(*groups: Iterable[Piece]) -> tuple[str, int] | None:
    """The innermost line through which the pieces of all groups are called; ``None`` without a common one."""
    call = None
    for column in zip(*(_common_path(group) for group in groups), strict=False):
        if len(set(column)) > 1:
            break
        call = column[0]
    return call


def _common_path(pieces: Iterable[Piece]) -> list[tuple[str, int]]:
    paths = [piece.lines for piece in pieces if piece.lines]
    found: list[tuple[str, int]] = []
    least = _MOST_SHARE_A_CALL * len(paths)
    while paths:
        counts = Counter(path[len(found)] for path in paths if len(path) > len(found))
        line, count = max(counts.items(), key=lambda pair: pair[1], default=(("", 0), 0))
        if not count or count < least:
            break
        found.append(line)
        paths = [path for path in paths if list(path[: len(found)]) == found]
    return found


class Held(Struct, frozen=True, kw_only=True):
    """Memory at the peak of the step."""

    bytes: int
    piece: int | None
    """Piece that made it; ``None``: held from before the step, as weights and the state of the optimizer are."""


class Fact(Struct, frozen=True, kw_only=True):
    """Something that a side does and that is not one piece: a sync, a constant, a buffer that is not donated."""

    kind: str
    bytes: int = 0
    count: int = 0
    time_ns: int | None = None
    file: str | None = None
    line: int | None = None
    detail: str = ""
    pieces: tuple[int, ...] = ()


class Program(Struct, frozen=True, kw_only=True):
    """One step of one side."""

    path: str
    framework: Literal["torch", "jax"]
    device: str
    pieces: tuple[Piece, ...]
    """In the order of the step; the bodies of loops are where the loop is."""
    weights: tuple[Weight, ...]
    step_ns: int | None
    """Time of one step; ``None`` if nothing was timed or modelled."""
    basis: Basis | None
    held: tuple[Held, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
