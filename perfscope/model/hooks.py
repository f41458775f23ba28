"""Functions of higher layers that the model calls: registered by name, imported when they are first called.

``perfscope/__init__.py`` registers them, so the model itself imports nothing above it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package. ``homes``: module in the package -> its names, separated by spaces.

    The function raises ``AttributeError`` for other names.
    """
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
