"""``OpSharding`` as HLO text spells it: ``{replicated}``, ``{devices=[1,8]<=[8] last_tile_dim_replicate}``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_REPLICATED, _MAXIMAL, _TUPLE, _TILED, _MANUAL, _UNKNOWN, _UNREDUCED = range(7)
"""``xla.OpSharding.Type``."""
_NAMES = {_REPLICATED: "replicated", _MANUAL: "manual", _UNKNOWN: "unknown", _UNREDUCED: "unreduced"}
_DEEPEST = 8
"""Tuples of shardings are flat; XLA refuses others."""


def sharding_text(proto: Any, depth: int = 0) -> str | None:
    """The text; ``None`` for a kind that is newer than this (named shardings: their mesh is not in our proto)."""
    if proto.HasField("named_sharding") or depth > _DEEPEST:
        return None
    if proto.type == _TUPLE:
        parts = [sharding_text(part, depth + 1) for part in proto.tuple_shardings]
        if any(part is None for part in parts):
            return None
        # text numbers every fifth part
        shown = (f"/*index={at}*/{part}" if at and not at % 5 else str(part) for at, part in enumerate(parts))
        return "{" + ", ".join(shown) + "}"
    if proto.type == _MAXIMAL:
        return f"{{maximal device={proto.tile_assignment_devices[0] if proto.tile_assignment_devices else 0}}}"
    if proto.type in _NAMES:
        return "{" + _NAMES[proto.type] + "}"
    return f"{{devices=[{_listed(proto.tile_assignment_dimensions)}]{_devices(proto)}{_last_dims(proto)}}}"


def _devices(proto: Any) -> str:
    reshape, transpose = list(proto.iota_reshape_dims), list(proto.iota_transpose_perm)
    if reshape:
        turned = transpose != sorted(transpose)
        return f"<=[{_listed(reshape)}]" + (f"T({_listed(transpose)})" if turned else "")
    devices = list(proto.tile_assignment_devices)
    # a list that counts up is written as the count that it is
    return f"<=[{len(devices)}]" if devices == list(range(len(devices))) else _listed(devices)


def _last_dims(proto: Any) -> str:
    kinds = list(proto.last_tile_dims)
    if proto.replicate_on_last_tile_dim or kinds == [_REPLICATED]:
        return " last_tile_dim_replicate"
    names = ", ".join(_NAMES.get(kind, str(kind)) for kind in kinds)
    return f" last_tile_dims={{{names}}}" if kinds else ""


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
