"""Replaces attributes of modules and classes of the program's process, and puts them back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

Undo = Callable[[], None]
_ABSENT = object()


_under: dict[tuple[int, str, int], tuple[Any, Any]] = {}
"""(Holder, name, replacement) -> a replacement that was undone while another covered it, and what it replaced."""


def replace(holder: Any, name: str, replacement: Any) -> Undo:
    """Set an attribute. The undo restores it; if other code has replaced it since, then when that is undone."""
    before = vars(holder).get(name, _ABSENT)
    setattr(holder, name, replacement)
    done = False

    def undo() -> None:
        nonlocal done
        if done:
            return
        done = True
        if vars(holder).get(name) is not replacement:
            _under[id(holder), name, id(replacement)] = replacement, before
            return
        value = before
        while (key := (id(holder), name, id(value))) in _under:
            value = _under.pop(key)[1]
        if value is _ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, value)

    return undo


def wrap(holder: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Replace a function by ``make(function)``, which gets its name and docstring."""
    original = vars(holder)[name]
    return replace(holder, name, functools.wraps(original)(make(original)))


def undo_all(undos: Iterable[Undo]) -> Undo:
    """One undo for several."""
    every = tuple(undos)

    def undo() -> None:
        for one in every:
            one()

    return undo
