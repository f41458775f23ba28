"""Numbers, words and texts: the opcodes of a pickle that push a value of their own."""

from __future__ import annotations

import mmap
import struct
from typing import Any

from perfscope.profiler.errors import DataError

LONGEST_TEXT = 1 << 20
"""Bytes of one text: a demangled name of C++ has some thousands."""


class Values:
    """A place in a pickle, and the stack that its values are pushed on. ``DataError`` where the file ends too early."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        self.end = len(data)
        self.at = 0
        self.stack: list[Any] = []
        self.text = 0
        """Bytes of text so far."""

    def number(self, size: int, signed: bool = False) -> int:
        """The next ``size`` bytes as a number, little end first."""
        self.at += size
        if self.at > self.end:
            raise DataError(f"cut off after {self.end:,} bytes")
        return int.from_bytes(self.data[self.at - size : self.at], "little", signed=signed)

    def _none(self) -> None:
        self.stack.append(None)

    def _true(self) -> None:
        self.stack.append(True)

    def _false(self) -> None:
        self.stack.append(False)

    def _one_byte(self) -> None:
        self.stack.append(self.number(1))

    def _two_bytes(self) -> None:
        self.stack.append(self.number(2))

    def _four_bytes(self) -> None:
        self.stack.append(self.number(4, signed=True))

    def _long(self) -> None:
        self.stack.append(self.number(self.number(1), signed=True))

    def _float(self) -> None:
        self.stack.append(struct.unpack_from(">d", self.data, self.at)[0])
        self.at += 8

    def _short_text(self) -> None:
        self._words(self.number(1))

    def _long_text(self) -> None:
        self._words(self.number(4))

    def _longer_text(self) -> None:
        self._words(self.number(8))

    def _words(self, size: int) -> None:
        if size > LONGEST_TEXT and self.at + size <= self.end:
            raise DataError(f"a text of {size:,} bytes: refused")
        self.at += size
        if self.at > self.end:
            raise DataError(f"a text of {size:,} bytes in a file that ends before it does")
        self.text += size
        self.stack.append(self.data[self.at - size : self.at].decode("utf-8", "replace"))
