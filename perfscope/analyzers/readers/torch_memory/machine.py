"""The pickle machine for memory snapshots: an allow-list of opcodes, and a history that leaves as it comes.

The opcodes are those that pickles of numbers, text, lists, tuples and dictionaries are made of (protocols 2 to 5, as
Python's ``pickletools`` describes them). Whatever names, builds or calls something is refused where it stands. Lengths
and places in the memo are held to what the file can hold, nesting and what is kept to named limits.

The lists below ``device_traces`` are never built: their entries are taken into columns (``Entries``) batch by batch,
most of them by a pattern that matches whole entries (``Layout``), the others opcode by opcode.
"""

from __future__ import annotations

import mmap
import pickle
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from perfscope.analyzers.readers.torch_memory.entries import Entries
from perfscope.analyzers.readers.torch_memory.fast import FORGOTTEN, FastEntries
from perfscope.analyzers.readers.torch_memory.stacks import Stacks
from perfscope.model.errors import DataError

# The opcodes that the machine knows, and what those ask for that it refuses.


HANDLERS: dict[tuple[str, ...], str] = {
    ("\x80",): "_protocol", ("\x95",): "_frame", ("(",): "_mark", ("N",): "_none", ("\x88",): "_true",
    ("\x89",): "_false", ("K",): "_one_byte", ("M",): "_two_bytes", ("J",): "_four_bytes", ("\x8a",): "_long",
    ("G",): "_float", ("\x8c",): "_short_text", ("X",): "_long_text", ("\x8d",): "_longer_text",
    ("h",): "_get_short", ("j",): "_get_long", ("q",): "_put_short", ("r",): "_put_long", ("\x94",): "_memoize",
    (")",): "_empty_tuple", ("t",): "_tuple", ("\x85",): "_tuple1", ("\x86",): "_tuple2", ("\x87",): "_tuple3",
    ("]",): "_empty_list", ("}",): "_empty_dict", ("a",): "_append", ("e",): "_appends", ("s",): "_set_item",
    ("u",): "_set_items", ("0", "1"): "_pop",
}  # fmt: skip
"""The allow-list. ``POP`` is written by pickle only for a container within itself."""

_NAMED = {
    "c": "it asks for a class (GLOBAL)",
    "\x93": "it asks for a class (STACK_GLOBAL)", "i": "it asks for a class (INST)",
    "R": "it would call something (REDUCE)", "b": "it would build an object (BUILD)", "o": "it would build an object",
    "\x81": "it would build an object (NEWOBJ)", "\x92": "it would build an object (NEWOBJ_EX)",
    "\x82": "it asks for an extension", "\x83": "it asks for an extension", "\x84": "it asks for an extension",
    "P": "it asks for a persistent object", "Q": "it asks for a persistent object",
}  # fmt: skip


def why_refused(code: int) -> str:
    """Why the opcode is refused."""
    return _NAMED.get(chr(code), f"opcode 0x{code:02x}, which no memory snapshot has")


# Numbers, words and texts: the opcodes of a pickle that push a value of their own.


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


TRACES = "device_traces"

MOST_NESTED = 64
"""Marks open at once; a snapshot has eight (snapshot, segments, segment, blocks, block, history, frames, frame)."""
MOST_WAITING = 2_000_000
"""Values that wait to be put somewhere; pickle itself writes a thousand at a time."""
MOST_CONTAINERS = 4_000_000
"""Containers kept outside of the histories; a block is two, and an allocator of 100,000 blocks is unheard of."""
MOST_VALUES = 64_000_000
"""Values kept in them: frames of stacks mostly."""
MOST_TEXT = 256 << 20
"""Bytes of text kept."""
_WATCHED = 1 << 16
"""Opcodes between two looks at the limits."""
_LONGEST_ENTRY = 1 << 16
"""Bytes of an entry whose layout is worth knowing."""
_LET_GO = 32 << 20
"""Bytes read of a mapped file before their pages are given back."""


class Traces(list[Any]):
    """The list below ``device_traces``: of ``Entries``."""


