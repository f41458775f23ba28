"""Memory advice: predicted memory and time of other plans for the same program."""

from __future__ import annotations

from perfscope.analyzers.checkpointing.op_times import OpTimes, op_bytes, op_times

__all__ = ["OpTimes", "op_bytes", "op_times"]
