"""Programs that make no sense cost something or are refused in one line: nothing else comes out."""

from __future__ import annotations

import sys

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.hlo.cost import fusion as cost_fusion
from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.model.errors import DataError
from tests.hlo.modules import ADD_COMPUTATION

PROGRAM = (
    "HloModule m, is_scheduled=true\n"
    + ADD_COMPUTATION
    + """
%body (p: f32[100], u: f32[4], i: s32[]) -> (f32[100], f32[4]) {
  %p = f32[100] parameter(0)
  %u = f32[4] parameter(1)
  %i = s32[] parameter(2)
  %part = f32[4] dynamic-slice(%p, %i), dynamic_slice_sizes={4}
  %new = f32[4] add(%part, %u)
  %put = f32[100] dynamic-update-slice(%p, %new, %i)
  %flat = f32[100] bitcast(%put)
  ROOT %both = (f32[100], f32[4]) tuple(%flat, %new)
}
%turn (s: (f32[100], f32[4])) -> (f32[100], f32[4]) {
  %s = (f32[100], f32[4]) parameter(0)
  %a = f32[100] get-tuple-element(%s), index=0
  %b = f32[4] get-tuple-element(%s), index=1
  %zero = s32[] constant(0)
  ROOT %fusion = (f32[100], f32[4]) fusion(%a, %b, %zero), kind=kLoop, calls=%body
}
%test (s: (f32[100], f32[4])) -> pred[] {
  %s = (f32[100], f32[4]) parameter(0)
  ROOT %go = pred[] constant(true)
}
ENTRY %main (x: f32[10,10], y: f32[10,10]) -> f32[] {
  %x = f32[10,10] parameter(0)
  %y = f32[10,10] parameter(1)
  %z = f32[] constant(0)
  %dot = f32[10,10] dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %conv = f32[10,10] convolution(%dot, %y), dim_labels=bf_io->bf
  %gather = f32[10,10] all-gather(%conv), replica_groups={{0}}, dimensions={0}
  %line = f32[100] reshape(%gather)
  %few = f32[4] slice(%line), slice={[0:4]}
  %start = (f32[100], f32[4]) tuple(%line, %few)
  %loop = (f32[100], f32[4]) while(%start), condition=%test, body=%turn
  %out = f32[100] get-tuple-element(%loop), index=0
  ROOT %sum = f32[] reduce(%out, %z), dimensions={0}, to_apply=%add
}
"""
)
MODULE = module_of(PROGRAM.splitlines(keepends=True), "test")
PLACES = [(computation.name, one.name) for computation, one in MODULE.instructions()]
OPCODES = [
    *sorted({one.opcode for _, one in MODULE.instructions()}), "all-gather-start", "all-to-all-start", "async-start",
    "call", "cholesky", "conditional", "copy-start", "custom-call", "fft", "fusion-start", "gather", "map",
    "ragged-dot", "reduce-window", "scatter", "select-and-scatter", "sort", "topk", "triangular-solve",
]  # fmt: skip
SHAPES = [
    Shape(dtype="f32"), Shape(dtype="tuple"), Shape(dtype="tuple", parts=(Shape(dtype="f32", dims=(0,)),)),
    Shape(dtype="token"), Shape(dtype="f32", dims=(2**62, 2**62)), Shape(dtype="s4", dims=(3, 0)),
]  # fmt: skip
VALUES = ["", "{}", "{9}", "x", "-1", "{" + "9" * 5000 + "}", "{1,1}", "{size=3x3 stride=0}", "b0f_0io->b0f"]


@st.composite
def damage(draw: st.DrawFn) -> tuple[str, str, dict[str, object]]:
    computation, name = draw(st.sampled_from(PLACES))
    one = MODULE.computations[computation].by_name[name]
    kept = draw(st.integers(0, len(one.operands)))
    keys = [*one.attributes, "window", "dim_labels", "index", "fft_length"]
    change: dict[str, object] = draw(
        st.sampled_from(
            [
                {"operands": one.operands[:kept]}, {"called": ()}, {"opcode": draw(st.sampled_from(OPCODES))},
                {"shape": draw(st.sampled_from(SHAPES))}, {"trip_count": 2**63},
                {"attributes": {key: draw(st.sampled_from(VALUES)) for key in keys}},
                {"opcode": "custom-call", "custom_call_target": "__cublas$gemm", "backend_config": {"a": [1]}},
            ]
        )
    )  # fmt: skip
    return computation, name, change


def damaged(changes: list[tuple[str, str, dict[str, object]]]) -> HloModule:
    computations = dict(MODULE.computations)
    for computation, name, change in changes:
        instructions = tuple(
            msgspec.structs.replace(one, **change) if one.name == name else one
            for one in computations[computation].instructions
        )
        computations[computation] = Computation(
            name=computation, instructions=instructions, by_name={one.name: one for one in instructions}
        )
    return msgspec.structs.replace(MODULE, computations=computations)


@given(st.lists(damage(), min_size=1, max_size=4))
@example([("body", "put", {"shape": Shape(dtype="tuple")})])
@settings(max_examples=75, deadline=None)
def test_damage_anywhere(changes: list[tuple[str, str, dict[str, object]]]):
    module = damaged(changes)
    try:
        found = module_cost(module)
    except DataError:
        return  # one line, for sizes that are not real
    assert sum(row.total.bytes for row in found.launched) == found.total.bytes
    assert sum(part.flops for part in found.phases.values()) == found.total.flops
    assert found.total.flops >= 0


def test_the_program_makes_sense_as_it_is():
    found = module_cost(MODULE)
    assert found.total.unknown == 0
    # the update's buffer is not copied: 4 of its 100 elements are read and written, and the 4 of the other result
    fusion = found.by_name["turn", "fusion"].once
    assert (fusion.bytes_read, fusion.bytes_written) == (16 + 16 + 4, 16 + 16)


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
