"""Compiled programs: their runs, instructions and memory."""

from __future__ import annotations

from perfscope.analyzers.programs.hot_instructions import (
    HotInstruction,
    HotPlace,
    HotSpots,
    communication_instructions,
    communication_names,
    hot_instructions,
)
from perfscope.analyzers.programs.movement import ProgramMovement, program_movements
from perfscope.analyzers.programs.pipelines import ProgramPipeline, pipeline_price, program_pipelines
from perfscope.analyzers.programs.programs import Execution, LeastTime, Program, programs, roof_device
from perfscope.analyzers.programs.saving import price, priced

__all__ = [
    "Execution",
    "HotInstruction",
    "HotPlace",
    "HotSpots",
    "LeastTime",
    "Program",
    "ProgramMovement",
    "ProgramPipeline",
    "communication_instructions",
    "communication_names",
    "hot_instructions",
    "pipeline_price",
    "price",
    "priced",
    "program_movements",
    "program_pipelines",
    "programs",
    "roof_device",
]
