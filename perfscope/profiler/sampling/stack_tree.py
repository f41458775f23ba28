"""Stacks of threads: read, and kept as a tree of code positions; files, lines and functions of it are written."""

from __future__ import annotations

import dis
import gc
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, itemgetter
from types import CodeType
from typing import Any, NamedTuple

from perfscope.model.documents.stacks import COLLECTING
from perfscope.profiler.source_files import OURS, SourceFiles, folder_prefix

MOST_NODES = 20_000
"""Positions in code. Beyond it a stack ends with its last known position."""
MOST_DISASSEMBLED = 200
"""Functions whose calls into C are named."""
LONG_COLLECTION_NS = 2_000_000
"""A shorter collection is sampled as often as it is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTree:
    """``texts`` and ``frames`` as in the document, and the innermost frame of each sample."""

    texts: tuple[str, ...]
    frames: tuple[tuple[int, int, int, int], ...]
    leaves: tuple[int, ...]


class Collection(NamedTuple):
    """A garbage collection, times of ``perf_counter_ns``."""

    begin_ns: int
    end_ns: int
    thread: int
    stack: list[tuple[CodeType, int]]

    def fills(self, thread: int, begin_ns: int, end_ns: int) -> bool:
        """Whether a thread collected garbage for most of a time."""
        shared = min(self.end_ns, end_ns) - max(self.begin_ns, begin_ns)
        return thread == self.thread and 2 * shared > end_ns - begin_ns


class StackTree:
    """Grows with each added stack. No frame is kept, because frames hold the program's objects."""

    def __init__(self, files: SourceFiles) -> None:
        """Empty. ``files``: names files as the user would."""
        self._files = files
        self._ours = folder_prefix(OURS)
        self._workloads = folder_prefix(OURS / "workloads")
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._positions: list[tuple[int, CodeType, int]] = []
        """(Caller, code, offset of its instruction)."""
        self._reader = StackReader()
        self._callees = _Callees()
        self._collects_since_ns = time.perf_counter_ns()
        self.collection: Collection | None = None
        """The last long one."""

    def add(self, stack: Sequence[tuple[CodeType, int]]) -> int:
        """Number of the innermost position of a stack, given innermost first; -1 for none."""
        node = -1
        for code, offset in reversed(stack):
            key = (node, id(code), offset)
            known = self._nodes.get(key)
            if known is None:
                if len(self._positions) >= MOST_NODES:
                    return node
                known = self._nodes[key] = len(self._positions)
                self._positions.append((node, code, offset))  # which keeps the code, so that its id stays its own
            node = known
        return node

    def __len__(self) -> int:
        """Positions so far."""
        return len(self._positions)

    def position(self, node: int) -> tuple[int, str, int, str]:
        """(Caller, file, line, function) of a node; an empty file is perfscope's own code, or a garbage collection."""
        caller, code, offset = self._positions[node]
        if code is StackTree.collected.__code__:
            return caller, "", -1, COLLECTING
        if self._is_ours(code):
            return caller, "", -1, ""
        return caller, self._files.name_with_owner(code.co_filename), _line(code, offset), code.co_qualname

    def callee(self, node: int) -> str | None:
        """The expression that a node calls, such as ``time.sleep``; ``None`` if it calls nothing, or it is unknown."""
        _, code, offset = self._positions[node]
        return None if code is StackTree.collected.__code__ else self._callees.of(code, offset)

    def collected(self, phase: str, info: Mapping[str, int]) -> None:
        """For ``gc.callbacks``: keep the stack of a long collection, in which no other thread runs."""
        if phase == "start":
            self._collects_since_ns = time.perf_counter_ns()
        elif (end_ns := time.perf_counter_ns()) - self._collects_since_ns >= LONG_COLLECTION_NS:
            thread = threading.get_ident()
            stack = self._reader.read(thread)
            if stack is not None:
                self.collection = Collection(self._collects_since_ns, end_ns, thread, stack)

    def save(self, leaves: Sequence[int]) -> SavedTree:
        """The tree with lines for positions; ``leaves``: what ``add`` returned for each sample."""
        texts: dict[str, int] = {}
        frames: dict[tuple[int, int, int, int], int] = {}

        def text(word: str) -> int:
            return texts.setdefault(word, len(texts))

        def row(frame: tuple[int, int, int, int]) -> int:
            return frames.setdefault(frame, len(frames))

        saved: list[int] = []
        collects = StackTree.collected.__code__
        for caller, code, offset in self._positions:
            above = -1 if caller < 0 else saved[caller]
            if code is collects:
                saved.append(row((above, -1, -1, text(COLLECTING))))
            elif self._is_ours(code):
                saved.append(above)
            else:
                line = _line(code, offset)
                saved.append(
                    row((above, text(self._files.name_with_owner(code.co_filename)), line, text(code.co_qualname)))
                )
        result = {-1: -1}
        for leaf in set(leaves) - {-1}:
            caller, code, offset = self._positions[leaf]
            while code is not collects and self._is_ours(code) and caller >= 0:
                caller, code, offset = self._positions[caller]  # a wrapper of ours: count its caller in the program
            callee = None if code is collects else self._callees.of(code, offset)
            result[leaf] = saved[leaf] if callee is None else row((saved[leaf], -1, -1, text(callee)))
        return SavedTree(texts=tuple(texts), frames=tuple(frames), leaves=tuple(result[leaf] for leaf in leaves))

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._ours) and not code.co_filename.startswith(self._workloads)


