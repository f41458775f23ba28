"""The XSpace reader on small profiles written by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.load import load_path
from perfscope.analyzers.readers import xplane
from perfscope.analyzers.readers.xspace.planes import whole_ns
from perfscope.analyzers.trace import SliceKind
from tests.analyzers.hlo.test_proto import made
from tests.analyzers.readers.profiles import CALLS, GPU, US, op, read, texts
from tests.analyzers.readers.wire import SpaceWriter


def test_an_instruction_ends_at_its_mark_on_another_thread(tmp_path: Path) -> None:
    space = SpaceWriter().plane(
        "/host:CPU",
        {
            "python": [op("fusion", 10, 12, 1), op("dot", 13, 20, 2), op("lost", 21, 22, 3)],
            "pool": [("end: fusion", 40 * US, 41 * US, {"_c": 1}), ("end: dot", 19 * US, 30 * US, {"_c": 2})],
        },
    )
    trace = read(tmp_path, space)
    ops = trace.rows["hlo_ops"]
    assert texts(trace, "hlo_ops") == ["fusion", "dot", "lost"]
    assert ops["start_ns"].tolist() == [10_000, 13_000, 21_000]
    assert ops["launch_end_ns"].tolist() == [12_000, 20_000, 22_000]
    assert ops["end_ns"].tolist() == [40_000, 19_000, 22_000]
    assert ops["program_id"].tolist() == [7] * 3
    assert ops["run_id"].tolist() == [-5] * 3
    assert texts(trace, "slices") == ["fusion", "dot", "lost"]
    assert trace.rows["slices"]["end_ns"].tolist() == [12_000, 20_000, 22_000]
    assert not len(trace.rows["devices"])
    assert "1 instructions without an end mark" in trace.source.notes[-1]
    assert trace.recorded == {"host_ops"}
    assert trace.hlo_ops["launch_end_ns"].tolist() == [12_000, 20_000, 22_000]


def test_an_instruction_around_others_says_so(tmp_path: Path) -> None:
    space = SpaceWriter().plane(
        "/host:CPU",
        {"pool": [op("while", 0, 100, 1), ("ThunkExecutor::Execute", 1 * US, 90 * US), op("add", 10, 20, 2)]},
    )
    ops = read(tmp_path, space).rows["hlo_ops"]
    assert ops["encloses"].tolist() == [True, False]


def compiled(*, scheduled: bool = True, **instruction: object) -> bytes:
    """A program ``jit_f`` without a mark of its platform, unless the instruction has one."""
    whole = made({"name": "dot", "opcode": "add", "operand_ids": [1, 1], **instruction})
    if scheduled:
        whole.hlo_module.schedule.sequences.add(key=1, value={"instruction_ids": [1, 2]})
    return bytes(whole.SerializeToString())


def test_what_ran_on_the_host_was_compiled_for_the_cpu(tmp_path: Path) -> None:
    programs = {
        "jit_f(7)": compiled(),
        "jit_f(8)": compiled(),  # did not run
        "jit_f(9)": compiled(backend_config=b'{"operation_queue_id":"0"}'),
        "jit_f(10)": compiled(scheduled=False),
    }
    ran = [op("dot", number, number + 1, number, program_id=number) for number in (7, 9, 10)]
    trace = read(tmp_path, SpaceWriter().metadata(**programs).plane("/host:CPU", {"python": ran}))
    assert {one.program_id: one.platform for one in trace.hlo} == {7: "cpu", 8: None, 9: "gpu", 10: None}


def test_what_ran_on_a_device_is_not_taken_for_a_program_of_the_cpu(tmp_path: Path) -> None:
    programs = {"jit_f(3)": compiled()}
    host = {"pool": [op("dot.1", 10, 11, 1, program_id=3)]}
    space = SpaceWriter().metadata(**programs).plane("/device:GPU:0", GPU).plane("/host:CPU", host)
    trace = read(tmp_path, space)
    assert set(trace.rows["hlo_ops"]["program_id"].tolist()) == {3}
    assert [one.platform for one in trace.hlo] == [None]


def test_annotations_steps_and_what_is_the_runtimes(tmp_path: Path) -> None:
    space = SpaceWriter().plane(
        "/host:CPU",
        {
            "python": [
                ("train", 0, 100 * US, {"_r": 1, "step_num": 0}),
                ("my region", 5 * US, 90 * US),
                ("PjitFunction(f)", 10 * US, 50 * US),
                ("PjitFunction(f)", 11 * US, 49 * US),
                ("dce", 12 * US, 13 * US),
                ("$train.py:12 step", 60 * US, 80 * US),
                ("deeper", 61 * US, 62 * US),
                ("ThreadpoolListener::Record", 70 * US, 70 * US),
                ("train", 200 * US, 300 * US, {"_r": 1, "step_num": 1}),
            ],
            "pool": [("my region", 0, 10 * US)],
        },
        process_id=4711,
    )
    trace = read(tmp_path, space)
    slices = trace.rows["slices"]
    kinds = {
        (name, int(start)): SliceKind(int(kind)).name
        for name, start, kind in zip(texts(trace, "slices"), slices["start_ns"], slices["kind"], strict=True)
    }
    assert kinds == {
        ("train", 0): "ANNOTATION",
        ("my region", 5_000): "ANNOTATION",
        ("PjitFunction(f)", 10_000): "OTHER",
        ("dce", 12_000): "OTHER",  # inside a span of the runtime
        ("$train.py:12 step", 60_000): "PYTHON",
        ("deeper", 61_000): "ANNOTATION",
        ("train", 200_000): "ANNOTATION",
        ("my region", 0): "OTHER",  # no thread of a program's
    }
    assert trace.rows["steps"]["number"].tolist() == [0, 1]
    assert texts(trace, "threads", "process") == ["4711", "4711"]
    assert "1 thread pool marks, 1 calls of jitted functions written twice" in trace.source.notes[-1]


def test_a_wait_of_two_marks_is_one_span(tmp_path: Path) -> None:
    wait = "CommonPjRtBuffer::Await"
    space = SpaceWriter().plane(
        "/host:CPU",
        {"python": [(wait, 10 * US, 11 * US, {"_p": 5}), (wait, 90 * US, 91 * US, {"_c": 5}),
                    (wait, 95 * US, 96 * US, {"_p": 6})]},
    )  # fmt: skip
    slices = read(tmp_path, space).rows["slices"]
    assert slices["start_ns"].tolist() == [10_000, 95_000]
    assert slices["end_ns"].tolist() == [91_000, 96_000]


def test_threads_of_one_name_stay_apart(tmp_path: Path) -> None:
    space = SpaceWriter()
    space.plane("/host:CPU", {"python": [("a", 0, US)], "other": [("c", 0, US)]})
    space.plane("/host:CUPTI", {"first": [], "python": [("cuLaunchKernel", 0, US, {"correlation_id": 1})]})
    trace = read(tmp_path, space)
    assert texts(trace, "threads", "thread") == ["python", "other", "python/2"]
    assert trace.rows["calls"]["thread"].tolist() == [2]


def test_times_count_from_the_start_of_the_profile(tmp_path: Path) -> None:
    space = SpaceWriter().plane("/host:CPU", {"python": [("a", 1_500, 4_500), op("x", 1, 2, 1)]}, at_ns=100)
    space.plane("Task Environment", {}, profile_start_time=1_700_000_000_000_000_001)
    trace = read(tmp_path, space)
    slices, ops = trace.rows["slices"], trace.rows["hlo_ops"]
    # 1.5 ns and 4.5 ns, half to even
    assert slices["start_ns"].tolist() == [1_700_000_000_000_000_103, 1_700_000_000_000_001_101]
    assert int(slices["end_ns"][0]) == 1_700_000_000_000_000_105
    assert ops["launch_end_ns"].tolist() == [1_700_000_000_000_002_101]


def test_epoch_times_stay_as_they_are(tmp_path: Path) -> None:
    space = SpaceWriter().plane("/host:CPU", {"python": [("a", 0, US)]}, at_ns=1_700_000_000_000_000_500)
    space.plane("Task Environment", {}, profile_start_time=1_700_000_000_000_000_001)
    assert read(tmp_path, space).rows["slices"]["start_ns"].tolist() == [1_700_000_000_000_000_500]


@given(st.lists(st.integers(-(1 << 60), 1 << 60)))
def test_rounding_is_half_to_even(ps: list[int]) -> None:
    expected = [round(value / 1000) if abs(value) < 1 << 50 else _exact(value) for value in ps]
    assert whole_ns(np.array(ps, np.int64)).tolist() == expected


def _exact(ps: int) -> int:
    whole, rest = divmod(ps, 1000)
    return whole + (rest > 500 or (rest == 500 and whole % 2 == 1))


def test_allocations(tmp_path: Path) -> None:
    stats = {"allocator_name": "GPU_1_bfc", "bytes_allocated": 512, "allocation_bytes": 256, "addr": 4096}
    host = {**stats, "allocator_name": "xla_gpu_host_bfc"}
    space = SpaceWriter().plane(
        "/host:CPU",
        {
            "python": [
                ("work", 0, 9 * US),
                ("MemoryAllocation", US, US, stats),
                ("MemoryDeallocation", 2 * US, 2 * US, host),
            ]
        },
    )
    memory = read(tmp_path, space).rows["memory"]
    assert memory["bytes"].tolist() == [256, -256]
    assert memory["on_device"].tolist() == [True, False]
    assert memory["ordinal"].tolist() == [1, -1]
    assert memory["op"].tolist() == [0, 0]
    assert memory["address"].tolist() == [4096, 4096]


@pytest.mark.parametrize("name", ["x.xplane.pb", "renamed"])
@pytest.mark.parametrize("packed", [False, True])
def test_found_by_content(tmp_path: Path, name: str, packed: bool) -> None:
    content = SpaceWriter().plane("/host:CPU", CALLS).bytes()
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    (trace,) = load_path(tmp_path / name).traces
    assert trace.source.format == "xplane"
    assert len(trace.rows["calls"]) == 4


@pytest.mark.parametrize("head", [b"", b"\x0a", b"\x0a\x05hello", b"{}", b"\x0a\xff\xff\xff\xff", b"\x12\x04/host:CPU"])
def test_others_are_left_to_others(tmp_path: Path, head: bytes) -> None:
    assert not xplane.sniff(tmp_path / "x.pb", head)


def test_the_folder_of_a_profile_gives_a_trace_a_host(tmp_path: Path) -> None:
    session = tmp_path / "logs" / "plugins" / "profile" / "2026_01_02_03_04_05"
    session.mkdir(parents=True)
    for host in ("b", "a"):
        (session / f"{host}.xplane.pb").write_bytes(SpaceWriter().plane("/host:CPU", {host: [(host, 0, US)]}).bytes())
        (session / f"{host}.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))  # the viewer's copy
    for place in (tmp_path / "logs", session):
        loaded = load_path(place)
        assert [texts(trace, "slices") for trace in loaded.traces] == [["a"], ["b"]]
        assert not loaded.skipped
        assert not any("not read" in note for trace in loaded.traces for note in trace.source.notes)


def test_a_folder_of_other_things_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "x.xplane.pb").write_bytes(SpaceWriter().plane("/host:CPU", CALLS).bytes())
    assert not xplane.sniff(tmp_path, b"")
    assert len(load_path(tmp_path).traces) == 1
