"""A CUDA memory snapshot beside the detail pass of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.load import load
from perfscope.analyzers.readers import torch_memory
from perfscope.analyzers.readers._run_snapshot import attach_snapshot, mark_failed
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import TABLES, Rows, Trace
from perfscope.analyzers.trace.memory_tables import MemoryAction
from tests.build import TraceBuilder

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
SNAPSHOT = "torch_mem/assignment2-systems__tiny.pickle.gz"


def with_host_event(on_device: bool = False) -> Trace:
    trace = TraceBuilder().build()
    trace.rows["memory"] = Rows(
        TABLES["memory"],
        {
            "time_ns": np.array([5, 7]),
            "address": np.array([64, 128], np.uint64),
            "bytes": [16, 32],
            "on_device": [False, on_device],
            "action": [MemoryAction.ALLOCATE, MemoryAction.ALLOCATE],
            **{name: np.array([-1, -1]) for name in ("thread", "op")},
        },
    )
    return trace


@pytest.mark.corpus
def test_the_allocators_tables_replace_the_profilers_events_of_the_device(corpus: Any) -> None:
    snapshot = torch_memory.read(corpus / SNAPSHOT)
    trace = with_host_event(on_device=True)
    attach_snapshot(trace, snapshot)
    assert {"memory", "memory_state"} <= trace.recorded
    for name in ("frames", "segments", "held"):
        assert len(trace.rows[name]) == len(snapshot.rows[name])
    assert trace.rows["held"]["bytes"].sum() == snapshot.rows["held"]["bytes"].sum()
    memory = trace.rows["memory"]
    assert len(memory) == len(snapshot.rows["memory"]) + 1, "the host's event stays, the device's is the allocator's"
    assert (np.diff(memory["time_ns"]) >= 0).all()
    files = trace.rows["frames"]["file"]
    theirs = snapshot.rows["frames"]["file"]
    assert [trace.text(code) for code in files[:50]] == [snapshot.text(code) for code in theirs[:50]]
    assert (memory["op"] == -1).all()


@pytest.mark.corpus
def test_events_without_times_are_not_mixed_with_those_that_have_them(corpus: Any) -> None:
    snapshot = torch_memory.read(corpus / SNAPSHOT)
    snapshot.source = type(snapshot.source)(
        path="x", format="torch_memory", rank=None, events_read=1, events_unplaced=0, events_only=True
    )
    trace = with_host_event()
    attach_snapshot(trace, snapshot)
    assert trace.rows["memory"]["bytes"].tolist() == [16, 32]
    assert len(trace.rows["held"])


def a_run(folder: Path, corpus: Path, *passes: str) -> Path:
    """A recording of ours with snapshots added, as a GPU's run has them."""
    shutil.copytree(FIXTURES / "cpu-attention-sdpa", folder)
    manifest = json.loads((folder / "rank00000" / "process.json").read_text())
    for name in passes:
        shutil.copyfile(corpus / SNAPSHOT, folder / "rank00000" / f"{name}.pickle.gz")
        artifact = f"rank00000/{name}.pickle.gz"
        manifest["captures"].append({"pass": name, "tool": "torch_memory", "state": "recorded", "artifact": artifact})
    (folder / "rank00000" / "process.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.corpus
def test_a_run_carries_it_in_its_detail(tmp_path: Path, corpus: Any) -> None:
    (trace,) = load(a_run(tmp_path / "run", corpus, "memory"))
    assert trace.detail is not None
    assert "memory_state" in trace.detail.recorded
    assert "memory_state" not in trace.recorded
    assert len(trace.detail.rows["segments"])


@pytest.mark.corpus
def test_a_failed_allocation_is_a_trace_of_its_own(tmp_path: Path, corpus: Any) -> None:
    run, failed = load(a_run(tmp_path / "run", corpus, "out_of_memory"))
    assert run.source.format == "run"
    assert failed.source.format == "torch_memory"
    assert failed.source.path.endswith("out_of_memory.pickle.gz")
    assert "memory_state" in failed.recorded
    assert [timeline.out_of_memory != () for timeline in failed.fact(memory_timelines)] == [True]
    assert judge(load_rule("oom_near"), failed).status == "flagged"


@pytest.mark.corpus
def test_a_failed_allocation_without_a_history(corpus: Any) -> None:
    """The state alone, as it is written where memory runs out outside of the detail pass."""
    snapshot = torch_memory.read(corpus / "torch_mem" / "LLM-inference__oom_nohistory.pickle.gz")
    assert judge(load_rule("oom_near"), snapshot).status == "abstained"
    again = torch_memory.read(corpus / "torch_mem" / "LLM-inference__oom_nohistory.pickle.gz")
    mark_failed(again)
    (finding,) = judge(load_rule("oom_near"), again).findings
    assert finding.severity == "high"
    assert "ran out of memory: an allocation failed with 11.0 GiB in use, 11.0 GiB reserved" in finding.title
    # all but 4 MiB of what is reserved is in use
    assert judge(load_rule("memory_fragmentation"), again).status == "clean"


@pytest.mark.corpus
def test_a_damaged_snapshot_is_said_and_the_rest_is_read(tmp_path: Path, corpus: Any) -> None:
    folder = a_run(tmp_path / "run", corpus, "memory")
    damaged = folder / "rank00000" / "memory.pickle.gz"
    damaged.write_bytes(damaged.read_bytes()[:500])
    (trace,) = load(folder)
    assert any("memory pass is damaged" in note for note in trace.source.notes)
    assert trace.detail is not None
