"""What XLA writes of a layer that runs again, and what that makes of the peak: a tree of slices, zeros, arguments."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from perfscope.analyzers.checkpointing.step_model_hlo import layers_of
from perfscope.analyzers.checkpointing.xla_model.graph import Graph, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values
from perfscope.analyzers.checkpointing.xla_model.heap import needed_peak
from perfscope.analyzers.checkpointing.xla_model.policies import nothing, unbatched_products
from perfscope.analyzers.checkpointing.xla_model.predict import Predictor
from perfscope.analyzers.hlo.buffers import memory_timeline
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.readers.hlo import proto
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module

TREE = REPOSITORY / "fixtures" / "programs-h100" / "ssm-associative" / "programs" / "00.jit_step.hlo.pb.xz"
UNROLLED = REPOSITORY / "fixtures" / "h100-programs" / "attention-naive-unrolled-small-none.hlo.pb.xz"
BATCH, LENGTH, DIM, STATES, WIDTH = 4, 512, 512, 8, 2
WHOLE = BATCH * LENGTH * DIM * STATES * WIDTH
"""Bytes of what a recurrence over all steps of time is computed from."""
COMPILED = {"full": 260_525_320, "dots": 356_739_916}
"""Peaks of the same step compiled with the policy (``ssm-associative-scan-small`` of fixtures/compile_h100.py)."""


@cache
def tree() -> tuple[Predictor, Flow, int]:
    module = proto.read(TREE).hlo[0]
    flow, schedule = Flow(module), Schedule(module)
    timeline = memory_timeline(module)
    assert timeline is not None
    return Predictor(module, flow, schedule, layers_of(module, flow, schedule)), flow, timeline.peak_bytes


@pytest.mark.parametrize("policy", ["full", "dots"])
def test_the_peak_with_a_tree_of_slices_is_near_what_xla_compiled(policy: str) -> None:
    found, flow, today = tree()
    keeps = nothing if policy == "full" else unbatched_products(flow)
    assert found.peak(keeps, today) == pytest.approx(COMPILED[policy], rel=0.05)


@pytest.mark.slow
def test_some_levels_of_the_tree_are_written_and_others_computed_by_their_readers() -> None:
    """XLA writes the second level's odd decays and sums, and what is put together from them; not the first level's."""
    found, _, _ = tree()
    graph = found.graph(nothing)
    sizes = Counter(
        node.bytes for body in graph.bodies.values() for node in body.nodes.values() if node.name.startswith("again")
    )
    assert sizes[WHOLE // 4] >= 3
    assert sizes[WHOLE // 8] >= 2
    assert sizes[WHOLE // 2] < sizes[WHOLE // 4]


@cache
def unrolled(first: int | None) -> Graph:
    module = proto.read(UNROLLED).hlo[0]
    flow, schedule = Flow(module), Schedule(module)
    return Predictor(module, flow, schedule, layers_of(module, flow, schedule)).graph(nothing, first)


def test_zeros_that_something_is_scattered_into_are_read_by_what_runs_again() -> None:
    """Loss and layers have zeros of one shape: they stay for the backward, and what is scattered into is a copy."""
    main = unrolled(2).main
    copies = [node for node in main.nodes.values() if node.name.startswith("copy.get-tuple-element")]
    assert copies
    for copy in copies:
        (held,) = copy.operands
        users = main.users()
        assert any(main.nodes[name].updates for name in users[copy.name])
        assert any(name.startswith("again") for name in users[held])
        assert held not in {
            one for node in main.nodes.values() if node.name.startswith("barrier") for one in node.operands
        }


def test_of_stacked_weights_a_layer_s_part_goes_through_and_no_sum_of_gradients() -> None:
    main = unrolled(None).main
    whole = {
        node.bytes
        for node in main.nodes.values()
        if node.opcode == "parameter" and any(name in node.name for name in ("up_DF", "down_FD", "qkv"))
    }
    for node in main.nodes.values():
        if node.name.startswith("barrier") and node.opcode == "tuple":
            assert whole.isdisjoint(node.sizes)
            assert sum(name.startswith("weights") for name in node.operands) >= 4


LENT = (
    "ENTRY %main (a: f32[256], b: f32[128]) -> (f32[256]) {{\n"
    "  %a = f32[256]{{0}} parameter(0)\n  %b = f32[128]{{0}} parameter(1)\n"
    '  %first = f32[128]{{0}} custom-call(%a), custom_call_target="f"\n'
    '  %between = f32[{size}]{{0}} custom-call(%first), custom_call_target="f"\n'
    '  %last = f32[128]{{0}} custom-call(%between), custom_call_target="f"\n'
    '  %new = f32[256]{{0}} custom-call(%last, %b), custom_call_target="f"\n'
    "  ROOT %out = (f32[256]) tuple(%new)\n}}"
)


@pytest.mark.parametrize(("size", "lent"), [(256, True), (255, False), (512, False)])
def test_what_has_an_argument_s_size_lies_in_it_between_its_last_reader_and_its_update(size: int, lent: bool) -> None:
    graph = graph_of(hlo_module(LENT.format(size=size), scheduled=True))
    graph.donated[0] = 0
    needed = needed_peak(Values(graph), {graph.entry: list(graph.main.nodes)})
    outside, others = 4 * (256 + 128), 4 * 128
    assert needed == outside + others + (0 if lent else 4 * size)
