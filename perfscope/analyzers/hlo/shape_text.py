"""Shapes as HLO text spells them: ``f32[8,128]{1,0:T(8,128)S(1)}``, ``(s32[], /*index=1*/bf16[4])``."""

from __future__ import annotations

import re

from perfscope.analyzers.hlo.limits import MAX_DIMENSION, MAX_RANK, MAX_TUPLE_DEPTH
from perfscope.analyzers.hlo.module import ITEM_BITS, Shape

_TOKEN = re.compile(
    r"\s*+(?:/\*.*?\*/\s*+)?(?:([(),])|([a-z][a-z0-9]*+)\[([^\]]*+)\](?:\{((?:[^{}]++|\{[^{}]*+\})*+)\})?)"
)
_SPACE = re.compile(r"S\((\d{1,18})\)")
_LAYOUT = re.compile(r"\d{1,3}(?:,\d{1,3})*")


def checked_dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions; ``ValueError`` if there are too many, or one is negative or beyond 64 bits."""
    if len(dims) > MAX_RANK:
        raise ValueError(f"a shape of {len(dims):,} dimensions")
    if any(size < 0 or size > MAX_DIMENSION for size in dims):
        raise ValueError("a dimension that is negative or beyond 64 bits")
    return dims


class ShapeReader:
    """Parses shapes, each spelling once. ``tiled`` tells whether a layout with tiles was seen (TPU)."""

    def __init__(self) -> None:
        self.tiled = False
        self._known: dict[str, Shape] = {}

    def read(self, text: str) -> Shape:
        """The shape of a spelling; ``ValueError`` if it is none."""
        shape = self._known.get(text)
        if shape is None:
            shape = self._known[text] = self._parse(text)
        return shape

    def _parse(self, text: str) -> Shape:
        open_tuples: list[list[Shape]] = [[]]
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                raise ValueError(f"not a shape: {text[position : position + 40]!r}")
            position = token.end()
            bracket = token[1]
            if bracket is None:
                open_tuples[-1].append(self._array(token[0].strip(), token[2], token[3], token[4]))
            elif bracket == "(":
                open_tuples.append([])
                if len(open_tuples) > MAX_TUPLE_DEPTH:
                    raise ValueError(f"tuples nested more than {MAX_TUPLE_DEPTH} deep")
            elif bracket == ")":
                if len(open_tuples) < 2:
                    raise ValueError("a bracket closes that was not opened")
                parts = tuple(open_tuples.pop())
                open_tuples[-1].append(Shape(dtype="tuple", parts=parts))
        if len(open_tuples) != 1 or len(open_tuples[0]) != 1:
            raise ValueError(f"not a shape: {text[:40]!r}")
        return open_tuples[0][0]

    def _array(self, spelling: str, dtype: str, sizes: str, layout: str | None) -> Shape:
        known = self._known.get(spelling)
        if known is not None:
            return known
        if dtype not in ITEM_BITS:
            raise ValueError(f"unknown element type {dtype[:20]!r}")
        # a dynamic dimension, "<=8", takes the memory of its bound
        dims = checked_dims(tuple(int(size.strip().removeprefix("<=")) for size in sizes.split(",") if sizes.strip()))
        order: tuple[int, ...] | None = None if ITEM_BITS[dtype] == 0 or dims else ()
        space = 0
        if layout is not None:
            minor, _, rest = layout.partition(":")
            self.tiled |= "T(" in rest
            if _LAYOUT.fullmatch(minor):
                order = tuple(int(axis) for axis in minor.split(","))
            found = _SPACE.search(rest)
            space = int(found[1]) if found else 0
        shape = Shape(dtype=dtype, dims=dims, layout=order, memory_space=space)
        self._known[spelling] = shape
        return shape
