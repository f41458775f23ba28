"""Recordings of jobs with several GPUs: one Kineto trace or one dump of the flight recorder per rank.

All times are made up, in microseconds. The docstring of each function describes its defect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.accuracy.recordings import Kineto, gemms, passes, steps
from tests.ranks.flight_dumps import dump, entry, write_dumps

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)"
EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)"


def group(name: str, ranks: Sequence[int], operation: str, sent: int, received: int | None = None) -> dict[str, Any]:
    """Arguments that NCCL's process group records with a kernel; ``sent``, ``received``: elements."""
    return {
        "Collective name": operation, "Group size": len(ranks), "dtype": "BFloat16", "In msg nelems": sent,
        "Out msg nelems": sent if received is None else received, "Process Group Name": name,
        "Process Group Description": {"0": "default_pg", "1": "mesh_tp", "2": "mesh_dp", "3": "mesh_ep",
                                      "4": "mesh_cp"}[name],
        "Process Group Ranks": list(ranks),
    }  # fmt: skip


def saved(traces: Sequence[Kineto], folder: Path, name: str) -> Path:
    """Write the traces of all ranks into a folder."""
    into = folder / name
    into.mkdir()
    for trace in traces:
        trace.save(into / f"rank{trace.rank}.json")
    return into


def update(trace: Kineto, host: float, device: float, end: float) -> None:
    """An optimizer's step: launched at ``host``, on the device from ``device``, when all gradients are there."""
    trace.event("user_annotation", "Optimizer.step#AdamW.step", host, 60)
    trace.launched(
        "aten::_fused_adamw_", host + 20, "void at::native::multi_tensor_apply_kernel<FusedAdamW>", device,
        end - device - 5,
    )  # fmt: skip


def gradient_by_gradient(folder: Path) -> Path:
    """A loop reduces each of 120 small gradients by itself."""
    trace = Kineto(rank=0, world=8)
    for start in steps(trace):
        end = passes(trace, start + 10, start + 22, 25, 250)
        trace.python("train.py(31): average_gradients", start + 600, 4_400)
        for number in range(120):
            trace.launched(
                "c10d::allreduce_", start + 610 + 36 * number, REDUCE, end + 24 * number, 22, stream=20,
                **group("0", range(8), "allreduce", 4_096),
            )  # fmt: skip
        update(trace, start + 5_100, end + 120 * 24, start + 10_000)
    return trace.save(folder / "gradient_by_gradient.json")


def full_expert(folder: Path) -> Path:
    """The router sends one of four ranks four times as many tokens as the others."""
    traces = []
    for rank in range(4):
        trace = Kineto(rank=rank, world=4)
        for start in steps(trace):
            host, end = start + 10, start + 22
            for _ in range(4):
                end = gemms(trace, host, end, 3, 350)
                received = 280_000_000 if rank == 2 else 60_000_000
                trace.launched(
                    "c10d::alltoall_base_", host + 70, EXCHANGE, end, 1_300, stream=20,
                    **group("3", range(4), "all_to_allv", 115_000_000, received),
                )  # fmt: skip
                host, end = host + 100, end + 1_301
            update(trace, host, end, start + 10_000)
        traces.append(trace)
    return saved(traces, folder, "full_expert")


def contiguous_pieces(folder: Path) -> Path:
    """Four ranks divide causal sequences into contiguous pieces: attention takes 0.2 ms on the first, 1.4 on rank 3."""
    traces = []
    for rank in range(4):
        trace = Kineto(rank=rank, world=4)
        for start in steps(trace):
            host, end = start + 10, start + 22
            for _ in range(4):
                attention = 200 * (2 * rank + 1)
                flash = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>"
                trace.launched("aten::_scaled_dot_product_flash_attention", host, flash, end, attention)
                reduced = end + 1_401
                trace.launched(
                    "c10d::_allgather_base_", host + 40, GATHER, end + attention + 1,
                    reduced + 599 - end - attention, stream=20,
                    **group("4", range(4), "allgather", 1_000_000, 4_000_000),
                )  # fmt: skip
                host, end = host + 100, reduced + 601
            update(trace, host, end, start + 10_000)
        traces.append(trace)
    return saved(traces, folder, "contiguous_pieces")


def two_groups_on_one_link(folder: Path) -> Path:
    """In half of the layers, gradients are scattered beside the tensor parallel reduction, which then takes longer."""
    traces = []
    for rank in range(4):
        trace = Kineto(rank=rank, world=4)
        for start in steps(trace):
            host, at = start + 10, start + 22
            for layer in range(12):
                shared = layer >= 6
                length, computes = (900 + 4 * layer, 790) if shared else (480 + 4 * layer, 500 + 4 * layer)
                trace.launched(
                    "c10d::allreduce_", host, REDUCE, at, length, stream=20,
                    **group("1", range(4), "allreduce", 40_000_000),
                )  # fmt: skip
                if shared:
                    trace.launched(
                        "c10d::reduce_scatter_", host + 20, SCATTER, at + 4, 780, stream=24,
                        **group("2", range(4), "reduce_scatter", 120_000_000, 30_000_000),
                    )  # fmt: skip
                gemms(trace, host + 40, at, 1, computes)
                host, at = host + 60, at + max(length, computes) + 2
            update(trace, host, at, start + 10_000)
        traces.append(trace)
    return saved(traces, folder, "two_groups_on_one_link")


def slow_links(folder: Path) -> Path:
    """Reductions of 512 MiB reach 30 GB/s over NVLink, as if peer to peer copies were turned off."""
    traces = []
    for rank in range(8):
        trace = Kineto(rank=rank, world=8)
        for start in steps(trace, length=60_000):
            end = passes(trace, start + 10, start + 22, 40, 600)
            for elements, length in ((256, 24), (268_435_456, 31_000)):
                trace.launched(
                    "c10d::allreduce_", start + 900, REDUCE.replace("_LL", "_SIMPLE"), end, length, stream=20,
                    **group("0", range(8), "allreduce", elements),
                )  # fmt: skip
                end += length + 2
            update(trace, start + 1_000, end, start + 60_000)
        traces.append(trace)
    return saved(traces, folder, "slow_links")


def rank_without_a_batch(folder: Path) -> Path:
    """One of eight ranks has no batch left: the others wait for it in the reduction of their gradients."""
    into = folder / "rank_without_a_batch"
    into.mkdir()
    frames = [
        {"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "line": 2_810},
        {"name": "average_gradients", "filename": "train.py", "line": 33},
        {"name": "main", "filename": "train.py", "line": 88},
    ]
    done = [entry(sequence=number, state="completed", retired=True, frames=frames) for number in (409, 410, 411)]
    waits = entry(sequence=412, state="started", frames=frames)
    world = {"0": range(8)}
    dumps = {rank: dump([*done, waits], world, {"0": (412, 411)}) for rank in range(8) if rank != 5}
    return write_dumps(into, {**dumps, 5: dump(done, world, {"0": (411, 411)})})


JOBS: dict[str, Callable[[Path], Path]] = {
    function.__name__: function
    for function in (
        gradient_by_gradient,
        full_expert,
        contiguous_pieces,
        two_groups_on_one_link,
        slow_links,
        rank_without_a_batch,
    )
}
