"""Counts what a piece of code does, not how long it takes: lines of Python, and elements of arrays.

*Lines*: every line that is executed, of any module, each turn of a comprehension included; and the members of
what is given to ``sorted``, ``sum``, ``min``, ``max``, ``any``, ``all`` and ``list.sort``, which walk it in C.

*Elements*: 8 bytes of each array that numpy allocates (every operator and most functions allocate their result), and
the elements of an array that is reduced to a number by a method.

Both are the same on a busy machine and on a quiet one.
"""

from __future__ import annotations

import builtins
import ctypes
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

from perfscope.model.trace import Trace

_REDUCING = frozenset({"all", "any", "argmax", "argmin", "max", "mean", "min", "nonzero", "prod", "std", "sum",
                       "tolist", "var"})  # fmt: skip
_WALKING = ("all", "any", "max", "min", "sorted", "sum")
_WORD = 8


class _Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """``PyDataMem_Handler`` of numpy's C interface."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator)]


_MALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_SET_HANDLER, _GET_HANDLER = 304, 305
"""Where numpy's table of C functions has ``PyDataMem_SetHandler`` and ``PyDataMem_GetHandler``."""
_CAPSULE = b"mem_handler"


class Work:
    """Lines and elements by what they were done for: the innermost fact, else ``where``."""

    def __init__(self) -> None:
        self.lines: defaultdict[str, int] = defaultdict(int)
        self.elements: defaultdict[str, int] = defaultdict(int)
        self.where = ""

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Count what is done within as work of ``what``."""
        before, self.where = self.where, what
        try:
            yield
        finally:
            self.where = before


class _Arrays:
    """numpy's allocator, with what it allocates counted. Arrays may outlive it, so it is made once and kept."""

    def __init__(self) -> None:
        self.work: Work | None = None
        pythonapi = ctypes.pythonapi
        pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
        pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        pythonapi.PyCapsule_New.restype = ctypes.py_object
        pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        table = pythonapi.PyCapsule_GetPointer(np._core.multiarray._ARRAY_API, None)  # type: ignore[attr-defined]
        functions = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        self._set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER] or 0)
        original = ctypes.PYFUNCTYPE(ctypes.py_object)(functions[_GET_HANDLER] or 0)()
        address = pythonapi.PyCapsule_GetPointer(original, _CAPSULE)
        self._handler = _Handler.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Handler)))
        malloc, calloc = _MALLOC(self._handler.allocator.malloc), _CALLOC(self._handler.allocator.calloc)

        def counted_malloc(context: int, size: int) -> int:
            if self.work is not None:
                self.work.elements[self.work.where] += size // _WORD
            return int(malloc(context, size) or 0)

        def counted_calloc(context: int, count: int, size: int) -> int:
            if self.work is not None:
                self.work.elements[self.work.where] += count * size // _WORD
            return int(calloc(context, count, size) or 0)

        self._kept = _MALLOC(counted_malloc), _CALLOC(counted_calloc)
        self._handler.allocator.malloc, self._handler.allocator.calloc = (
            ctypes.cast(function, ctypes.c_void_p).value for function in self._kept
        )
        self._capsule = pythonapi.PyCapsule_New(ctypes.addressof(self._handler), _CAPSULE, None)

    @contextmanager
    def counted(self, work: Work) -> Iterator[None]:
        before = self._set(self._capsule)
        self.work = work
        try:
            yield
        finally:
            self.work = None
            self._set(before)


_ARRAYS = _Arrays()


@contextmanager
def counting() -> Iterator[Work]:
    """Count all work of this thread; that of each fact (``Trace.fact``) by its name."""
    work = Work()
    own = __file__

    def line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            work.lines[work.where] += 1
        return line

    def call(frame: FrameType, _event: str, _: object) -> Any:
        return None if frame.f_code.co_filename == own else line

    def profile(_frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call":
            return
        owner, name = getattr(function, "__self__", None), function.__name__
        if isinstance(owner, np.ndarray) and name in _REDUCING:
            work.elements[work.where] += owner.size
        elif isinstance(owner, list) and name == "sort":
            work.lines[work.where] += len(owner)

    def fact(trace: Trace, derive: Callable[[Trace], Any]) -> Any:
        if derive in trace._facts:
            return trace._facts[derive]
        name = getattr(derive, "__qualname__", type(derive).__qualname__)
        with work.of(f"{derive.__module__.removeprefix('perfscope.analyzers.')}.{name}"):
            return original(trace, derive)

    def walking(name: str) -> Callable[..., Any]:
        function = getattr(builtins, name)

        def counted(*values: Any, **options: Any) -> Any:
            if values and hasattr(values[0], "__len__"):
                work.lines[work.where] += len(values[0])
            return function(*values, **options)

        return counted

    original = Trace.fact
    before = sys.gettrace(), sys.getprofile()
    with pytest.MonkeyPatch.context() as patch, _ARRAYS.counted(work):
        patch.setattr(Trace, "fact", fact)
        for name in _WALKING:
            patch.setattr(builtins, name, walking(name))
        sys.setprofile(profile)
        sys.settrace(call)
        try:
            yield work
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
