"""Modelled time of compiled programs on a target: ``estimate``, and ``calibrate`` with a measured run."""

from __future__ import annotations

from perfscope.analyzers.predict.assumptions import Factors, factors_for, vendor_factors
from perfscope.analyzers.predict.calibration import Calibration, GroupError, InstructionError, bounded, calibrate
from perfscope.analyzers.predict.collective_time import CollectiveRange, Exchange, collective_range, exchange_range
from perfscope.analyzers.predict.curve import Category
from perfscope.analyzers.predict.efficiency import Work, usual_range
from perfscope.analyzers.predict.kernel_time import between
from perfscope.analyzers.predict.model import Estimate, LineTime, Row, StreamPicture
from perfscope.analyzers.predict.program import StepOfSeveral, calls_seen, estimate, step_of
from perfscope.analyzers.predict.spans import NO_TIME, Parts, Played, Range, Task, ns_range, play

__all__ = [
    "NO_TIME",
    "Calibration",
    "Category",
    "CollectiveRange",
    "Estimate",
    "Exchange",
    "Factors",
    "GroupError",
    "InstructionError",
    "LineTime",
    "Parts",
    "Played",
    "Range",
    "Row",
    "StepOfSeveral",
    "StreamPicture",
    "Task",
    "Work",
    "between",
    "bounded",
    "calibrate",
    "calls_seen",
    "collective_range",
    "estimate",
    "exchange_range",
    "factors_for",
    "ns_range",
    "play",
    "step_of",
    "usual_range",
    "vendor_factors",
]
