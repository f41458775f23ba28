"""Large and hostile modules: work in proportion to the module, no recursion without bound."""

from __future__ import annotations

import sys

import pytest

from perfscope.analyzers.hlo import cost_fusion
from perfscope.analyzers.hlo.cost import module_cost
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape
from perfscope.profiler.errors import DataError

VECTOR = Shape(dtype="f32", dims=(8,))


def computation(name: str, *instructions: Instruction) -> Computation:
    return Computation(name=name, instructions=instructions, by_name={one.name: one for one in instructions})


def module(*computations: Computation) -> HloModule:
    return HloModule(name="m", entry=computations[0].name, computations={one.name: one for one in computations})


def nested(deep: int, trips: int) -> HloModule:
    bodies = [
        computation(
            f"c{at}",
            Instruction(name="p", opcode="parameter", shape=VECTOR, parameter_number=0),
            Instruction(
                name="r", opcode="while", shape=VECTOR, operands=("p",), called=(f"c{at + 1}",), trip_count=trips,
                is_root=True,
            ),
        )
        for at in range(deep)
    ]  # fmt: skip
    last = computation(
        f"c{deep}",
        Instruction(name="p", opcode="parameter", shape=VECTOR, parameter_number=0),
        Instruction(name="r", opcode="add", shape=VECTOR, operands=("p", "p"), is_root=True),
    )
    return module(*bodies, last)


def test_calls_nested_far_beyond_the_stack():
    deep = 5 * sys.getrecursionlimit()
    found = module_cost(nested(deep, 1))
    assert found.total.flops == 8
    assert len(found.rows) == 2 * deep + 2


def test_loops_that_would_never_end_are_refused():
    assert module_cost(nested(60, 4)).total.flops == 8 * 4**60
    with pytest.raises(DataError, match="never end"):
        module_cost(nested(65, 4))


def test_a_circle_is_refused():
    body = computation(
        "a", Instruction(name="r", opcode="call", shape=VECTOR, called=("a",), is_root=True)
    )  # fmt: skip
    with pytest.raises(ValueError, match="calls itself"):
        module_cost(module(body))


def chain(length: int, start: str = "p") -> tuple[Instruction, ...]:
    """A body of updates of one buffer, one after another, each of them a result too."""
    whole = Shape(dtype="f32", dims=(1_000_000,))
    found = [
        Instruction(name="p", opcode="parameter", shape=whole, parameter_number=0),
        Instruction(name="u", opcode="parameter", shape=VECTOR, parameter_number=1),
        Instruction(name="i", opcode="parameter", shape=Shape(dtype="s32"), parameter_number=2),
    ]
    found.append(Instruction(name="fresh", opcode="negate", shape=whole, operands=("p",)))
    before = start
    for at in range(length):
        found.append(
            Instruction(name=f"d{at}", opcode="dynamic-update-slice", shape=whole, operands=(before, "u", "i"))
        )
        before = f"d{at}"
    results = tuple(f"d{at}" for at in range(length))
    shape = Shape(dtype="tuple", parts=(whole,) * length)
    found.append(Instruction(name="r", opcode="tuple", shape=shape, operands=results, is_root=True))
    return tuple(found)


def test_steps_through_a_body_are_in_proportion_to_it(monkeypatch: pytest.MonkeyPatch):
    counted = 0
    plain = cost_fusion._Demand.add

    def counting(self: cost_fusion._Demand, *args: int) -> None:
        nonlocal counted
        counted += 1
        plain(self, *args)

    monkeypatch.setattr(cost_fusion._Demand, "add", counting)
    steps = []
    for length in (200, 400):
        counted = 0
        found = cost_fusion.body_traffic(computation("body", *chain(length)), {})
        steps.append(counted)
        assert found.written == (8,) * length
        assert found.read[0] == (0,)
    assert steps[1] < 2.1 * steps[0]


@pytest.mark.parametrize("start", ["p", "fresh"])
def test_a_chain_of_updates_is_walked_once_however_many_results_it_has(start: str, monkeypatch: pytest.MonkeyPatch):
    walked = 0

    class Counting(dict):  # the way to the next instruction of a chain
        def __getitem__(self, name: str) -> Instruction:
            nonlocal walked
            walked += 1
            return super().__getitem__(name)

    instructions = chain(500, start)
    body = Computation(
        name="body", instructions=instructions, by_name=Counting({one.name: one for one in instructions})
    )
    found = cost_fusion.body_traffic(body, {})
    assert found.written == ((8,) if start == "p" else (1_000_000,)) * 500
    assert walked < 500 * 8


def test_a_program_of_ten_thousand_instructions_has_a_row_each():
    body = [Instruction(name="x0", opcode="parameter", shape=VECTOR, parameter_number=0)]
    body += [
        Instruction(name=f"x{at}", opcode="add", shape=VECTOR, operands=(f"x{at - 1}", "x0")) for at in range(1, 10_000)
    ]
    found = module_cost(module(computation("main", *body)))
    assert len(found.rows) == 10_000
    assert found.total.flops == 9_999 * 8
