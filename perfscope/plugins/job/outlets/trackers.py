"""A job over time in TensorBoard, Weights & Biases or MLflow; the step is the number of completed steps."""

from __future__ import annotations

from statistics import median

from perfscope.plugins.job.outlets import Moment
from perfscope.plugins.log_to import Tracker, refusals, tracker_at


class Tracked:
    """One run of a tracker, opened at the first moment."""

    def __init__(self, tracker: str, place: str) -> None:
        """``tracker``: ``tensorboard``, ``wandb`` or ``mlflow``."""
        self._tracker, self._place = tracker, place
        self._run: Tracker | None = None

    def send(self, moment: Moment) -> None:
        """Log the job; ``DataError`` if the tracker refuses, ``UsageError`` if its package is not installed."""
        with refusals(self._tracker, self._place):
            if self._run is None:
                self._run = tracker_at(self._tracker, self._place, moment.job)
            self._run.log(scalars(moment), moment.account.steps)

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            with refusals(self._tracker, self._place):
                self._run.close()


def scalars(moment: Moment) -> dict[str, float]:
    """Name -> value; the name ends in its unit. Numbers that the job does not have are left out.

    Step time is the median of the ranks, tokens per second their sum, memory that of the rank with most, loss that of
    the first rank that reports one.
    """
    account = moment.account
    found = {"goodput_share": account.goodput, "step_time_changes": float(len(account.changes))}
    found.update({f"time_s/{cause.cause.replace(' ', '_')}": cause.ns / 1e9 for cause in account.causes})
    times = [rank.step_ns for rank in account.ranks if rank.step_ns is not None]
    if times:
        found["step_time_ms"] = median(times) / 1e6
    speeds = [rank.tokens_per_s for rank in account.ranks if rank.tokens_per_s is not None]
    if speeds:
        found["tokens_per_s"] = sum(speeds)
    losses = [rank.loss for rank in account.ranks if rank.loss is not None]
    if losses:
        found["loss"] = losses[0]
    resident = max((rank.resident for rank in account.ranks), default=-1)
    if resident >= 0:
        found["resident_bytes"] = float(resident)
    return {f"perfscope/job/{name}": value for name, value in found.items()}
