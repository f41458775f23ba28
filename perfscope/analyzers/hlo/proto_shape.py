"""Shapes of ``ShapeProto``, and their text where an attribute spells one."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.hlo.limits import MAX_TUPLE_DEPTH
from perfscope.analyzers.hlo.module import ITEM_BITS, Shape
from perfscope.analyzers.hlo.shape_text import checked_dims

ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2",
    20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2",
    28: "f8e4m3", 29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip
"""``xla.PrimitiveType``: number -> how HLO text spells it."""


class ShapeProtoReader:
    """Converts shapes, each once. ``tiled`` tells whether a layout with tiles was seen (TPU)."""

    def __init__(self) -> None:
        self.tiled = False
        self._known: dict[bytes, Shape] = {}

    def read(self, proto: Any) -> Shape:
        """The shape; ``ValueError`` if it is none."""
        key = proto.SerializeToString(deterministic=True)
        shape = self._known.get(key)
        if shape is None:
            shape = self._known[key] = self._converted(proto, 0)
        return shape

    def _converted(self, proto: Any, depth: int) -> Shape:
        if depth > MAX_TUPLE_DEPTH:
            raise ValueError(f"tuples nested more than {MAX_TUPLE_DEPTH} deep")
        dtype = ELEMENT_TYPES.get(proto.element_type)
        if dtype is None:
            raise ValueError(f"unknown element type {proto.element_type}")
        if dtype == "tuple":
            return Shape(dtype=dtype, parts=tuple(self._converted(part, depth + 1) for part in proto.tuple_shapes))
        dims = checked_dims(tuple(proto.dimensions))
        layout: tuple[int, ...] | None = None
        if proto.HasField("layout") and ITEM_BITS[dtype]:
            layout = tuple(proto.layout.minor_to_major)
            self.tiled |= len(proto.layout.tiles) > 0
        elif not dims and ITEM_BITS[dtype]:
            layout = ()
        space = proto.layout.memory_space if proto.HasField("layout") else 0
        return Shape(dtype=dtype, dims=dims, layout=layout, memory_space=space)


def shape_text(proto: Any) -> str:
    """A shape as HLO text spells it, with its layout; ``ValueError`` for tuples (no attribute spells one)."""
    dtype = ELEMENT_TYPES.get(proto.element_type)
    if dtype is None or dtype == "tuple":
        raise ValueError(f"a shape of element type {proto.element_type} in an attribute")
    text = f"{dtype}[{','.join(map(str, proto.dimensions))}]"
    layout = proto.layout
    if not layout.minor_to_major and not layout.tiles:
        return text
    tiles = "".join(f"({','.join(map(str, tile.dimensions))})" for tile in layout.tiles)
    marks = (f"T{tiles}" if tiles else "") + (f"S({layout.memory_space})" if layout.memory_space else "")
    order = ",".join(map(str, layout.minor_to_major))
    return f"{text}{{{order}{':' if marks else ''}{marks}}}"
