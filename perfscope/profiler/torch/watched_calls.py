"""Calls of one module, seen from outside: on its class, so nothing is saved, copied or scripted with the module."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from perfscope.profiler.patching import Undo, replace, undo_all
from perfscope.profiler.torch.compat import is_compiling

Call = Callable[..., Any]


def watch_calls(module: Any, make: Callable[[Call], Call]) -> Undo:
    """Wrap the calls of one module: what ``make(call)`` returns is called with the module and its arguments.

    Both ``__call__`` and what torch's own ``__call__`` looks up are wrapped, and one of them acts in a call: a loop may
    have bound the first before (``generate`` of transformers), and the second is compiled with the module.
    """
    watched, depth = [weakref.ref(module)], [0]

    def is_watched(called: Any) -> bool:
        return bool(watched) and watched[0]() is called

    def outer(original: Call) -> Call:
        wrapped = make(original)

        def call(called: Any, *arguments: Any, **named: Any) -> Any:
            if not is_watched(called):
                return original(called, *arguments, **named)
            depth[0] += 1
            try:
                return wrapped(called, *arguments, **named)
            finally:
                depth[0] -= 1

        return call

    def inner(original: Call) -> Call:
        wrapped = make(original)

        def call(called: Any, *arguments: Any, **named: Any) -> Any:
            if is_compiling() or depth[0] or not is_watched(called):
                return original(called, *arguments, **named)
            return wrapped(called, *arguments, **named)

        return call

    kind = type(module)
    restore = undo_all([_wrap(kind, "_call_impl", inner), _wrap(kind, "__call__", outer)])

    def undo() -> None:
        watched.clear()
        restore()

    return undo


def _wrap(kind: Any, name: str, make: Callable[[Call], Call]) -> Undo:
    def inherited(called: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(super(kind, called), name)(*arguments, **named)  # which may itself be replaced later

    return replace(kind, name, functools.wraps(getattr(kind, name))(make(vars(kind).get(name, inherited))))
