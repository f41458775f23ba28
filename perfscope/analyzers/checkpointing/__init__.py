"""Advice: what another plan of the same program would need and cost, predicted before it is written."""

from __future__ import annotations

from perfscope.analyzers.checkpointing.op_times import OpTimes, op_bytes, op_times

__all__ = ["OpTimes", "op_bytes", "op_times"]