class Machine(Values):
    """Reads one pickle. ``DataError`` (without a path) for whatever is no plain, whole pickle within the limits."""

    def __init__(self, data: bytes | mmap.mmap, stacks: Stacks, *, fast: bool = True) -> None:
        """``fast``: match whole entries where their layout is known."""
        super().__init__(data)
        self.stacks = stacks
        self.memo: list[Any] = []
        self.marks: list[list[Any]] = []
        self._fast = FastEntries(self.memo, stacks) if fast else None
        self._began = -1
        """Where the entry began that is being read opcode by opcode."""
        self._entry: dict[Any, Any] = {}
        self._frame_end = 0
        self._containers = self._values = self._let_go = 0
        self._do: dict[int, Callable[[], None]] = {
            ord(code): getattr(self, name) for codes, name in HANDLERS.items() for code in codes
        }

    def load(self) -> Any:
        """What the pickle holds; the lists below ``device_traces`` are ``Entries``."""
        stop, do, data = pickle.STOP[0], self._do, self.data
        try:
            while True:
                for _ in range(_WATCHED):
                    code = data[self.at]
                    self.at += 1
                    if code == stop:
                        return self._result()
                    do[code]()
                self._watch()
        except KeyError:
            raise DataError(f"{why_refused(code)}: refused") from None
        except (IndexError, struct.error) as error:
            if self.at >= self.end:
                raise DataError(f"cut off after {self.end:,} bytes") from error
            raise DataError(f"damaged at byte {self.at:,}") from error
        except (TypeError, AttributeError, ValueError) as error:
            raise DataError(f"damaged at byte {self.at:,}: {error}") from error
        finally:
            self._do = {}  # methods of this machine, which would keep it and its memo alive

    def _result(self) -> Any:
        if self.marks or len(self.stack) != 1:
            raise DataError(f"damaged at byte {self.at:,}: it ends within a container")
        return self.stack[0]

    def _watch(self) -> None:
        if len(self.stack) + sum(map(len, self.marks)) > MOST_WAITING:
            raise DataError(f"more than {MOST_WAITING:,} values that belong nowhere: refused")
        for count, most, what in (
            (self._containers, MOST_CONTAINERS, "containers"), (self._values, MOST_VALUES, "values"),
            (self.text, MOST_TEXT, "bytes of text"),
        ):  # fmt: skip
            if count > most:
                raise DataError(f"more than {most:,} {what} besides the history: refused")
        if isinstance(self.data, mmap.mmap) and self.at - self._let_go > _LET_GO:
            low = self._let_go - self._let_go % mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, low, (self.at - low) // mmap.PAGESIZE * mmap.PAGESIZE)
            self._let_go = self.at

    # The memo.

    def _get_short(self) -> None:
        self._get(self.number(1))

    def _get_long(self) -> None:
        self._get(self.number(4))

    def _get(self, place: int) -> None:
        if place >= len(self.memo) or (found := self.memo[place]) is FORGOTTEN:
            raise DataError(f"damaged at byte {self.at:,}: nothing is kept at place {place:,}")
        self.stack.append(found)

    def _put_short(self) -> None:
        self._put(self.number(1))

    def _put_long(self) -> None:
        self._put(self.number(4))

    def _put(self, place: int) -> None:
        if place != len(self.memo):  # every pickler numbers them as they come
            raise DataError(f"claims place {place:,} of {len(self.memo):,}: refused")
        self._memoize()

    def _memoize(self) -> None:
        kept = self.stack[-1]
        of_entry = type(kept) is list or (type(kept) is dict and self._began >= 0 and kept is self._entry)
        if of_entry and (entries := self._history()) is not None:
            entries.memoized.append(len(self.memo))
        self.memo.append(kept)

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
        made: list[Any] | Entries = []
        if self.stack and self.stack[-1] == TRACES and type(self.stack[-1]) is str and len(self.marks) <= 1:
            made = Traces()
        elif type(self._around()) is Traces:
            made = Entries(self.stacks)
        self._containers += 1
        self.stack.append(made)

    def _around(self) -> Any:
        """The list that what comes next belongs to, as far as it is one of the history."""
        if self.stack and type(self.stack[-1]) in (Traces, Entries):
            if type(self.stack[-1]) is Traces or not self.marks or type(self.marks[-1][-1]) is not Traces:
                return self.stack[-1]
            # An empty history, and another behind it; or one of a single entry, which only a dictionary can be.
            return self.stack[-1] if self.data[self.at - 1 : self.at] == pickle.EMPTY_DICT else self.marks[-1][-1]
        return self.marks[-1][-1] if self.marks and self.marks[-1] else None

    def _history(self) -> Entries | None:
        """The history that is being read, or ``None``."""
        for level in (self.stack, *reversed(self.marks)):
            for one in level[-1:]:
                if type(one) is Entries:
                    return one
        return None

    def _empty_dict(self) -> None:
        entries = self._around()
        if type(entries) is Entries:
            marked = not self.stack or self.stack[-1] is not entries
            if marked and self._fast is not None:
                self._learn()
                if self._fast.matches(self.data, self.at - 1, self._frame_end):
                    self._take(entries, self.stack)
                    self.stack.clear()
                    self.at = self._fast.read(entries, self.data, self.at - 1, self._frame_end)
                    return
            self._began = self.at - 1
            self._entry = {}
            self.stack.append(self._entry)
        else:
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
            raise DataError(f"damaged at byte {self.at:,}: items of what is no dictionary")
        for key in items[::2]:
            if type(key) is not str and type(key) is not int:  # the hash of nested tuples runs out of stack
                raise DataError(f"damaged at byte {self.at:,}: a key that is neither text nor a number")
        into.update(zip(items[::2], items[1::2], strict=True))

    def _append(self) -> None:
        item = self.stack.pop()
        self._extend([item])

    def _appends(self) -> None:
        self._extend(self._items())

    def _extend(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is Entries:
            self._take(into, items)
        elif type(into) in (list, Traces):
            into.extend(items)
        else:
            raise DataError(f"damaged at byte {self.at:,}: items of what is no list")

    def _take(self, entries: Entries, items: list[Any]) -> None:
        """Hand entries on, and keep of them only what later ones share: their stacks."""
        self._learn()
        entries.take(items)
        self._containers -= len(entries.memoized)
        for place in entries.memoized:
            kept = self.memo[place]
            self.memo[place] = self.stacks.of(kept) if type(kept) is list else FORGOTTEN
        entries.memoized.clear()

    def _learn(self) -> None:
        """Take up the layout of the entry that was read last, which ends here."""
        if self._fast is not None and self._began >= 0:
            self._fast.layout.learn(
                bytes(self.data[self._began : min(self.at - 1, self._began + _LONGEST_ENTRY)]), self.memo
            )
        self._began = -1

    # The rest.

    def _protocol(self) -> None:
        version = self.number(1)
        if not 2 <= version <= pickle.HIGHEST_PROTOCOL:
            raise DataError(f"a pickle of protocol {version}: known are 2 to {pickle.HIGHEST_PROTOCOL}")

    def _frame(self) -> None:
        size = self.number(8)
        self._frame_end = self.at + size
        if self._frame_end > self.end:
            raise DataError(f"a frame of {size:,} bytes in a file that ends before it does")

    def _pop(self) -> NoReturn:
        raise DataError(f"damaged at byte {self.at:,}: it refers to itself")
