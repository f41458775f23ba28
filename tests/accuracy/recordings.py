"""GPU recordings of one rank that are cases themselves: small Kineto traces in the format of PyTorch's profiler.

All times are made up, in microseconds. The docstring of each function describes its defect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEP_US = 10_000.0
BEGIN_US = 1_000_000.0
NVIDIA = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84_977_057_792, "computeMajor": 9,
          "computeMinor": 0, "numSms": 132, "warpSize": 32}  # fmt: skip
AMD = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 205_520_896_000, "computeMajor": 9,
       "computeMinor": 4, "numSms": 304, "warpSize": 64}  # fmt: skip


@dataclass
class Kineto:
    """Collects events; ``save`` writes them."""

    device: dict[str, Any] = field(default_factory=lambda: NVIDIA)
    rank: int | None = None
    world: int = 1
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def event(self, category: str, name: str, start: float, length: float, **more: Any) -> None:
        """A complete event of the main thread."""
        row = {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": 100, "ts": start, "dur": length}
        self.events.append(row | {"args": more})

    def python(self, where: str, start: float, length: float) -> None:
        """A Python frame, ``train.py(12): reduce``."""
        self.event("python_function", where, start, length)

    def step(self, number: int, start: float, length: float) -> None:
        """A mark of the profiler's step."""
        self.event("user_annotation", f"ProfilerStep#{number}", start, length)

    def launched(
        self, op: str, launch: float, kernel: str, start: float, length: float, *, stream: int = 7, call: str = "",
        category: str = "kernel", cost: float = 6.0, op_cost: float = 12.0, **more: Any,
    ) -> None:  # fmt: skip
        """An op, the call in it that launches, and the device work."""
        self.correlation += 1
        shapes = {"External id": self.correlation, "Sequence number": self.correlation}
        self.event("cpu_op", op, launch, op_cost, **shapes)
        name = call or ("hipLaunchKernel" if self.device is AMD else "cudaLaunchKernel")
        self.event("cuda_runtime", name, launch + 3, cost, correlation=self.correlation, cbid=211)
        self.on_device(kernel, start, length, stream=stream, category=category, **more)

    def on_device(
        self, name: str, start: float, length: float, *, stream: int = 7, category: str = "kernel", **more: Any
    ) -> None:
        """Device work of the last launch."""
        row = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}
        shape = {} if category != "kernel" else {"grid": [132, 1, 1], "block": [256, 1, 1]}
        of = {"device": 0, "stream": stream, "correlation": self.correlation, "External id": self.correlation}
        self.events.append(row | {"args": of | shape | more})

    def wait(self, name: str, start: float, length: float) -> None:
        """A call that blocks."""
        self.correlation += 1
        self.event("cuda_runtime", name, start, length, correlation=self.correlation, cbid=131)

    def save(self, path: Path) -> Path:
        """Write the trace."""
        document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [self.device], "record_shapes": 0}
        if self.rank is not None:
            document["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        path.write_text(json.dumps(document | {"traceEvents": self.events}), encoding="utf-8")
        return path


def steps(trace: Kineto, count: int = 4, length: float = STEP_US) -> list[float]:
    """Mark steps and return where each begins."""
    starts = [BEGIN_US + number * length for number in range(count)]
    for number, start in enumerate(starts):
        trace.step(number + 5, start, length)
    return starts


def gemms(trace: Kineto, host: float, device: float, count: int, each: float, op: str = "aten::mm") -> float:
    """``count`` products, launched 20 us apart, one after the other on the device; where the last ends."""
    for number in range(count):
        launch = host + 20 * number
        begin = max(device, launch + 12)
        trace.launched(op, launch, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", begin, each)
        device = begin + each + 1
    return device


def passes(trace: Kineto, host: float, device: float, count: int, each: float) -> float:
    """A third of the products in the forward pass, the others in the backward pass; where the last ends."""
    forward = count // 3
    device = gemms(trace, host, device, forward, each)
    begin, node = host + 20 * forward, "autograd::engine::evaluate_function: MmBackward0"
    trace.event("cpu_op", node, begin - 1, 20 * (count - forward))
    return gemms(trace, begin, device, count - forward, each)


def overlapping_kernels(folder: Path) -> Path:
    """One stream, but every sixteenth kernel lasts as long as twenty others: a counter that overflowed."""
    trace = Kineto(device=AMD)
    for start in steps(trace):
        at = start + 100
        for number in range(36):
            trace.launched(
                "aten::mm", at, "Cijk_Ailk_Bljk_BBS_MT128x128x64", at + 30, 5_500.0 if number % 16 == 9 else 250
            )
            at += 262
    return trace.save(folder / "overlapping_kernels.json")


def burst_after_the_steps(folder: Path) -> Path:
    """Graph launches in the steps; their kernels are all stamped after the last step."""
    trace = Kineto(device=AMD)
    last = 0.0
    launches = []
    for start in steps(trace, count=5, length=4_000):
        trace.correlation += 1
        trace.event("cuda_runtime", "hipGraphLaunch", start + 80, 250, correlation=trace.correlation, cbid=311)
        launches.append(trace.correlation)
        last = start + 4_000
    at = last + 1_500
    for correlation in launches:
        trace.correlation = correlation
        for number in range(50):
            trace.on_device(f"fused_moe_kernel_{number % 4}", at, 70, stream=2)
            at += 76
    return trace.save(folder / "burst_after_the_steps.json")


def host_runs_ahead(folder: Path) -> Path:
    """The host marks steps of 1.2 ms, the device needs 6 ms for the work of each."""
    trace = Kineto()
    device = BEGIN_US + 200
    for start in steps(trace, count=6, length=1_200):
        device = gemms(trace, start + 10, device, 24, 250)
    return trace.save(folder / "host_runs_ahead.json")


def no_device_activity(folder: Path) -> Path:
    """CPU ops and launches, and not one kernel: the profiler was not allowed to record the device."""
    trace = Kineto()
    for start in steps(trace):
        for number in range(12):
            trace.correlation += 1
            at = start + 400 * number
            trace.event("cpu_op", "aten::linear", at, 120, **{"External id": trace.correlation})
            trace.event("cuda_runtime", "cudaLaunchKernel", at + 40, 9, correlation=trace.correlation, cbid=211)
        trace.wait("cudaDeviceSynchronize", start + 5_000, 4_900)
    return trace.save(folder / "no_device_activity.json")


def badly_joined(folder: Path) -> Path:
    """A second writer left the tail of its list after the end of the first."""
    rows = [
        {"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": str(1.7e15 + 100 * n), "dur": 40.0, "cat": "cpu_op"}
        for n in range(60)
    ]
    text = json.dumps(rows)
    path = folder / "badly_joined.json"
    path.write_text(text + text[3_000:], encoding="utf-8")
    return path


def reads_between_layers(folder: Path) -> Path:
    """After each layer of a mixture of experts the host waits for the token counts."""
    trace = Kineto()
    for start in steps(trace):
        at = start + 20
        for _ in range(12):
            end = gemms(trace, at, at + 12, 3, 150)
            trace.launched("aten::nonzero", at + 70, "DeviceCompactInitKernel", end, 5)
            trace.wait("cudaStreamSynchronize", at + 90, end + 8 - (at + 90))
            at = end + 320
    return trace.save(folder / "reads_between_layers.json")


def loader_without_workers(folder: Path) -> Path:
    """Half of each step the host is in the next() of a loader that loads in its own process."""
    trace = Kineto()
    for start in steps(trace):
        trace.event(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start + 5, 5_600
        )  # fmt: skip
        gemms(trace, start + 5_650, start + 5_662, 16, 250)
    return trace.save(folder / "loader_without_workers.json")


def pageable_copies(folder: Path) -> Path:
    """Each batch comes from pageable memory; nothing runs during the copy."""
    trace = Kineto()
    for start in steps(trace):
        trace.launched(
            "aten::copy_", start + 20, "Memcpy HtoD (Pageable -> Device)", start + 40, 4_200, call="cudaMemcpyAsync",
            category="gpu_memcpy", cost=4_230, op_cost=4_250, bytes=26_000_000,
        )  # fmt: skip
        gemms(trace, start + 4_300, start + 4_312, 22, 250)
    return trace.save(folder / "pageable_copies.json")


def launch_bound_decode(folder: Path) -> Path:
    """Decoding: kernels of 3 us that take 9 us to launch."""
    trace = Kineto()
    for start in steps(trace, length=6_000):
        for number in range(580):
            at = start + 10 * number
            trace.launched(
                "aten::addmm", at, "gemvx::kernel<int, int, float, float>", at + 11, 3, op_cost=9.5, cost=5
            )  # fmt: skip
    return trace.save(folder / "launch_bound_decode.json")


def compiler_in_the_step(folder: Path) -> Path:
    """Triton compiles in the second of four steps."""
    trace = Kineto()
    for number, start in enumerate(steps(trace)):
        at = start + 10
        if number == 1:
            trace.event("user_annotation", "CompiledFxGraph compile_fx_inner (dynamo_timed)", at, 7_500)
            trace.event("user_annotation", "triton_compile: triton_poi_fused_add_mul_0", at + 100, 7_000)
            at += 7_520
        gemms(trace, at, at + 12, 9 if number == 1 else 38, 250)
    return trace.save(folder / "compiler_in_the_step.json")


def exposed_all_reduce(folder: Path) -> Path:
    """The gradients are reduced after the backward pass, in one piece."""
    trace = Kineto(rank=0, world=8)
    for start in steps(trace):
        end = gemms(trace, start + 10, start + 22, 24, 250)
        trace.launched(
            "c10d::allreduce_", start + 600, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)", end,
            3_600, stream=20, **{"Collective name": "allreduce", "Group size": 8, "dtype": "BFloat16",
            "In msg nelems": 60_000_000, "Out msg nelems": 60_000_000, "Process Group Name": "0",
            "Process Group Description": "default_pg", "Process Group Ranks": list(range(8))},
        )  # fmt: skip
    return trace.save(folder / "exposed_all_reduce.json")


def deep_ep_dispatch(folder: Path) -> Path:
    """Expert parallelism with DeepEP: its kernels are communication, whatever they are called."""
    trace = Kineto(rank=0, world=8)
    for start in steps(trace):
        at = start + 10
        for layer in range(4):
            end = gemms(trace, at, at + 12, 4, 250)
            name = ("dispatch", "combine")[layer % 2]
            trace.launched(
                f"DeepEP::{name}", at + 100, f"void deep_ep::intranode::{name}<8, 768, 8192>(int4*, float*, int*)", end,
                1_300,
            )  # fmt: skip
            at = end + 1_310
    return trace.save(folder / "deep_ep_dispatch.json")


def all_to_all_of_experts(folder: Path) -> Path:
    """NCCL names the kernel of an all-to-all SendRecv; the op that launched it has the right name."""
    trace = Kineto(rank=0, world=8)
    for start in steps(trace):
        at = start + 10
        for _ in range(4):
            end = gemms(trace, at, at + 12, 5, 250)
            trace.launched(
                "c10d::alltoall_base_", at + 110, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)", end, 1_100,
                stream=20, **{"Collective name": "all_to_all", "Group size": 8, "dtype": "BFloat16",
                "In msg nelems": 8_000_000, "Out msg nelems": 8_000_000, "Process Group Name": "1",
                "Process Group Description": "ep", "Process Group Ranks": list(range(8))},
            )  # fmt: skip
            at = end + 1_110
    return trace.save(folder / "all_to_all_of_experts.json")


