"""Memory snapshots: what the tables say against torch's own code, and against an allocator of known truth."""

from __future__ import annotations

import copy
import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.readers.flight_recorder import sniff as sniff_flight_recorder
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.readers.torch_memory.reader import read, sniff
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import HeldState, MemoryAction
from tests.conftest import corpus_files, every_file
from tests.readers.memory_snapshots import FRAMES, Allocator

SNAPSHOTS = corpus_files("torch_mem", "*.pickle.gz")
ACTIONS = {"alloc": MemoryAction.ALLOCATE, "free_completed": MemoryAction.FREE}
GIB = 2**30


def write_snapshot(path: Path, snapshot: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    return path


def read_snapshot(path: Path) -> Trace:
    (trace,) = load_all(path)
    trace.check()
    assert trace.source.format == "torch_memory"
    return trace


def stack(trace: Trace, row: int) -> list[tuple[str, int, str]]:
    frames, found = trace.rows["frames"], []
    while row >= 0:
        found.append((trace.text(frames["file"][row]), int(frames["line"][row]), trace.text(frames["name"][row])))
        row = int(frames["parent"][row])
    return found


def test_an_allocator_of_known_truth(tmp_path: Path) -> None:
    allocator = Allocator(seed=1).run(400)
    trace = read_snapshot(write_snapshot(tmp_path / "snapshot.pickle", allocator.snapshot()))
    memory = trace.rows["memory"]
    assert trace.recorded >= {"memory", "memory_state"}
    assert not trace.source.events_only
    assert (memory["action"] != MemoryAction.HELD_BEFORE).all()
    assert memory["allocated_bytes"].tolist() == [sum(held.values()) for held, _ in allocator.truth]
    assert memory["reserved_bytes"].tolist() == [reserved for _, reserved in allocator.truth]
    assert memory["time_ns"].tolist() == [entry["time_us"] * 1000 for entry in allocator.entries]
    assert memory["address"].tolist() == [entry["addr"] for entry in allocator.entries]
    assert set(memory["stream"].tolist()) == {7}
    for row, entry in enumerate(allocator.entries[:50]):
        expected = [(frame["filename"], frame["line"], frame["name"]) for frame in entry.get("frames", [])]
        assert stack(trace, memory["frame"][row]) == expected


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1))
def test_what_was_held_when_a_cut_off_history_begins(seed: int, share: float) -> None:
    import tempfile

    allocator = Allocator(seed=seed).run(120)
    keep = int(share * len(allocator.entries))
    with tempfile.TemporaryDirectory() as folder:
        trace = read_snapshot(
            write_snapshot(Path(folder) / "snapshot.pickle", allocator.snapshot(keep=keep), protocol=2 + seed % 4)
        )
    cut = len(allocator.entries) - keep
    memory = trace.rows["memory"]
    if not keep:
        assert not len(memory)
        assert trace.recorded == {"memory_state"}
        return
    before = memory["action"] == MemoryAction.HELD_BEFORE
    truth = allocator.truth[cut - 1][0] if cut else {}
    found = dict(zip(memory["address"][before].tolist(), memory["bytes"][before].tolist(), strict=True))
    assert found == truth
    assert memory["allocated_bytes"][~before].tolist() == [sum(held.values()) for held, _ in allocator.truth[cut:]]
    assert memory["reserved_bytes"][~before].tolist() == [reserved for _, reserved in allocator.truth[cut:]]
    times = memory["time_ns"]
    assert (np.diff(times) >= 0).all()


def test_blocks_of_the_moment(tmp_path: Path) -> None:
    allocator = Allocator(seed=5).run(200)
    trace = read_snapshot(write_snapshot(tmp_path / "snapshot.pickle", allocator.snapshot()))
    held, segments = trace.rows["held"], trace.rows["segments"]
    used = held["state"] != HeldState.FREE
    assert (
        dict(zip(held["address"][used].tolist(), held["requested_bytes"][used].tolist(), strict=True)) == allocator.live
    )
    assert (held["state"] == HeldState.AWAITING_FREE).sum() == len(allocator._awaiting)
    assert (held["requested_bytes"][~used] == -1).all()
    assert stack(trace, held["frame"][used][0])[0][2] == FRAMES[0][0]["name"]
    assert int(segments["bytes"].sum()) == sum(allocator.segments.values())
    assert np.bincount(held["segment"], held["bytes"]).tolist() == segments["bytes"].tolist()
    assert (segments["pool"] == -1).all()


