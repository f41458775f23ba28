"""The path of a job goes from rank to rank over its collectives."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from perfscope.analyzers.critical_path import NodeKind, job_paths
from perfscope.analyzers.critical_path.job import JobPath
from perfscope.analyzers.readers.load import load_path
from perfscope.model.trace import CallKind, Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files

US = 1000


def rank(number: int, *, compute: float, shift: float = 0.0) -> Trace:
    """A step of ``compute`` us of one kernel, then an all-reduce of 100 us once both ranks have come, three times."""
    builder = TraceBuilder(rank=number, path=f"rank{number}.json")
    time, work = shift, 0
    builder.annotation("ProfilerStep#1", time, shift + 3 * 620)
    builder.step(1, time, shift + 3 * 620)
    for round_ in range(3):
        begin = time + 20
        builder.op("step", time, time + 15)
        builder.launched("gemm", time + 2, begin, begin + compute, correlation=work)
        builder.launched("ncclDevKernel_AllReduce_Sum_f32", time + 8, begin + compute + 1, time + 600,
                         correlation=work + 1, stream=7, communication=True)  # fmt: skip
        kernel = len(builder.tables["kernels"]) - 1
        row = builder.tables["kernels"][kernel]
        builder.row("collectives", name=builder.code("all_reduce"), start_ns=row["start_ns"], end_ns=row["end_ns"],
                    kernel=kernel, slice=-1, group=builder.code("0"), group_size=2, ranks=builder.code("[0, 1]"),
                    elements_in=1000, elements_out=1000, dtype=builder.code("Float"), sequence=round_)  # fmt: skip
        builder.call("cudaDeviceSynchronize", time + 15, time + 610, kind=CallKind.SYNC)
        work += 2
        time += 620
    return builder.build()


def check(path: JobPath) -> None:
    assert (path.pieces[0].start_ns, path.pieces[-1].end_ns) == (path.start_ns, path.end_ns)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(path.pieces))
    assert sum(path.by_rank.values()) == sum(path.by_kind.values()) == path.end_ns - path.start_ns


@pytest.mark.parametrize("shift", [0.0, 5_000.0], ids=["one clock", "two clocks"])
def test_the_path_follows_the_rank_that_is_late(shift: float) -> None:
    (path,) = job_paths([rank(0, compute=100), rank(1, compute=450, shift=shift)])
    check(path)
    kernels = [piece for piece in path.pieces if piece.kind == NodeKind.KERNEL and not piece.waits]
    assert {piece.rank for piece in kernels} == {1}, "the compute of rank 0 is hidden behind that of rank 1"
    assert sum(piece.end_ns - piece.start_ns for piece in kernels) == 3 * 450 * US


def test_one_rank_is_no_job() -> None:
    assert job_paths([rank(0, compute=100)]) == ()


@pytest.mark.corpus
@pytest.mark.parametrize(("pattern", "late"), [("torchrec__sst_sleep*", 2), ("astra-sim__megatron_kineto_*", 0)])
def test_paths_of_public_jobs(pattern: str, late: int, corpus: Path) -> None:
    """In `sst_sleep` rank 2 sleeps for a second in each step; the others wait in their collectives."""
    paths = job_paths([trace for file in corpus_files("kineto", pattern) for trace in load_path(file).traces])
    assert paths
    for path in paths:
        check(path)
        assert max(path.by_rank, key=lambda number: path.by_rank[number]) == late
