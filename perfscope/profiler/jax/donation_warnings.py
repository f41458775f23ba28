"""jax's warning that a donated buffer cannot be used, intercepted where jax issues it.

``warnings`` shows a text once per line, or never, depending on the program's filters, and its hooks belong to the
program. So the name ``warnings`` in the one module of jax that gives this warning is replaced; everything else is
passed on.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from perfscope.profiler.jax.compat import find
from perfscope.profiler.patching import Undo, replace

MAX_DONATION_SHAPES = 64
"""Shapes per program: a state has more leaves, but their number is enough."""

_MODULE = "jax._src.interpreters.mlir"
_BEGINS = "Some donated buffers were not usable"
_SHAPE = re.compile(r"\b([a-z][a-z0-9_]{1,20}\[[0-9,]{0,80}\])")
_UNSAFE = re.compile(r"[^\w.-]")
"""Characters that jax replaces in a program's name: ``jit(step)`` is ``jit_step`` in XLA."""
_MOST_NAME = 120


@dataclass(frozen=True, slots=True)
class UnusableDonation:
    """Donated buffers of one program that no result could take."""

    module: str | None
    """Name of the program, ``jit_step``."""
    shapes: tuple[str, ...]
    """``float32[8,128]``, at most `MOST_SHAPES` of them; of divided arrays the part of one device."""
    count: int
    frame: FrameType
    """jax's frame that issues the warning."""


def on_unusable_donation(heard: Callable[[UnusableDonation], None]) -> Undo | None:
    """Pass on each such warning of jax; ``None`` if this jax does not issue it in the known place."""
    original = find(_MODULE, "warnings")
    if original is not warnings:
        return None
    return replace(sys.modules[_MODULE], "warnings", _Warnings(heard))


class _Warnings:
    """Stands for the module ``warnings``: everything is its own."""

    def __init__(self, heard: Callable[[UnusableDonation], None]) -> None:
        self._heard = heard

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def warn(self, message: Any, category: Any = None, stacklevel: int = 1, *more: Any, **named: Any) -> None:
        """As ``warnings.warn``, called from one frame further out."""
        if isinstance(message, str) and message.startswith(_BEGINS):
            self._heard(_parse_donation_warning(message, sys._getframe(1)))
        warnings.warn(message, category, stacklevel + 1, *more, **named)


def _parse_donation_warning(message: str, frame: FrameType) -> UnusableDonation:
    """Shapes and their number from the text, and the name of the program from the frame."""
    shapes = _SHAPE.findall(message.partition("\n")[0])
    name = frame.f_locals.get("module_name")
    module = _UNSAFE.sub("_", name).rstrip("_")[:_MOST_NAME] if isinstance(name, str) else None
    return UnusableDonation(module or None, tuple(shapes[:MAX_DONATION_SHAPES]), len(shapes), frame)