def test_entries_that_contradict_the_state_are_not_added_up(tmp_path: Path) -> None:
    allocator = Allocator(seed=2).run(300)
    snapshot = allocator.snapshot()
    freed = next(at for at, entry in enumerate(snapshot["device_traces"][0]) if entry["action"] == "free_completed")
    del snapshot["device_traces"][0][freed]  # as if torch had been configured to skip this action
    trace = read_snapshot(write_snapshot(tmp_path / "snapshot.pickle", snapshot))
    assert (trace.rows["memory"]["allocated_bytes"] == -1).all()
    assert any("contradict" in note for note in trace.source.notes)


def test_several_devices_and_pools(tmp_path: Path) -> None:
    first, second = Allocator(seed=3).run(100), Allocator(seed=4).run(80)
    segments = [*first.state(0), *second.state(1)]
    segments[-1]["segment_pool_id"] = (0, 3)
    for entry in second.entries:
        entry["pool_id"] = (0, 3)
    snapshot = {"segments": segments, "device_traces": [first.entries[20:], second.entries[10:], []]}
    trace = read_snapshot(write_snapshot(tmp_path / "snapshot.pickle", snapshot))
    memory = trace.rows["memory"]
    for ordinal, allocator, cut in ((0, first, 20), (1, second, 10)):
        mine = (memory["ordinal"] == ordinal) & (memory["action"] != MemoryAction.HELD_BEFORE)
        assert memory["allocated_bytes"][mine].tolist() == [sum(held.values()) for held, _ in allocator.truth[cut:]]
        pools = {trace.text(code) for code in memory["pool"][mine].tolist()}
        assert pools == ({"(0, 3)"} if ordinal else {""})
    assert trace.text(trace.rows["segments"]["pool"][-1]) == "(0, 3)"
    before = memory["action"] == MemoryAction.HELD_BEFORE
    assert before[: int(before.sum())].all()
    assert (np.diff(memory["time_ns"]) >= 0).all()
    assert {line.label for line in trace.fact(memory_timelines)} == {"cuda:0", "cuda:1"}


def test_out_of_memory_expandable_segments_and_new_keys(tmp_path: Path) -> None:
    entries = [
        {"action": "segment_map", "addr": 4096, "size": 2048, "stream": 0, "time_us": 10, "frames": []},
        {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "time_us": 11, "frames": [],
         "compile_context": "0/1",
         "user_metadata": "step 3", "forward_frames": ["a", "b"], "weight": 1.5, "nothing": None},
        {"action": "oom", "device_free": 77, "size": 10**12, "stream": 0, "time_us": 12, "frames": []},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 13},
        {"action": "new in 2030", "addr": 0, "size": 0, "stream": 0, "time_us": 14},
    ]  # fmt: skip
    segment = {
        "device": 0, "address": 4096, "total_size": 2048, "allocated_size": 1024, "active_size": 1024, "stream": 0,
        "segment_type": "large", "is_expandable": True,
        "blocks": [
            {"size": 1024, "requested_size": 1000, "state": "active_allocated"}, {"size": 1024, "state": "inactive"},
        ],
    }  # fmt: skip
    trace = read_snapshot(write_snapshot(tmp_path / "x.pickle", {"segments": [segment], "device_traces": [entries]}))
    memory = trace.rows["memory"]
    assert memory["action"].tolist() == [MemoryAction.RESERVE, MemoryAction.ALLOCATE, MemoryAction.OUT_OF_MEMORY]
    assert memory["reserved_bytes"].tolist() == [2048, 2048, 2048]
    assert memory["allocated_bytes"].tolist() == [0, 1000, 1000]
    assert trace.source.unplaced == {"entries of the action snapshot": 1, "entries of the action new in 2030": 1}
    assert any("1,000,000,000,000 bytes were requested, 77 bytes were free" in note for note in trace.source.notes)
    assert trace.rows["segments"]["expandable"].tolist() == [True]
    assert trace.rows["held"]["address"].tolist() == [4096, 5120]


