"""Small HLO programs for cost tests."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost, module_cost
from perfscope.analyzers.hlo.text import module_of

ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def cost(text: str) -> ModuleCost:
    """The cost of a module given as text; its header is added."""
    header = "" if text.lstrip().startswith("HloModule") else "HloModule m, is_scheduled=true\n"
    return module_cost(module_of((header + text).splitlines(keepends=True), "test"))


def op_text(parameters: Sequence[str], op: str, computations: str = "") -> str:
    """A module of one instruction over parameters ``%p0``, ``%p1`` ..."""
    named = ", ".join(f"p{at}: {shape}" for at, shape in enumerate(parameters))
    defined = "\n".join(f"  %p{at} = {shape} parameter({at})" for at, shape in enumerate(parameters))
    result = op[: op.index(" ")] if not op.startswith("(") else op[: op.index(")") + 1]
    return (
        f"HloModule m, is_scheduled=true\n{computations}\n"
        f"ENTRY %main ({named}) -> {result} {{\n{defined}\n  ROOT %r = {op}\n}}\n"
    )


def op_cost(parameters: Sequence[str], op: str, computations: str = "") -> InstructionCost:
    """The cost of one instruction."""
    return cost(op_text(parameters, op, computations)).by_name["main", "r"]
