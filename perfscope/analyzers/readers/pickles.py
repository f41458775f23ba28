"""Untrusted pickles: Python's own unpickler loads them after a check of their opcodes against an allow-list.

A pickle can run any code that it names. So the whole file is checked first, at the speed of the regular expression
engine. Only opcodes of numbers, text, lists, dictionaries and tuples are allowed; none of them names, builds or calls
anything. Tuples other than pairs of numbers are limited: hashing one of many nested tuples as a key overflows the
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
"""Maximum number of lists and dictionaries: each entry of the history is one, and an empty one takes 64 bytes."""

MOST_TUPLES = 40_000
"""Maximum number of tuples other than pairs of numbers: twice the entries of a flight recorder, and half of the nested
tuples that a stack of 8 MB can hash.
"""

_REFUSED = {
    "c": "it needs a class (GLOBAL)",
    "\x93": "it needs a class (STACK_GLOBAL)", "i": "it needs a class (INST)",
    "R": "it would call something (REDUCE)", "b": "it would build an object (BUILD)", "o": "it would build an object",
    "\x81": "it would build an object (NEWOBJ)", "\x92": "it would build an object (NEWOBJ_EX)",
    "\x82": "it needs an extension", "\x83": "it needs an extension", "\x84": "it needs an extension",
    "P": "it needs a persistent object", "Q": "it needs a persistent object",
}  # fmt: skip
"""Reason for refusing some of the other opcodes."""

_NUMBER = rb"(?:K.|M..|J....|\x8a(?:%s))" % b"|".join(rb"\x%02x%s" % (n, b"." * n) for n in range(9))
_TEXT = rb"\x8c(?:%s)" % b"|".join(rb"\x%02x%s" % (n, b"." * n) for n in range(24))
_PLAIN = re.compile(
    rb"(?s:[(N\x88\x89\x94)\]}aesu]|[hq].|j....|G........|%s|%s(?:%s\x86)?+)*+" % (_TEXT, _NUMBER, _NUMBER)
)
"""Allowed opcodes with their arguments, except those whose length or number must be checked."""

_LENGTHS = {0x8C: ("text", 1), 0x58: ("text", 4), 0x8D: ("text", 8), 0x8A: ("number", 1), 0x95: ("frame", 8)}
"""Opcode -> its argument, and the bytes that hold the argument's length."""
_FRAME, _LONG_PUT = 0x95, 0x72
_TUPLES = b"t\x85\x86\x87"
_PIECE = 64 << 20


def load(data: bytes | mmap.mmap, document: str) -> Any:
    """Return the content; ``DataError`` (without a path) unless the pickle is plain, complete and within the limits.

    ``document``: expected content, for messages.
    """
    version = data[1] if data[:1] == pickle.PROTO and len(data) > 1 else 0
    if not 2 <= version <= pickle.HIGHEST_PROTOCOL:
        raise DataError(f"a pickle of protocol {version}: known are 2 to {pickle.HIGHEST_PROTOCOL}")
    pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
    if sum(piece.count(b"}") + piece.count(b"]") for piece in pieces) > MOST_CONTAINERS:
        raise DataError(f"more than {MOST_CONTAINERS:,} containers: refused")
    _check(data, document)
    collects = gc.isenabled()
    gc.disable()  # The collector would visit all entries again and again, although none is garbage.
    try:
        return _Closed(io.BytesIO(data) if isinstance(data, bytes) else data).load()
    except (pickle.UnpicklingError, EOFError, TypeError, AttributeError, ValueError, LookupError) as error:
        raise DataError(f"corrupt: {error}") from error
    finally:
        if collects:
            gc.enable()


def _check(data: bytes | mmap.mmap, document: str) -> None:
    """Check the opcodes up to the end of the pickle; ``DataError`` for one that is not allowed."""
    index, end, tuples = 2, len(data), 0
    frame_end = end
    while True:
        match = _PLAIN.match(data, index, frame_end)
        index = index if match is None else match.end()
        if index >= end:
            raise DataError(f"cut off after {end:,} bytes")
        if index > frame_end:  # The unpickler would skip the rest of the frame.
            raise DataError("a frame that ends within an opcode: refused")
        if index == frame_end:
            frame_end = end
            continue
        code = data[index]
        if code == pickle.STOP[0]:
            return
        if code in _LENGTHS:
            what, width = _LENGTHS[code]
            size = int.from_bytes(data[index + 1 : index + 1 + width], "little")
            index += 1 + width
            if size > end - index:
                raise DataError(f"a {what} of {size:,} bytes that the file does not contain completely")
            if code != _FRAME:
                index += size
            elif frame_end == end:
                frame_end = index + size
            else:
                raise DataError("a frame within a frame: refused")
        elif code == _LONG_PUT:  # The memo is as long as its highest number.
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
    """Unpickler that finds nothing by name, in case the check missed something."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("it needs a class")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it needs a persistent object")