def _line(code: CodeType, offset: int) -> int:
    """Line of an instruction, -1 for none."""
    return next(
        (line for start, end, line in code.co_lines() if start <= offset < end and line is not None),
        code.co_firstlineno if offset < 0 else -1,
    )


class _Callees:
    """Expressions that are called at a position: ``time.sleep``, ``list.sort``; as text, not resolved."""

    def __init__(self) -> None:
        self._known: dict[CodeType, list[dis.Instruction]] = {}

    def of(self, code: CodeType, offset: int) -> str | None:
        """The expression that is called, such as ``time.sleep``; ``None`` if there is no call, or it is unknown.

        The callee is loaded first, at the position where the call begins in the source; of a chain of attributes the
        last that begins there is called.
        """
        if code not in self._known:
            if len(self._known) >= MOST_DISASSEMBLED:
                return None
            self._known[code] = list(dis.get_instructions(code))
        before = [step for step in self._known[code] if step.offset <= offset]
        if not before or not before[-1].opname.startswith(("CALL", "PRECALL")) or before[-1].positions is None:
            return None
        begin = (before[-1].positions.lineno, before[-1].positions.col_offset)
        names = [
            str(step.argval)
            for step in before
            if step.opname.startswith("LOAD_")
            and isinstance(step.argval, str)
            and step.positions is not None
            and (step.positions.lineno, step.positions.col_offset) == begin
        ]
        if not names:
            return None
        return names[-1] if len(names) == 1 else f"{names[0]}.{names[-1]}"


# The stack of another thread, read while that thread is suspended.
#
# Between two bytecodes the interpreter may switch to the thread whose frames are being read. CPython 3.11 then reads
# freed memory in ``frame.f_back`` if a generator ended meanwhile, and the program dies with SIGSEGV (seen within
# seconds in a loop of generators, with nothing but the standard library). So a stack is read by one call of ``list``
# over iterators and functions in C, in which no switch can happen. Up to 3.11 a garbage collection may start in it
# and run code of the program: if a collection of the youngest objects is so near that the frames of a stack would
# start it, it is triggered first.


MOST_DEPTH = 200
"""Frames of a stack; those beyond are the outermost."""

COLLECTS_ANYWHERE = sys.version_info < (3, 12)
"""Whether a garbage collection can start wherever memory is allocated, and not between bytecodes only."""

MARGIN = 64
"""Objects that reading a stack allocates besides two for each of its frames."""

_position = attrgetter("f_code", "f_lasti")


class StackReader:
    """Reads stacks, and remembers how deep they are."""

    def __init__(self) -> None:
        self._depth = MARGIN

    def ready(self) -> bool:
        """Make room for the next stack; whether no garbage collection can start while it is read."""
        if self._has_room():
            return True
        gc.collect(0)
        return self._has_room()

    def _has_room(self) -> bool:
        if not COLLECTS_ANYWHERE or not gc.isenabled():
            return True
        threshold = gc.get_threshold()[0]
        return not threshold or gc.get_count()[0] + 2 * self._depth + MARGIN < threshold

    def read(self, thread: int) -> list[tuple[CodeType, int]] | None:
        """Code and offset of each frame of a thread, innermost first; ``None`` if it ended or cannot be read now."""
        innermost = map(itemgetter(thread), starmap(sys._current_frames, ((),)))
        names: Iterator[Any] = repeat("f_back", MOST_DEPTH - 1)
        frames = takewhile(bool, accumulate(chain(innermost, names), getattr))
        positions = map(_position, frames)
        if not self.ready():
            return None
        try:
            stack = list(positions)
        except KeyError:
            return None
        self._depth = len(stack)
        return stack
