"""Functions of higher layers that the model calls: registered by name, imported when they are first called.

``perfscope/__init__.py`` registers them, so the model itself imports nothing above it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_TARGETS: dict[str, str] = {}


def register(hook: str, target: str) -> None:
    """Set the function of a hook, as ``module:function``."""
    _TARGETS[hook] = target


def call(hook: str, *arguments: Any) -> Any:
    """Import the function of a hook and call it; ``KeyError`` if none is registered."""
    module, _, function = _TARGETS[hook].partition(":")
    return getattr(import_module(module), function)(*arguments)
