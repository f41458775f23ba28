"""Settings of inductor that make its work readable: which nodes a kernel computes, and its name in a CPU trace.

Both change no number, and both are part of the keys of inductor's caches: what the program compiled without them
is compiled once more with them, and found again by the next run under capture.
"""

from __future__ import annotations

import os
from typing import Any

from perfscope.profiler import torch_compat
from perfscope.profiler.options import Level

WANTED: dict[str, Any] = {"provenance": 1, "cpp_kernel_names": True}
"""What each setting is put to."""


class Settings:
    """Put once inductor is loaded, and taken back. What the user has set, by variable or in code, stays."""

    def __init__(self, level: Level) -> None:
        """``light`` leaves everything as it is: the caches stay those of the program."""
        self._wanted = {} if level == "light" else WANTED
        self._put: dict[str, Any] = {}
        self._left: list[str] = []

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the settings that are ours now."""
        return tuple(self._put)

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of the settings that this torch does not have."""
        return tuple(self._left)

    def put(self) -> None:
        """Inductor is imported and compiles in a moment."""
        for name, value in self._wanted.items():
            group_name, setting, variable = torch_compat.SETTINGS[name]
            group = torch_compat.inductor_group(group_name)
            if not hasattr(group, setting):
                self._left.append(name)
                continue
            before = getattr(group, setting)
            if variable not in os.environ and not before:
                setattr(group, setting, value)
                self._put[name] = before

    def take_back(self) -> None:
        """Leave inductor as it was; a value that somebody has put there since stays."""
        for name, before in self._put.items():
            group_name, setting, _ = torch_compat.SETTINGS[name]
            group = torch_compat.inductor_group(group_name)
            if getattr(group, setting, None) == WANTED[name]:
                setattr(group, setting, before)