def busy_gpu(folder: Path) -> Path:
    """A healthy step: the device works without a pause."""
    trace = Kineto()
    device = BEGIN_US + 12
    for start in steps(trace):
        device = gemms(trace, start + 5, device, 39, 255)
    return trace.save(folder / "busy_gpu.json")


def python_between_launches(folder: Path) -> Path:
    """Kernels of 30 us, and 55 us of dispatch from launch to launch: neither small kernels nor long gaps."""
    trace = Kineto()
    for start in steps(trace):
        for number in range(180):
            at = start + 55 * number
            trace.launched("aten::addmm", at, "ampere_bf16_s16816gemm_bf16_64x64", at + 12, 30, op_cost=52, cost=8)
    return trace.save(folder / "python_between_launches.json")


def offload_without_overlap(folder: Path) -> Path:
    """Activations go to pinned memory and come back on the stream that computes."""
    trace = Kineto()
    for start in steps(trace):
        host, end = start + 10, start + 22
        for kind, name in (("DtoH", "Device -> Pinned"), ("HtoD", "Pinned -> Device")):
            end = gemms(trace, host, end, 12, 280)
            trace.launched(
                "aten::copy_", host + 250, f"Memcpy {kind} ({name})", end, 1_500, call="cudaMemcpyAsync",
                category="gpu_memcpy", bytes=80_000_000,
            )  # fmt: skip
            host, end = host + 280, end + 1_501
        gemms(trace, host, end, 1, 150)
    return trace.save(folder / "offload_without_overlap.json")


GPU: dict[str, Callable[[Path], Path]] = {
    function.__name__: function
    for function in (
        overlapping_kernels, burst_after_the_steps, host_runs_ahead, no_device_activity, badly_joined,
        reads_between_layers, loader_without_workers, pageable_copies, launch_bound_decode, compiler_in_the_step,
        exposed_all_reduce, deep_ep_dispatch, all_to_all_of_experts, python_between_launches,
        offload_without_overlap, busy_gpu,
    )
}  # fmt: skip
