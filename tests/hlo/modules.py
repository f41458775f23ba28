"""Small HLO programs for cost tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost, module_cost
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.parse.text import module_of

ADD_COMPUTATION = """
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


def differences(one: HloModule, other: HloModule, ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """Differences, with the instruction; the order of computations may differ, the order of instructions may not."""
    for field in ("name", "entry", "is_scheduled", "platform"):
        if getattr(one, field) != getattr(other, field):
            yield f"{field}: {getattr(one, field)!r} {getattr(other, field)!r}"
    if one.computations.keys() != other.computations.keys():
        yield f"computations: {one.computations.keys() ^ other.computations.keys()}"
        return
    for name, computation in one.computations.items():
        mine, theirs = computation.instructions, other.computations[name].instructions
        if [part.name for part in mine] != [part.name for part in theirs]:
            yield f"{name}: instructions or their order"
            continue
        for left, right in zip(mine, theirs, strict=True):
            yield from _of_instruction(left, right, ignored)


def _of_instruction(left: Instruction, right: Instruction, ignored: frozenset[str]) -> Iterator[str]:
    # texts have no `wraps`, and a `literal` is comparable only within its file
    for name in Instruction.__struct_fields__:
        a, b = getattr(left, name), getattr(right, name)
        if a != b and name not in {"wraps", "literal", *ignored}:
            yield f"{left.name} ({left.opcode}) {name}: {a!r} {b!r}"


ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""


def program(entry: str, *, header: str = "", before: str = "") -> str:
    """A module whose entry computation has the given lines."""
    return f"HloModule jit_f{header}\n\n{before}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{entry}\n}}\n"


def parsed(text: str) -> HloModule:
    return module_of(text.splitlines(keepends=True), "m.txt")


def instruction(line: str, before: str = "") -> Instruction:
    """The instruction of a line that may use ``%p`` (f32[8]) and ``%q`` (f32[8])."""
    first = "  %p = f32[8]{0} parameter(0)\n  %q = f32[8]{0} parameter(1)\n"
    return parsed(program(first + line, before=before)).entry_computation().instructions[-1]
