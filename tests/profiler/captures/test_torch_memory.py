"""CUDA memory snapshots against a stand-in for torch's private API: no test here needs a GPU, and none has seen one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.torch_memory import reader as reader
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.session.process_state import ProcessInfo
from perfscope.profiler.torch import compat
from perfscope.profiler.torch import memory as torch_memory
from perfscope.profiler.torch.memory import MOST_ENTRIES, MOST_FAILURES, MemoryRecorder, TorchMemoryCapture

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BASE = 1 << 40
FRAME = {"filename": __file__, "line": 7, "name": "forward"}


class Allocator:
    """What the capture calls of torch, with the signatures of torch 2.1 to 2.13."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.history = False
        self.observers: list[Any] = []
        self.snapshots = 0

    def record(
        self, enabled: str | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = 1
    ) -> None:
        self.calls.append((enabled, context, stacks, max_entries))
        self.history = enabled is not None

    def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        stack = [dict(FRAME)]
        block = {"address": BASE, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": stack}
        free = {
            "address": BASE + 1024,
            "size": (2 << 20) - 1024,
            "requested_size": 0,
            "state": "inactive",
            "frames": [],
        }
        segment = {
            "device": 0,
            "address": BASE,
            "total_size": 2 << 20,
            "allocated_size": 1024,
            "active_size": 1024,
            "requested_size": 1000,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [block, free],
        }
        events = [{"action": "alloc", "addr": BASE, "size": 1000, "stream": 0, "time_us": 5, "frames": stack}]
        return {"segments": [segment], "device_traces": [events if self.history else []]}


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    fake = Allocator()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": 2, "num_alloc_retries": 3, "other": 1})
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fake.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fake.snapshot)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: fake.history, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", fake.observers.append, raising=False)
    return fake


def test_it_is_not_available_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in (torch_memory.available() or "")
    capture = TorchMemoryCapture()
    capture.watch(Path("nowhere"))
    capture.begin(3)
    capture.end(Path("nowhere"), 3)
    assert capture.save() == [], "a program on the CPU is not told what it cannot have"


def test_the_snapshot_of_a_pass_is_read_by_the_reader(allocator: Allocator, tmp_path: Path) -> None:
    assert torch_memory.available() is None
    (tmp_path / "rank00000").mkdir()
    capture = TorchMemoryCapture()
    capture.begin(6)
    assert allocator.calls == [("all", "alloc", "python", MOST_ENTRIES)]
    capture.end(tmp_path / "rank00000", 6)
    assert allocator.calls[-1][0] is None, "nothing is recorded behind the pass"
    (said,) = capture.save()
    assert (said.pass_name, said.state, said.steps, said.artifact) == (
        "memory",
        "recorded",
        (6, 7),
        "rank00000/memory.pickle.gz",
    )
    trace = reader.read(tmp_path / "rank00000" / "memory.pickle.gz")
    assert {"memory", "memory_state"} <= trace.recorded
    assert trace.rows["segments"]["bytes"].tolist() == [2 << 20]
    files = {trace.text(code) for code in trace.rows["frames"]["file"]}
    assert files == {"tests/profiler/captures/test_torch_memory.py"}, "no path of the machine"
    assert list((tmp_path / "rank00000").iterdir()) == [tmp_path / "rank00000" / "memory.pickle.gz"]


def test_a_history_of_the_programs_own_is_left_alone(allocator: Allocator, tmp_path: Path) -> None:
    allocator.history = True
    capture = TorchMemoryCapture()
    capture.begin(6)
    capture.end(tmp_path, 6)
    assert allocator.calls == []
    assert allocator.history
    assert capture.save()[0].state == "recorded"


def test_out_of_memory_keeps_what_was_held(allocator: Allocator, tmp_path: Path) -> None:
    capture = TorchMemoryCapture()
    for _ in range(2):
        capture.watch(tmp_path)
    (observer,) = allocator.observers
    assert not allocator.calls, "nothing is recorded while steps are timed"
    for _ in range(MOST_FAILURES + 2):
        observer(0, 1 << 30, 1 << 34, 1 << 20)
    assert allocator.snapshots == MOST_FAILURES
    (said,) = capture.save()
    assert (said.pass_name, said.state, said.reason) == ("out_of_memory", "recorded", None)
    trace = reader.read(tmp_path / "out_of_memory.pickle.gz")
    assert trace.rows["held"]["bytes"].sum() == 2 << 20


def test_what_breaks_in_the_observer_does_not_reach_the_program(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks() -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", breaks)
    capture = TorchMemoryCapture()
    capture.watch(tmp_path)
    allocator.observers[0](0, 1, 1, 1)
    capture.begin(6)
    capture.end(tmp_path, 6)
    reasons = {one.pass_name: one.reason for one in capture.save()}
    assert reasons == {
        "out_of_memory": "no snapshot of it: RuntimeError: no room",
        "memory": "no memory snapshot: RuntimeError: no room",
    }
    assert not allocator.history


def test_parts_that_are_missing_say_so(allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer")
    capture = TorchMemoryCapture()
    capture.watch(tmp_path)
    capture.begin(6)
    assert {one.pass_name: one.reason for one in capture.save()} == {
        "memory": "this torch has no memory snapshots (torch 2.1 and later have)",
        "out_of_memory": "this torch does not tell of allocations that fail (torch 2.0 and later do)",
    }


def test_a_signature_that_is_not_known_says_so(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled, record_context=True: None)
    said = compat.record_memory_history(10)
    assert isinstance(said, str)
    assert "not known here" in said


def test_the_signature_of_this_torch_is_the_one_that_is_called() -> None:
    import inspect

    named = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries"} <= set(named)
    assert callable(torch.cuda.memory._snapshot)


def seen_of(folder: Path) -> ProcessInfo:
    return ProcessInfo(rank=0, world_size=None, path=folder, devices=(), packages={}, memory={}, memory_after={})


def test_only_the_pass_with_memory_records_and_counters_are_kept(allocator: Allocator, tmp_path: Path) -> None:
    held = MemoryRecorder()
    held.listen()
    timing = Pass(name="timing", tool="torch_profiler", count=3, suffix="")
    detail = Pass(name="detail", tool="torch_profiler", count=1, suffix="", memory=True)
    try:
        seen = held.before(seen_of(tmp_path), timing, 2, [])
        assert not allocator.calls
        seen = held.after(seen, 4, last=False)
        seen = held.before(seen, detail, 6, [])
        assert allocator.history
        seen = held.after(seen, 6, last=True)
    finally:
        held.stop()
    counters = {"num_ooms": 2, "num_alloc_retries": 3}
    told = [
        {name: value for name, value in memory.items() if name != "live_arrays_bytes"}  # jax's, if a test imported it
        for memory in (seen.memory, seen.memory_after)
    ]
    assert told == [counters, counters], "what is on the list, and nothing else"
    assert [one.pass_name for one in held.save(tmp_path, tmp_path)] == ["memory"]
