"""Timelines from events: what the allocator counted is what the blocks say, at every event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.memory.blocks import event_timelines
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.memory.holders import memory_records
from perfscope.analyzers.memory.picture import MOST_BANDS, Band, memory_picture
from perfscope.analyzers.readers.hlo import proto
from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.model.finding import Scope
from perfscope.model.trace import MISSING
from perfscope.model.trace.tables import HeldState, MemoryAction, MemoryCategory
from tests.memory.build import MemoryBuilder, conserved

WITH_EVENTS = ("TraceLens__h100_bert-small", "TraceLens__h100_qwen1.5-0.5b", "TraceLens__mi300_qwen1.5-0.5b")


def test_blocks_unseen_bytes_and_the_curve():
    b = MemoryBuilder()
    b.starts_with(1000)
    b.make(10, 100, 1)
    b.make(20, 50, 2)
    b.free(10, 3)
    b.free(99, 4, size=300)  # held before the recording, and known now
    trace = b.build()
    (timeline,) = event_timelines(trace)
    assert (timeline.label, timeline.axis, timeline.basis) == ("cuda:0", "ns", "measured")
    assert timeline.unseen_bytes == 700
    blocks = timeline.blocks
    assert blocks["address"].tolist() == [99, 10, 20]
    assert blocks["before"].tolist() == [True, False, False]
    assert blocks["after"].tolist() == [False, False, True]
    assert blocks["bytes"].tolist() == [300, 100, 50]
    assert timeline.peak() == (2000, 1150)
    assert (timeline.unmatched, timeline.notes) == (0, ())
    conserved(trace, timeline)


def test_events_of_one_instant_do_not_cancel_out():
    b = MemoryBuilder()
    b.make(10, 100, 1)
    b.make(20, 100, 2)
    b.free(10, 2)
    (timeline,) = event_timelines(b.build())
    assert timeline.peak()[1] == 200
    assert timeline.last == 2001


def test_a_total_that_leaves_out_what_was_held_is_told():
    """The CPU's total begins at 0 when the profiler does, and counts the free of an older block all the same."""
    b = MemoryBuilder()
    b.make(10, 100, 1)
    b.free(99, 2, size=40)
    (timeline,) = event_timelines(b.build())
    assert timeline.unseen_bytes == 0
    assert timeline.peak()[1] == 140
    assert any("excludes 40 B" in note for note in timeline.notes)


def test_totals_that_contradict_their_events_are_told():
    b = MemoryBuilder()
    b.make(10, 100, 1)
    b.make(20, 100, 2, allocated_bytes=777)
    (timeline,) = event_timelines(b.build())
    assert any(note.startswith("at 1 of 2 events the allocator's own total differs") for note in timeline.notes)


def nameless(*changes: int) -> MemoryBuilder:
    """Allocations, and frees (negative), as Kineto recorded them in 2021: no address, no totals."""
    b = MemoryBuilder()
    b.op("aten::empty", 0, 1000)
    for at, change in enumerate(changes):
        action = MemoryAction.FREE if change < 0 else MemoryAction.ALLOCATE
        b.event(action, 0, change, at, allocated_bytes=MISSING)
    return b


def test_without_addresses_the_sum_over_time_is_known_and_who_holds_it_is_not():
    (timeline,) = memory_timelines(nameless(100, 50, -100, 100, 60, -50, -60, -100).build())
    assert timeline.peak() == (4000, 210)
    assert timeline.sums_only
    assert timeline.blocks["op"].tolist() == [MISSING] * 4
    assert set(timeline.blocks["category"].tolist()) == {MemoryCategory.UNKNOWN}
    assert any(note.startswith("8 events have no address") for note in timeline.notes)
    trace = nameless(100, -100).build()
    assert memory_records(trace) == Scope(1, "allocations in the recording")


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=40))
def test_the_sum_without_addresses_is_the_running_sum(drawn: list[tuple[bool, int]]) -> None:
    """Brute force: what is freed beyond what was allocated of its size was held before."""
    changes = [-size if freed else size for freed, size in drawn]
    (timeline,) = event_timelines(nameless(*changes).build())
    lowest = {size: min(np.cumsum([0, *(np.sign(change) for change in changes if abs(change) == size)]))
              for size in range(1, 5)}  # fmt: skip
    before = sum(-int(level) * size for size, level in lowest.items())
    assert timeline.live().at(np.arange(len(changes)) * 1000).tolist() == (before + np.cumsum(changes)).tolist()


