"""The pickle machine for memory snapshots: their history is not built, but read into columns as it comes.

Entries of the lists under ``device_traces`` are taken into columns (``Entries``) batch by batch, most of them by a
pattern that matches whole entries (``Layout``), the others opcode by opcode.
"""

from __future__ import annotations

import mmap
import pickle
from typing import Any

from perfscope.analyzers.readers.pickle_machine import FORGOTTEN, PickleMachine
from perfscope.analyzers.readers.torch_memory.entries import Entries
from perfscope.analyzers.readers.torch_memory.fast import FastEntries
from perfscope.analyzers.readers.torch_memory.stacks import Stacks

TRACES = "device_traces"

_LONGEST_ENTRY = 1 << 16
"""Bytes of an entry whose layout is worth knowing."""


class Traces(list[Any]):
    """The list under ``device_traces``: of ``Entries``."""


class Machine(PickleMachine):
    """Reads one snapshot; the lists under ``device_traces`` are ``Entries``."""

    def __init__(self, data: bytes | mmap.mmap, stacks: Stacks, *, fast: bool = True) -> None:
        """``fast``: match whole entries where their layout is known."""
        super().__init__(data, "memory snapshot")
        self.stacks = stacks
        self._fast = FastEntries(self.memo, stacks) if fast else None
        self._began = -1
        """Offset of the entry that is being read opcode by opcode."""
        self._entry: dict[Any, Any] = {}

    def _memoize(self) -> None:
        kept = self.stack[-1]
        of_entry = type(kept) is list or (type(kept) is dict and self._began >= 0 and kept is self._entry)
        if of_entry and (entries := self._history()) is not None:
            entries.memoized.append(len(self.memo))
        self.memo.append(kept)

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
            # An empty history, and another after it; or one of a single entry, which only a dictionary can be.
            return self.stack[-1] if self.data[self.at - 1 : self.at] == pickle.EMPTY_DICT else self.marks[-1][-1]
        return self.marks[-1][-1] if self.marks and self.marks[-1] else None

    def _history(self) -> Entries | None:
        """The history that is being read, or ``None``."""
        for level in (self.stack, *reversed(self.marks)):
            if level and type(level[-1]) is Entries:
                return level[-1]
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
            super()._empty_dict()
            self._began = self.at - 1
            self._entry = self.stack[-1]
        else:
            super()._empty_dict()

    def _extend(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is Entries:
            self._take(into, items)
        else:
            super()._extend(items)

    def _take(self, entries: Entries, items: list[Any]) -> None:
        """Add entries to the history, and keep of them only what later ones share: their stacks."""
        self._learn()
        entries.take(items)
        self._containers -= len(entries.memoized)
        for index in entries.memoized:
            kept = self.memo[index]
            self.memo[index] = self.stacks.of(kept) if type(kept) is list else FORGOTTEN
        entries.memoized.clear()

    def _learn(self) -> None:
        """Learn the layout of the entry that was read last, which ends here."""
        if self._fast is not None and self._began >= 0:
            self._fast.layout.learn(
                bytes(self.data[self._began : min(self.at - 1, self._began + _LONGEST_ENTRY)]), self.memo
            )
        self._began = -1
