"""Compiled programs: their runs, instructions and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.programs.hot_instructions import (
    NO_LINE,
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
from perfscope.analyzers.programs.saving import Part, Price, bytes_ns, once_ns, price, priced
from perfscope.model.hooks import names_from

__all__ = [
    "NO_LINE",
    "Execution",
    "HotInstruction",
    "HotPlace",
    "HotSpots",
    "LeastTime",
    "Part",
    "Price",
    "Program",
    "ProgramMovement",
    "ProgramPipeline",
    "bytes_ns",
    "communication_instructions",
    "communication_names",
    "hot_instructions",
    "once_ns",
    "pipeline_price",
    "price",
    "priced",
    "program_movements",
    "program_pipelines",
    "programs",
    "roof_device",
]

if TYPE_CHECKING:
    from perfscope.analyzers.programs.attention_traffic import WrittenAttention as WrittenAttention
    from perfscope.analyzers.programs.attention_traffic import written_attention as written_attention
    from perfscope.analyzers.programs.blocks import program_timelines as program_timelines
    from perfscope.analyzers.programs.constant_values import ConstantWork as ConstantWork
    from perfscope.analyzers.programs.constant_values import constant_work as constant_work
    from perfscope.analyzers.programs.donation import donation_of as donation_of
    from perfscope.analyzers.programs.donation import updates as updates
    from perfscope.analyzers.programs.fusion import RoundTrip as RoundTrip
    from perfscope.analyzers.programs.fusion import TripTime as TripTime
    from perfscope.analyzers.programs.fusion import is_softmax as is_softmax
    from perfscope.analyzers.programs.fusion import part_of as part_of
    from perfscope.analyzers.programs.fusion import round_trips as round_trips
    from perfscope.analyzers.programs.fusion import touched_bytes as touched_bytes
    from perfscope.analyzers.programs.fusion import trip_time as trip_time
    from perfscope.analyzers.programs.tables.instructions import RESULT as RESULT
    from perfscope.analyzers.programs.tables.instructions import instructions as instructions
else:
    __getattr__ = names_from(
        __name__,
        {
            "attention_traffic": "WrittenAttention written_attention",
            "blocks": "program_timelines",
            "constant_values": "ConstantWork constant_work",
            "donation": "donation_of updates",
            "fusion": "RoundTrip TripTime is_softmax part_of round_trips touched_bytes trip_time",
            "tables.instructions": "RESULT instructions",
        },
    )
