"""Reports of Nsight Compute: both pages, and their kernels in a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers.load import load_all
from perfscope.plugins.kernel_reports import ncu
from perfscope.plugins.kernel_reports.record import plain_name, reports_of
from perfscope.plugins.kernel_reports.summary import ReportedKernels, kernel_summary
from tests.build import TraceBuilder
from tests.plugins.kernel_reports.ncu_files import IN_TRACE, SPELLED, details, launch, launches, raw
from tests.readers.refusals import refused


def summary_of(builder: TraceBuilder, text: str, path: Path) -> ReportedKernels:
    path.write_text(text)
    found = kernel_summary(ncu.attach(builder.build(), path))
    assert found is not None
    return found


@pytest.mark.parametrize("page", [details, raw])
def test_a_launch_of_both_pages(page: Callable[[list[dict[str, object]]], str], tmp_path: Path) -> None:
    path = tmp_path / "ncu.csv"
    path.write_text(page(launches()))
    (trace,) = load_all(path)
    first, second, third = reports_of(trace)
    assert (first.name, first.blocks, first.threads_per_block) == (SPELLED, 80, 128)
    assert (first.compute, first.memory, first.dram, first.bound) == (12.5, 41.0, 91.25, "memory")
    assert (first.duration_ns, first.registers, first.shared_bytes) == (1_250_000, 168, 3068)
    assert (first.occupancy, first.possible_occupancy, first.limit) == (21.5, 25.0, "registers")
    assert (second.dram, second.bound) == (None, "latency")
    assert (third.bound, third.spills) == ("compute", 12)
    trace.check()


@pytest.mark.parametrize(
    ("by_ncu", "by_kineto"),
    [
        (SPELLED, IN_TRACE),
        (
            "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl<at::native::"
            "CUDAFunctor_add<float>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add"
            "<float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}>(int, "
            "at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float> >(at::TensorIteratorBase&, "
            "at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1})",
        ),
        ("softmax_warp_forward<float, (int)5, (bool)0>(T2 *)", "softmax_warp_forward<float, 5, false>(float*)"),
        ("ampere_sgemm_128x32_tn", "ampere_sgemm_128x32_tn"),
    ],
)
def test_demanglers_spell_one_name_differently(by_ncu: str, by_kineto: str) -> None:
    assert plain_name(by_ncu) == plain_name(by_kineto)


def test_template_arguments_tell_kernels_apart() -> None:
    assert plain_name(SPELLED) != plain_name(SPELLED.replace("(int)4", "(int)2"))


def test_kernels_are_joined_by_name_and_shape(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    for start in (10, 20, 30):
        builder.kernel(IN_TRACE, start, start + 4, blocks=80, threads=128)
    builder.kernel(IN_TRACE, 50, 51, blocks=8, threads=128)
    builder.kernel("other", 60, 90, blocks=8, threads=128)
    found = summary_of(builder, raw(launches()), tmp_path / "ncu.csv")
    assert [(row.mean.blocks, row.calls, row.time_ns) for row in found.kernels] == [
        (80, 3, 12_000),
        (8, 1, 1_000),
        (80, 0, 0),
    ]
    assert found.unmatched == 1
    assert found.bounds == pytest.approx({"memory": 12 / 13, "latency": 1 / 13})


def test_without_shapes_equal_numbers_of_launches_are_joined_by_order(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.kernel(IN_TRACE, 10, 14)
    builder.kernel(IN_TRACE, 20, 21)
    both = [launch(), launch(blocks=8)]
    found = summary_of(builder, raw(both), tmp_path / "ncu.csv")
    assert [(row.mean.blocks, row.time_ns, row.all_shapes) for row in found.kernels] == [
        (80, 4_000, False),
        (8, 1_000, False),
    ]
    builder.kernel(IN_TRACE, 30, 35)
    found = summary_of(builder, raw(both), tmp_path / "ncu.csv")
    assert [(row.time_ns, row.all_shapes) for row in found.kernels] == [(10_000, True), (10_000, True)]


def test_a_report_of_functions_joins_the_only_kernel_of_that_function(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.kernel(IN_TRACE, 10, 14)
    text = raw([launch("vectorized_elementwise_kernel")])
    assert summary_of(builder, text, tmp_path / "ncu.csv").unmatched == 0
    builder.kernel(IN_TRACE.replace("<4", "<2"), 20, 24)
    assert summary_of(builder, text, tmp_path / "ncu.csv").unmatched == 1


def trace_file(path: Path) -> Path:
    events = [
        {"ph": "X", "cat": "kernel", "name": IN_TRACE, "pid": 0, "tid": 7, "ts": 10.0 * number, "dur": 2.0,
         "args": {"device": 0, "stream": 7, "correlation": number, "grid": [80, 1, 1], "block": [128, 1, 1]}}
        for number in range(1, 9)
    ]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_the_table_of_kernels_says_what_limits_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, report = trace_file(tmp_path / "trace.json"), tmp_path / "ncu.csv"
    report.write_text(details(launches()))
    assert run(["analyze", str(trace), str(report), "-o", str(tmp_path / "report.json")]) == 0
    written = (tmp_path / "report.json").read_text()
    assert "secret" not in written
    document = json.loads(written)
    first = document["tables"]["kernel_reports"]["rows"][0]
    assert (first["name"], first["calls"], first["bound"], first["spills"]) == (SPELLED, 8, "memory", 0)
    (row,) = document["top_work"]["kernels"]
    assert row["limit"] == "memory: DRAM 91%, occupancy 22% (registers)"
    capsys.readouterr()
    assert run(["analyze", str(tmp_path)]) == 0
    assert "memory: DRAM 91%" in capsys.readouterr().out


def test_files_that_are_no_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ncu.csv"
    header = raw([]).splitlines()[0]
    assert "without a launch" in refused(load_all, path, header.encode())
    assert "not CSV of ncu" in refused(load_all, path, f'{header}\n"{"x" * 200_000}"'.encode())
    trace_file(tmp_path / "trace.json")
    assert run(["analyze", str(tmp_path)]) == 0
    assert "ncu.csv was not read: not CSV of ncu" in " ".join(capsys.readouterr().out.split())
    assert run(["analyze", str(tmp_path / "trace.json"), str(path)]) == 4
    assert capsys.readouterr().err.startswith(f"perfscope: {path}: not CSV of ncu")
