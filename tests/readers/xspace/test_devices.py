"""Planes of accelerators: streams of a GPU, lines of a TPU core, the memory of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.programs import programs
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.time.device_time import device_times
from perfscope.model.trace import CopyKind, HostMemory
from perfscope.model.trace.tables import MemoryCategory
from tests.readers.wire import SpaceWriter
from tests.readers.xspace.profiles import CALLS, GPU, SHAPE, TPU_OPS, US, read, texts


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


def test_only_streams_of_a_gpu_are_its_work(tmp_path: Path) -> None:
    """Lines that TensorFlow derives repeat the streams; its steps are the program's."""
    derived = {
        "TensorFlow Name Scope": [("model", 10 * US, 40 * US)],
        "TensorFlow Ops": [("MatMul", 10 * US, 20 * US), ("Add", 15 * US, 40 * US)],
        "Steps": [("7", 10 * US, 40 * US), ("8", 40 * US, 60 * US)],
        "Not Known Yet": [("x", 0, 90 * US)],
    }
    trace = read(tmp_path, SpaceWriter().plane("/device:GPU:0", {**GPU, **derived}).plane("/host:CPU", CALLS))
    assert texts(trace, "kernels") == ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    (device,) = trace.fact(device_times)
    assert (device.busy_ns, device.span_ns) == (30_000, 30_000)
    steps = trace.rows["steps"]
    assert steps["number"].tolist() == [7, 8]
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [30_000, 20_000]
    assert trace.source.unplaced == {"line Not Known Yet of an accelerator": 1}


def test_runs_of_a_tpu_program_are_those_of_its_modules_line(tmp_path: Path) -> None:
    """Work of an asynchronous copy parallel to the core is neither a run of an instruction nor its time."""
    module = "jit_f(7)"
    copy = f"%copy-start.1 = ({SHAPE}}}, {SHAPE}S(5)}}, u32[]{{:S(2)}}) copy-start({SHAPE}S(5)}} %p)"
    done = f"%copy-done.1 = {SHAPE}}} copy-done(%copy-start.1)"
    space = SpaceWriter()
    for device in range(2):
        lines = {
            "XLA Modules": [(module, 0, 50 * US, {"run_id": 80 + device}),
                            (module, 60 * US, 110 * US, {"run_id": 90 + device})],
            "XLA Ops": [
                event for start in (0, 60)
                for event in (
                    (copy, start * US, (start + 1) * US), ("%fusion.2 = f32[8]{0} fusion(%p)", (start + 1) * US,
                     (start + 30) * US), (done, (start + 30) * US, (start + 50) * US),
                )
            ],
        }  # fmt: skip
        if not device:  # a profile has these of one device only
            lines["Async XLA Ops"] = [(copy, 0, 50 * US), (copy, 60 * US, 110 * US)]
        space.plane(f"/device:TPU:{device}", lines, device_type_string="TPU v6 Lite")
    trace = read(tmp_path, space.plane("/host:CPU", CALLS))
    (program,) = trace.fact(programs)
    assert program.execution is not None
    assert (program.execution.count, program.execution.devices, program.execution.counted) == (4, 2, True)
    assert program.execution.instructions_ns == program.execution.span_ns == 4 * 50_000
    calls = {row.instruction: (row.calls, row.total_ns) for row in trace.fact(hlo_time).instructions}
    assert calls == {"copy-start.1": (4, 4_000), "fusion.2": (4, 116_000), "copy-done.1": (4, 80_000)}
    copies = trace.rows["copies"]
    from_host = copies["kind"] == CopyKind.HOST_TO_DEVICE
    assert from_host.sum() == 6
    assert set(copies["host_memory"][from_host].tolist()) == {HostMemory.PINNED}


def test_memory_of_xla_has_the_stacks_and_the_limit_of_its_allocator(tmp_path: Path) -> None:
    def event(name: str, at: int, size: int, allocated: int, stack: int, address: int) -> tuple[object, ...]:
        totals = {"bytes_allocated": allocated, "bytes_reserved": stack, "bytes_available": 1000 - allocated - stack}
        return name, at * US, at * US, {"addr": address, "index_on_host": 0, "allocation_bytes": size,
                                        "requested_bytes": size, **totals}  # fmt: skip

    made = [
        event("MemoryAllocation", 1, 100, 100, 0, 64),
        event("MemoryAllocation", 2, 100, 200, 500, 65),
        event("MemoryDeallocation", 3, 100, 100, 500, 64),
        event("MemoryAllocation", 4, 150, 250, 0, 66),
    ]
    space = SpaceWriter().plane("/device:TPU:0", {"XLA Ops": TPU_OPS}, memory_size=5000)
    trace = read(tmp_path, space.plane("/host:CPU", {"allocator": made}))
    (timeline,) = trace.fact(memory_timelines)
    assert timeline.peak() == (2_000, 700)
    assert timeline.capacity_bytes == 1000
    (stack,) = np.flatnonzero(timeline.blocks["bytes"] == 500)
    assert timeline.blocks["category"][stack] == MemoryCategory.TEMPORARY
    assert (timeline.blocks["start"][stack], timeline.blocks["end"][stack]) == (2_000, 4_000)


def test_launches_without_waits_do_not_show_what_waited(tmp_path: Path) -> None:
    calls = {line: [event for event in events if "Synchronize" not in event[0]] for line, events in CALLS.items()}
    trace = read(tmp_path, SpaceWriter().plane("/device:GPU:0", GPU).plane("/host:CPU", calls))
    assert "runtime_calls" in trace.recorded
    assert "waiting_calls" not in trace.recorded


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
