"""The XSpace reader on small profiles written by hand."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers.load import load_one, load_path
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.readers.xspace.planes import whole_ns
from perfscope.analyzers.readers.xspace.programs import device_assignment
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, SliceKind, Trace
from tests.hlo.test_proto import made
from tests.readers.wire import SpaceWriter, field, varint
from tests.readers.xspace.profiles import CALLS, GPU, US, op, read, texts


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
    assert not xspace_reader.sniff(tmp_path / "x.pb", head)


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
    assert not xspace_reader.sniff(tmp_path, b"")
    assert len(load_path(tmp_path).traces) == 1


FILES = ("TraceLens__mi300_jax08_gemm", "TraceLens__mi300_jax_conv_08", "xprof__tpu_inference_2")


def tpu(allocated: int, **more: int | float) -> dict[str, int | float]:
    return {"index_on_host": 2, "bytes_allocated": allocated, "bytes_reserved": 50, "peak_bytes_in_use": 9000, **more}


def read_allocator_events(folder: Path, events: list[tuple[str, int, int, dict[str, int | float]]]) -> Trace:
    path = folder / "x.xplane.pb"
    path.write_bytes(SpaceWriter().plane("/host:CPU", {"main": [("work", 0, 9 * US, {}), *events]}).bytes())
    trace = xspace_reader.read(path)
    assert isinstance(trace, Trace)
    trace.check()
    return trace


def test_a_tpu_frees_by_address(tmp_path: Path) -> None:
    size = {"allocation_bytes": 256, "requested_bytes": 200}
    trace = read_allocator_events(
        tmp_path,
        [
            ("MemoryAllocation", US, US, tpu(1256, addr=4096, **size)),
            ("MemoryDeallocation", 2 * US, 2 * US, tpu(1000, addr=4096)),  # its allocation has its size
            ("MemoryDeallocation", 3 * US, 3 * US, tpu(400, addr=8192)),  # allocated before: the total fell by 600
        ],
    )
    memory = trace.rows["memory"]
    assert memory["bytes"].tolist() == [256, -256, -600]
    assert memory["action"].tolist() == [0, 1, 1]
    assert memory["on_device"].tolist() == [True] * 3
    assert memory["ordinal"].tolist() == [2] * 3
    assert memory["requested_bytes"].tolist() == [200, MISSING, MISSING]
    assert memory["stack_bytes"].tolist() == [50] * 3
    assert memory["peak_bytes"].tolist() == [9000] * 3
    assert not trace.source.unplaced


def test_a_free_whose_size_nothing_tells_is_counted(tmp_path: Path) -> None:
    trace = read_allocator_events(tmp_path, [("MemoryDeallocation", US, US, tpu(1000, addr=4096))])
    assert len(trace.rows["memory"]) == 0
    assert dict(trace.source.unplaced) == {"allocator events of unknown size": 1}


def test_what_says_nothing_of_the_allocator_says_no_fragmentation(tmp_path: Path) -> None:
    bare: dict[str, int | float] = {"allocation_bytes": 256, "addr": 4096}
    whole: dict[str, int | float] = {**bare, "peak_bytes_in_use": 256}
    trace = read_allocator_events(
        tmp_path, [("MemoryAllocation", US, US, bare), ("MemoryAllocation", 2 * US, 2 * US, whole)]
    )
    fragmentation = trace.rows["memory"]["fragmentation"]
    assert np.isnan(fragmentation[0])
    assert fragmentation[1] == 0.0


def allocators(path: Path) -> dict[tuple[bool, int], tuple[int, int, float]]:
    """By memory: most in use in the recording, most ever, and the fragmentation at the first."""
    memory = load_one(path).rows["memory"]
    found = {}
    for on_device, ordinal in set(zip(memory["on_device"].tolist(), memory["ordinal"].tolist(), strict=True)):
        rows = np.flatnonzero((memory["on_device"] == on_device) & (memory["ordinal"] == ordinal))
        in_use = memory["allocated_bytes"][rows] + memory["stack_bytes"][rows]
        at = rows[int(np.argmax(in_use))]
        found[on_device, ordinal] = (
            int(in_use.max()),
            int(memory["peak_bytes"][rows].max()),
            float(memory["fragmentation"][at]),
        )
    return found


XPROF = {
    "TraceLens__mi300_jax_conv_08": {
        (True, 0): (1_730_171_904, 1_730_171_904, 0.419346),
        **{(True, ordinal): (1_732_169_984, 1_732_169_984, 0.391988) for ordinal in range(1, 8)},
    },
    "xprof__tpu_inference_2": {
        (True, 0): (21_492_569_216, 16_106_341_504, 0.0),
        (True, 1): (21_492_671_104, 10_737_555_584, 0.109555),
        (True, 2): (21_492_671_104, 10_737_555_584, 0.109555),
        (True, 3): (21_492_569_216, 10_737_555_584, 0.0),
    },
}
"""``peakStats`` (stack and heap), ``peakBytesUsageLifetime`` and fragmentation of xprof 2.24.2's memory profile."""