def test_blocks_with_and_without_an_address_are_both_in_the_peak():
    b = MemoryBuilder()
    b.make(0, 100, 1)
    b.make(10, 5, 2)
    (timeline,) = event_timelines(b.build())
    assert timeline.peak()[1] == 105
    assert not timeline.sums_only


def test_what_was_held_before_lasts_from_the_first_position():
    b = MemoryBuilder()
    b.event(MemoryAction.HELD_BEFORE, 5, 64, 1, allocated_bytes=64)
    b.starts_with(64)
    b.make(10, 100, 2)
    b.free(5, 3, size=64)
    trace = b.build()
    (timeline,) = event_timelines(trace)
    assert timeline.blocks["before"].tolist() == [True, False]
    assert timeline.blocks["end"].tolist() == [3000, 3001]
    assert timeline.unseen_bytes == 0
    conserved(trace, timeline)


def test_the_driver_alone_gives_segments_as_blocks():
    b = MemoryBuilder()
    b.event(MemoryAction.RESERVE, 10, 2048, 1, allocated_bytes=-1)
    b.event(MemoryAction.RESERVE, 20, 512, 2, allocated_bytes=-1)
    b.event(MemoryAction.RELEASE, 10, -2048, 3, allocated_bytes=-1)
    (timeline,) = event_timelines(b.build())
    assert timeline.of_driver
    assert timeline.peak() == (2000, 2560)
    assert timeline.reserved is None


def test_reserved_from_the_allocator_and_out_of_memory():
    b = MemoryBuilder()
    b.make(10, 100, 1, reserved_bytes=1000)
    b.make(20, 900, 2, reserved_bytes=1000)
    b.event(MemoryAction.OUT_OF_MEMORY, 0, 500, 3, reserved_bytes=2000)
    (timeline,) = event_timelines(b.build())
    assert timeline.reserved is not None
    assert timeline.reserved.bytes.tolist() == [1000, 2000]
    assert timeline.reserved.positions.tolist() == [1000, 3000]
    assert timeline.out_of_memory == (3000,)


def test_a_detail_recording_tells_of_memory_and_says_so():
    b = MemoryBuilder()
    b.make(10, 100, 1)
    outer = MemoryBuilder(detail=b.build())
    outer.op("aten::mm", 0, 1)
    trace = outer.build()
    (timeline,) = event_timelines(trace)
    assert timeline.detail
    assert timeline.known_from == "allocator events of torch.profiler, in the detail pass"
    assert timeline.of(trace) is trace.detail


def test_one_moment_of_a_snapshot():
    b = MemoryBuilder(recorded=frozenset({"memory_state"}))
    b.row("segments", on_device=True, ordinal=0, address=1, bytes=4096, allocated_bytes=1024, active_bytes=1536,
          stream=3, expandable=False)  # fmt: skip
    for address, size, state in (
        (1, 1024, HeldState.IN_USE),
        (2, 512, HeldState.AWAITING_FREE),
        (3, 9, HeldState.FREE),
    ):
        b.row("held", on_device=True, ordinal=0, address=address, bytes=size, count=1, state=int(state), segment=0)
    (timeline,) = event_timelines(b.build())
    assert (timeline.first, timeline.last, timeline.axis) == (0, 0, "event")
    assert timeline.peak() == (0, 1536)
    assert timeline.reserved is not None
    assert timeline.reserved.bytes.tolist() == [4096]
    assert timeline.blocks["stream"].tolist() == [3, 3]


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 999)), min_size=1, max_size=40),
    st.lists(st.integers(1, 999), max_size=4),
)
def test_conservation(held: int, steps: list[tuple[int, int]], older: list[int]):
    """Whatever a sound allocator does, and whatever it held before: the curve is its total at every event."""
    b = MemoryBuilder()
    b.starts_with(held + sum(older))
    for at, (address, size) in enumerate(steps, 1):
        if (0, address) in b.sizes:
            b.free(address, at)
        else:
            b.make(address, size, at)
    for number, size in enumerate(older):
        b.free(100 + number, len(steps) + 1 + number, size=size)
    trace = b.build()
    (timeline,) = event_timelines(trace)
    assert timeline.unseen_bytes == held
    assert timeline.peak()[1] == trace.rows["memory"]["allocated_bytes"].max()
    assert (timeline.unmatched, timeline.notes) == (0, ())
    conserved(trace, timeline)


