"""What allocators count beside what the blocks say, where the host has two of them."""

import pytest

from perfscope.analyzers.facts.memory_timelines import memory_timelines
from tests.analyzers.facts.memory_build import MemoryBuilder


def _with_a_loader() -> MemoryBuilder:
    """Batches in shared memory, 64 and 32 bytes, beside the CPU allocator's 1000 and 500; one was there before."""
    b = MemoryBuilder()
    b.make(1, 64, 1, device=-1, allocated_bytes=0, reserved_bytes=64)
    b.free(2, 2, device=-1, size=128, allocated_bytes=0, reserved_bytes=0)
    b.make(3, 1000, 3, device=-1, allocated_bytes=1000, reserved_bytes=0)
    b.free(1, 4, device=-1, allocated_bytes=0, reserved_bytes=0)
    b.make(4, 32, 5, device=-1, allocated_bytes=0, reserved_bytes=32)
    b.make(5, 500, 6, device=-1, allocated_bytes=1500, reserved_bytes=0)
    b.free(3, 7, device=-1, allocated_bytes=500, reserved_bytes=0)
    b.free(5, 8, device=-1, allocated_bytes=0, reserved_bytes=0)
    return b


def test_tensors_in_shared_memory_are_in_use_and_beside_the_allocators_total():
    (timeline,) = memory_timelines(_with_a_loader().build())
    assert timeline.reserved is None
    assert timeline.notes == ()
    assert timeline.unseen_bytes == 0
    assert timeline.peak() == (6000, 1000 + 32 + 500)
    assert timeline.live().bytes.tolist() == [192, 64, 1064, 1000, 1032, 1532, 532, 32]


def test_what_the_allocator_counts_and_no_block_tells_of_is_still_found_beside_them():
    b = _with_a_loader()
    for row in b.tables["memory"]:
        row["allocated_bytes"] += 300 if row["allocated_bytes"] or row["address"] == 5 else 0
    (timeline,) = memory_timelines(b.build())
    assert (timeline.unseen_bytes, timeline.notes) == (300, ())


def test_a_device_has_a_reserve_whatever_its_size_is():
    """A device's first segment may be as large as its first block, and its total may be missing from the event."""
    b = MemoryBuilder()
    b.make(1, 2048, 1, allocated_bytes=0, reserved_bytes=2048)
    b.free(1, 2, allocated_bytes=0, reserved_bytes=2048)
    (timeline,) = memory_timelines(b.build())
    assert timeline.reserved is not None
    assert timeline.reserved.bytes.tolist() == [2048]


def test_torchs_own_events_of_shared_memory(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    from perfscope.analyzers.readers.kineto import read

    keep = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        keep.append(torch.zeros(1000))
        keep.append(torch.zeros(1 << 16).share_memory_())
        keep.append(torch.zeros(3000))
        del keep[1]
        keep.append(torch.zeros(500))
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    (timeline,) = memory_timelines(read(tmp_path / "trace.json"))
    assert timeline.reserved is None
    assert timeline.notes == ()
    assert timeline.peak()[1] >= (1 << 18) * 2, "the copy and the tensor it is of"
