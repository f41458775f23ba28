"""From a stack frame table to the user's line: the innermost frame that is not in a library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/"
    r"|(?:^|/)lib/python3\.\d+/"
    r"|(?:^|/)(?:jax/(?:_src|experimental|interpreters|numpy)|jaxlib|flax/(?:linen|nnx|core|training)"
    r"|optax/(?:_src|transforms|losses)|haiku/_src|equinox/_\w+|torch_xla|torch/(?:nn|_\w+|autograd|utils|optim))(?:/|\.py$)"
    r"|^<"
)
"""Folders inside packages, not their names alone: a user's own ``jax/`` folder is not the library."""


def is_library(path: str) -> bool:
    """Whether a source path lies in an installed package, the standard library or a framework's checkout."""
    return _LIBRARY.search(path.replace("\\", "/")) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """The tables of a module, by their ids (from 1)."""

    files: Mapping[int, str] = field(default_factory=dict)
    locations: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Location -> file id, line."""
    frames: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Frame -> location id, id of the caller's frame (0: none)."""
    _found: dict[int, tuple[str, int] | None] = field(default_factory=dict, repr=False, compare=False)

    def user_line(self, frame: int) -> tuple[str, int] | None:
        """File and line of the innermost frame of the user's own code, else of the innermost one.

        ``None`` where the tables lack the frame. A chain that comes back to itself ends there.
        """
        if frame not in self._found:
            self._found[frame] = self._walked(frame)
        return self._found[frame]

    def _walked(self, frame: int) -> tuple[str, int] | None:
        innermost = None
        seen: set[int] = set()
        while frame in self.frames and frame not in seen:
            seen.add(frame)
            location, caller = self.frames[frame]
            file, line = self.locations.get(location, (0, 0))
            if file in self.files:
                place = (self.files[file], line)
                if not is_library(place[0]):
                    return place
                innermost = innermost or place
            frame = caller
        return innermost
