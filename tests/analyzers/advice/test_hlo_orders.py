"""The order around the loops: what needs nothing, and what only the loss is needed for."""

from __future__ import annotations

from dataclasses import replace

from perfscope.analyzers.advice.hlo_again import again_of
from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.advice.hlo_layers import Layers, layer_loops
from perfscope.analyzers.advice.hlo_orders import frees_first, lowest, peak_of
from perfscope.analyzers.advice.hlo_policies import nothing, unbatched_products
from perfscope.analyzers.advice.hlo_program_blocks import Block
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.schedule import Schedule
from perfscope.analyzers.readers import hlo_proto
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module

LOOPS = (
    "%fbody (s: (s32[], f32[4])) -> (s32[], f32[4]) {\n"
    "  %s = (s32[], f32[4]) parameter(0)\n  %i = s32[] get-tuple-element(%s), index=0\n"
    "  %x = f32[4]{0} get-tuple-element(%s), index=1\n  ROOT %t = (s32[], f32[4]) tuple(%i, %x)\n}\n"
    "%fcond (c: (s32[], f32[4])) -> pred[] {\n"
    "  %c = (s32[], f32[4]) parameter(0)\n  ROOT %p = pred[] constant(false)\n}\n"
    "%bbody (u: (s32[], f32[4])) -> (s32[], f32[4]) {\n"
    "  %u = (s32[], f32[4]) parameter(0)\n  %j = s32[] get-tuple-element(%u), index=0\n"
    "  %y = f32[4]{0} get-tuple-element(%u), index=1\n  ROOT %v = (s32[], f32[4]) tuple(%j, %y)\n}\n"
    "%bcond (d: (s32[], f32[4])) -> pred[] {\n"
    "  %d = (s32[], f32[4]) parameter(0)\n  ROOT %q = pred[] constant(false)\n}\n"
)
STEP = LOOPS + (
    "ENTRY %main (a: f32[4]) -> (f32[4], f32[4], f32[4]) {\n"
    "  %a = f32[4]{0} parameter(0)\n  %zero = s32[] constant(0)\n  %none = f32[] constant(0)\n"
    "  %start = (s32[], f32[4]) tuple(%zero, %a)\n"
    "  %forward = (s32[], f32[4]) while(%start), condition=%fcond, body=%fbody\n"
    "  %out = f32[4]{0} get-tuple-element(%forward), index=1\n"
    "  %zeros = f32[4]{0} broadcast(%none), dimensions={}\n"
    "  %loss = f32[4]{0} exponential(%out)\n"
    "  %begin = (s32[], f32[4]) tuple(%zero, %loss)\n"
    "  %backward = (s32[], f32[4]) while(%begin), condition=%bcond, body=%bbody\n"
    "  %gradient = f32[4]{0} get-tuple-element(%backward), index=1\n"
    "  %head = f32[4]{0} negate(%loss)\n"
    "  %both = f32[4]{0} add(%gradient, %loss)\n"
    "  %sum = f32[4]{0} add(%gradient, %zeros)\n"
    "  ROOT %all = (f32[4], f32[4], f32[4]) tuple(%head, %both, %sum)\n}"
)


def block(schedule: Schedule, name: str, last: str, size: int) -> Block:
    return Block(start=schedule.positions[name], end=schedule.positions[last] + 1, bytes=size, parts=((name, None),))


def around(module: HloModule, schedule: Schedule) -> Layers:
    """Layers with the positions of the two loops; what they keep does not matter here."""
    found = hlo_proto.read(REPOSITORY / "fixtures" / "h100-programs" / "attention-naive-scan-small-none.hlo.pb.xz")
    real = found.hlo[0]
    (layers,) = layer_loops(real, Flow(real), Schedule(real))
    spans = {name: (schedule.begins[name], schedule.positions[name] + 1) for name in ("forward", "backward")}
    return replace(layers, forward=spans["forward"], backward=spans["backward"], body=module.entry_computation())


def changes(text: str, uses: dict[str, str]) -> tuple[Schedule, list[tuple[int, int, int]]]:
    module = hlo_module(text, scheduled=True)
    schedule = Schedule(module)
    blocks = [block(schedule, name, last, 100 + at) for at, (name, last) in enumerate(uses.items())]
    return schedule, list(frees_first(module, schedule, around(module, schedule), blocks))


def test_zeros_that_need_nothing_are_there_before_the_forward() -> None:
    schedule, found = changes(STEP, {"zeros": "sum"})
    assert found == [(schedule.begins["forward"], schedule.positions["zeros"], 100)]


def test_what_only_the_head_reads_is_gone_before_the_backward() -> None:
    text = STEP.replace("%both = f32[4]{0} add(%gradient, %loss)", "%both = f32[4]{0} add(%gradient, %head)")
    schedule, found = changes(text, {"loss": "head"})
    assert found == [(schedule.begins["backward"], schedule.positions["head"] + 1, -100)]


def test_what_a_gradient_of_the_layers_is_added_to_waits() -> None:
    assert changes(STEP, {"loss": "both"})[1] == []


def test_arguments_stay_where_they_are() -> None:
    assert changes(STEP, {"a": "head"})[1] == []


def test_the_order_with_the_lower_peak_is_taken() -> None:
    blocks = (
        Block(start=0, end=4, bytes=10, parts=(("a", None),)),
        Block(start=2, end=4, bytes=5, parts=(("b", None),)),
    )
    assert peak_of(blocks, ()) == 15
    assert lowest(blocks, ((0, 1, 1),), ((2, 4, -5),)) == ((0, 1, 1), (2, 4, -5))
    assert lowest(blocks, ((0, 1, 1),), ((2, 4, 5),)) == ((0, 1, 1),)


def test_a_part_of_a_kept_stack_has_a_buffer_where_more_than_one_kernel_reads_it() -> None:
    trace = hlo_proto.read(REPOSITORY / "fixtures" / "h100-programs" / "attention-naive-scan-small-none.hlo.pb.xz")
    module = trace.hlo[0]
    flow = Flow(module)
    (layers,) = layer_loops(module, flow, Schedule(module))
    dots = again_of(Layer(flow, layers), layers.kept, unbatched_products(flow))
    stacks = dict(dots.stacks)
    # hidden layer of 2048 of 4 batches of 512 positions, in bfloat16: the activation is there from where the gradient
    # of it is computed, which is one kernel with it, to the gradient of the next weights
    (activation,) = (one for one in dots.buffers if one.frees)
    assert activation.bytes == 2 * 4 * 512 * 2048
    assert activation.first < activation.last
    taken = [one for one in dots.buffers if one.number in stacks]
    assert taken
    assert all(one.first < one.last for one in taken)  # a single kernel takes its part out of the stack itself
    # queries, keys and values are taken out of what is kept once, not once a reader
    parts = [one for one in dots.buffers if flow.opcode(one.number) == "slice"]
    assert len(parts) == 3
    full = again_of(Layer(flow, layers), layers.kept, nothing)
    assert len([one for one in full.buffers if flow.opcode(one.number) == "slice"]) == 3
