"""XLA's memory schedulers, held against programs that XLA ordered and against what it logged of them."""

from __future__ import annotations

import pytest

from perfscope.analyzers.checkpointing.xla_model.graph import Body, Node, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values
from perfscope.analyzers.checkpointing.xla_model.heap import needed_peak, planned_peak, thought_peak
from perfscope.analyzers.checkpointing.xla_model.orders import all_orders, frees_most, post_order
from perfscope.analyzers.hlo.buffers import memory_timeline
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.readers.hlo import proto
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module

PROGRAMS = REPOSITORY / "fixtures" / "h100-programs"
GIB = 2**30

LOGGED = {
    "attention-naive-scan-small-none": ("depth first", 1.07, 1.03, 1.03),
    "attention-naive-scan-small-full": ("list", 0.21, 0.23, 0.25),
    "attention-naive-scan-small-dots": ("post-order", 0.31, 0.31, 0.29),
    "attention-naive-unrolled-small-none": ("depth first", 0.45, 0.45, 0.45),
    "attention-naive-unrolled-small-full": ("list", 0.20, 0.33, 0.33),
    "attention-naive-unrolled-small-dots": ("list", 0.24, 0.38, 0.35),
    "attention-blocked-scan-small-none": ("depth first", 0.96, 0.92, 0.92),
    "attention-blocked-scan-small-full": ("list", 0.22, 0.24, 0.24),
    "attention-blocked-scan-small-dots": ("list", 0.28, 0.32, 0.32),
}
"""What XLA chose, and the peaks in GiB that it logged of list, depth first and post-order as it compiled the program
(``TF_CPP_VMODULE=hlo_memory_scheduler=2``)."""


def program(name: str) -> HloModule:
    return proto.read(PROGRAMS / f"{name}.hlo.pb.xz").hlo[0]


def as_it_is(module: HloModule, values: Values) -> dict[str, list[str]]:
    return {name: [one.name for one in module.computations[name].instructions] for name in values.graph.bodies}


@pytest.mark.parametrize("name", LOGGED)
def test_the_peaks_of_the_three_orders_are_those_that_xla_logged(name: str) -> None:
    values = Values(graph_of(program(name)))
    chosen, *logged = LOGGED[name]
    found = [thought_peak(values, order) / GIB for _, order in all_orders(values)]
    assert found == pytest.approx(logged, abs=0.0101)  # it logs two digits
    assert planned_peak(values)[1] == chosen


@pytest.mark.parametrize("name", [name for name, (chosen, *_) in LOGGED.items() if chosen != "list" and "scan" in name])
def test_the_order_is_xlas_own_instruction_by_instruction(name: str) -> None:
    module = program(name)
    values = Values(graph_of(module))
    found = dict(all_orders(values))[LOGGED[name][0]]
    for computation, order in as_it_is(module, values).items():
        # arguments are there anyway, and renamed after they were ordered
        given = {one.name for one in module.computations[computation].instructions if one.opcode == "parameter"}
        assert [one for one in found[computation] if one not in given] == [one for one in order if one not in given]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGGED)
def test_the_peak_of_a_program_is_that_of_its_buffers(name: str) -> None:
    module = program(name)
    values = Values(graph_of(module))
    timeline = memory_timeline(module)
    assert timeline is not None
    assert needed_peak(values, as_it_is(module, values)) == pytest.approx(timeline.peak_bytes, rel=0.01)
    assert planned_peak(values)[0] == pytest.approx(timeline.peak_bytes, rel=0.01)


def body(*nodes: Node) -> Body:
    return Body(name="main", nodes={one.name: one for one in nodes}, root=nodes[-1].name)


def kernel(name: str, *operands: str, after: tuple[str, ...] = ()) -> Node:
    return Node(name=name, opcode="kernel", operands=operands, after=after, sizes=(8,))


def test_what_is_read_comes_first_and_what_must_be_waited_for_before_that() -> None:
    assert post_order(body(kernel("a"), kernel("b"), kernel("c", "b", "a"))) == ["b", "a", "c"]
    assert post_order(body(kernel("a"), kernel("b"), kernel("c", "b", after=("a",)))) == ["a", "b", "c"]


def test_instructions_that_need_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="need each other"):
        post_order(body(kernel("a", "b"), kernel("b", "a"), kernel("c")))
    with pytest.raises(ValueError, match="need each other"):  # also where others read them
        post_order(body(kernel("a", "b"), kernel("b", "a"), kernel("c", "a")))


STEP = (
    "ENTRY %main (p: f32[4]) -> f32[1024] {\n"
    "  %p = f32[4]{0} parameter(0)\n"
    "  %large = f32[1024]{0} broadcast(%p), dimensions={0}\n"
    "  %other = f32[2048]{0} broadcast(%p), dimensions={0}\n"
    "  %small = f32[2]{0} slice(%large), slice={[0:2]}\n"
    "  %none = f32[] constant(0)\n"
    '  ROOT %out = f32[1024]{0} custom-call(%small, %other, %none), custom_call_target="f"\n}'
)


def test_the_list_takes_what_frees_most_and_single_numbers_at_once() -> None:
    values = Values(graph_of(hlo_module(STEP, scheduled=True)))
    order = frees_most(values, values.graph.main)
    assert order.index("none") == 0
    # the small part frees the large array before the other array is made
    assert order.index("large") < order.index("small") < order.index("other")
