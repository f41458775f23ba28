"""Pickles from untrusted sources, loaded by Python's own unpickler after their opcodes were held against an allow-list.

A pickle runs whatever it names. So the whole file is walked first, at the speed of the regular expression engine: only
opcodes that numbers, text, lists, dictionaries and tuples are made of may stand in it, none of which names, builds or
calls anything. Tuples other than pairs of numbers are few: where one of many nested ones is a key, its hash runs out of
stack.
"""

from __future__ import annotations

import gc
import io
import mmap
import pickle
import re
from typing import Any, NoReturn

from perfscope.model.errors import DataError

MOST_CONTAINERS = 32_000_000
"""Lists and dictionaries: each entry of the history is one, and an empty one takes 64 bytes."""

MOST_TUPLES = 40_000
"""Tuples that are no pairs of numbers: twice the entries of a flight recorder, and half of what a stack of 8 MB hashes
where all of them are nested."""

_REFUSED = {
    "c": "it asks for a class (GLOBAL)",
    "\x93": "it asks for a class (STACK_GLOBAL)", "i": "it asks for a class (INST)",
    "R": "it would call something (REDUCE)", "b": "it would build an object (BUILD)", "o": "it would build an object",
    "\x81": "it would build an object (NEWOBJ)", "\x92": "it would build an object (NEWOBJ_EX)",
    "\x82": "it asks for an extension", "\x83": "it asks for an extension", "\x84": "it asks for an extension",
    "P": "it asks for a persistent object", "Q": "it asks for a persistent object",
}  # fmt: skip
"""What some of the other opcodes ask for."""

_NUMBER = rb"(?:K.|M..|J....|\x8a(?:%s))" % b"|".join(rb"\x%02x%s" % (n, b"." * n) for n in range(9))
_TEXT = rb"\x8c(?:%s)" % b"|".join(rb"\x%02x%s" % (n, b"." * n) for n in range(24))
_PLAIN = re.compile(
    rb"(?s:[(N\x88\x89\x94)\]}aesu]|[hq].|j....|G........|%s|%s(?:%s\x86)?+)*+" % (_TEXT, _NUMBER, _NUMBER)
)
"""Opcodes with what belongs to them, but for those whose length or number must be looked at."""

_LENGTHS = {0x8C: ("text", 1), 0x58: ("text", 4), 0x8D: ("text", 8), 0x8A: ("number", 1), 0x95: ("frame", 8)}
"""Opcode -> what follows it, and the bytes that hold its length."""
_FRAME, _LONG_PUT = 0x95, 0x72
_TUPLES = b"t\x85\x86\x87"
_PIECE = 64 << 20


def load(data: bytes | mmap.mmap, document: str) -> Any:
    """What the pickle holds; ``DataError`` (without a path) for what is no plain, whole pickle within the limits.

    ``document``: what it should be, for messages.
    """
    version = data[1] if data[:1] == pickle.PROTO and len(data) > 1 else 0
    if not 2 <= version <= pickle.HIGHEST_PROTOCOL:
        raise DataError(f"a pickle of protocol {version}: known are 2 to {pickle.HIGHEST_PROTOCOL}")
    pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
    if sum(piece.count(b"}") + piece.count(b"]") for piece in pieces) > MOST_CONTAINERS:
        raise DataError(f"more than {MOST_CONTAINERS:,} containers: refused")
    _check(data, document)
    collects = gc.isenabled()
    gc.disable()  # it would go over all entries again and again, and none of them is garbage
    try:
        return _Closed(io.BytesIO(data) if isinstance(data, bytes) else data).load()
    except (pickle.UnpicklingError, EOFError, TypeError, AttributeError, ValueError, LookupError) as error:
        raise DataError(f"corrupt: {error}") from error
    finally:
        if collects:
            gc.enable()


def _check(data: bytes | mmap.mmap, document: str) -> None:
    """Walk over the opcodes to the one that ends the pickle; ``DataError`` for one that is not allowed."""
    index, end, tuples = 2, len(data), 0
    while True:
        match = _PLAIN.match(data, index)
        index = index if match is None else match.end()
        if index >= end:
            raise DataError(f"cut off after {end:,} bytes")
        code = data[index]
        if code == pickle.STOP[0]:
            return
        if code in _LENGTHS:
            what, width = _LENGTHS[code]
            size = int.from_bytes(data[index + 1 : index + 1 + width], "little")
            index += 1 + width
            if size > end - index:
                raise DataError(f"a {what} of {size:,} bytes in a file that ends before it does")
            index += 0 if code == _FRAME else size
        elif code == _LONG_PUT:  # the memo is as long as its highest number
            number = int.from_bytes(data[index + 1 : index + 5], "little")
            if number > index:
                raise DataError(f"memo index {number:,} at byte {index:,}: refused")
            index += 5
        elif code in _TUPLES:
            tuples += 1
            if tuples > MOST_TUPLES:
                raise DataError(f"more than {MOST_TUPLES:,} tuples: refused")
            index += 1
        else:
            reason = _REFUSED.get(chr(code), f"opcode 0x{code:02x}, which no {document} has")
            raise DataError(f"{reason}: refused")


class _Closed(pickle.Unpickler):
    """Finds nothing by name, should the walk ever have missed something."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("it asks for a class")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for a persistent object")