@pytest.mark.corpus
@pytest.mark.parametrize("name", XPROF)
def test_allocators_of_real_profiles_are_those_of_xprof(corpus: Path, name: str) -> None:
    assert allocators(corpus / "xplane" / f"{name}.xplane.pb.gz") == XPROF[name]


@pytest.mark.corpus
@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_xprof_says_so_today(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", "3")
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    path = tmp_path / f"{name}.xplane.pb"
    path.write_bytes(gzip.decompress((corpus / "xplane" / f"{name}.xplane.pb.gz").read_bytes()))
    data, _ = convert.xspace_to_tool_data([str(path)], "memory_profile", {"use_saved_result": False})
    ours = allocators(path)
    told = json.loads(data)["memoryProfilePerAllocator"]
    checked = 0
    for allocator, profile in told.items():
        summary = profile["profileSummary"]
        stats = summary["peakStats"]
        key = (False, MISSING) if "host" in allocator else (True, int("".join(filter(str.isdigit, allocator))))
        in_use = int(stats["stackReservedBytes"]) + int(stats["heapAllocatedBytes"])
        assert ours[key] == (in_use, int(summary["peakBytesUsageLifetime"]), stats["fragmentation"])
        checked += 1
    assert checked == len(ours)


@pytest.mark.corpus
def test_every_block_of_a_real_recording_is_freed_with_its_size(corpus: Path) -> None:
    memory = load_one(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz").rows["memory"]
    for ordinal in range(4):
        rows = np.flatnonzero(memory["ordinal"] == ordinal)
        total, size = memory["allocated_bytes"][rows], memory["bytes"][rows]
        # the allocator's total changes by exactly each event's bytes
        assert (np.diff(total) == size[1:]).mean() > 0.99


CPU_JOB = ((0, 1, 2048, 2049),)
"""One replica of four partitions, on two devices of each of two processes."""


def assigned(replicas: Sequence[Sequence[int]]) -> bytes:
    """A program whose device of a replica and partition is ``replicas[replica][partition]``."""
    partitions = zip(*replicas, strict=True)
    devices = b"".join(field(3, field(1, b"".join(map(varint, ids)))) for ids in partitions)
    # fields of a message that come twice are one message
    return bytes(made().SerializeToString()) + field(1, field(15, devices))


def on_cpu(folder: Path, replicas: Sequence[Sequence[int]], ordinals: Sequence[int]) -> Trace:
    ran = [op("fusion", 10 * at, 10 * at + 5, at, device_ordinal=number) for at, number in enumerate(ordinals, start=1)]
    space = SpaceWriter().metadata(**{"jit_f(7)": assigned(replicas)}).plane("/host:CPU", {"pool": ran})
    return read(folder, space)


def on_gpu(folder: Path, replicas: Sequence[Sequence[int]], launches: dict[str, list[tuple[Any, ...]]]) -> Trace:
    space = SpaceWriter().metadata(**{"jit_f(7)": assigned(replicas)})
    for device in range(2):
        stats = {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 7, "run_id": 1}
        space.plane(f"/device:GPU:{device}", {"Stream #13(Kernel)": [("gemm", 10 * US, 20 * US, stats)]})
    return read(folder, space.plane("/host:CPU", launches))


def launches_from(first: int) -> dict[str, list[tuple[Any, ...]]]:
    """Launches of a process of two devices, the first of which has the global id ``first``."""
    return {
        "python": [("Execute (jit_f)", 0, US, {"num_addressable_devices": 2})],
        "a": [("[0] Execute (jit_f)", 0, US, {"global_device_id": first})],
        "b": [("[1] Execute (jit_f)", 0, US, {"global_device_id": first + 1})],
    }


def identity(trace: Trace) -> tuple[list[int], int | None, int | None]:
    return trace.rows["hlo_ops"]["place"].tolist(), trace.source.rank, trace.source.world_size


@pytest.mark.parametrize(
    ("replicas", "ordinals", "expected"),
    [
        (CPU_JOB, (0, 1), ([0, 1], 0, 2)),
        (CPU_JOB, (2048, 2049), ([2, 3], 1, 2)),
        (((2049, 0, 1, 2048),), (2048, 2049), ([3, 0], 1, 2)),  # a mesh in another order
        (((0, 1), (2048, 2049)), (2048, 2049), ([2, 3], 1, 2)),  # two replicas of two partitions
        (((0,), (1,), (131072,), (131073,)), (131072, 131073), ([2, 3], 1, 2)),  # as jax 0.6 and 0.7 number them
        (((0, 1, 2, 3),), (0, 1, 2, 3), ([0, 1, 2, 3], None, None)),  # one process
        (CPU_JOB, (5, 6), ([-1, -1], None, None)),
        (CPU_JOB, (0, 2048), ([0, 2], None, None)),  # devices of two processes in one recording
    ],
)
def test_devices_of_the_cpu_backend(
    tmp_path: Path, replicas: Sequence[Sequence[int]], ordinals: Sequence[int], expected: tuple[Any, ...]
) -> None:
    assert identity(on_cpu(tmp_path, replicas, ordinals)) == expected


def test_devices_of_a_plane_are_those_that_launches_tell(tmp_path: Path) -> None:
    assert identity(on_gpu(tmp_path, ((0, 1, 2, 3),), launches_from(2))) == ([2, 3], 1, 2)
    assert identity(on_gpu(tmp_path, ((3, 2, 1, 0),), launches_from(2))) == ([1, 0], 1, 2)
    assert identity(on_gpu(tmp_path, ((0, 1),), launches_from(0))) == ([0, 1], None, None)


def test_devices_of_a_plane_are_not_guessed(tmp_path: Path) -> None:
    host = {"python": [("work", 0, US)]}
    assert identity(on_gpu(tmp_path, ((0, 1, 2, 3),), host)) == ([-1, -1], None, None)
    contradicting = launches_from(2) | {"c": [("[0] Execute (jit_f)", 0, US, {"global_device_id": 0})]}
    assert identity(on_gpu(tmp_path, ((0, 1, 2, 3),), contradicting)) == ([-1, 3], 1, 2)


def test_an_assignment_that_is_not_sound_is_none() -> None:
    assert device_assignment(assigned(((0, 1), (2, 3))), "m.pb") == (0, 1, 2, 3)
    assert device_assignment(assigned(((0, 0),)), "m.pb") == ()
    assert device_assignment(bytes(made().SerializeToString()), "m.pb") == ()
    uneven = field(1, field(15, field(3, field(1, 0)) + field(3, field(1, 1) + field(1, 2))))
    assert device_assignment(uneven, "m.pb") == ()
    unpacked = field(1, field(15, field(3, field(1, 4)) + field(3, field(1, 5))))
    assert device_assignment(unpacked, "m.pb") == (4, 5)


def test_an_assignment_that_is_cut_off_is_refused() -> None:
    with pytest.raises(DataError, match=r"^m\.pb: cut off or corrupt"):
        device_assignment(assigned(((0, 1),))[:-1], "m.pb")