def test_annotations_are_ranges_around_entries(tmp_path: Path) -> None:
    def mark(stage: str, name: str, time: int) -> dict[str, Any]:
        return {"stage": stage, "name": name, "device": 0, "time_us": time}

    entries = [
        {"action": "alloc", "addr": 512 * n, "size": 1, "stream": 0, "time_us": 100 * n, "frames": []}
        for n in range(1, 6)
    ]
    marks = [
        mark("START", "ProfilerStep#4", 150), mark("START", "Optimizer.step#AdamW.step", 250),
        mark("END", "Optimizer.step#AdamW.step", 350), mark("END", "ProfilerStep#4", 450), mark("START", "open", 500),
    ]  # fmt: skip
    snapshot = {"segments": [], "device_traces": [entries], "external_annotations": marks}
    trace = read_snapshot(write_snapshot(tmp_path / "x.pickle", snapshot))
    slices = trace.rows["slices"]
    around = [trace.text(slices["name"][op]) if op >= 0 else "" for op in trace.rows["memory"]["op"].tolist()]
    assert around == ["", "ProfilerStep#4", "Optimizer.step#AdamW.step", "ProfilerStep#4", ""]
    assert trace.rows["steps"]["number"].tolist() == [4]
    assert "steps" in trace.recorded
    assert trace.source.unplaced == {"annotations without their other end": 1}


def test_torch_2_0_blocks_with_a_history(tmp_path: Path) -> None:
    history = [{"addr": 4096, "real_size": 1500, "frames": FRAMES[1]}]
    block = {"size": 2048, "state": "active_allocated", "history": history}
    segment = {
        "device": 0,
        "address": 4096,
        "total_size": 2048,
        "stream": 0,
        "segment_type": "large",
        "blocks": [block],
    }
    trace = read_snapshot(write_snapshot(tmp_path / "x.pickle", {"segments": [segment], "device_traces": [[]]}))
    held = trace.rows["held"]
    assert held["requested_bytes"].tolist() == [1500]
    assert stack(trace, held["frame"][0])[0][2] == "backward"


def test_secrets_of_other_fields_reach_no_string(tmp_path: Path) -> None:
    snapshot = Allocator(seed=6).run(50).snapshot()
    snapshot["environment"] = {"TOKEN": "hunter2"}
    for entry in snapshot["device_traces"][0]:
        entry["user_metadata"] = "hunter2"
    trace = read_snapshot(write_snapshot(tmp_path / "x.pickle", snapshot))
    assert not any("hunter2" in text or "TOKEN" in text for text in trace.strings)


@pytest.mark.parametrize("data", [
    pickle.dumps({"segments": []}), b"\x80\x04}.", b"{}", b"",
    pickle.dumps({"entries": [], "pg_config": {}, "segments": 1}),
])  # fmt: skip
def test_not_every_pickle_is_one(data: bytes) -> None:
    assert not sniff(Path("x"), data)


def test_a_snapshot_is_no_flight_recording() -> None:
    data = pickle.dumps(Allocator(seed=6).run(50).snapshot())
    assert sniff(Path("x"), data)
    assert not sniff_flight_recorder(Path("x"), data)


def test_analyze_says_why_rules_do_not_look(tmp_path: Path) -> None:
    analysis = analyze(load_all(write_snapshot(tmp_path / "x.pickle", Allocator(seed=1).run(300).snapshot())))
    abstained = {outcome.rule: outcome.reason for outcome in analysis.outcomes if outcome.status == "abstained"}
    assert abstained.keys() >= {"launch_bound", "host_sync", "input_stall", "exposed_communication"}
    assert all(abstained.values())


