"""Reserved, allocated, requested: on a built snapshot by hand, on recorded ones as torch's own counters define them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.facts.memory_fragmentation import memory_fragmentation
from perfscope.analyzers.readers import kineto, torch_memory
from perfscope.analyzers.trace.memory_tables import HeldState, MemoryAction
from tests.analyzers.facts.memory_build import MemoryBuilder


def _segment(
    b: MemoryBuilder, blocks: list[tuple[int, HeldState, int]], *, stream: int = 0, kind: str = "large"
) -> None:
    """Blocks as (bytes, state, requested)."""
    number = len(b.tables.get("segments", []))
    sizes = {state: sum(size for size, one, _ in blocks if one is state) for state in HeldState}
    used, awaiting = sizes[HeldState.IN_USE], sizes[HeldState.AWAITING_FREE]
    b.row("segments", on_device=True, ordinal=0, address=1000 * (number + 1), bytes=sum(sizes.values()),
          allocated_bytes=used, active_bytes=used + awaiting,
          stream=stream, pool=-1, kind=b.code(kind), expandable=False)  # fmt: skip
    at = 1000 * (number + 1)
    for size, state, requested in blocks:
        b.row("held", on_device=True, ordinal=0, address=at, bytes=size, requested_bytes=requested, count=1,
              state=int(state), segment=number)  # fmt: skip
        at += size


def test_a_snapshot_by_hand():
    b = MemoryBuilder(recorded=frozenset({"memory_state"}))
    _segment(b, [(512, HeldState.IN_USE, 500), (1024, HeldState.FREE, -1), (512, HeldState.AWAITING_FREE, 512)])
    _segment(b, [(4096, HeldState.FREE, -1)])
    _segment(b, [(256, HeldState.IN_USE, 200), (300, HeldState.FREE, -1)], stream=7)
    (found,) = memory_fragmentation(b.build())
    first, second = found.pools
    assert (first.stream, first.segments, first.reserved_bytes, first.allocated_bytes) == (0, 2, 6144, 512)
    assert (first.active_bytes, first.inactive_split_bytes, first.releasable_bytes) == (1024, 1024, 4096)
    assert (first.largest_free_bytes, first.free_blocks, first.free_bytes) == (4096, 2, 5120)
    assert (second.stream, second.inactive_split_bytes, second.releasable_bytes) == (7, 300, 0)
    assert (found.largest_free_bytes, found.inactive_split_bytes, found.rounding_bytes) == (4096, 1324, 68)
    moment = found.moments[-1]
    assert (moment.when, moment.reserved_bytes, moment.allocated_bytes) == ("snapshot", 6700, 768)
    assert (moment.requested_bytes, moment.rounding_bytes, moment.unused_bytes) == (700, 68, 5932)
    assert moment.fragmentation == 5932 / 6700


def test_moments_of_a_recording():
    b = MemoryBuilder()
    b.make(1, 600, 1, reserved_bytes=2048)
    b.make(2, 400, 2, reserved_bytes=2048)
    b.free(1, 3, reserved_bytes=2048)
    b.event(MemoryAction.OUT_OF_MEMORY, 0, 1500, 4, reserved_bytes=2048)
    b.free(2, 5, reserved_bytes=1024)
    (found,) = memory_fragmentation(b.build())
    by_when = {moment.when: moment for moment in found.moments}
    assert set(by_when) == {"peak of reserved memory", "end", "out of memory"}
    peak = by_when["peak of reserved memory"]  # of all moments with 2048 B reserved the one with most in use
    assert (peak.position, peak.reserved_bytes, peak.allocated_bytes, peak.unused_bytes) == (2000, 2048, 1000, 1048)
    failed = by_when["out of memory"]
    assert (failed.allocated_bytes, failed.failed_bytes, failed.unused_bytes) == (400, 1500, 1648)
    assert (by_when["end"].reserved_bytes, by_when["end"].allocated_bytes) == (1024, 0)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes, found.excess_bytes) == (1000, 2048, 1048)
    assert peak.requested_bytes is None
    assert peak.rounding_bytes is None


def test_without_reserved_memory_there_is_nothing_to_say():
    b = MemoryBuilder()
    b.make(1, 600, 1)
    assert memory_fragmentation(b.build()) == ()


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["fragmented", "medium512_train", "medium512_infer", "tiny", "fwd_bf16_128"])
def test_pools_sum_up_to_the_segments(corpus: Path, name: str):
    trace = torch_memory.read(corpus / "torch_mem" / f"assignment2-systems__{name}.pickle.gz")
    (found,) = memory_fragmentation(trace)
    segments, held = trace.rows["segments"], trace.rows["held"]
    assert sum(pool.reserved_bytes for pool in found.pools) == segments["bytes"].sum()
    assert sum(pool.allocated_bytes for pool in found.pools) == segments["allocated_bytes"].sum()
    free = held["state"] == HeldState.FREE
    assert sum(pool.free_bytes for pool in found.pools) == held["bytes"][free].sum()
    assert found.largest_free_bytes == held["bytes"][free].max()
    assert sum(pool.free_blocks for pool in found.pools) == free.sum()
    assert found.rounding_bytes == segments["allocated_bytes"].sum() - segments["requested_bytes"].sum()
    assert found.as_requested


@pytest.mark.corpus
def test_the_fragmented_sample_of_the_catalogue(corpus: Path):
    """13.2 GiB reserved, 1.3 GiB allocated."""
    trace = torch_memory.read(corpus / "torch_mem" / "assignment2-systems__fragmented.pickle.gz")
    (found,) = memory_fragmentation(trace)
    moment = found.moments[-1]
    assert (moment.reserved_bytes, moment.allocated_bytes) == (14_180_941_824, 1_377_753_600)
    assert moment.fragmentation == pytest.approx(0.9028, abs=1e-4)


@pytest.mark.corpus
def test_a_trace_without_a_snapshot(corpus: Path):
    (found,) = memory_fragmentation(kineto.read(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz"))
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == (2_629_828_608, 2_088_508_416)
    assert (found.pools, found.rounding_bytes, found.as_requested) == ((), None, False)
