"""Replaces attributes of modules and classes of the program's process, and puts them back."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

Undo = Callable[[], None]
_ABSENT = object()


def replace(holder: Any, name: str, replacement: Any) -> Undo:
    """Set an attribute. The undo restores it, unless somebody else has replaced it since."""
    before = vars(holder).get(name, _ABSENT)
    setattr(holder, name, replacement)

    def undo() -> None:
        if vars(holder).get(name) is not replacement:
            return
        if before is _ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, before)

    return undo


def wrap(holder: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Replace a function by ``make(function)``, which gets its name and docstring."""
    original = vars(holder)[name]
    return replace(holder, name, functools.wraps(original)(make(original)))


def wrap_calls(instance: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Wrap the calls of one object: ``make(call)`` is called with the object and its arguments.

    It is done on the object's class, so nothing is saved, copied or scripted with the object. Of a module it is what
    torch's own ``__call__`` looks up: a loop may have bound that before (``generate`` of transformers).
    """
    kind, watched = type(instance), [weakref.ref(instance)]
    inner = "__call__" not in vars(kind) and getattr(instance, "_compiled_call_impl", 0) is None
    name = "_call_impl" if inner and hasattr(kind, "_call_impl") else "__call__"

    def inherited(called: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(super(kind, called), name)(*arguments, **named)  # which may itself be replaced later

    original = vars(kind).get(name, inherited)
    wrapped = make(original)

    @functools.wraps(getattr(kind, name))
    def call(called: Any, *arguments: Any, **named: Any) -> Any:
        mine = watched and watched[0]() is called
        return (wrapped if mine else original)(called, *arguments, **named)

    restore = replace(kind, name, call)

    def undo() -> None:
        watched.clear()
        restore()

    return undo


def undo_all(undos: Iterable[Undo]) -> Undo:
    """One undo for several."""
    every = tuple(undos)

    def undo() -> None:
        for one in every:
            one()

    return undo
