"""Pickles from untrusted sources: numbers, text and containers come out, and nothing can be run by them.

A pickle runs whatever it names when Python's own unpickler loads it. Here the opcodes are an allow-list: those that
pickles of numbers, text, lists, tuples and dictionaries are made of (protocols 2 to 5, as Python's ``pickletools``
describes them). Whatever names, builds or calls something is refused where it stands. Lengths and memo indices are
checked against what the file can hold, nesting and what is kept against named limits.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from perfscope.model.errors import DataError

HANDLERS: dict[tuple[str, ...], str] = {
    ("\x80",): "_protocol", ("\x95",): "_frame", ("(",): "_mark", ("N",): "_none", ("\x88",): "_true",
    ("\x89",): "_false", ("K",): "_one_byte", ("M",): "_two_bytes", ("J",): "_four_bytes", ("\x8a",): "_long",
    ("G",): "_float", ("\x8c",): "_short_text", ("X",): "_long_text", ("\x8d",): "_longer_text",
    ("h",): "_get_short", ("j",): "_get_long", ("q",): "_put_short", ("r",): "_put_long", ("\x94",): "_memoize",
    (")",): "_empty_tuple", ("t",): "_tuple", ("\x85",): "_tuple1", ("\x86",): "_tuple2", ("\x87",): "_tuple3",
    ("]",): "_empty_list", ("}",): "_empty_dict", ("a",): "_append", ("e",): "_appends", ("s",): "_set_item",
    ("u",): "_set_items", ("0", "1"): "_pop",
}  # fmt: skip
"""The allow-list: method by opcode. ``POP`` is written by pickle only for a container within itself."""

_REFUSED = {
    "c": "it asks for a class (GLOBAL)",
    "\x93": "it asks for a class (STACK_GLOBAL)", "i": "it asks for a class (INST)",
    "R": "it would call something (REDUCE)", "b": "it would build an object (BUILD)", "o": "it would build an object",
    "\x81": "it would build an object (NEWOBJ)", "\x92": "it would build an object (NEWOBJ_EX)",
    "\x82": "it asks for an extension", "\x83": "it asks for an extension", "\x84": "it asks for an extension",
    "P": "it asks for a persistent object", "Q": "it asks for a persistent object",
}  # fmt: skip
"""What other opcodes ask for."""

LONGEST_TEXT = 1 << 20
"""Bytes of one text: a demangled name of C++ has some thousands."""
MOST_NESTED = 64
"""Marks open at once; a dump has six (dump, entries, entry, frames, frame, and one to spare)."""
MOST_WAITING = 2_000_000
"""Values that wait to be put somewhere; pickle itself writes a thousand at a time."""
MOST_CONTAINERS = 4_000_000
"""Containers kept: 20,000 entries with their stacks take some hundred thousand."""
MOST_VALUES = 64_000_000
"""Values kept in them: frames of stacks mostly."""
MOST_TEXT = 256 << 20
"""Bytes of text kept."""
_WATCHED = 1 << 16
"""Opcodes between two checks of the limits."""


def why_refused(code: int, document: str) -> str:
    """What an opcode that is not allowed asks for."""
    return _REFUSED.get(chr(code), f"opcode 0x{code:02x}, which no {document} has")


class PickleMachine:
    """Reads one pickle. ``DataError`` (without a path) for whatever is no plain, whole pickle within the limits."""

    def __init__(self, data: bytes, document: str) -> None:
        """``document``: what the pickle should be, for messages."""
        self.data = data
        self.end = len(data)
        self.at = 0
        """Offset of the next byte."""
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        """The stacks below the marks that are open."""
        self.memo: list[Any] = []
        self.text = 0
        """Bytes of text so far."""
        self._document = document
        self._containers = self._values = 0
        self._do: dict[int, Callable[[], None]] = {
            ord(code): getattr(self, name) for codes, name in HANDLERS.items() for code in codes
        }

    def load(self) -> Any:
        """What the pickle holds."""
        stop, do, data = pickle.STOP[0], self._do, self.data
        try:
            while True:
                for _ in range(_WATCHED):
                    code = data[self.at]
                    self.at += 1
                    if code == stop:
                        return self._result()
                    do[code]()
                self._check_limits()
        except KeyError:
            raise DataError(f"{why_refused(code, self._document)}: refused") from None
        except (IndexError, struct.error) as error:
            if self.at >= self.end:
                raise DataError(f"cut off after {self.end:,} bytes") from error
            raise DataError(f"corrupt at byte {self.at:,}") from error
        except (TypeError, AttributeError, ValueError) as error:
            raise DataError(f"corrupt at byte {self.at:,}: {error}") from error
        finally:
            self._do = {}  # methods of this machine, which would keep it and its memo alive

    def _result(self) -> Any:
        if self.marks or len(self.stack) != 1:
            raise DataError(f"corrupt at byte {self.at:,}: it ends within a container")
        return self.stack[0]

    def _check_limits(self) -> None:
        if len(self.stack) + sum(map(len, self.marks)) > MOST_WAITING:
            raise DataError(f"more than {MOST_WAITING:,} values in no container: refused")
        for count, most, what in (
            (self._containers, MOST_CONTAINERS, "containers"), (self._values, MOST_VALUES, "values"),
            (self.text, MOST_TEXT, "bytes of text"),
        ):  # fmt: skip
            if count > most:
                raise DataError(f"more than {most:,} {what}: refused")

    # Numbers and text.

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
        self._push_text(self.number(1))

    def _long_text(self) -> None:
        self._push_text(self.number(4))

    def _longer_text(self) -> None:
        self._push_text(self.number(8))

    def _push_text(self, size: int) -> None:
        if size > LONGEST_TEXT and self.at + size <= self.end:
            raise DataError(f"a text of {size:,} bytes: refused")
        self.at += size
        if self.at > self.end:
            raise DataError(f"a text of {size:,} bytes in a file that ends before it does")
        self.text += size
        self.stack.append(self.data[self.at - size : self.at].decode("utf-8", "replace"))

    # The memo.

    def _get_short(self) -> None:
        self._get(self.number(1))

    def _get_long(self) -> None:
        self._get(self.number(4))

    def _get(self, index: int) -> None:
        if index >= len(self.memo):
            raise DataError(f"corrupt at byte {self.at:,}: nothing is kept at memo index {index:,}")
        self.stack.append(self.memo[index])

    def _put_short(self) -> None:
        self._put(self.number(1))

    def _put_long(self) -> None:
        self._put(self.number(4))

    def _put(self, index: int) -> None:
        if index != len(self.memo):  # every pickler numbers them as they come
            raise DataError(f"memo index {index:,} where {len(self.memo):,} is next: refused")
        self._memoize()

    def _memoize(self) -> None:
        self.memo.append(self.stack[-1])

    # Containers.

    def _mark(self) -> None:
        if len(self.marks) >= MOST_NESTED:
            raise DataError(f"nested more than {MOST_NESTED} deep: refused")
        self.marks.append(self.stack)
        self.stack = []

    def _items(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        self._values += len(items)
        return items

    def _tuple(self) -> None:
        self.stack.append(tuple(self._items()))
        self._containers += 1

    def _empty_tuple(self) -> None:
        self.stack.append(())

    def _tuples(self, size: int) -> None:
        parts = tuple(self.stack[-size:])
        if len(parts) < size:
            raise IndexError
        self.stack[-size:] = [parts]
        self._containers += 1

    def _tuple1(self) -> None:
        self._tuples(1)

    def _tuple2(self) -> None:
        self._tuples(2)

    def _tuple3(self) -> None:
        self._tuples(3)

    def _empty_list(self) -> None:
        self.stack.append([])
        self._containers += 1

    def _empty_dict(self) -> None:
        self.stack.append({})
        self._containers += 1

    def _set_item(self) -> None:
        key, value = self.stack[-2:]
        del self.stack[-2:]
        self._set([key, value])

    def _set_items(self) -> None:
        self._set(self._items())

    def _set(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is not dict or len(items) % 2:
            raise DataError(f"corrupt at byte {self.at:,}: items of what is no dictionary")
        for key in items[::2]:
            if type(key) is not str and type(key) is not int:  # the hash of nested tuples runs out of stack
                raise DataError(f"corrupt at byte {self.at:,}: a key that is neither text nor a number")
        into.update(zip(items[::2], items[1::2], strict=True))

    def _append(self) -> None:
        item = self.stack.pop()
        self._extend([item])

    def _appends(self) -> None:
        self._extend(self._items())

    def _extend(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if not isinstance(into, list):
            raise DataError(f"corrupt at byte {self.at:,}: items of what is no list")
        into.extend(items)

    # Framing.

    def _protocol(self) -> None:
        version = self.number(1)
        if not 2 <= version <= pickle.HIGHEST_PROTOCOL:
            raise DataError(f"a pickle of protocol {version}: known are 2 to {pickle.HIGHEST_PROTOCOL}")

    def _frame(self) -> None:
        size = self.number(8)
        if self.at + size > self.end:
            raise DataError(f"a frame of {size:,} bytes in a file that ends before it does")

    def _pop(self) -> NoReturn:
        raise DataError(f"corrupt at byte {self.at:,}: it refers to itself")
