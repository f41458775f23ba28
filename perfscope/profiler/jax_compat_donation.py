"""jax's warning that a donated buffer cannot be used, heard where jax gives it: whatever filters the program has.

``warnings`` shows a text once a line, or never, as the program's filters say; its hooks are the program's own. So the
name by which the one module of jax's that gives this warning calls ``warnings`` is taken. All it says is handed on.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from perfscope.profiler.jax_compat import Undo, find

MOST_SHAPES = 64
"""Of one program: a state has more leaves, but their number says the same."""

_MODULE = "jax._src.interpreters.mlir"
_BEGINS = "Some donated buffers were not usable"
_SHAPE = re.compile(r"\b([a-z][a-z0-9_]{1,20}\[[0-9,]{0,80}\])")
_UNSAFE = re.compile(r"[^\w.-]")
"""What jax replaces in a program's name: ``jit(step)`` is ``jit_step`` in XLA."""
_MOST_NAME = 120


@dataclass(frozen=True, slots=True)
class Unusable:
    """Donated buffers of one program that no result could take."""

    module: str | None
    """Name of the program, ``jit_step``."""
    shapes: tuple[str, ...]
    """``float32[8,128]``, at most `MOST_SHAPES` of them; of divided arrays the part of one device."""
    count: int
    frame: FrameType
    """jax's, where it says so."""


def on_unusable_donation(heard: Callable[[Unusable], None]) -> Undo | None:
    """Give away each such warning as jax makes it; ``None`` where this jax does not make it in the place we know."""
    held = find(_MODULE, "warnings")
    if held is not warnings:
        return None
    module = sys.modules[_MODULE]
    listener = _Warnings(heard)
    setattr(module, "warnings", listener)  # noqa: B010 (mypy knows no such attribute)

    def undo() -> None:
        if getattr(module, "warnings", None) is listener:
            setattr(module, "warnings", held)  # noqa: B010

    return undo


class _Warnings:
    """Stands for the module ``warnings``: everything is its own."""

    def __init__(self, heard: Callable[[Unusable], None]) -> None:
        self._heard = heard

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def warn(self, message: Any, category: Any = None, stacklevel: int = 1, *more: Any, **named: Any) -> None:
        """As ``warnings.warn``, called from one frame further out."""
        if isinstance(message, str) and message.startswith(_BEGINS):
            self._heard(_read(message, sys._getframe(1)))
        warnings.warn(message, category, stacklevel + 1, *more, **named)


def _read(message: str, frame: FrameType) -> Unusable:
    """What is kept of the text: shapes and their number, and of the frame the name of the program."""
    shapes = _SHAPE.findall(message.partition("\n")[0])
    name = frame.f_locals.get("module_name")
    module = _UNSAFE.sub("_", name).rstrip("_")[:_MOST_NAME] if isinstance(name, str) else None
    return Unusable(module or None, tuple(shapes[:MOST_SHAPES]), len(shapes), frame)
