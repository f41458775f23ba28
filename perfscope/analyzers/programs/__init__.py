"""Compiled programs: what ran of them, their instructions, meetings of devices."""

from __future__ import annotations

from perfscope.analyzers.programs.hot_instructions import (
    HotInstruction,
    HotPlace,
    HotSpots,
    communication_instructions,
    communication_names,
    hot_instructions,
)
from perfscope.analyzers.programs.programs import Execution, LeastTime, Program, programs, roof_device
from perfscope.analyzers.programs.rendezvous import CollectiveSkew, Skew, collective_skew

__all__ = [
    "CollectiveSkew",
    "Execution",
    "HotInstruction",
    "HotPlace",
    "HotSpots",
    "LeastTime",
    "Program",
    "Skew",
    "collective_skew",
    "communication_instructions",
    "communication_names",
    "hot_instructions",
    "programs",
    "roof_device",
]
