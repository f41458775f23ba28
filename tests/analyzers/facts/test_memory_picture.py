"""The picture of a memory: bounded, exact at its moments, no maximum lost, nothing drawn longer than it lasted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.facts.memory_picture import MOST_BANDS, Band, memory_picture
from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.readers import hlo_proto, torch_memory
from perfscope.analyzers.trace.memory_tables import MemoryCategory
from tests.analyzers.facts.memory_build import MemoryBuilder


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


def test_a_short_peak_is_drawn_short() -> None:
    b = MemoryBuilder()
    b.make(1, 100, 0)
    b.make(2, 900, 1)
    b.free(2, 2)
    b.make(3, 1, 5_000)
    b.make(4, 1, 10_000)
    trace = b.build()
    (timeline,) = memory_timelines(trace)
    picture = memory_picture(trace, timeline, 20)
    held = dict(zip(picture.positions.tolist(), picture.total.tolist(), strict=True))
    assert held == {0: 100, 1_000: 1000, 2_000: 100, 5_000_000: 101, 10_000_000: 102}


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
    trace = hlo_proto.read(corpus / "aot" / "attn_naive.hlo.pb.gz")
    (timeline,) = memory_timelines(trace)
    phases = memory_picture(trace, timeline).phases
    assert {"forward", "backward"} <= {band.name for band in phases}
    assert all(timeline.first <= band.start < band.end <= timeline.last + 1 for band in phases)


@pytest.mark.corpus
def test_the_phases_of_a_recorded_step(corpus: Path) -> None:
    trace = torch_memory.read(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz")
    (timeline,) = memory_timelines(trace)
    picture = memory_picture(trace, timeline)
    assert [band.name for band in picture.phases] == ["forward", "backward", "optimizer"]
    assert len(picture.positions) <= 400
    assert picture.total.max() == timeline.peak()[1]
