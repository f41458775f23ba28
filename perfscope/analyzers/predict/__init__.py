"""Modelled time of compiled programs on a target: ``estimate``, and ``calibrate`` with a measured run."""

from __future__ import annotations

from perfscope.analyzers.predict.assumptions import Assumption, Factors
from perfscope.analyzers.predict.model import Estimate, LineTime, Row, StreamPicture, StreamSpan
from perfscope.analyzers.predict.program import estimate
from perfscope.analyzers.predict.spans import Parts, Range

__all__ = [
    "Assumption",
    "Estimate",
    "Factors",
    "LineTime",
    "Parts",
    "Range",
    "Row",
    "StreamPicture",
    "StreamSpan",
    "estimate",
]
