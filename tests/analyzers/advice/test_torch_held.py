"""What is held all of a step: as the program lists it, else as its ops touch it; and what the allocator saw."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.advice.torch_held import Held, held_of
from perfscope.analyzers.op_graph import GraphStorage, OpGraph
from perfscope.analyzers.trace import MISSING, Trace
from perfscope.analyzers.trace.memory_tables import MemoryAction, MemoryCategory
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder


def graph(device: str = "cuda") -> OpGraph:
    """Forward, backward, and an update of one parameter of 64 bytes, its gradient summed into one that was there."""
    g = GraphBuilder(device=device)
    weight = g.input((4, 4), parameter=True)
    gradient, momentum, x = g.input((4, 4)), g.input((4, 4)), g.input((4, 4))
    y = g.op("mm", [x, weight])
    z = g.op("mm", [y, x], phase="backward")
    g.op("add_", [gradient, z], phase="backward")
    g.op("mul_", [momentum, gradient], phase="optimizer")
    g.op("add_", [weight, momentum], phase="optimizer")
    found = g.graph()
    made = {found.tensors[op.outputs[0]].storage: op.index for op in found.ops if not op.mutated}
    storages = tuple(GraphStorage(bytes=64, born=made.get(index), died=None) for index in range(g.storages + 1))
    return OpGraph(
        step=0, device=device, ops=found.ops, tensors=found.tensors, live_out=found.live_out,
        parameters=found.parameters, storages=storages,
    )  # fmt: skip


def trace_of(*, listed: bool = False, reserved: bool = False, failed: bool = False) -> Trace:
    t = TraceBuilder(recorded=EVERYTHING)
    t.device()
    t.tables["devices"][0]["memory_bytes"] = 20_000
    t.step(0, 0, 100)
    events = [(1, 1, 1_000, 7_000), (20, 2, 500, 7_500), (40, 2, -500, 7_000)]
    for at, address, size, total in events:
        action = MemoryAction.ALLOCATE if size > 0 else MemoryAction.FREE
        row(t, at, address, size, action, allocated_bytes=total, reserved_bytes=11_250 if reserved else -1)
    if failed:
        row(t, 50, 9, 9_000, MemoryAction.OUT_OF_MEMORY)
    if listed:
        for name, category, size, freed in (
            ("w", MemoryCategory.PARAMETER, 2_000, MISSING),
            ("w.grad", MemoryCategory.GRADIENT, 2_048, 5),
            ("v.grad", MemoryCategory.GRADIENT, 512, MISSING),
            ("exp_avg", MemoryCategory.OPTIMIZER_STATE, 1_024, MISSING),
        ):
            t.row("tensors", name=t.code(name), module=MISSING, category=int(category), on_device=True, ordinal=0,
                  address=100 + size, bytes=size, freed_ns=freed)  # fmt: skip
    return t.build()


def row(t: TraceBuilder, at: int, address: int, size: int, action: MemoryAction, **more: Any) -> None:
    t.row("memory", time_ns=at * 1000, thread=t.thread(1), op=-1, on_device=True, ordinal=0, address=address,
          bytes=size, action=int(action), **({"allocated_bytes": -1, "reserved_bytes": -1} | more))  # fmt: skip


def held(**more: bool) -> Held:
    return held_of(trace_of(**more), graph(), ())


def test_the_programs_own_list_counts() -> None:
    found = held(listed=True)
    assert (found.parameter_bytes, found.optimizer_bytes, found.gradient_bytes) == (2_000, 1_024, 512)
    # 6,000 were held before the first event, 5,632 of them by name; rounding the parameter added 48.
    assert found.other_bytes == 6_000 - 5_632 + 48
    assert found.notes == ()


def test_without_a_list_what_the_ops_touch_counts_and_that_is_said() -> None:
    found = held()
    assert (found.parameter_bytes, found.gradient_bytes, found.optimizer_bytes) == (64, 64, 64)
    assert found.other_bytes == 6_000 - 3 * 64
    assert "were not listed" in found.notes[0]


def test_the_peak_of_the_steps_and_the_size_of_the_device() -> None:
    found = held()
    assert found.measured_peak_bytes == 7_500
    assert found.capacity_bytes == 20_000
    assert found.out_of_memory == 0
    assert held(failed=True).out_of_memory == 1


def test_what_the_allocator_holds_beyond_the_peak() -> None:
    assert held().reserve_share is None
    assert held(reserved=True).reserve_share == 0.5


def test_the_host_has_no_size_and_reserves_nothing() -> None:
    found = held_of(trace_of(), graph("cpu"), ())
    assert found.capacity_bytes is None
    assert found.measured_peak_bytes is None  # a device was watched, and not the host
    assert found.reserve_share is None


def test_elements_are_those_of_most_parameters() -> None:
    assert held().element_bytes == 4