@pytest.mark.corpus
@pytest.mark.parametrize("path", every_file(SNAPSHOTS), ids=lambda path: path.name)
def test_equal_to_what_torchs_own_code_says(path: Path, corpus: Path) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = plain(path)
    trace = read_snapshot(path)
    segments, held, memory = (trace.rows[name] for name in ("segments", "held", "memory"))
    said = viz.segsum(copy.deepcopy(snapshot)).splitlines()
    used = held["state"] == HeldState.IN_USE
    assert f"segments: {len(segments)}" in said
    assert f"total_reserved: {viz.Bytes(int(segments['bytes'].sum()))}" in said
    assert f"total_allocated: {viz.Bytes(int(held['requested_bytes'][used].sum()))}" in said
    active = [viz.calc_active(segment) for segment in snapshot["segments"]]
    assert np.bincount(held["segment"][used], held["bytes"][used], len(segments)).tolist() == active
    assert segments["allocated_bytes"].tolist() == [segment["allocated_size"] for segment in snapshot["segments"]]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    asked = [viz._block_extra(block)[1] if block["state"] != "inactive" else -1 for block in blocks]
    assert held["requested_bytes"].tolist() == asked
    entries = snapshot["device_traces"][0]
    assert trace.source.events_read == len(entries)
    if len(memory):
        real = memory["action"] != MemoryAction.HELD_BEFORE
        assert np.abs(memory["bytes"][real]).tolist() == [entry["size"] for entry in entries]
        totals = replayed(snapshot)
        assert memory["allocated_bytes"][real].tolist() == totals[1:]
        (timeline,) = trace.fact(memory_timelines)
        assert int(timeline.live().bytes.max()) == max(totals)


def replayed(snapshot: dict[str, Any]) -> list[int]:
    """Bytes asked for before the first entry and after each, back from the end as torch's viewer reckons them."""
    now = sum(b["requested_size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] != "inactive")
    totals = [now]
    for entry in reversed(snapshot["device_traces"][0]):
        now -= {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        totals.append(now)
    return totals[::-1]


def plain(path: Path) -> dict[str, Any]:
    class Nothing(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(name)

    found: dict[str, Any] = Nothing(io.BytesIO(gzip.decompress(path.read_bytes()))).load()
    return found


CATALOGUE = {
    "medium512_train": (400, 22_332, 11.8, 6.4),
    "fragmented": (216, 5_163, 13.2, 1.3),
    "oom": (176, 1, 11.03, 11.03),
}
"""Segments, entries, GiB reserved and allocated as the corpus' catalogue has them."""


@pytest.mark.corpus
@pytest.mark.parametrize("name", CATALOGUE)
def test_figures_of_the_catalogue(name: str, corpus: Path) -> None:
    (path,) = (path for path in SNAPSHOTS if name in path.name)
    known = CATALOGUE[name]
    trace = read_snapshot(path)
    segments = trace.rows["segments"]
    assert (len(segments), trace.source.events_read) == known[:2]
    assert segments["bytes"].sum() / GIB == pytest.approx(known[2], abs=0.05)
    assert segments["allocated_bytes"].sum() / GIB == pytest.approx(known[3], abs=0.05)


def test_a_snapshot_made_of_a_profile_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.cuda._memory_viz import _profile_to_snapshot

    with torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True) as profile:
        torch.nn.Linear(64, 8)(torch.randn(32, 64)).sum().backward()
    path = write_snapshot(tmp_path / "cpu.pickle", _profile_to_snapshot(profile))
    trace = read_snapshot(path)
    assert trace.source.events_only
    assert len(trace.rows["memory"])


def test_a_snapshot_of_torch_2_0_keeps_state_and_order(tmp_path: Path) -> None:
    """Entries without times, blocks with a history in place of frames and of the requested size."""
    allocator = Allocator(seed=2).run(200)
    snapshot = allocator.snapshot()
    for entry in snapshot["device_traces"][0]:
        del entry["time_us"]
    for block in (block for segment in snapshot["segments"] for block in segment["blocks"]):
        asked, frames = block.pop("requested_size", block["size"]), block.pop("frames", [])
        block["history"] = [{"addr": block.pop("address", 0), "real_size": asked, "frames": frames}]
    trace = read_snapshot(write_snapshot(tmp_path / "old.pickle", snapshot))
    memory = trace.rows["memory"]
    assert trace.source.events_only
    assert memory["time_ns"].tolist() == list(range(len(memory)))
    assert memory["address"].tolist()[-len(allocator.entries) :] == [entry["addr"] for entry in allocator.entries]


def test_a_snapshot_of_nothing_says_so(tmp_path: Path) -> None:
    entry = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 13}
    for name, entries in (("empty", []), ("mark", [entry])):
        path = write_snapshot(tmp_path / f"{name}.pickle", {"segments": [], "device_traces": [entries]})
        trace = read(path)
        (note,) = trace.source.notes
        assert note == "the allocator held nothing at the moment of the snapshot, and its history has no allocation"
