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

    It is done on the object's class, so nothing is saved, copied or scripted with the object.
    """
    kind, watched = type(instance), [weakref.ref(instance)]

    def inherited(called: Any, *arguments: Any, **named: Any) -> Any:
        return super(kind, called).__call__(*arguments, **named)  # which may itself be replaced later

    original = vars(kind).get("__call__", inherited)
    wrapped = make(original)

    @functools.wraps(kind.__call__)
    def call(called: Any, *arguments: Any, **named: Any) -> Any:
        mine = watched and watched[0]() is called
        return (wrapped if mine else original)(called, *arguments, **named)

    restore = replace(kind, "__call__", call)

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
