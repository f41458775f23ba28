"""Comparing slim traces, sent through a pickle, gives the same result as comparing whole ones."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from perfscope.analyzers import digest as cutting
from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.engine import Analysis, conclude, examine
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.registry import chosen_rules
from perfscope.dashboards.report import render
from perfscope.model.trace import SliceKind, Trace
from tests.build import TraceBuilder
from tests.ranks.build import STEP, Extra, collective, named, rank_set
from tests.ranks.test_straggler import add_nothing, compute, loader, ops, python

LATE = [[0.0, 4_000.0, 100.0]] * 6


def whole_and_slim(traces: Sequence[Trace]) -> tuple[Analysis, Analysis]:
    rules = chosen_rules(None)
    whole = [examine(trace, rules) for trace in traces]
    cut = [replace(one, trace=pickle.loads(pickle.dumps(reduce_trace(one.trace)))) for one in whole]
    return conclude(whole, rules), conclude(cut, rules)


def assert_slim_report_equal(traces: Sequence[Trace]) -> Analysis:
    whole, cut = whole_and_slim(traces)
    assert render(cut, "json") == render(whole, "json")
    return cut


def user_python(build: TraceBuilder, rank: int) -> None:
    for step in range(1, 8):
        build.python("train.py(88): evaluate", step * STEP - 500, step * STEP + 4_005)
        build.python("torch/nn/modules/module.py(1): __call__", step * STEP - 400, step * STEP + 4_000)
        build.op("aten::mm", step * STEP + 100, step * STEP + 300)
        build.op("aten::addmm", step * STEP + 120, step * STEP + 200)
        build.op("record_param_comms", step * STEP + 400, step * STEP + 5_000)
        build.annotation("input", step * STEP + 350, step * STEP + 380)


@pytest.mark.parametrize("extra", [add_nothing, compute, loader, ops, python, user_python])
def test_a_late_rank_is_found_in_both(extra: Extra) -> None:
    cut = assert_slim_report_equal(rank_set(LATE, extra=extra, clock_us=[0.0, 300_000.0, 0.0]))
    (finding,) = cut["straggler"].findings
    assert finding.ranks == (1,)
    if extra is user_python:
        assert finding.where.label() == "train.py:88"


def test_collectives_on_the_host() -> None:
    """gloo: a worker's span is the collective; the parallel threads show the rank's activity."""
    traces = []
    for rank in range(3):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        for step in range(1, 5):
            start = step * 100_000.0 + (40_000.0 if rank == 2 else 0.0)
            build.op("aten::sort", start - 30_000, start - 100, tid=1)
            build.op(
                "gloo:all_reduce", start, step * 100_000.0 + 41_000.0, tid=2, shapes="[[1000]]", dtypes='["float"]'
            )
        build.step(0, 0, 600_000.0)
        trace = build.build()
        rows = trace.rows["slices"]
        for row in range(len(rows)):
            if trace.text(int(rows["name"][row])).startswith("gloo:"):
                build.row("collectives", start_ns=int(rows["start_ns"][row]), end_ns=int(rows["end_ns"][row]),
                          name=build.code("all_reduce"), slice=row)  # fmt: skip
        traces.append(named(build.build(), world=3))
    cut = assert_slim_report_equal(traces)
    assert cut["straggler"].findings[0].ranks == (2,)


@pytest.mark.slow
def test_rows_that_no_comparison_reads_are_gone() -> None:
    def busy(build: TraceBuilder, rank: int) -> None:
        for at in range(2_000):
            build.op("aten::mm", at * 10.0, at * 10.0 + 9.0)
            build.op("aten::empty", at * 10.0 + 1.0, at * 10.0 + 2.0)
            build.kernel("gemm", at * 10.0, at * 10.0 + 9.0)

    trace = rank_set(LATE, extra=busy)[0]
    cut = reduce_trace(trace)
    assert [len(cut.rows[name]) for name in ("kernels", "calls", "collectives")] == [6, 6, 6]
    assert len(cut.rows["slices"]) == 2_000 + 1  # the op that launched a collective
    assert "aten::mm" in cut.strings
    assert not {"gemm", "aten::empty"} & set(cut.strings)
    assert cut.span_ns() == trace.span_ns()
    cut.check()


def test_the_longest_functions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MOST_FRAMES", 50)

    def deep(build: TraceBuilder, rank: int) -> None:
        for at in range(100):
            build.python("train.py(1): step", at * 4.0, at * 4.0 + 2.0)
        build.python("train.py(9): save", 0.0, 50 * 4.0)

    cut = reduce_trace(rank_set([[0.0, 0.0]], extra=deep)[0])
    kept = cut.rows["slices"]["kind"] == int(SliceKind.PYTHON)
    assert kept.sum() == 50
    assert "train.py(9): save" in {cut.text(int(code)) for code in cut.rows["slices"]["name"][kept]}


def test_a_trace_without_collectives_keeps_hardly_anything() -> None:
    build = TraceBuilder(rank=0)
    build.launched("gemm", 0, 10, 90, correlation=1)
    build.step(0, 0, 100)
    cut = reduce_trace(build.build())
    assert [name for name, rows in cut.rows.items() if len(rows)] == ["devices", "steps", "threads"]
    collective(build, 50, 60)
    assert len(reduce_trace(build.build()).rows["collectives"]) == 1


Pattern = tuple[str, str, Callable[[Analysis], bool]]
SETS: tuple[Pattern, ...] = (
    ("kineto", "astra-sim__megatron_kineto_*", lambda found: len(found.collectives.jobs[0].ranks) == 8),
    ("kineto", "torchrec__sst_sleep*", lambda found: found["straggler"].findings[0].ranks == (2,)),
    ("kineto", "torchrec__sst_long*", lambda found: bool(found.collectives.jobs)),
    ("tlparse", "tlparse__multi_rank_runtime_*", lambda found: len(found.compile.ranks) == 4),
)


@pytest.mark.corpus
@pytest.mark.parametrize(("folder", "pattern", "looked"), SETS)
def test_real_sets(corpus: Path, folder: str, pattern: str, looked: Callable[[Analysis], bool]) -> None:
    files = sorted((corpus / folder).glob(pattern))
    assert looked(assert_slim_report_equal([load_one(file) for file in files]))


@pytest.mark.corpus
def test_different_profiles_beside_ranks_of_torch(corpus: Path) -> None:
    files = [*(corpus / "xplane").glob("*mi300*"), *sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*"))]
    said = assert_slim_report_equal([load_one(file) for file in files])
    assert said.programs.programs
    assert said.collectives.jobs


@pytest.mark.slow
@pytest.mark.corpus
def test_a_recording_of_devices_with_its_programs(corpus: Path, tmp_path: Path) -> None:
    (packed,) = (corpus / "nsys_jax").glob("*.zip")
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
    trace = load_one(tmp_path)
    said = assert_slim_report_equal([trace, *[load_one(file) for file in (corpus / "xplane").glob("*mi300*")]])
    assert [job.members for job in said.collectives.jobs] == ["device"]
    cut = reduce_trace(trace)
    assert len(pickle.dumps(cut)) < len(pickle.dumps(load_one(tmp_path))) / 10
    assert not any(module.computations for module in cut.hlo)
    cut.check()


@pytest.mark.corpus
def test_policies_of_programs_in_several_recordings(corpus: Path) -> None:
    """Two runs of a function, one of which recomputes more: XLA's compiled programs replace the recordings."""
    files = sorted((corpus / "hlo_text").glob("xla__hlo_llama3_8b_*"))[:2]
    (one, other) = (load_one(file) for file in files)
    traces = []
    for number, module in enumerate((*one.hlo, *other.hlo)):
        source = msgspec.structs.replace(one.source, path=f"r{number}", format="xplane", programs=None)
        alike = msgspec.structs.replace(module, name="jit_step", source=f"r{number}")
        traces.append(Trace(source=source, strings=(), rows={}, recorded=frozenset({"hlo"}), hlo=(alike,)))
    assert_slim_report_equal(traces)


def test_the_operation_that_the_host_asked_for_is_kept() -> None:
    """NCCL's all-to-all is kernels of sends and receives: only the span around the launch names the operation."""
    traces = []
    for rank in range(2):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        for number in range(4):
            at = STEP * (number + 1) + (4_000 if rank else 0)
            build.op("nccl:all_to_all", at - 20, at - 1)
            build.call("cudaLaunchKernel", at - 10, at - 8, correlation=number)
            collective(build, at, STEP * (number + 1) + 4_500, operation="unknown", ranks=[0, 1], sequence=number,
                       kernel="ncclDevKernel_SendRecv(ncclDevComm*)", correlation=number)  # fmt: skip
        traces.append(named(build.build(), world=2))
    cut = assert_slim_report_equal(traces)
    subjects = [finding.subject for finding in cut["exposed_communication"].findings]
    assert subjects == ["all_to_all"]