@pytest.mark.corpus
@pytest.mark.parametrize("name", WITH_EVENTS)
def test_the_totals_of_recorded_allocators(corpus: Path, name: str):
    """Kineto's own ``Total Allocated`` on an H100 and an MI300X: equal at each of thousands of events."""
    trace = kineto_reader.read(corpus / "kineto" / f"{name}.json.gz")
    timelines = event_timelines(trace)
    assert [one.space for one in timelines] == ["device", "host"]
    for timeline in timelines:
        assert (timeline.unmatched, timeline.notes) == (0, ())
        conserved(trace, timeline)
    assert timelines[0].reserved is not None
    assert timelines[0].unseen_bytes > 0


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "reserved", "requested"),
    [
        ("medium512_train", 12_660_506_624, 6_829_260_804),
        ("medium512_infer", 1_981_808_640, 1_701_482_496),
        ("fragmented", 14_180_941_824, 1_373_919_236),
        ("tiny", 3_781_165_056, 31_719_428),
    ],
)
def test_histories_end_where_their_snapshots_are(corpus: Path, name: str, reserved: int, requested: int):
    """The blocks that history leaves alive are those of the segments: 11.8 GiB reserved in the catalogue's sample."""
    trace = torch_memory_reader.read(corpus / "torch_mem" / f"assignment2-systems__{name}.pickle.gz")
    (timeline,) = event_timelines(trace)
    held = trace.rows["held"]
    in_use = held["state"] != HeldState.FREE
    alive = timeline.blocks.take(timeline.blocks["after"])
    assert sorted(alive["address"].tolist()) == sorted(held["address"][in_use].tolist())
    assert int(alive["bytes"].sum()) == int(held["requested_bytes"][in_use].sum()) == requested
    assert timeline.live().bytes[-1] == requested
    assert timeline.reserved is not None
    assert timeline.reserved.bytes[-1] == reserved == trace.rows["segments"]["bytes"].sum()
    live = timeline.live()
    there = timeline.reserved.bytes[np.searchsorted(timeline.reserved.positions, live.positions, side="right") - 1]
    assert (there >= live.bytes).all()
    assert timeline.known_from == "CUDA memory snapshot"
    assert (timeline.unseen_bytes, timeline.unmatched) == (0, 0)


def snapshot_of(*entries: dict[str, object], segments: bool) -> MemoryBuilder:
    """A CUDA snapshot with these events, and a segment of which nothing is in use."""
    b = MemoryBuilder(recorded=frozenset({"memory_state", "memory"}))
    if segments:
        b.row("segments", on_device=True, ordinal=0, address=1, bytes=4096, allocated_bytes=0, active_bytes=0,
              stream=3, expandable=False)  # fmt: skip
    for number, entry in enumerate(entries):
        b.event(entry["action"], entry.get("address", 64), 0, number)  # type: ignore[arg-type]
    return b


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("address", [64, 0])
def test_a_history_of_events_of_no_size_is_told(segments: bool, address: int):
    entries = [{"action": one, "address": address} for one in (MemoryAction.ALLOCATE, MemoryAction.FREE)]
    (timeline,) = event_timelines(snapshot_of(*entries, segments=segments).build())
    assert timeline.peak()[1] == 0
    assert timeline.notes[0] == "all 2 events of the history are of 0 bytes"
    assert (timeline.reserved is not None) == segments


def test_segments_without_blocks_and_failed_allocations_are_a_moment():
    (timeline,) = event_timelines(snapshot_of(segments=True).build())
    assert (timeline.first, timeline.last, timeline.peak()) == (0, 0, (0, 0))
    assert timeline.reserved is not None
    assert timeline.reserved.bytes.tolist() == [4096]
    (timeline,) = event_timelines(snapshot_of({"action": MemoryAction.OUT_OF_MEMORY}, segments=False).build())
    assert timeline.out_of_memory == (0,)


