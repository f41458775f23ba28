"""rocprofv3: tables of a process and the JSON document become one trace; other files are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.devices import find_device
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.time import step_accounts
from perfscope.model.trace import CallKind, CopyKind, Trace
from tests.readers import rocprof_files
from tests.readers.refusals import refused


def names(trace: Trace, table: str) -> list[str]:
    return [trace.text(code) for code in trace.rows[table]["name"].tolist()]


@pytest.fixture(params=["tables", "packed tables", "json", "packed json"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Trace:
    """The same program as tables and as JSON."""
    if request.param == "tables":
        path = rocprof_files.write(tmp_path)
    elif request.param == "packed tables":
        rocprof_files.write(tmp_path)
        for table in sorted(tmp_path.iterdir()):
            Path(f"{table}.gz").write_bytes(gzip.compress(table.read_bytes()))
            table.unlink()
        path = tmp_path
    else:
        text = json.dumps(rocprof_files.document()).encode()
        path = tmp_path / "238_results.json"
        path.write_bytes(gzip.compress(text) if request.param == "packed json" else text)
    (read,) = load_all(path)
    read.check()
    return read


def test_kernels_have_their_call_range_and_launch_shape(trace: Trace) -> None:
    kernels, calls = trace.rows["kernels"], trace.rows["calls"]
    assert names(trace, "kernels") == [rocprof_files.GEMM, rocprof_files.RCCL] * rocprof_files.STEPS
    assert (kernels["end_ns"] - kernels["start_ns"]).tolist() == [400_000, 390_000] * rocprof_files.STEPS
    assert (calls["kind"][kernels["call"]] == CallKind.KERNEL).all()
    assert (calls["start_ns"][kernels["call"]] < kernels["start_ns"]).all()
    assert {trace.text(int(trace.rows["slices"]["name"][op])) for op in kernels["op"].tolist()} == {"forward"}
    assert kernels["blocks"].tolist() == [128, 1] * rocprof_files.STEPS
    assert kernels["threads_per_block"].tolist() == [256] * 2 * rocprof_files.STEPS
    assert kernels["communication"].tolist() == [False, True] * rocprof_files.STEPS
    assert len(trace.rows["collectives"]) == rocprof_files.STEPS


def test_the_device_is_the_second_gpu_and_known_by_its_name(trace: Trace) -> None:
    devices = trace.rows["devices"]
    assert devices["ordinal"].tolist() == [1]
    assert devices["cores"].tolist() == [304]
    found = find_device(trace.text(int(devices["name"][0])))
    assert found is not None
    assert found.name == "MI300X"


def test_copies_have_their_direction(trace: Trace) -> None:
    copies = trace.rows["copies"]
    assert copies["kind"].tolist() == [int(CopyKind.HOST_TO_DEVICE)] * rocprof_files.STEPS
    assert (copies["call"] >= 0).all()
    assert set(copies["bytes"].tolist()) <= {-1, 4096}


def test_ranges_that_are_named_like_steps_are_the_steps_of_the_account(trace: Trace) -> None:
    assert trace.rows["steps"]["number"].tolist() == list(range(rocprof_files.STEPS))
    (account,) = step_accounts(trace)
    assert account.causes_ns["compute"] == (400_000,) * rocprof_files.STEPS
    assert account.causes_ns["exposed_communication"] == (390_000,) * rocprof_files.STEPS


def test_other_markers_are_counted(tmp_path: Path) -> None:
    (read,) = load_all(rocprof_files.write(tmp_path))
    assert read.source.unplaced == {"control of the profiler": 1}
    assert read.source.events_unplaced == 1


def test_tables_of_older_versions_and_without_the_others(tmp_path: Path) -> None:
    header = "Kind,Agent_Id,Queue_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp,"
    header += "Private_Segment_Size,Group_Segment_Size,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,"
    rows = ['KERNEL_DISPATCH,4,1,2,"a(int, int)",1,1000,2000,0,0,256,1,1,300,1,1',
            'KERNEL_DISPATCH,8,3,2,"b.kd",1,1500,2500,0,0,256,1,1,512,1,1']  # fmt: skip
    path = tmp_path / "renamed.csv"
    path.write_text("\n".join([header + "Grid_Size_Y,Grid_Size_Z", *rows, 'KERNEL_DISPATCH,4,1,2,"cut']))
    (read,) = load_all(path)
    assert names(read, "kernels") == ["a(int, int)", "b"]
    assert read.rows["kernels"]["blocks"].tolist() == [2, 2]
    assert read.rows["devices"]["ordinal"].tolist() == [0, 1]
    assert read.source.unplaced == {"kernel without times": 1}
    assert any("--hip-trace" in note for note in read.source.notes)


def test_a_folder_is_a_trace_per_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rocprof_files.write(tmp_path, "100")
    rocprof_files.write(tmp_path, "200", without=("hip_api_trace",))
    assert len(load_all(tmp_path)) == 2
    assert run(["analyze", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "rocprofv3" in shown.out
    assert "skipped" not in shown.err


def test_no_command_or_host_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(rocprof_files.document()))
    assert run(["analyze", str(path), "-o", str(tmp_path / "report.json")]) == 0
    assert "secret" not in (tmp_path / "report.json").read_text()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.json", b'{"rocprofiler-sdk-tool": [{"metadata"', "cut off or corrupt"),
        ("x.json", b'{"rocprofiler-sdk-tool": [{}]}', "no kernel, copy, call or range"),
        ("x.json", b'{"rocprofiler-sdk-tool": [{"agents": 7}]}', "cut off or corrupt"),
        ("1_kernel_trace.csv", b'"Kernel_Name","Start_Timestamp"\n', "no kernel, copy, call or range"),
        ("1_kernel_trace.csv", b'"Kernel_Name","Start_Timestamp"\n"' + b"x" * 200_000, "not CSV of rocprofv3"),
    ],
)
def test_what_is_refused(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    assert reason in refused(load_all, tmp_path / name, content)


def test_impossible_numbers_are_events_without_a_place(tmp_path: Path) -> None:
    made = rocprof_files.document()
    kernels = made["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"]
    kernels[0]["end_timestamp"] = 1 << 63
    kernels[1]["start_timestamp"] = -5
    kernels[2]["dispatch_info"]["grid_size"] = {"x": 1 << 60, "y": 1 << 60, "z": 1 << 60}
    kernels[3]["dispatch_info"]["agent_id"] = {"handle": (1 << 64) - 1}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(made))
    (read,) = load_all(path)
    read.check()
    assert read.source.unplaced == {"kernel without times": 2}
    assert -1 in read.rows["kernels"]["blocks"].tolist()
