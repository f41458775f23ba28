"""The XSpace reader on small profiles written by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.facts.device_time import device_times
from perfscope.analyzers.load import load_path
from perfscope.analyzers.readers import xplane
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.planes import whole_ns
from perfscope.analyzers.trace import CopyKind, HostMemory, SliceKind, Trace
from tests.analyzers.readers.wire import SpaceWriter

US = 1_000_000
"""Picoseconds of a microsecond."""


def read(folder: Path, space: SpaceWriter, *, hosts: bool = True) -> Trace:
    path = folder / "host.xplane.pb"
    path.write_bytes(space.bytes(hosts=hosts))
    trace = xplane.read(path)
    assert isinstance(trace, Trace)
    trace.check()
    return trace


def texts(trace: Trace, table: str, column: str = "name") -> list[str]:
    return [trace.text(code) for code in trace.rows[table][column].tolist()]


def op(name: str, start: float, end: float, mark: int, **more: Any) -> tuple[Any, ...]:
    stats = {"hlo_op": name, "hlo_module": "jit_f", "program_id": 7, "run_id": -5, "device_ordinal": 0, "_p": mark}
    return name, int(start * US), int(end * US), {**stats, **more}


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


def test_an_instruction_around_others_says_so(tmp_path: Path) -> None:
    space = SpaceWriter().plane(
        "/host:CPU",
        {"pool": [op("while", 0, 100, 1), ("ThunkExecutor::Execute", 1 * US, 90 * US), op("add", 10, 20, 2)]},
    )
    ops = read(tmp_path, space).rows["hlo_ops"]
    assert ops["encloses"].tolist() == [True, False]


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


GPU = {
    "Stream #13(Kernel,MemcpyH2D)": [
        (
            "gemm", 10 * US, 20 * US,
            {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 3, "correlation_id": 1,
             "kernel_details": "regs:64 static_shared:0 dynamic_shared:0 grid:4,2,1 block:32,4,1 occ_pct:37.5"},
        ),
        (
            "MemcpyH2D", 20 * US, 25 * US,
            {"correlation_id": 2, "memcpy_details": "kind_src:Pageable kind_dst:Device size:4096 dest:0 async:1"},
        ),
        ("Memset", 25 * US, 26 * US, {"memset_details": "kind:Device num_bytes:64 async:1"}),
    ],
    "Stream #14(Kernel)": [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 15 * US, 40 * US, {"cuda_graph_id": 9, "correlation_id": 3}),
    ],
    "XLA Ops": [("dot.1", 10 * US, 20 * US)],
    "_counters_": [("power_mw", 5 * US, 5 * US, {"power_mw": 300.5})],
}  # fmt: skip
CALLS = {
    "Host Threads/9": [
        ("cuLaunchKernel", 1 * US, 2 * US, {"correlation_id": 1}),
        ("cuMemcpyHtoDAsync_v2", 3 * US, 4 * US, {"correlation_id": 2}),
        ("cuGraphLaunch (CudaGraph:9)", 5 * US, 6 * US, {"correlation_id": 3}),
        ("cuStreamSynchronize", 7 * US, 50 * US, {"correlation_id": 4}),
    ],
    "python": [("work", 0, 60 * US)],
}


def test_streams_of_a_gpu(tmp_path: Path) -> None:
    space = SpaceWriter().plane(
        "/device:GPU:3",
        GPU,
        device_vendor="Nvidia",
        gpu_device_name="NVIDIA H100",
        core_count=132,
        memory_size=80 << 30,
    )
    space.plane("/device:GPU:4", {}).plane("/host:CPU", CALLS)
    trace = read(tmp_path, space)
    assert trace.frame("devices").to_dict("records") == [
        {"ordinal": 3, "name": "NVIDIA H100", "cores": 132, "memory_bytes": 80 << 30}
    ]
    kernels, copies = trace.rows["kernels"], trace.rows["copies"]
    assert texts(trace, "kernels") == ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    assert kernels["stream"].tolist() == [13, 14]
    assert kernels["communication"].tolist() == [False, True]
    assert [texts(trace, "calls")[call] for call in kernels["call"]] == [
        "cuLaunchKernel",
        "cuGraphLaunch (CudaGraph:9)",
    ]
    assert (kernels["blocks"][0], kernels["threads_per_block"][0], kernels["occupancy"][0]) == (8, 128, 37.5)
    assert copies["kind"].tolist() == [CopyKind.HOST_TO_DEVICE, CopyKind.MEMSET]
    assert copies["host_memory"].tolist() == [HostMemory.PAGEABLE, HostMemory.NONE]
    assert copies["bytes"].tolist() == [4096, 64]
    assert trace.rows["calls"]["kind"].tolist() == [0, 2, 1, 4]
    assert trace.rows["calls"]["parent"].tolist() == [-1] * 4
    assert texts(trace, "hlo_ops") == ["dot.1"]
    assert trace.rows["hlo_ops"]["ordinal"].tolist() == [3]
    assert trace.rows["counters"]["value"].tolist() == [300.5]
    (device,) = trace.fact(device_times)
    assert (device.busy_ns, device.exposed_communication_ns, device.idle_ns) == (30_000, 20_000, 0)
    assert trace.recorded >= {"device_work", "launch_links", "runtime_calls", "waiting_calls"}
    assert any(
        "1 kernels and copies ran inside command buffers (CUDA graphs), 1 of them" in n for n in trace.source.notes
    )
    assert any("1 events that repeat others for viewers" in note for note in trace.source.notes)


def test_launches_without_waits_do_not_show_what_waited(tmp_path: Path) -> None:
    calls = {line: [event for event in events if "Synchronize" not in event[0]] for line, events in CALLS.items()}
    trace = read(tmp_path, SpaceWriter().plane("/device:GPU:0", GPU).plane("/host:CPU", calls))
    assert "runtime_calls" in trace.recorded
    assert "waiting_calls" not in trace.recorded


SHAPE = "f32[8]{0:T(8)"
TPU_OPS = [
    ("%while.1 = (s32[]) while(%tuple), body=%b", 0, 100 * US),
    ("%fusion.2 = f32[8]{0} fusion(%copy-done.1)", 10 * US, 30 * US),
    (f"%copy-done.1 = {SHAPE}}} copy-done(({SHAPE}}}, {SHAPE}S(5)}}, u32[]{{:S(2)}}) %copy-start.1)", 30 * US, 45 * US),
    ("%all-reduce.3 = f32[8]{0} all-reduce(%fusion.2)", 50 * US, 90 * US),
    ("%add.9 = f32[8]{0} add(%a, %b)", 100 * US, 100 * US + 78),
    ("%mul.9 = f32[8]{0} multiply(%a, %b)", 100 * US + 78, 110 * US),
]


def test_cores_of_a_tpu(tmp_path: Path) -> None:
    space = SpaceWriter().plane(
        "/device:TPU:1",
        {
            "XLA Modules": [("jit_f(18446744073709551610)", 0, 110 * US)],
            "XLA Ops": TPU_OPS,
            "Async XLA Ops": [
                (f"%copy-start.1 = ({SHAPE}}}, {SHAPE}S(5)}}, u32[]{{:S(2)}}) copy-start({SHAPE}S(5)}} %p)", 0, 45 * US)
            ],
            "Steps": [("4", 0, 100 * US), ("5", 100 * US, 110 * US)],
            "XLA TraceMe": [("barrier-cores", 0, US)],
            "Something New": [("x", 0, US)],
        },
        device_type_string="TPU v5 Lite",
    )
    trace = read(tmp_path, space)
    assert texts(trace, "kernels") == ["fusion.2", "all-reduce.3", "add.9", "mul.9"]  # no loop, no wait
    assert trace.rows["kernels"]["communication"].tolist() == [False, True, False, False]
    assert texts(trace, "copies") == ["copy-done.1", "copy-start.1"]
    assert trace.rows["copies"]["kind"].tolist() == [CopyKind.HOST_TO_DEVICE] * 2
    ops = trace.rows["hlo_ops"]
    outer = np.flatnonzero(ops["encloses"])
    assert [trace.text(ops["name"][row]) for row in outer] == ["while.1"]
    assert ops["kernel"][outer].tolist() == [-1]
    assert trace.rows["steps"]["number"].tolist() == [4, 5]
    assert trace.source.unplaced == {"line Something New of an accelerator": 1}
    (device,) = trace.fact(device_times)
    # 0-10 copy alone, 10-30 computes, 30-45 waits for the copy, 45-50 idle, 50-90 collective, 90-100 idle, 100-110
    assert (device.compute_ns, device.exposed_copy_ns, device.exposed_communication_ns) == (30_000, 25_000, 40_000)
    assert (device.idle_ns, device.span_ns, device.name) == (15_000, 110_000, "TPU v5 Lite")


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


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("%s = (f32[4]{0:S(5)}, f32[4]{0}, u32[]{:S(2)}) copy-start(f32[4]{0} %x)", CopyKind.DEVICE_TO_HOST),
        ("%s = (f32[4]{0}, f32[4]{0:S(5)}, u32[]{:S(2)}) copy-start(f32[4]{0:S(5)} %x)", CopyKind.HOST_TO_DEVICE),
        ("%s = (f32[4]{0:S(1)}, f32[4]{0}, u32[]{:S(2)}) copy-start(f32[4]{0} %x)", CopyKind.DEVICE_TO_DEVICE),
        ("copy-start", CopyKind.UNKNOWN),
    ],
)
def test_direction_of_a_copy_between_memory_spaces(event: str, kind: CopyKind) -> None:
    assert names.copied_shape_kind(event) == kind


@pytest.mark.parametrize(
    ("instruction", "operation"),
    [
        ("all-reduce.3", "all_reduce"),
        ("all-gather-start", "all_gather"),
        ("collective-permute-done.12", "collective_permute"),
        ("ragged-all-to-all", "ragged_all_to_all"),
        ("send.1", "send"),
        ("all-reduce_fusion", "all_reduce"),
        ("sender", None),
        ("fusion.3", None),
    ],
)
def test_collectives_by_the_name_of_the_instruction(instruction: str, operation: str | None) -> None:
    assert names.collective(instruction) == operation
