"""Every real trace that has times, exported and read back: equal totals, and equal rows in every table with a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.readers.load import load_all
from perfscope.model.trace import Rows, SliceKind, Trace
from perfscope.plugins.exports.about import has_times
from perfscope.plugins.exports.export import Subject, export
from perfscope.plugins.perfetto_files.reader import CARRIED
from tests.conftest import corpus_files
from tests.plugins.exports.trace_equality import TIMED, comparable_rows, totals

FOLDERS = (
    "aot", "ascend", "jax_memprof", "jax_trace_json", "kineto", "nsys_sqlite", "perfetto", "torch_mem",
    "xplane",
)  # fmt: skip
LARGE = 200_000
"""Bytes of a packed file; larger ones are not in the everyday tests."""

NO_TRACES = (
    "*.thunk_sequence.txt.gz", "*.pass_metadata.textproto.gz", "*.priority_fusion_dump.txt.gz", "*_target.txtpb",
    "*__level1_profiler_0.db.gz", "*__empty_trace.pftrace.gz", "*_CORRUPT.xplane.pb.gz",
)  # fmt: skip
"""Files of the corpus that no reader takes, or that are corrupt."""

pytestmark = pytest.mark.corpus


def files() -> list[object]:
    found = [file for folder in FOLDERS for file in corpus_files(folder) if not any(map(file.match, NO_TRACES))]
    return [
        pytest.param(file, id=f"{file.parent.name}/{file.name}", marks=[pytest.mark.slow] if slow(file) else [])
        for file in found
    ]


def slow(file: Path) -> bool:
    return file.stat().st_size > LARGE


def read(file: Path) -> list[Trace]:
    traces = load_all(file)
    if not any(map(has_times, traces)):
        pytest.skip("nothing in it has a time")
    return traces


def without_parents_of_overhead(trace: Trace) -> Trace:
    """Nsight's overhead has no parents by intent; a file of begins and ends cannot tell that from nesting."""
    rows = trace.rows["slices"]
    parent = np.where(rows["kind"] == SliceKind.OVERHEAD, -1, rows["parent"])
    return replace(trace, rows={**trace.rows, "slices": Rows(rows.table, {**rows, "parent": parent})})


@pytest.mark.parametrize("file", files())
def test_an_export_says_what_the_trace_said(file: Path, tmp_path: Path) -> None:
    traces = read(file)
    target = tmp_path / "t.pftrace.gz"
    export(Subject(traces=tuple(traces)), "perfetto", target)
    back = load_all(target)
    for before, after in zip([trace for trace in traces if has_times(trace)], back, strict=True):
        after.check()
        assert totals(after) == totals(before)
        assert after.source.rank == before.source.rank
        assert after.recorded == before.recorded & CARRIED
        assert after.source.events_unplaced == 0
        before, after = without_parents_of_overhead(before), without_parents_of_overhead(after)
        for table in TIMED:
            assert comparable_rows(after, table) == comparable_rows(before, table), table


@pytest.mark.parametrize("file", [param for param in files() if "rank0" in str(param) or "nsys-ai" in str(param)])
def test_the_rules_find_the_same(file: Path, tmp_path: Path) -> None:
    from perfscope.analyzers.engine import analyze

    traces = read(file)
    target = tmp_path / "t.pftrace.gz"
    export(Subject(traces=tuple(traces)), "perfetto", target)
    before, after = analyze(traces), analyze(load_all(target))
    assert [device.compute_ns for device in after.devices] == [device.compute_ns for device in before.devices]
    assert [(rule, one.subject, one.cost_ns) for rule, one in after.findings()] == [
        (rule, one.subject, one.cost_ns) for rule, one in before.findings()
    ]
