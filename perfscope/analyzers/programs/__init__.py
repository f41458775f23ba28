"""Compiled programs: what ran of them, and their instructions."""

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

__all__ = [
    "Execution",
    "HotInstruction",
    "HotPlace",
    "HotSpots",
    "LeastTime",
    "Program",
    "communication_instructions",
    "communication_names",
    "hot_instructions",
    "programs",
    "roof_device",
]
