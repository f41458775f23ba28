"""From an Nsight export of one rank, with GPU metrics beside NCCL's ranges, to what nvlink_stall says of it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from perfscope.__main__ import run
from tests.analyzers.readers.nsys_export import DOMAIN, Export, payload

KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE(ncclDevComm*)"
BYTES = 450_000_000
"""All-reduced by two ranks: each sends as much, in one millisecond of NVLink 4."""
METRICS = ("NVLink TX Requests User Data [Throughput %]", "NVLink TX Requests Protocol Data [Throughput %]")


def export(profile: list[tuple[float, float, int]], *, metrics: bool = True, visible: int = 0) -> Export:
    """An all-reduce from 1 to 11 ms; ``profile``: (from, to, percent) of its links in ms. CUDA calls the GPU 0."""
    found = Export()
    found.add("TARGET_INFO_GPU", id=visible, name="NVIDIA H100 80GB HBM3", smCount=132, totalMemory=80 << 30)
    found.add("TARGET_INFO_CUDA_DEVICE", gpuId=visible, cudaId=0, pid=100)
    found.range("NCCL", 0, None, event=DOMAIN, domain=9)
    identity = ("NCCL communicator ID", 18, None)
    for schema, entries in (
        (1, [identity, ("No. of ranks", 5, 8), ("Rank", 5, 12)]), (2, [identity, ("Message size [bytes]", 22, 8)]),
    ):  # fmt: skip
        for index, (name, kind, offset) in enumerate(entries):
            found.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=9, schemaId=schema, idx=index, type=kind, name=name,
                      offset=offset)  # fmt: skip
    found.range("ncclCommInitRank", 0, 5, domain=9, registered=True,
                payload=payload(9, 1, struct.pack("<Qii", 0xABC, 2, 1)))  # fmt: skip
    found.range("ncclAllReduce", 990, 996, domain=9, registered=True,
                payload=payload(9, 2, struct.pack("<QQ", 0xABC, BYTES)))  # fmt: skip
    found.call("cudaLaunchKernel_v7000", 991, 995, correlation=1)
    found.kernel(KERNEL, 1_000, 11_000, correlation=1)
    found.call("cudaStreamSynchronize", 1_000, 11_010, correlation=2)
    for number, name in enumerate(METRICS if metrics else ()):
        found.add("TARGET_INFO_GPU_METRICS", typeId=0x0200 + visible, metricId=number, metricName=name)
        for place in range(130):
            busy = next((share for start, end, share in profile if start <= (place - 0.5) / 10 < end), 0)
            found.add("GPU_METRICS", timestamp=place * 100_000, typeId=0x0200 + visible, metricId=number,
                      value=busy if number == 0 else busy // 10)  # fmt: skip
    return found


def told(folder: Path, capsys: pytest.CaptureFixture[str], written: Export) -> dict[str, object]:
    path = written.write(folder / "rank1.sqlite")
    assert run(["analyze", str(path), "--rule", "nvlink_stall", "--format", "json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    found: dict[str, object] = outcome
    return found


@pytest.mark.parametrize("visible", [0, 3])
def test_one_rank_whose_links_are_busy_all_along_stalls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], visible: int
) -> None:
    outcome = told(tmp_path, capsys, export([(1, 11, 20)], visible=visible))
    assert outcome["status"] == "flagged"
    (finding,) = outcome["findings"]  # type: ignore[misc]
    assert "reach 45.0 GB/s of the 450 GB/s of NVLink 4" in finding["title"]
    assert "its NVLinks are at 22% of their peak meanwhile" in finding["title"]  # 20 of user data, 2 of protocol


def test_one_rank_that_waited_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(tmp_path, capsys, export([(9.6, 11, 75)]))["status"] == "clean"


def test_without_metrics_it_abstains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = told(tmp_path, capsys, export([], metrics=False))
    assert outcome["status"] == "abstained"
    assert "counters of the links, which would tell, are not recorded" in str(outcome["reason"])
