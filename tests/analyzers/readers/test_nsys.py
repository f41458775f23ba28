"""The Nsight Systems reader on exports we write: every table, linked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import MISSING, CallKind, CopyKind, HostMemory, SliceKind
from tests.analyzers.readers.nsys_export import EPOCH_NS, Export, names, read, read_one, small, tid_of


def test_work_is_joined_with_its_calls_and_ranges(tmp_path: Path) -> None:
    trace = read_one(tmp_path, small())
    kernels, calls, slices = trace.rows["kernels"], trace.rows["calls"], trace.rows["slices"]
    assert names(trace, "kernels") == ["void gemm<float>(float*)"]
    assert names(trace, "calls") == ["cudaLaunchKernel", "cudaMemcpyAsync", "cuStreamSynchronize"]
    assert calls["kind"].tolist() == [CallKind.KERNEL, CallKind.COPY, CallKind.SYNC]
    assert kernels["start_ns"].tolist() == [EPOCH_NS + 20_000]
    assert (kernels["blocks"].tolist(), kernels["threads_per_block"].tolist()) == ([8], [128])
    assert kernels["call"].tolist() == [0]
    assert names(trace, "slices") == ["forward", "aten::mm"]
    assert slices["kind"].tolist() == [SliceKind.ANNOTATION, SliceKind.OP]
    assert slices["sequence"].tolist() == [MISSING, 3]
    assert trace.text(int(slices["shapes"][1])) == "[[2, 3], [3, 4]]"
    assert slices["parent"].tolist() == [MISSING, 0]
    assert kernels["op"].tolist() == [1]
    assert trace.rows["copies"]["op"].tolist() == [0]
    assert trace.rows["sync_records"]["call"].tolist() == [2]
    assert {"device_work", "host_ops", "launch_links", "op_links", "runtime_calls", "shapes"} <= trace.recorded
    assert "autograd" not in trace.recorded  # which thread ran the forward op is not told
    assert trace.source.format == "nsys"
    assert trace.source.events_unplaced == 0


def test_an_export_may_lack_tables_and_columns(tmp_path: Path) -> None:
    old = read_one(tmp_path, small(), without=("binaryData", "graphNodeId", "endGlobalTid", "textId", "dstDeviceId"))
    assert len(old.rows["kernels"]) == 1
    (tmp_path / "report.sqlite").unlink()
    whole = read_one(tmp_path, small(), lazy=False)  # every table, most of them empty
    assert {name: len(rows) for name, rows in whole.rows.items()} == {
        name: len(rows) for name, rows in old.rows.items()
    }


def test_a_copy_says_its_direction_and_its_host_memory(tmp_path: Path) -> None:
    export = Export()
    for place, (kind, source, target) in enumerate([(1, 0, 2), (1, 1, 2), (2, 2, 4), (8, 2, 2), (9, 1, 0), (99, 7, 7)]):
        export.copy(place, place + 1, kind=kind, source=source, target=target, size=8)
    export.copy(9, 10, kind=10, source=2, target=2, size=1000, srcDeviceId=0, dstDeviceId=3)
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMSET", start=20_000, end=21_000, deviceId=0, contextId=1, streamId=7,
        globalPid=tid_of(100), bytes=64, memKind=2,
    )  # fmt: skip
    trace = read_one(tmp_path, export)
    copies = trace.rows["copies"]
    assert copies["kind"].tolist() == [
        CopyKind.HOST_TO_DEVICE, CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.DEVICE_TO_DEVICE,
        CopyKind.HOST_TO_HOST, CopyKind.UNKNOWN, CopyKind.PEER_TO_PEER, CopyKind.MEMSET,
    ]  # fmt: skip
    assert copies["host_memory"].tolist() == [
        HostMemory.PAGEABLE, HostMemory.PINNED, HostMemory.UNKNOWN, HostMemory.NONE, HostMemory.PAGEABLE,
        HostMemory.NONE, HostMemory.NONE, HostMemory.NONE,
    ]  # fmt: skip
    assert names(trace, "copies")[0] == "Memcpy HtoD (Pageable -> Device)"
    assert names(trace, "copies")[6:] == ["Memcpy PtoP (0 -> 3)", "Memset (Device)"]
    assert any("1 copies between devices moved 1000 B in 1.00 us" in note for note in trace.source.notes)


def test_devices_are_named_by_the_numbers_of_the_process(tmp_path: Path) -> None:
    export = Export()
    for number, name in ((0, "GPU zero"), (1, "GPU one")):
        export.add(
            "TARGET_INFO_GPU", id=number, name=name, cuDevice=1 - number, smCount=100 + number, totalMemory=1 << 30
        )
    export.kernel("k", 0, 1)
    trace = read_one(tmp_path, export)
    assert trace.rows["devices"]["cores"].tolist() == [101]  # cuDevice 0 is the machine's GPU 1
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=100)  # CUDA_VISIBLE_DEVICES of this process
    (tmp_path / "report.sqlite").unlink()
    trace = read_one(tmp_path, export)
    assert names(trace, "devices") == ["GPU zero"]
    assert trace.rows["devices"]["memory_bytes"].tolist() == [1 << 30]


def test_correlation_ids_are_those_of_a_process(tmp_path: Path) -> None:
    export = Export()
    for pid, device in ((300, 1), (200, 0)):
        export.call("cudaLaunchKernel_v7000", 0, 1, correlation=5, pid=pid, tid=pid)
        export.kernel(f"k{pid}", 2, 4, correlation=5, pid=pid, device=device)
        export.wait(4, 5, kind=4, pid=pid, device=0)  # the rows name device 0 for every process
    export.call("cudaGetDeviceCount_v3020", 0, 1, pid=400)
    first, second = read(tmp_path, export)
    assert [names(trace, "kernels") for trace in (first, second)] == [["k200"], ["k300"]]
    assert (first.source.rank, second.source.rank) == (0, 1)
    assert second.rows["devices"]["ordinal"].tolist() == [1]
    assert second.rows["sync_records"]["device"].tolist() == [0]
    for trace in (first, second):
        assert trace.rows["kernels"]["call"].tolist() == [0]
        assert "their ranks are their order by process id" in trace.source.notes[0]
    assert dict(first.source.unplaced) == {"host row of a process without work on a device": 1}
    assert first.source.events_read + second.source.events_read == 7


def test_a_call_that_launches_wins_where_ids_are_shared(tmp_path: Path) -> None:
    export = Export()
    export.call("cuLaunchKernel", 1, 2, correlation=9)
    export.call("cudaFuncGetAttributes_v3020", 3, 4, correlation=9)
    export.kernel("k", 5, 6, correlation=9)
    trace = read_one(tmp_path, export)
    assert trace.rows["kernels"]["call"].tolist() == [0]


def test_graphs_recorded_as_a_whole_are_device_time(tmp_path: Path) -> None:
    export = Export()
    where = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": tid_of(100)}
    export.call("cudaGraphLaunch_v10000", 0, 2, correlation=4)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=5_000, end=95_000, correlationId=4, graphId=31, **where)
    export.call("cudaGraphLaunch_v10000", 100, 102, correlation=5)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=105_000, end=150_000, correlationId=5, graphId=31, **where)
    export.kernel("node", 106, 120, correlation=5, graphNodeId=77)  # this run's nodes were recorded
    trace = read_one(tmp_path, export)
    assert names(trace, "kernels") == ["CUDA graph 31", "node"]
    assert trace.rows["calls"]["kind"].tolist() == [CallKind.GRAPH, CallKind.GRAPH]
    assert trace.rows["kernels"]["call"].tolist() == [0, 1]
    assert any("1 runs of CUDA graphs were recorded as one piece each" in note for note in trace.source.notes)
    assert any("1 kernels ran inside graphs" in note for note in trace.source.notes)


def test_calls_of_the_system_and_the_profiler_are_slices(tmp_path: Path) -> None:
    export = small()
    export.add("OSRT_API", start=71_000, end=79_000, globalTid=tid_of(100, 1), nameId=export.text("poll"))
    export.add("PROFILER_OVERHEAD", start=1_000, end=90_000, globalTid=tid_of(100, 1), nameId=export.text("Flush"))
    trace = read_one(tmp_path, export)
    kinds = dict(zip(names(trace, "slices"), trace.rows["slices"]["kind"].tolist(), strict=True))
    assert (kinds["poll"], kinds["Flush"]) == (SliceKind.OTHER, SliceKind.OVERHEAD)
    assert trace.rows["kernels"]["op"].tolist() == [names(trace, "slices").index("aten::mm")]


def test_samples_of_gpus_and_cards_are_counters(tmp_path: Path) -> None:
    export = small()
    export.add("TARGET_INFO_GPU_METRICS", typeId=0x0102, metricId=5, metricName="SMs Active [Throughput %]")
    for place, value in enumerate((12, 80)):
        export.add("GPU_METRICS", timestamp=2_000 - 1_000 * place, typeId=0x0102, metricId=5, value=value)
    export.add("GPU_METRICS", timestamp=5_000, typeId=0x0102, metricId=6, value=1)
    export.add("TARGET_INFO_NETWORK_METRICS", metricsListId=1, metricsIdx=0, name="IB: Bytes sent", unit="B/s")
    export.add("NET_NIC_METRIC", start=0, end=3_000, globalId=7 << 40, metricsListId=1, metricsIdx=0, value=10**10)
    export.add("GENERIC_EVENTS", timestamp=4_000, typeId=3, data='{"SM Active": "31", "Label": "x", "ok": true}')
    export.add("GENERIC_EVENTS", timestamp=4_000, typeId=3, data='{"broken')
    trace = read_one(tmp_path, export)
    counters = trace.rows["counters"]
    shown = list(
        zip(
            names(trace, "counters"), (counters["time_ns"] - EPOCH_NS).tolist(), counters["value"].tolist(), strict=True
        )
    )
    assert shown == [
        ("GPU 2: SMs Active [Throughput %]", 1000, 80.0),
        ("GPU 2: SMs Active [Throughput %]", 2000, 12.0),
        ("NIC 0: IB: Bytes sent [B/s]", 3000, 1e10),
        ("GPU 3: SM Active", 4000, 31.0),
    ]
    assert trace.source.events_unplaced == 2


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ([(2, 0, 100)], ["GPU 0", "machine GPU 3"]),  # CUDA_VISIBLE_DEVICES=2
        ([(2, 2, 100), (3, 3, 100), (2, 2, 101)], ["GPU 2", "GPU 3"]),
        ([(2, 0, 100), (3, 0, 101)], ["machine GPU 2", "machine GPU 3"]),  # two processes that see one each
        ([], ["GPU 2", "GPU 3"]),
    ],
)
def test_gpus_with_counters_have_the_numbers_of_cuda(
    tmp_path: Path, devices: list[tuple[int, int, int]], shown: list[str]
) -> None:
    export = small()
    export.rows.pop("TARGET_INFO_CUDA_DEVICE", None)
    for gpu, cuda, pid in devices:
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=cuda, pid=pid)
    for gpu in (2, 3):
        export.add("TARGET_INFO_GPU_METRICS", typeId=0x0100 + gpu, metricId=5, metricName="SMs Active [Throughput %]")
        export.add("GPU_METRICS", timestamp=1_000 * gpu, typeId=0x0100 + gpu, metricId=5, value=1)
    assert names(read_one(tmp_path, export), "counters") == [f"{one}: SMs Active [Throughput %]" for one in shown]


def test_memory_of_the_driver(tmp_path: Path) -> None:
    export = small()
    export.call("cudaMalloc_v3020", 80, 90, correlation=8)
    for moment, freed, correlation in ((85, 0, 8), (95, 1, 9)):
        export.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=moment * 1000, globalPid=tid_of(100), deviceId=0, address=-(1 << 62),
            bytes=2 << 20, memKind=2, memoryOperationType=freed, correlationId=correlation,
        )  # fmt: skip
    trace = read_one(tmp_path, export)
    memory = trace.rows["memory"]
    assert memory["bytes"].tolist() == [2 << 20, -(2 << 20)]
    assert memory["address"].tolist() == [3 << 62] * 2  # SQLite has no unsigned numbers
    assert names(trace, "slices")[int(memory["op"][0])] == "forward"
    assert "memory" in trace.recorded


def test_waits_of_the_driver_api_are_host_syncs(tmp_path: Path) -> None:
    """JAX waits with cuStreamSynchronize: half of the time the device idles behind it."""
    export = Export()
    for place in range(10):
        at = 100 * place
        export.call("cuLaunchKernel", at, at + 2, correlation=place)
        export.kernel("fusion", at + 5, at + 55, correlation=place)
        export.call("cuStreamSynchronize", at + 3, at + 56, correlation=100 + place)
    outcome = judge(load_rule("host_sync"), read_one(tmp_path, export))
    assert outcome.status == "flagged"
    (finding,) = outcome.findings
    assert finding.cost_ns == 9 * 50_000
    assert "cuStreamSynchronize" in finding.title


def test_an_export_without_a_start_time_keeps_the_sessions_clock(tmp_path: Path) -> None:
    export = small()
    export.epoch_ns = 0
    trace = read_one(tmp_path, export)
    assert trace.rows["kernels"]["start_ns"].tolist() == [20_000]
    assert np.all(trace.rows["calls"]["start_ns"] < 10**9)
