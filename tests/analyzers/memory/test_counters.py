"""Counters of an allocator around the passes of a run, from its manifest to the trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from perfscope.analyzers.load import load
from perfscope.analyzers.memory.counters import AllocatorCounters

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"


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
    (trace,) = load(run)
    assert trace.allocator_counters is not None
    assert trace.allocator_counters.grown_bytes == 30
    assert trace.allocator_counters.steps == max(end for _, end in passes) - min(start for start, _ in passes)


def test_a_run_that_counted_nothing_has_none(tmp_path: Path) -> None:
    run = shutil.copytree(FIXTURES / "cpu-attention-sdpa", tmp_path / "run")
    manifest = json.loads((run / "rank00000" / "process.json").read_text())
    manifest["memory"], manifest["memory_after"] = {}, {}
    (run / "rank00000" / "process.json").write_text(json.dumps(manifest))
    (trace,) = load(run)
    assert trace.allocator_counters is None
