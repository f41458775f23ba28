"""A check of the bytes of an HLO proto before it is parsed: its kind, and whether it would exhaust memory.

An empty instruction takes two bytes, and 400 when parsed, so a file of a few MB could require GB. Therefore the
instructions are counted and measured in the bytes first.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.hlo.module import MAX_INSTRUCTIONS, MIN_INSTRUCTION_BYTES
from perfscope.model.wire import BYTES, WireError, fields, varint

_MODULE, _NAME, _ENTRY_NAME, _COMPUTATIONS, _INSTRUCTIONS = 1, 1, 2, 3, 2
"""Field numbers: HloProto.hlo_module; HloModuleProto.name, .entry_computation_name, .computations;
HloComputationProto.instructions."""
_LONGEST_NAME = 4096


def looks_like_module(head: bytes) -> bool:
    """Whether bytes begin as an ``HloModuleProto``: its name, followed by its entry's name or a computation."""
    name = _text(head, 0, _NAME)
    if name is None:
        return False
    return head[name : name + 1] == b"\x1a" or _text(head, name, _ENTRY_NAME) is not None


def looks_like_proto(head: bytes) -> bool:
    """Whether bytes begin as an ``HloProto``: a module, which begins with its name."""
    if head[:1] != b"\x0a":
        return False
    try:
        _, start = varint(head, 1, len(head))
    except WireError:
        return False
    return looks_like_module(head[start:])


def check_size(data: bytes | memoryview, *, alone: bool) -> None:
    """Raise ``ValueError`` if the module has too many or too small instructions.

    ``alone``: ``data`` is only the module.
    """
    count = 0
    modules = [(0, len(data))] if alone else _inside(data, 0, len(data), _MODULE)
    for module in modules:
        for computation in _inside(data, *module, _COMPUTATIONS):
            for begin, end in _inside(data, *computation, _INSTRUCTIONS):
                count += 1
                if end - begin < MIN_INSTRUCTION_BYTES:
                    raise ValueError(f"an instruction of {end - begin} bytes")
                if count > MAX_INSTRUCTIONS:
                    raise ValueError(f"more than {MAX_INSTRUCTIONS:,} instructions")


def _inside(data: bytes | memoryview, begin: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of every ``wanted`` field (a message) of the message at ``begin:end``."""
    for number, kind, _, start, stop in fields(data, begin, end):
        if number == wanted and kind == BYTES:
            yield start, stop


def _text(head: bytes, position: int, field: int) -> int | None:
    """Return the end of the printable text in ``field`` at ``position``; ``None`` without such a field."""
    if head[position : position + 1] != bytes([field << 3 | BYTES]):
        return None
    try:
        length, start = varint(head, position + 1, len(head))
    except WireError:
        return None
    text = head[start : start + length]
    if not 0 < length <= _LONGEST_NAME or len(text) < length:
        return None
    return start + length if text.decode("utf-8", "replace").isprintable() else None
