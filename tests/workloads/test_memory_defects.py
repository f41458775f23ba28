"""What the habits of memory cost: growth by step from the op graph, fragmentation from a simulated CUDA allocator."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace.tables import HeldState
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
from tests.caching_allocator import LARGE_SEGMENT, MIB, SMALL_SEGMENT, CachingAllocator, OutOfMemoryError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

STEPS = 12


def recorded(program: Callable[[], Any], folder: Path) -> OpGraph:
    capture = OpGraphCapture()
    capture.start(0)
    try:
        program()
    finally:
        capture.stop()
    capture.save(folder / "graph.json")
    return read_op_graph(folder / "graph.json")


def steps_of(habit: Any, device: str, shape: tuple[int, ...], vocab: int) -> list[Any]:
    """What a loop gives a habit in each step, at these shapes; what the step itself holds goes with it."""
    for _ in range(STEPS):
        x_BLD = torch.empty(shape, device=device, dtype=torch.bfloat16)
        habit(x_BLD, torch.empty(*shape[:2], vocab, device=device, dtype=torch.bfloat16, requires_grad=True))
        del x_BLD
    return [habit]


def kept_bytes(defective: bool, folder: Path) -> int:
    """Bytes that ``Entropies`` holds at the end of all steps."""
    from perfscope.workloads.memory_defects import Entropies

    kept: list[Any] = []  # else it is gone with the program
    graph = recorded(lambda: kept.extend(steps_of(Entropies(defective), "cpu", (2, 8, 4), 64)), folder)
    assert graph.storages is not None
    return sum(storage.bytes for storage in graph.storages if storage.born is not None and storage.died is None)


def test_a_metric_with_its_graph_grows_step_by_step(tmp_path: Path) -> None:
    whole, logits = kept_bytes(True, tmp_path), 2 * 8 * 64 * 2
    assert whole >= STEPS * 2 * logits, "softmax and log-softmax of every step, at least"
    assert kept_bytes(False, tmp_path) <= STEPS * 2, "a number a step"


def replayed(defective: bool, folder: Path, capacity: int = 1 << 60) -> CachingAllocator:
    """The allocations of ``Bank`` at the size of a GPU's run, in the simulated allocator."""
    from perfscope.workloads.memory_defects import Bank
    from perfscope.workloads.transformer import SIZES

    kept: list[Any] = []
    size = SIZES["gpu"]
    shape = (size.batch, size.seq, size.dim)
    graph = recorded(lambda: kept.extend(steps_of(Bank(defective, STEPS), "meta", shape, size.vocab)), folder)
    assert graph.storages is not None
    allocator = CachingAllocator(capacity)
    held: dict[int, int] = {}
    for index in range(len(graph.ops) + 1):
        for number, storage in enumerate(graph.storages):
            if storage.died == index and number in held:
                allocator.free(held.pop(number))
        for number, storage in enumerate(graph.storages):
            if storage.born == index:
                held[number] = allocator.allocate(storage.bytes)
    return allocator


def free_share(snapshot: dict[str, Any], folder: Path) -> float:
    """Of what is reserved: what no block holds, as the reader of snapshots tells it."""
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    trace = torch_memory_reader.read(folder / "snapshot.pickle")
    held, reserved = trace.rows["held"], int(trace.rows["segments"]["bytes"].sum())
    return float(held["bytes"][held["state"] == HeldState.FREE].sum()) / reserved


def test_a_bank_of_ever_new_sizes_fragments_and_its_twin_does_not(tmp_path: Path) -> None:
    defective, twin = replayed(True, tmp_path), replayed(False, tmp_path)
    assert abs(defective.allocated - twin.allocated) < 0.01 * twin.allocated, "both hold the same at the end"
    assert free_share(defective.snapshot(), tmp_path) > 0.5
    assert free_share(twin.snapshot(), tmp_path) < 0.3
    assert defective.reserved > 2 * twin.reserved


def test_a_device_that_the_twin_fits_into_is_too_small_for_the_defect(tmp_path: Path) -> None:
    capacity = int(1.6 * replayed(False, tmp_path).reserved)
    replayed(False, tmp_path, capacity)
    with pytest.raises(OutOfMemoryError):
        replayed(True, tmp_path, capacity)


def test_the_simulation_does_what_torch_documents() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(1)
    assert (allocator.allocated, allocator.reserved) == (512, SMALL_SEGMENT)
    second = allocator.allocate(MIB)
    assert allocator.reserved == SMALL_SEGMENT, "both fit into one small segment"
    large = allocator.allocate(MIB + 1)
    assert allocator.reserved == SMALL_SEGMENT + LARGE_SEGMENT
    own = allocator.allocate(25 * MIB + 1)
    assert allocator.reserved == SMALL_SEGMENT + LARGE_SEGMENT + 26 * MIB, "a segment of its own"
    allocator.free(own)
    again = allocator.allocate(25 * MIB + 513)
    assert again == own, "the smallest that fits"
    assert len(allocator.segments[-1].blocks) == 1, "a rest of up to 1 MiB stays with it"
    for address in (first, second, large, again):
        allocator.free(address)
    assert allocator.allocated == 0
    assert [len(segment.blocks) for segment in allocator.segments] == [1, 1, 1], "neighbours are one block again"
    allocator.capacity = allocator.reserved
    kept = allocator.allocate(10 * MIB)
    assert allocator.segments[1].address == kept
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(64 * MIB)
    assert [event["action"] for event in allocator.events].count("segment_free") == 2, "what is free goes back first"
    assert allocator.reserved == LARGE_SEGMENT
