"""Reserved, allocated, requested: on a built snapshot by hand, on recorded ones as torch's own counters define them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.memory.fragmentation import memory_fragmentation
from perfscope.analyzers.memory.trace_memories import trace_memories
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.memory import AllocatorCounters
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import HeldState, MemoryAction
from tests.caching_allocator import MIB, CachingAllocator, OutOfMemoryError
from tests.memory.build import MemoryBuilder


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
    assert (first.stream, first.reserved_bytes, first.active_bytes) == (0, 6144, 1024)
    assert (first.largest_free_bytes, first.inactive_split_bytes, first.free_bytes) == (4096, 1024, 5120)
    assert (second.stream, second.inactive_split_bytes, second.free_bytes) == (7, 300, 300)
    assert (found.largest_free_bytes, found.inactive_split_bytes) == (4096, 1324)


def test_moments_of_a_recording():
    b = MemoryBuilder()
    b.make(1, 600, 1, reserved_bytes=2048)
    b.make(2, 400, 2, reserved_bytes=2048)
    b.free(1, 3, reserved_bytes=2048)
    b.event(MemoryAction.OUT_OF_MEMORY, 0, 1500, 4, reserved_bytes=2048)
    b.free(2, 5, reserved_bytes=1024)
    (found,) = memory_fragmentation(b.build())
    peak, (failed,) = found.peak, found.failures  # of all moments with 2048 B reserved the one with most in use
    assert (peak.position, peak.reserved_bytes, peak.allocated_bytes, peak.unused_bytes) == (2000, 2048, 1000, 1048)
    assert (failed.allocated_bytes, failed.failed_bytes, failed.unused_bytes) == (400, 1500, 1648)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes, found.excess_bytes) == (1000, 2048, 1048)
    assert peak.requested_bytes is None


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["fragmented", "medium512_train", "medium512_infer", "tiny", "fwd_bf16_128"])
def test_pools_sum_up_to_the_segments(corpus: Path, name: str):
    trace = torch_memory_reader.read(corpus / "torch_mem" / f"assignment2-systems__{name}.pickle.gz")
    (found,) = memory_fragmentation(trace)
    segments, held = trace.rows["segments"], trace.rows["held"]
    assert sum(pool.reserved_bytes for pool in found.pools) == segments["bytes"].sum()
    free = held["state"] == HeldState.FREE
    assert sum(pool.free_bytes for pool in found.pools) == held["bytes"][free].sum()
    assert found.largest_free_bytes == held["bytes"][free].max()
    assert found.as_requested


RULE = load_rule("memory_fragmentation")


def trace_of(allocator: CachingAllocator, folder: Path) -> Trace:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return torch_memory_reader.read(path)


def outcome_of(allocator: CachingAllocator, folder: Path) -> Outcome:
    return judge(RULE, trace_of(allocator, folder))


def growing(*, first: int, kept: int, capacity: int = 1 << 60) -> CachingAllocator:
    """Eight buffers, each 16 MiB larger than the last, which is freed; ``kept`` MiB stay of each step."""
    allocator = CachingAllocator(capacity)
    last = allocator.allocate(first * MIB)
    for number in range(1, 9):
        new = allocator.allocate((first + 16 * number) * MIB)
        allocator.free(last)
        if kept:
            allocator.allocate(kept * MIB)
        last = new
    return allocator


def test_buffers_of_ever_new_sizes_with_blocks_between_them(tmp_path: Path) -> None:
    allocator = growing(first=64, kept=2)
    (finding,) = outcome_of(allocator, tmp_path).findings
    most = allocator.reserved // MIB
    # at the peak: two buffers, the last of 192 MiB, and 7 blocks of 2 MiB
    assert (most, finding.cost_bytes) == (1152, (1152 - 176 - 192 - 14) * MIB)
    assert f"{most / 1024:.2f} GiB are reserved for at most 382 MiB in use" in finding.detail
    assert finding.severity == "medium"
    assert "expandable_segments:True" in finding.advice
    row = finding.evidence[0]
    assert int(row["asked_bytes"] or 0) <= int(row["free_bytes"] or 0)


def test_a_history_that_contradicts_itself_is_not_judged(tmp_path: Path) -> None:
    snapshot = growing(first=64, kept=2).snapshot()
    for event in snapshot["device_traces"][0]:
        event["addr"] = 0x7F00_0000_0000
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    told = judge(RULE, torch_memory_reader.read(path))
    assert told.status == "abstained"
    assert "the history contradicts itself" in (told.reason or "")


def test_one_buffer_of_the_final_size_is_clean(tmp_path: Path) -> None:
    allocator = CachingAllocator()
    allocator.allocate(192 * MIB)
    for _ in range(8):
        allocator.allocate(2 * MIB)
    assert outcome_of(allocator, tmp_path).status == "clean"


def test_memory_that_is_cached_and_free_at_the_end_is_clean(tmp_path: Path) -> None:
    """Ten times more reserved than in use, and every byte of it was needed at the peak."""
    allocator = CachingAllocator()
    held = [allocator.allocate(100 * MIB) for _ in range(10)]
    for address in held[1:]:
        allocator.free(address)
    assert allocator.reserved == 10 * allocator.allocated
    assert outcome_of(allocator, tmp_path).status == "clean"


def test_below_a_tenth_it_is_clean(tmp_path: Path) -> None:
    def split(size: int) -> CachingAllocator:
        """A large segment of which a small block takes the head, so that the next large block needs its own."""
        allocator = CachingAllocator()
        allocator.allocate(900 * MIB)
        first = allocator.allocate(size * MIB)
        allocator.free(first)
        allocator.allocate(2 * MIB)
        allocator.allocate(size * MIB)
        return allocator

    assert outcome_of(split(60), tmp_path).status == "clean"
    (finding,) = outcome_of(split(120), tmp_path).findings
    assert finding.cost_bytes == 118 * MIB


def test_out_of_memory_with_enough_free(tmp_path: Path) -> None:
    allocator = CachingAllocator(1200 * MIB)
    blocks = [allocator.allocate(100 * MIB) for _ in range(12)]
    for address in blocks[::2]:
        allocator.free(address)
        allocator.allocate(60 * MIB)  # nothing is free as a whole
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(200 * MIB)
    (finding,) = outcome_of(allocator, tmp_path).findings
    assert finding.severity == "high"
    assert "ran out of memory for 200 MiB: memory is reserved" in finding.title
    assert finding.cost_bytes == 240 * MIB


def test_out_of_memory_with_too_little_free_is_no_fragmentation(tmp_path: Path) -> None:
    allocator = CachingAllocator(1200 * MIB)
    for _ in range(11):
        allocator.allocate(100 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(200 * MIB)
    assert outcome_of(allocator, tmp_path).status == "clean"


def recorded(reserved: list[int], used: int) -> MemoryBuilder:
    """Events of torch.profiler: one block, and the allocator's reserve over time in MiB."""
    b = MemoryBuilder()
    b.make(1, used * MIB, 1, reserved_bytes=reserved[0] * MIB)
    for number, held in enumerate(reserved[1:]):
        b.make(2, 2 * MIB, 10 + 10 * number, reserved_bytes=held * MIB)
        b.free(2, 15 + 10 * number, reserved_bytes=held * MIB)
    return b


