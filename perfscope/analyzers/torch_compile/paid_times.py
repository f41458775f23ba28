"""What compiling costs a run: paid a few times, or in each step."""

from __future__ import annotations

from msgspec import Struct

from perfscope.model.finding import Once
from perfscope.model.severity import Severity, severity_of
from perfscope.model.units import format_ns

LASTING_SHARE = 0.5
"""Of the steps of a run: compiling in so many of them is a cost of each step, and not one that ends."""


class PaidTimes(Struct, frozen=True, kw_only=True):
    """How often compilations were paid for, and in which steps. Times in ns."""

    total_ns: int
    times: int
    steps: tuple[int, ...]
    """Number of the step of each; empty where no step is known."""
    seen: int | None
    """Steps of the run as far as they are known."""

    @property
    def per_step_ns(self) -> int | None:
        """Cost of each step where most of them compile, else ``None``."""
        if self.seen is None or len(set(self.steps)) < LASTING_SHARE * self.seen:
            return None
        return self.total_ns // self.seen

    @property
    def once(self) -> Once | None:
        """``None`` where it is a cost of each step."""
        if self.per_step_ns is not None:
            return None
        return Once(times=self.times, steps=self.seen, last_step=max(self.steps, default=None))

    def words(self) -> str:
        """What each further compilation costs, and which steps pay; one to three sentences."""
        each = f"Each compilation takes {format_ns(self.total_ns / max(1, self.times))}."
        return f"{each} {self.which_steps()}".rstrip()

    def which_steps(self) -> str:
        """Which steps pay, and after which none does; ``''`` where steps are not known."""
        if self.seen is None or not self.steps:
            return ""
        paid, last = len(set(self.steps)), max(self.steps)
        text = f"It is paid in {paid:,} of {self.seen:,} steps."
        if self.per_step_ns is None and last < self.seen - 1:
            text += f" No step after step {last:,} pays."
        return text

    def severity(self, step_ns: float) -> Severity:
        """Share of the time of all steps of the run that are known; ``step_ns``: 0 where no step was timed."""
        spread = self.total_ns // max(1, self.seen or 1)
        return severity_of(spread, max(step_ns, spread))
