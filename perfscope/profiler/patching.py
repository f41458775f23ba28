"""Replaces attributes of modules and classes of the program's process, and puts them back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

Undo = Callable[[], None]
_ABSENT = object()


def replace(holder: Any, name: str, replacement: Any) -> Undo:
    """Set an attribute. The undo restores it, unless other code has replaced it since."""
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


def undo_all(undos: Iterable[Undo]) -> Undo:
    """One undo for several."""
    every = tuple(undos)

    def undo() -> None:
        for one in every:
            one()

    return undo
