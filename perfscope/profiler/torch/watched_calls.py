"""Calls of single modules, seen from outside: on their class, so nothing is saved, copied or scripted with a module."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from perfscope.profiler.patching import Undo, replace, undo_all
from perfscope.profiler.torch.compat import is_compiling

Call = Callable[..., Any]


class _Watched:
    """One module whose calls are wrapped."""

    def __init__(self, module: Any, layer: _Layer, make: Callable[[Call], Call]) -> None:
        self.module = weakref.ref(module)
        self.outer, self.inner = make(layer.outer), make(layer.inner)
        self.depth = 0


class _Layer:
    """Wraps the calls of a class, for the modules in ``watched``."""

    def __init__(self, kind: Any) -> None:
        self.watched: dict[int, _Watched] = {}
        self.outer, self.inner = _original(kind, "__call__"), _original(kind, "_call_impl")

        @functools.wraps(kind.__call__)
        def outer(module: Any, *arguments: Any, **named: Any) -> Any:
            mine = self._of(module)
            if mine is None:
                return self.outer(module, *arguments, **named)
            mine.depth += 1
            try:
                return mine.outer(module, *arguments, **named)
            finally:
                mine.depth -= 1

        @functools.wraps(kind._call_impl)
        def inner(module: Any, *arguments: Any, **named: Any) -> Any:
            mine = None if is_compiling() else self._of(module)
            call = self.inner if mine is None or mine.depth else mine.inner
            return call(module, *arguments, **named)

        self.remove = undo_all([replace(kind, "_call_impl", inner), replace(kind, "__call__", outer)])

    def _of(self, module: Any) -> _Watched | None:
        found = self.watched.get(id(module))
        return found if found is not None and found.module() is module else None


_LAYERS: dict[Any, list[_Layer]] = {}
"""By class: with a second layer if a module is watched twice."""


def watch_calls(module: Any, make: Callable[[Call], Call]) -> Undo:
    """Wrap the calls of one module: the result of ``make(call)`` is called with the module and its arguments.

    Both ``__call__`` and the functions that torch's ``__call__`` looks up are wrapped, and one acts in a call: a
    loop may have bound the first before (``generate`` of transformers), and the second is compiled with the module.
    """
    layers, number = _LAYERS.setdefault(type(module), []), id(module)
    layer = next((layer for layer in layers if number not in layer.watched), None)
    if layer is None:
        layer = _Layer(type(module))
        layers.append(layer)
    layer.watched[number] = _Watched(module, layer, make)

    def undo() -> None:
        layer.watched.pop(number, None)
        if not layer.watched and layer in layers:
            layers.remove(layer)
            layer.remove()

    return undo


def _original(kind: Any, name: str) -> Call:
    def inherited(module: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(super(kind, module), name)(*arguments, **named)  # which may itself be replaced later

    own: Call = vars(kind).get(name, inherited)
    return own
