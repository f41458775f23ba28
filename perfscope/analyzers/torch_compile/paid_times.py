"""Cost of compiling for a run: paid a few times, or in each step."""

from __future__ import annotations

from msgspec import Struct

from perfscope.model.finding import Once
from perfscope.model.severity import Severity, severity_of
from perfscope.model.units import format_ns

LASTING_SHARE = 0.5
"""Share of the run's steps with a compilation from which it is a cost of each step."""


class PaidTimes(Struct, frozen=True, kw_only=True):
    """Number of paid compilations and their steps. Times in ns."""

    total_ns: int
    times: int
    steps: tuple[int, ...]
    """Step number of each compilation; empty if steps are unknown."""
    seen: int | None
    """Known steps of the run."""

    @property
    def per_step_ns(self) -> int | None:
        """Cost of each step if most of them compile, else ``None``."""
        if self.seen is None or len(set(self.steps)) < LASTING_SHARE * self.seen:
            return None
        return self.total_ns // self.seen

    @property
    def once(self) -> Once | None:
        """Return when it is paid; ``None`` if it is a cost of each step."""
        if self.per_step_ns is not None:
            return None
        return Once(times=self.times, steps=self.seen, last_step=max(self.steps, default=None))

    def words(self) -> str:
        """Return one to three sentences: the cost of each further compilation, and the steps that pay it."""
        each = f"Each compilation takes {format_ns(self.total_ns / max(1, self.times))}."
        return f"{each} {self.which_steps()}".rstrip()

    def which_steps(self) -> str:
        """Return which steps pay, and the last one that does; ``''`` if steps are unknown."""
        if self.seen is None or not self.steps:
            return ""
        paid, last = len(set(self.steps)), max(self.steps)
        text = f"It is paid in {paid:,} of {self.seen:,} steps."
        if self.per_step_ns is None and last < self.seen - 1:
            text += f" Steps after step {last:,} do not pay."
        return text

    def severity(self, step_ns: float) -> Severity:
        """Return the severity of its share of the run's known steps; ``step_ns``: 0 if no step was timed."""
        spread = self.total_ns // max(1, self.seen or 1)
        return severity_of(spread, max(step_ns, spread))
