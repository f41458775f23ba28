"""Protocol buffers written by columns: rows of one shape become one block of bytes.

A varint may be longer than it must be (https://protobuf.dev/programming-guides/encoding/#varints: up to ten bytes
are read), so all rows of a block get the width of the widest: every field then lies at the same place in each row,
and a block is filled a column at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.model.trace.columns import Array
from perfscope.model.wire import BYTES, VARINT, write_varint

Block = npt.NDArray[np.uint8]
Piece = bytes | Block
"""Equal bytes for every row, or a block of shape (rows, width)."""


def tag(number: int, kind: int) -> bytes:
    """The key of a field."""
    return write_varint(number << 3 | kind)


def number_field(number: int, value: int) -> bytes:
    """A field that holds an integer, an enum or a bool."""
    return tag(number, VARINT) + write_varint(value)


def bytes_field(number: int, *parts: bytes) -> bytes:
    """A field that holds a message, given as its fields, or bytes."""
    body = b"".join(parts)
    return tag(number, BYTES) + write_varint(len(body)) + body


def text_field(number: int, text: str) -> bytes:
    """A field that holds text; invalid Unicode (half a surrogate) is replaced."""
    return bytes_field(number, text.encode("utf-8", "replace"))


def varints(values: Array) -> Block:
    """Numbers of shape (n,) as varints of one width, shape (n, width). Negative numbers as int64."""
    left = np.ascontiguousarray(values).astype(np.uint64, copy=False)
    width = max(1, -(-int(left.max()).bit_length() // 7)) if len(left) else 1
    block = np.empty((len(left), width), np.uint8)
    for index in range(width):
        block[:, index] = (left >> np.uint64(7 * index)).astype(np.uint8) & 0x7F
    block[:, :-1] |= 0x80
    return block


def fixed64(values: Array) -> Block:
    """64-bit numbers (or doubles) of shape (n,) as in memory, shape (n, 8)."""
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(len(values), 8)


def width(pieces: Sequence[Piece]) -> int:
    """Bytes of one row."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.shape[1] for piece in pieces)


def nested(number: int, pieces: Sequence[Piece]) -> list[Piece]:
    """A message as a field: key and length, then its fields."""
    return [tag(number, BYTES) + write_varint(width(pieces)), *pieces]


def records(pieces: Sequence[Piece], count: int) -> list[bytes]:
    """The rows concatenated; there are ``count``."""
    size = width(pieces)
    block = np.empty((count, size), np.uint8)
    index = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            block[:, index : index + len(piece)] = np.frombuffer(piece, np.uint8)
            index += len(piece)
        else:
            block[:, index : index + piece.shape[1]] = piece
            index += piece.shape[1]
    rows: Any = block.view(np.dtype((np.void, size))).ravel()
    return list(rows.tolist())
