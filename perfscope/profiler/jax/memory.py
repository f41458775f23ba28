"""Memory of arrays and programs on the devices when the traced steps begin and after they have ended, by stack.

Each is a device memory profile as ``jax.profiler.save_device_memory_profile`` writes it, taken while nothing is queued:
0.3 ms if a hundred arrays are alive. The surplus of the second over the first grew within the steps.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.model.documents.run import Capture
from perfscope.model.files import write_atomically
from perfscope.profiler.jax import compat

FOLDER = "memory"
MOMENTS = ("before", "after")
"""The first and the second profile: before the first traced step and after the last."""
SUFFIX = ".prof"
PASS = "memory"  # noqa: S105 (the name of a pass)


def available() -> str | None:
    """Why no profile can be taken, or ``None`` if it can."""
    if not compat.installed():
        return "jax is not installed"
    return None if compat.has_memory_profile() else "this jax has no device_memory_profile"


class MemoryLog:
    """The profiles of one pass. ``take`` is called when nothing is queued; it never raises."""

    def __init__(self) -> None:
        """Nothing is taken yet."""
        self._profiles: list[bytes] = []
        self._reason: str | None = None
        self._written = 0

    def take(self) -> None:
        """The next moment."""
        if self._reason is not None or len(self._profiles) == len(MOMENTS):
            return
        try:
            self._profiles.append(compat.memory_profile())
        except Exception as error:  # a backend may refuse with an exception class of its plugin
            self._reason = f"{type(error).__name__}: {error}"

    def save(self, directory: Path, run: Path) -> Capture:
        """Write the profiles."""
        path = directory / FOLDER
        if len(self._profiles) > self._written:
            self._written = len(self._profiles)
            path.mkdir(exist_ok=True)
            for moment, profile in zip(MOMENTS, self._profiles, strict=False):
                write_atomically(path / f"{moment}{SUFFIX}", profile, durable=False)
        whole = len(self._profiles) == len(MOMENTS)
        missing = None if whole or not self._profiles else "the traced steps had not ended: no profile after them"
        return Capture(
            pass_name=PASS,
            tool="jax_memory",
            state="recorded" if self._profiles else "missing",
            reason=self._reason or missing or (None if self._profiles else "no step was traced"),
            artifact=path.relative_to(run).as_posix() if self._profiles else None,
        )