def test_a_cache_from_before_the_recording_cannot_be_judged() -> None:
    outcome = judge(RULE, recorded([1000, 1000], 500).build())
    assert outcome.status == "abstained"
    assert "1,000 MiB were reserved when the recording began" in (outcome.reason or "")


def test_peaks_of_the_whole_run_tell_of_what_was_before() -> None:
    trace = recorded([1000, 1000], 500).build()
    peaks = {"reserved_bytes.all.peak": 1000 * MIB, "allocated_bytes.all.peak": 600 * MIB}
    trace = replace(trace, allocator_counters=AllocatorCounters(before={}, after=peaks, steps=6))
    (finding,) = judge(RULE, trace).findings
    assert finding.cost_bytes == 400 * MIB
    trace = recorded([1000, 1000], 500).build()
    trace = replace(
        trace,
        allocator_counters=AllocatorCounters(before={}, after=peaks | {"allocated_bytes.all.peak": 950 * MIB}, steps=6),
    )
    assert judge(RULE, trace).status == "clean"


def test_one_moment_with_free_pieces_cannot_be_judged() -> None:
    b = MemoryBuilder(recorded=frozenset({"memory_state"}))
    b.row("segments", on_device=True, ordinal=0, address=4096, bytes=200 * MIB, allocated_bytes=100 * MIB,
          active_bytes=100 * MIB, stream=0, pool=-1, kind=b.code("large"), expandable=False)  # fmt: skip
    for at, state in ((4096, HeldState.IN_USE), (4096 + 100 * MIB, HeldState.FREE)):
        b.row("held", on_device=True, ordinal=0, address=at, bytes=100 * MIB, requested_bytes=100 * MIB, count=1,
              state=int(state), segment=0, frame=-1, kind=-1)  # fmt: skip
    outcome = judge(RULE, b.build())
    assert outcome.status == "abstained"
    assert "single moment" in (outcome.reason or "")


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "cost"),
    [
        # 13.2 GiB reserved and 1.3 in use at the end, 13.0 at the peak: cached after use
        ("assignment2-systems__fragmented", None),
        # 11.8 GiB reserved and 6.4 in use at the end, 11.6 at the peak; one segment of 64 MiB was not needed
        ("assignment2-systems__medium512_train", None),
        ("assignment2-systems__medium512_infer", None),
        ("LLM-inference__oom_nohistory", None),
        # a segment of 512 MiB is split for blocks of 8 MiB, and the next 512 MiB need another one
        ("assignment2-systems__tiny", 3606 * MIB - 3249144832),
    ],
)
def test_snapshots_of_the_corpus(corpus: Path, name: str, cost: int | None) -> None:
    (trace,) = load_all(corpus / "torch_mem" / f"{name}.pickle.gz")
    outcome = judge(RULE, trace)
    assert [finding.cost_bytes for finding in outcome.findings] == ([] if cost is None else [cost])
    assert outcome.status == ("clean" if cost is None else "flagged")


@pytest.mark.corpus
def test_the_peak_of_blocks_is_what_the_allocator_counts(corpus: Path) -> None:
    trace = torch_memory_reader.read(corpus / "torch_mem" / "assignment2-systems__tiny.pickle.gz")
    (memory,) = (one for one in trace.fact(trace_memories).memories if one.space == "device")
    assert memory.rounded_peak_bytes is not None
    assert memory.rounded_peak_bytes % 512 == 0
    assert memory.peak_bytes <= memory.rounded_peak_bytes <= memory.taken_bytes


def test_without_sizes_as_requested_there_is_one_peak() -> None:
    b = MemoryBuilder()
    b.make(1, 600, 1, reserved_bytes=2048)
    b.free(1, 3, reserved_bytes=2048)
    (memory,) = b.build().fact(trace_memories).memories
    assert (memory.peak_bytes, memory.rounded_peak_bytes) == (600, None)
