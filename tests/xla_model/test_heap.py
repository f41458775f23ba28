"""Live ranges and buffers of a program's graph."""

from __future__ import annotations

import pytest

from perfscope.analyzers.checkpointing.xla_model.graph import Graph, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values, add_element, drop_element, without_unread
from perfscope.analyzers.checkpointing.xla_model.heap import needed_peak, planned_peak, thought_peak
from perfscope.analyzers.checkpointing.xla_model.sharing import sharing_of
from tests.hlo_build import hlo_module

KIB = 1024
FUSED = (
    "%fused (x: f32[256], y: f32[256]) -> f32[256] {{\n"
    "  %x = f32[256]{{0}} parameter(0)\n  %y = f32[256]{{0}} parameter(1)\n"
    "  {first}\n  ROOT %r = f32[256]{{0}} add(%f, %y)\n}}\n"
)
LOOP = (
    "%body (s: (s32[], f32[256], f32[1024])) -> (s32[], f32[256], f32[1024]) {\n"
    "  %s = (s32[], f32[256], f32[1024]) parameter(0)\n  %i = s32[] get-tuple-element(%s), index=0\n"
    "  %x = f32[256]{0} get-tuple-element(%s), index=1\n  %w = f32[1024]{0} get-tuple-element(%s), index=2\n"
    '  %next = f32[256]{0} custom-call(%x, %w), custom_call_target="f"\n'
    "  ROOT %t = (s32[], f32[256], f32[1024]) tuple(%i, %next, %w)\n}\n"
    "%cond (c: (s32[], f32[256], f32[1024])) -> pred[] {\n"
    "  %c = (s32[], f32[256], f32[1024]) parameter(0)\n  ROOT %p = pred[] constant(false)\n}\n"
    "ENTRY %main (a: f32[256], b: f32[1024]) -> f32[8] {\n"
    "  %a = f32[256]{0} parameter(0)\n  %b = f32[1024]{0} parameter(1)\n  %zero = s32[] constant(0)\n"
    '  %first = f32[256]{0} custom-call(%a), custom_call_target="f"\n'
    '  %w0 = f32[1024]{0} custom-call(%b), custom_call_target="f"\n'
    "  %start = (s32[], f32[256], f32[1024]) tuple(%zero, %first, %w0)\n"
    "  %loop = (s32[], f32[256], f32[1024]) while(%start), condition=%cond, body=%body\n"
    "  %last = f32[256]{0} get-tuple-element(%loop), index=1\n"
    "  ROOT %out = f32[8]{0} slice(%last), slice={[0:8]}\n}"
)


def graph(text: str) -> Graph:
    return graph_of(hlo_module(text, scheduled=True))


def needed(found: Graph) -> int:
    return needed_peak(Values(found), {name: list(body.nodes) for name, body in found.bodies.items()})


def thought(found: Graph) -> int:
    return thought_peak(Values(found), {name: list(body.nodes) for name, body in found.bodies.items()})


def chain(first: str) -> str:
    return FUSED.format(first=first) + (
        "ENTRY %main (p: f32[256], q: f32[256]) -> f32[8] {\n"
        "  %p = f32[256]{0} parameter(0)\n  %q = f32[256]{0} parameter(1)\n"
        '  %a = f32[256]{0} custom-call(%p), custom_call_target="f"\n'
        "  %b = f32[256]{0} fusion(%a, %q), kind=kLoop, calls=%fused\n"
        "  ROOT %out = f32[8]{0} slice(%b), slice={[0:8]}\n}"
    )


def test_a_kernel_writes_onto_its_last_read_operand_if_it_goes_element_by_element() -> None:
    held = 2 * KIB + 8 * 4  # two arguments and the result
    in_place = chain("%f = f32[256]{0} exponential(%x)")
    assert needed(graph(in_place)) == held + KIB
    module = hlo_module(in_place, scheduled=True)
    assert sharing_of(module, module.entry_computation().by_name["b"])[1] == ((0, 0), (0, 1))
    assert needed(graph(chain("%f = f32[256]{0} reverse(%x), dimensions={0}"))) == held + 2 * KIB


def test_an_update_is_in_place_and_counts_twice_for_the_schedulers() -> None:
    text = (
        "ENTRY %main (p: f32[256], i: s32[]) -> f32[8] {\n"
        "  %p = f32[256]{0} parameter(0)\n  %i = s32[] parameter(1)\n"
        '  %a = f32[256]{0} custom-call(%p), custom_call_target="f"\n  %u = f32[8]{0} slice(%p), slice={[0:8]}\n'
        "  %b = f32[256]{0} dynamic-update-slice(%a, %u, %i)\n"
        "  ROOT %out = f32[8]{0} slice(%b), slice={[0:8]}\n}"
    )
    found = graph(text)
    assert needed(found) == KIB + 4 + 32 + KIB + 32
    assert thought(found) >= KIB + 2 * KIB


def test_a_loop_s_state_is_one_buffer_an_element() -> None:
    found = graph(LOOP)
    values = Values(found)
    (first,) = values.parts["main", "first"][0]
    (last,) = values.parts["main", "last"][0]
    assert values.buffer(first) == values.buffer(last)
    # what the body hands on as it is stays what went in
    assert values.parts["body", "w"] == values.parts["main", "w0"]
    arguments = KIB + 4 * KIB
    # in the body: the state, its next value in the same buffer, the array that is handed on, and tables of tuples
    assert needed(found) == pytest.approx(arguments + 32 + KIB + 4 * KIB, abs=128)


def test_an_element_is_taken_out_of_a_loop_with_all_that_was_there_for_it() -> None:
    found = graph(LOOP)
    loop = found.main.nodes["loop"]
    body = found.bodies["body"]
    body.change("next", operands=("x",))
    drop_element(found, found.main, loop.name, 2)
    without_unread(found)
    assert "w0" not in found.main.nodes
    assert needed(found) == pytest.approx(KIB + 4 * KIB + 32 + KIB, abs=128)


def test_an_element_that_nobody_reads_goes_by_itself() -> None:
    found = graph(LOOP)
    found.bodies["body"].change("next", operands=("x",))
    without_unread(found)
    assert "w0" not in found.main.nodes


def test_a_further_element_lives_through_the_loop() -> None:
    found = graph(LOOP)
    before = needed(found)
    made = found.main.nodes["w0"]
    at, element = add_element(found, found.main, "loop", found.main.add(made), made.bytes)
    assert at == 3
    assert found.bodies["body"].nodes[element].sizes == (made.bytes,)
    assert needed(found) == pytest.approx(before, abs=64)  # the same value twice
    copy = found.main.add(type(made)(name="more", opcode="kernel", operands=("b",), sizes=(4 * KIB,)))
    _, element = add_element(found, found.main, "loop", copy, 4 * KIB)
    found.bodies["body"].change("next", operands=("x", "w", element))
    assert planned_peak(Values(found))[0] == pytest.approx(before + 4 * KIB, abs=64)
