"""A look at the bytes of an HLO proto before it is parsed: what it is, and whether it is a bomb.

Two bytes are enough for an empty instruction, and its parsed form takes 400: a file of a few MB could
ask for GB. So the instructions are counted and measured on the wire first.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.hlo.module import MAX_INSTRUCTIONS, MIN_INSTRUCTION_BYTES

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MODULE, _NAME, _ENTRY_NAME, _COMPUTATIONS, _INSTRUCTIONS = 1, 1, 2, 3, 2
"""Field numbers: HloProto.hlo_module; HloModuleProto.name, .entry_computation_name, .computations;
HloComputationProto.instructions."""
_LONGEST_NAME = 4096


def looks_like_module(head: bytes) -> bool:
    """Whether bytes begin as an ``HloModuleProto``: its name, then its entry's name or a computation."""
    name = _text(head, 0, _NAME)
    if name is None:
        return False
    return head[name : name + 1] == b"\x1a" or _text(head, name, _ENTRY_NAME) is not None


def looks_like_proto(head: bytes) -> bool:
    """Whether bytes begin as an ``HloProto``: a module, which begins with its name."""
    if head[:1] != b"\x0a":
        return False
    try:
        _, start = varint(head, 1)
    except ValueError:
        return False
    return looks_like_module(head[start:])


def check_size(data: bytes | memoryview, *, alone: bool) -> None:
    """``ValueError`` if the module in ``data`` (``alone``: it is all of it) has too many or too small instructions."""
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


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at ``position`` and where it ends; ``ValueError`` if it does not."""
    number = 0
    for index in range(10):
        if position + index >= len(data):
            break
        byte = data[position + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, position + index + 1
    raise ValueError("a number that does not end")


def _inside(data: bytes | memoryview, begin: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Begin and end of every ``wanted`` field (a message) of the message at ``begin:end``."""
    position = begin
    while position < end:
        key, position = varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            _, position = varint(data, position)
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _LENGTH:
            length, position = varint(data, position)
        if length is None or position + length > end:
            raise ValueError("a field that is cut off or of an unknown kind")
        if key >> 3 == wanted and kind == _LENGTH:
            yield position, position + length
        position += length


def _text(head: bytes, position: int, field: int) -> int | None:
    """Where the printable text in ``field`` at ``position`` ends; ``None`` if there is no such field."""
    if head[position : position + 1] != bytes([field << 3 | _LENGTH]):
        return None
    try:
        length, start = varint(head, position + 1)
    except ValueError:
        return None
    text = head[start : start + length]
    if not 0 < length <= _LONGEST_NAME or len(text) < length:
        return None
    return start + length if text.decode("utf-8", "replace").isprintable() else None
