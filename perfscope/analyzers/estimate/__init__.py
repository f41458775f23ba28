"""The modelled time of compiled programs on a target: ``estimate``, and ``calibrate`` where a run was measured."""

from __future__ import annotations

from perfscope.analyzers.estimate.assumptions import Assumption, Factors
from perfscope.analyzers.estimate.model import Estimate, LineTime, Row, StreamPicture, StreamSpan
from perfscope.analyzers.estimate.program import estimate
from perfscope.analyzers.estimate.spans import Parts, Range

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
