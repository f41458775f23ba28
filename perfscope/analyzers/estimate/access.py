"""How an instruction goes through memory, told from the operations it holds."""

from __future__ import annotations

from perfscope.analyzers.facts.hlo_program import fused
from perfscope.analyzers.hlo.module import HloModule, Instruction

_STRIDED = frozenset(
    {
        "concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad", "reduce", "reduce-window",
        "reverse", "scatter", "select-and-scatter", "sort", "transpose",
    }
)  # fmt: skip


def is_strided(module: HloModule, instruction: Instruction) -> bool:
    """It reorders, gathers, cuts, joins or reduces: not every load is of whole lines in a row."""
    return any(one.opcode in _STRIDED for one in fused(module, instruction))


def is_contended(module: HloModule, instruction: Instruction) -> bool:
    """It adds to places that indices name, and nothing says that no two of them are equal: atomics may wait in line."""
    return any(
        one.opcode == "scatter" and one.attributes.get("unique_indices") != "true" for one in fused(module, instruction)
    )