def test_a_failed_allocation_without_a_snapshot_says_nothing_of_what_is_held():
    b = MemoryBuilder(recorded=frozenset({"memory"}))
    b.event(MemoryAction.OUT_OF_MEMORY, 0, 512, 1)
    assert event_timelines(b.build()) == ()


def _busy(events: int = 1500) -> MemoryBuilder:
    b = MemoryBuilder()
    b.starts_with(7)
    rng = np.random.default_rng(1)
    live: list[int] = []
    for at in range(1, events):
        if live and rng.random() < 0.49:
            b.free(live.pop(int(rng.integers(len(live)))), at, reserved_bytes=2_000_000 + at % 7)
        else:
            live.append(at)
            b.make(
                at, int(rng.integers(1, 1000)), at, category=int(rng.integers(0, 4)), reserved_bytes=2_000_000 + at % 7
            )
    return b


@pytest.mark.parametrize("points", [3, 50, 400])
def test_bounded_exact_and_no_maximum_lost(points: int) -> None:
    trace = _busy().build()
    (timeline,) = memory_timelines(trace)
    picture = memory_picture(trace, timeline, points)
    assert len(picture.positions) <= points
    assert picture.positions[0] == timeline.first
    curve = timeline.live()
    at = np.searchsorted(curve.positions, picture.positions, side="right") - 1
    np.testing.assert_array_equal(picture.total, curve.bytes[at])
    assert picture.total.max() == timeline.peak()[1]
    assert picture.unseen_bytes == 7
    assert set(picture.categories) == {MemoryCategory(code) for code in range(4)}
    # the last moment of each part is drawn as it was, so what follows a maximum is not as high as it
    assert picture.total[-1] == curve.bytes[-1]
    # reserved: the most of each piece
    assert picture.reserved is not None
    assert timeline.reserved is not None
    ends = [*picture.positions[1:].tolist(), timeline.last + 1]
    for start, end, most in zip(picture.positions.tolist(), ends, picture.reserved.tolist(), strict=True):
        inside = (timeline.reserved.positions >= start) & (timeline.reserved.positions < end)
        before = timeline.reserved.bytes[np.searchsorted(timeline.reserved.positions, start, side="right") - 1]
        assert most == max([before, *timeline.reserved.bytes[inside]])


def _steps(count: int) -> MemoryBuilder:
    b = MemoryBuilder()
    for step in range(count):
        at = step * 100.0
        b.step(step, at, at + 100)
        b.op("aten::mm", at + 1, at + 40, sequence=step, forward_thread=0)
        b.op("autograd::engine::evaluate_function: MmBackward0", at + 50, at + 90, sequence=step, forward_thread=1)
        b.make(step + 1, 10, at + 5)
        b.free(step + 1, at + 60)
    return b


def test_bands_are_the_steps_and_phases() -> None:
    trace = _steps(3).build()
    (timeline,) = memory_timelines(trace)
    picture = memory_picture(trace, timeline)
    assert picture.steps == tuple(
        Band(name=str(step), start=100_000 * step, end=100_000 * (step + 1)) for step in (0, 1, 2)
    )
    assert picture.phases[:2] == (
        Band(name="forward", start=1_000, end=40_000),
        Band(name="backward", start=50_000, end=90_000),
    )
    assert len(picture.phases) == 6


def test_too_many_bands_are_not_drawn_in_part() -> None:
    trace = _steps(MOST_BANDS).build()
    (timeline,) = memory_timelines(trace)
    picture = memory_picture(trace, timeline)
    assert len(picture.steps) == MOST_BANDS
    assert picture.phases == ()


@pytest.mark.corpus
def test_phases_of_a_schedule_cover_its_forward_and_backward_pass(corpus: Path) -> None:
    trace = proto.read(corpus / "aot" / "attn_naive.hlo.pb.gz")
    (timeline,) = memory_timelines(trace)
    phases = memory_picture(trace, timeline).phases
    assert {"forward", "backward"} <= {band.name for band in phases}
    assert all(timeline.first <= band.start < band.end <= timeline.last + 1 for band in phases)


def _with_a_loader() -> MemoryBuilder:
    """Batches in shared memory, 64 and 32 bytes, and the CPU allocator's 1000 and 500; one existed before."""
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

    from perfscope.analyzers.readers.kineto.reader import read

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
