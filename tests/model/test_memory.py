"""Counters of an allocator around the passes of a run, from its manifest to the trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers.load import load_all
from perfscope.model.memory import AllocatorCounters, Pairs, pair_events, strictly_increasing

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def test_torch_s_and_xla_s_names() -> None:
    torch = AllocatorCounters(
        before={"allocated_bytes.all.current": 100, "num_alloc_retries": 1},
        after={
            "allocated_bytes.all.current": 160, "allocated_bytes.all.peak": 900, "reserved_bytes.all.peak": 1000,
            "num_alloc_retries": 4, "num_ooms": 2,
        },
        steps=6,
    )  # fmt: skip
    assert (torch.grown_bytes, torch.peak_bytes, torch.peak_reserved_bytes, torch.limit_bytes) == (60, 900, 1000, None)
    assert (torch.retries, torch.retries_in_window, torch.failures) == (4, 3, 2)
    xla = AllocatorCounters(
        before={"bytes_in_use": 5}, after={"bytes_in_use": 5, "peak_bytes_in_use": 9, "bytes_limit": 20}, steps=3
    )
    assert (xla.grown_bytes, xla.peak_bytes, xla.limit_bytes, xla.peak_reserved_bytes) == (0, 9, 20, None)


def test_one_reading_tells_no_growth() -> None:
    once = AllocatorCounters(before={"allocated_bytes.all.current": 100, "num_alloc_retries": 1}, after={}, steps=None)
    assert (once.grown_bytes, once.retries, once.retries_in_window) == (None, 1, None)


def test_a_run_carries_them_with_the_steps_between(tmp_path: Path) -> None:
    run = shutil.copytree(FIXTURES / "cpu-attention-sdpa", tmp_path / "run")
    manifest = json.loads((run / "rank00000" / "process.json").read_text())
    passes = [capture["steps"] for capture in manifest["captures"] if capture["steps"] is not None]
    manifest["memory"] = {"allocated_bytes.all.current": 100}
    manifest["memory_after"] = {"allocated_bytes.all.current": 130}
    (run / "rank00000" / "process.json").write_text(json.dumps(manifest))
    (trace,) = load_all(run)
    assert trace.allocator_counters is not None
    assert trace.allocator_counters.grown_bytes == 30
    assert trace.allocator_counters.steps == max(end for _, end in passes) - min(start for start, _ in passes)


def test_a_run_that_counted_nothing_has_none(tmp_path: Path) -> None:
    run = shutil.copytree(FIXTURES / "cpu-attention-sdpa", tmp_path / "run")
    manifest = json.loads((run / "rank00000" / "process.json").read_text())
    manifest["memory"], manifest["memory_after"] = {}, {}
    (run / "rank00000" / "process.json").write_text(json.dumps(manifest))
    (trace,) = load_all(run)
    assert trace.allocator_counters is None


def _pair(events: list[tuple[int, int]]) -> Pairs:
    """Events as (address, signed bytes)."""
    addresses = np.array([address for address, _ in events], np.uint64)
    signed = np.array([size for _, size in events], np.int64)
    return pair_events(addresses, np.abs(signed), signed < 0)


def _blocks(pairs: Pairs) -> list[tuple[int, int]]:
    return list(zip(pairs.made.tolist(), pairs.freed.tolist(), strict=True))


def test_an_allocation_and_its_free_are_a_block_and_the_rest_stays():
    pairs = _pair([(10, 4), (20, 8), (10, -4), (10, 2)])
    assert _blocks(pairs) == [(0, 2), (1, -1), (3, -1)]
    assert (pairs.unmatched, pairs.resized) == (0, 0)


def test_a_free_that_comes_first_ends_a_block_held_before():
    pairs = _pair([(20, 8), (10, -4), (10, 4), (10, -4)])
    assert _blocks(pairs) == [(-1, 1), (0, -1), (2, 3)]
    assert pairs.unmatched == 0


def test_a_second_free_is_counted_and_is_no_block():
    pairs = _pair([(10, 4), (10, -4), (10, -4)])
    assert _blocks(pairs) == [(0, 1)]
    assert pairs.unmatched == 1


def test_an_address_handed_out_twice_ends_the_earlier_block():
    pairs = _pair([(10, 4), (10, 6), (10, -6)])
    assert _blocks(pairs) == [(0, -1), (1, 2)]
    assert pairs.replaced.tolist() == [1, -1]
    assert pairs.unmatched == 1


def test_a_free_of_another_size_is_counted():
    assert _pair([(10, 4), (10, -6)]).resized == 1


def test_no_events_are_no_blocks():
    assert _blocks(_pair([])) == []


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 99), st.booleans()), max_size=60))
def test_as_a_dictionary_would(steps: list[tuple[int, int, bool]]):
    """A sound allocator: an address is in use or it is not."""
    events: list[tuple[int, int]] = []
    live: dict[int, tuple[int, int]] = {}
    expected = []
    for address, size, _ in steps:
        if address in live:
            index, held = live.pop(address)
            expected.append((index, len(events)))
            events.append((address, -held))
        else:
            live[address] = (len(events), size)
            events.append((address, size))
    expected += [(index, -1) for index, _ in live.values()]
    pairs = _pair(events)
    assert _blocks(pairs) == sorted(expected)
    assert (pairs.unmatched, pairs.resized) == (0, 0)
    assert (pairs.replaced == -1).all()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=50).map(sorted))
def test_positions_rise_and_stay_with_their_times(times: list[int]):
    found = strictly_increasing(np.array(times, np.int64))
    assert (np.diff(found) > 0).all()
    assert (found >= times).all()
    expected, before = [], -1
    for time in times:
        before = max(time, before + 1)
        expected.append(before)
    assert found.tolist() == expected
