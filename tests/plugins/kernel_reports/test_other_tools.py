"""Counters of rocprofv3 and logs of tritonparse: their reports, and their kernels in a trace."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers.load import load_all
from perfscope.plugins.kernel_reports import rocpd, rocprof_counters, tritonparse
from perfscope.plugins.kernel_reports.occupancy import possible_occupancy
from perfscope.plugins.kernel_reports.record import KernelReport, reports_of
from perfscope.plugins.kernel_reports.summary import kernel_notes, kernel_summary
from tests.build import TraceBuilder
from tests.plugins.kernel_reports.other_files import ID, compilation, counters, log
from tests.plugins.kernel_reports.other_files import rocpd as rocpd_file
from tests.readers import rocprof_files
from tests.readers.refusals import refused


def test_counters_of_a_dispatch_are_one_report(tmp_path: Path) -> None:
    path = tmp_path / "7_counter_collection.csv"
    path.write_text(counters())
    (trace,) = load_all(path)
    first, _, other = reports_of(trace)
    assert (first.compute, first.memory, first.occupancy, first.bound) == (71.5, 40.25, 30.0, "compute")
    assert (first.blocks, first.threads_per_block, first.registers, first.shared_bytes) == (256, 256, 68, 1024)
    assert (other.name, other.memory, other.bound) == ("copy", 0.15, None)


def test_counters_join_the_trace_of_the_same_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rocprof_files.write(tmp_path)
    text = counters().replace("gemm(float*)", rocprof_files.GEMM).replace("65536", "32768")
    (tmp_path / "238_counter_collection.csv").write_text(text)
    assert run(["analyze", str(tmp_path)]) == 0
    assert "compute: ALU 71%, occupancy 31%" in capsys.readouterr().out


def test_the_database_has_what_the_tables_have(tmp_path: Path) -> None:
    """Numbers of the CSV; without SQ_WAVES and the occupancy of the second launch."""
    rocpd_file(tmp_path / "7_results.db")
    (trace,) = load_all(tmp_path / "7_results.db")
    first, second, other = reports_of(trace)
    assert (first.name, first.compute, first.memory, first.occupancy, first.bound) == (
        "gemm(float*)", 71.5, 40.25, 30.0, "compute",
    )  # fmt: skip
    assert (first.blocks, first.threads_per_block, first.registers, first.shared_bytes) == (256, 256, 68, 1024)
    assert (second.compute, second.memory) == (70.5, None)
    assert (other.name, other.memory, other.bound) == ("copy", 0.15, None)
    assert run(["analyze", str(tmp_path / "7_results.db"), "-o", str(tmp_path / "report.json")]) == 0
    assert "secret" not in (tmp_path / "report.json").read_text()


def test_the_database_joins_the_trace_of_the_same_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rocprof_files.write(tmp_path)
    rocpd_file(tmp_path / "238_results.db")
    with sqlite3.connect(tmp_path / "238_results.db") as database:
        database.execute(
            f"UPDATE rocpd_info_kernel_symbol{ID} SET display_name = ? WHERE id = 1", (rocprof_files.GEMM,)
        )
        database.execute(f"UPDATE rocpd_kernel_dispatch{ID} SET grid_size_x = 8192")
    assert run(["analyze", str(tmp_path)]) == 0
    assert "compute: ALU 71%, occupancy 30%" in capsys.readouterr().out


def test_databases_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    rocpd_file(path)
    whole = path.read_bytes()
    assert "SQLite" in refused(rocpd.read, path, whole[: len(whole) // 2])
    rocpd_file(tmp_path / "views.db", kind="VIEW")
    assert "without a dispatch of a kernel" in refused(rocpd.read, tmp_path / "views.db")
    assert not rocpd.sniff(path, b"SQLite format 3\0" + b"rocpd" * 3)
    rocpd_file(tmp_path / "text.db", workgroup="many")
    assert "invalid number" in refused(rocpd.read, tmp_path / "text.db")
    rocpd_file(tmp_path / "huge.db", workgroup=1 << 62)
    assert {report.blocks for report in reports_of(rocpd.read(tmp_path / "huge.db"))} == {None}


@pytest.mark.parametrize("packed", [False, True])
def test_a_triton_kernel_has_its_configuration_registers_and_spills(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / f"log.ndjson{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(log().encode()) if packed else log().encode())
    (trace,) = load_all(path)
    first, *_, last = reports_of(trace)
    assert [report.blocks for report in reports_of(trace)] == [64, 64, 16, None]
    assert (first.config, first.line) == ("BLOCK 1024, EVEN True, 4 warps, 3 stages", "/project/kernels.py:20")
    assert (first.threads_per_block, first.registers, first.spills, first.shared_bytes) == (128, 255, 2, 98_304)
    assert first.tuned == "best of 3 configurations, 2.0x as fast as their median"
    assert (first.possible_occupancy, first.limit) == (12.5, "registers and shared memory")
    assert (last.name, last.tuned) == ("other", "")


def test_a_triton_kernel_of_a_trace_says_that_it_spills(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    path.write_text(log())
    builder = TraceBuilder()
    builder.kernel("add", 10, 14, blocks=64, threads=128)
    builder.kernel("add", 20, 21, blocks=16, threads=256)  # more warps than the option: divided work
    trace = tritonparse.attach(builder.build(), path)
    found = kernel_summary(trace)
    assert found is not None
    assert [(row.mean.blocks, row.calls, row.time_ns) for row in found.kernels][:2] == [(64, 1, 4_000), (16, 1, 1_000)]
    assert kernel_notes(trace) == {"add": "occupancy at most 12% (registers and shared memory), spills registers"}


def test_configurations_that_were_compiled_are_rows_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    other = compilation(number=1, src_constants={"(2,)": 512, "(3,)": True})
    path.write_text(f"{json.dumps(compilation())}\n{json.dumps(other)}\n")
    builder = TraceBuilder()
    for start in (10, 20, 30):
        builder.kernel("add", start, start + 4, blocks=64, threads=128)
    found = kernel_summary(tritonparse.attach(builder.build(), path))
    assert found is not None
    assert [(row.mean.config[:10], row.time_ns, row.all_shapes) for row in found.kernels] == [
        ("BLOCK 1024", 12_000, True),
        ("BLOCK 512,", 12_000, True),
    ]


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "expected"),
    [
        ("sm_90", 32, 0, (100.0, "warps and registers")),
        ("sm_90a", 128, 0, (25.0, "registers")),
        ("sm_80", None, 83_968, (12.5, "shared memory")),  # 82 KiB and 1 KiB reserved: one block of 164 KiB
        ("sm_999", 32, 0, (None, None)),
    ],
)
def test_occupancy_by_resources(
    arch: str, registers: int | None, shared: int, expected: tuple[float | None, str | None]
) -> None:
    threads = 256 if shared else 512
    report = KernelReport(name="k", tool="t", threads_per_block=threads, registers=registers, shared_bytes=shared)
    assert possible_occupancy(arch, report) == expected


def test_shared_memory_below_0_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    path.write_text(json.dumps(compilation(shared=-1024)) + "\n")  # -1 KiB and the reserved 1 KiB are 0
    (report,) = reports_of(tritonparse.read(path))
    assert report.shared_bytes is None


def test_amd_assembly_has_the_spills(tmp_path: Path) -> None:
    made = compilation(target={"backend": "hip", "arch": "gfx942", "warp_size": 64})
    made["payload"]["file_content"] = {
        "add.amdgcn": "  .vgpr_count:     96\n  .vgpr_spill_count: 7\n .sgpr_spill_count: 0"
    }
    path = tmp_path / "log.ndjson"
    path.write_text(json.dumps(made))
    (report,) = reports_of(tritonparse.read(path))
    assert (report.registers, report.spills, report.threads_per_block) == (96, 7, 256)


def test_no_environment_or_stack_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    path.write_text(log())
    assert run(["analyze", str(path), "-o", str(tmp_path / "report.json")]) == 0
    assert "secret" not in (tmp_path / "report.json").read_text()


def test_files_that_are_no_reports(tmp_path: Path) -> None:
    header = counters().splitlines()[0].encode()
    assert "without a dispatch" in refused(rocprof_counters.read, tmp_path / "a.csv", header)
    broken = b'{"event_type": "launch", "name": 7}\n{"event_type": "launch", "grid": "x"}'
    reason = refused(load_all, tmp_path / "a.ndjson", broken)
    assert reason == "no compilation or launch of a Triton kernel in it; 2 lines of the log are corrupt"
