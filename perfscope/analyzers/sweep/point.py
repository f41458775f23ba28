"""What became of one variant of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.estimate.spans import Range

State = Literal["fits", "does not fit", "compiled", "failed", "not reached"]
"""``compiled``: whether it fits is not known, because nobody knows the device's memory or the program's peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A variant with what was modelled of it. Bytes are of one device."""

    settings: tuple[tuple[str, str], ...]
    """(axis, value), in the order of the axes."""
    state: State
    target: str = ""
    """``8 H100 SXM``."""
    step: Range | None = None
    """Modelled time of one step; None where the compiler refused it, or no time could be modelled."""
    peak_bytes: int | None = None
    """The most that one of its programs needs at once."""
    memory_bytes: int | None = None
    reason: str = ""
    """Why it failed, or what is not known of it."""
    inputs: tuple[int, int] | None = None
    """Bytes of the step's arguments and outputs: variants that differ in them do not do the same."""
    programs: tuple[str, ...] = ()
    """Names of the programs that the step was taken for."""
    fingerprints: tuple[str, ...] = ()
    """Of them: the same program has the same."""
    folder: str = ""
    """Run folder, relative to the sweep's; empty where there is none."""
    seconds: float | None = None
    """To compile it."""
    host_bytes: int | None = None
    """Memory of this machine that compiling took."""
    reused: bool = False

    @property
    def judged(self) -> bool:
        """Whether time and peak are known."""
        return self.step is not None and self.peak_bytes is not None

    def value(self, axis: str) -> str | None:
        """Its value of an axis."""
        return dict(self.settings).get(axis)

    def words(self, axes: tuple[str, ...] | None = None) -> str:
        """``policy=dots seq=1024``, of those axes only."""
        return " ".join(f"{name}={value}" for name, value in self.settings if axes is None or name in axes)
