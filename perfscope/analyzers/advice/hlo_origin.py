"""Where the values of a program come from: its arguments, or what its loops return."""

from __future__ import annotations

from perfscope.analyzers.facts.hlo_flow import Flow


def origin(flow: Flow, number: int) -> int:
    """An argument of the program, a loop's result, or what has no operand; along the first operand."""
    seen: set[int] = set()
    while number not in seen:
        seen.add(number)
        value = flow.values[number]
        loop = value.computation.name == flow.module.entry and value.instruction.opcode == "while"
        sources = value.names or value.operands[:1]
        if loop or is_argument(flow, number) or not sources:
            break
        number = sources[0]
    return number


def is_argument(flow: Flow, number: int) -> bool:
    """Whether it is an argument of the program."""
    value = flow.values[number]
    return value.instruction.opcode == "parameter" and value.computation.name == flow.module.entry
