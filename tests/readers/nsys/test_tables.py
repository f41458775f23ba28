"""The Nsight Systems reader on exports we write: every table, linked."""

from __future__ import annotations

import random
import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.engine import judge
from perfscope.analyzers.readers.nsys import reader as nsys_reader
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.calls import framework
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, CallKind, CopyKind, HostMemory, SliceKind, Trace
from tests.readers.nsys.exports import (
    DOMAIN,
    EPOCH_NS,
    MARK,
    START_END,
    Export,
    names,
    payload,
    read,
    read_one,
    small,
    tid_of,
)


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
    """JAX waits with cuStreamSynchronize: for half of the time the device idles after it."""
    export = Export()
    for place in range(10):
        at = 100 * place
        export.call("cuLaunchKernel", at, at + 2, correlation=place)
        export.kernel("fusion", at + 5, at + 55, correlation=place)
        export.call("cuStreamSynchronize", at + 3, at + 56, correlation=100 + place)
    outcome = judge(load_rule("host_sync"), read_one(tmp_path, export))
    assert outcome.status == "flagged"
    (finding,) = outcome.findings
    assert finding.cost_ns == 9 * 45_000 + 1_000  # of each gap of 50 us the next launch takes 5
    assert "cuStreamSynchronize" in finding.title


def test_an_export_without_a_start_time_keeps_the_sessions_clock(tmp_path: Path) -> None:
    export = small()
    export.epoch_ns = 0
    trace = read_one(tmp_path, export)
    assert trace.rows["kernels"]["start_ns"].tolist() == [20_000]
    assert np.all(trace.rows["calls"]["start_ns"] < 10**9)


def test_ranges_between_two_moments_enclose_nothing(tmp_path: Path) -> None:
    export = small()
    export.range("loss scale", 8, 200, event=START_END)
    export.range("open", 9, None, event=START_END)
    export.range("here", 10, None, event=MARK)
    trace = read_one(tmp_path, export)
    row = names(trace, "slices").index("loss scale")
    assert (trace.rows["slices"]["parent"] != row).all()
    assert (trace.rows["calls"]["parent"] != row).all()
    thread = int(trace.rows["slices"]["thread"][row])
    assert trace.text(int(trace.rows["threads"]["thread"][thread])) == "1 ranges"
    assert dict(trace.source.unplaced) == {"NVTX_EVENTS: a row that never ended": 1, "NVTX mark": 1}


@pytest.mark.parametrize(
    ("ranges", "numbers", "guessed"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], [7, 8], False),
        (["step 41", "step 42"], [41, 42], True),
        (["Iteration 3", "Iteration 4", "warmup 2"], [3, 4], True),
        (["train_step", "train_step", "eval"], [0, 1], True),
        (["step"], [], True),
        (["stepwise 3", "my step 4"], [], True),
        (["optimizer_step", "optimizer_step", "optimizer step 3"], [], True),
    ],
)
def test_steps_are_found_by_name(tmp_path: Path, ranges: list[str], numbers: list[int], guessed: bool) -> None:
    export = small()
    for place, name in enumerate(ranges):
        export.range(name, 1000 + 10 * place, 1008 + 10 * place)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == numbers
    assert any("steps are taken from NVTX ranges by their name" in n for n in trace.source.notes) == (
        guessed and bool(numbers)
    )


def test_our_own_steps_win_over_names(tmp_path: Path) -> None:
    export = small()
    export.range("perfscope", 0, None, event=DOMAIN, domain=3)
    for place in range(3):
        export.range("step", 1000 + 10 * place, 1009 + 10 * place, event=START_END, domain=3)
        export.range(f"step {place + 5}", 1001 + 10 * place, 1002 + 10 * place)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [0, 1, 2]
    assert (trace.rows["steps"]["end_ns"] - trace.rows["steps"]["start_ns"]).tolist() == [9000] * 3


def nccl_export(*, group: bool) -> Export:
    """A rank of two: an all-gather of 64 KiB, alone or in a group with a second one."""
    export = Export()
    export.range("NCCL", 0, None, event=DOMAIN, domain=9)
    fields = [("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12)]
    for schema, entries in ((1, fields), (2, [fields[0], ("Message size [bytes]", 22, 8), ("Secret", 22, 16)])):
        for index, (name, kind, offset) in enumerate(entries):
            export.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=9, schemaId=schema, idx=index, type=kind, name=name,
                       offset=offset)  # fmt: skip
    export.range(
        "ncclCommInitRank", 0, 5, domain=9, registered=True, payload=payload(9, 1, struct.pack("<Qii", 0xABC, 2, 1))
    )
    gather = payload(9, 2, struct.pack("<QQQ", 0xABC, 65536, 4242))
    if group:
        export.range("ncclGroupStart", 9, 9.5, domain=9, registered=True)
        export.range("ncclAllGather", 10, 12, domain=9, registered=True, payload=gather)
    export.range("ncclAllGather", 13, 20, domain=9, registered=True, payload=gather)
    if group:
        export.range("ncclGroupEnd", 21, 30, domain=9, registered=True)
    export.call("cudaLaunchKernelExC_v11060", 22 if group else 14, 25 if group else 18, correlation=1)
    export.kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 40, 90, correlation=1)
    return export


@pytest.mark.parametrize(("group", "size"), [(False, 65536), (True, 131072)])
def test_nccl_says_what_a_kernel_moved(tmp_path: Path, group: bool, size: int) -> None:
    trace = read_one(tmp_path, nccl_export(group=group))
    collectives = trace.rows["collectives"]
    assert names(trace, "collectives") == ["all_gather"]
    assert collectives["elements_in"].tolist() == [size]
    assert collectives["elements_out"].tolist() == [2 * size]
    assert trace.text(int(collectives["dtype"][0])) == "uint8"
    assert trace.text(int(collectives["group"][0])) == "0000000000000abc"
    assert collectives["group_size"].tolist() == [2]
    assert (trace.source.rank, trace.source.world_size) == (1, 2)
    assert "collectives" in trace.recorded
    assert "Secret" not in trace.strings


def test_collectives_are_named_by_what_the_program_asked_for(tmp_path: Path) -> None:
    export = Export()
    export.range("nccl:all_to_all, op_id = 5", 0, 30)
    export.range("ncclGroupEnd", 5, 20)
    export.call("cudaLaunchKernelExC_v11060", 6, 8, correlation=1)
    export.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 40, 90, correlation=1)
    trace = read_one(tmp_path, export)
    assert names(trace, "collectives") == ["all_to_all"]
    assert "collectives" not in trace.recorded  # no sizes


def own_steps(*ends: float) -> Export:
    """Our own steps from 1,000 us on, one after the other."""
    export = small()
    export.range("perfscope", 0, None, event=DOMAIN, domain=3)
    for start, end in zip((1000.0, *ends), ends, strict=False):
        export.range("step", start, end, event=START_END, domain=3)
    return export


UNFINISHED = "not counted as steps: ranges that were still open when the program or the recording ended (1)"


def test_a_step_that_the_end_of_the_recording_closed_is_none(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.add("ANALYSIS_DETAILS", globalVid=0, duration=1_900_000, startTime=0, stopTime=1_900_000)
    trace = read_one(tmp_path, export)
    assert (trace.rows["steps"]["end_ns"] - trace.rows["steps"]["start_ns"]).tolist() == [10_000, 10_000]
    assert UNFINISHED in trace.source.notes


def test_a_step_that_ended_before_the_recording_is_one(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.add("ANALYSIS_DETAILS", globalVid=0, duration=1_900_001, startTime=0, stopTime=1_900_001)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [0, 1, 2]
    assert UNFINISHED not in trace.source.notes


def test_a_step_that_the_end_of_the_program_closed_is_none(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.range("exit", 1899, 1901, event=START_END, domain=3)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [0, 1]
    assert UNFINISHED in trace.source.notes


def test_an_exit_of_others_closes_no_step(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.range("exit", 1899, 1901, event=START_END)
    assert read_one(tmp_path, export).rows["steps"]["number"].tolist() == [0, 1, 2]


def test_an_open_range_of_a_guessed_name_hides_no_steps(tmp_path: Path) -> None:
    """Whose end is the recording's began before all of them, and would enclose them."""
    export = small()
    for number, (start, end) in enumerate(((900, 1900), (1000, 1010), (1010, 1020))):
        export.range(f"step {number}", start, end)
    export.add("ANALYSIS_DETAILS", globalVid=0, duration=1_900_000, startTime=0, stopTime=1_900_000)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [1, 2]
    assert UNFINISHED in trace.source.notes


SLOW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def read_or_refused(path: Path) -> list[Trace] | str:
    """The checked traces, or the one line with which it was refused; any other error fails the test."""
    try:
        traces = nsys_reader.read(path)
    except DataError as error:
        line = str(error)
        assert line.startswith(str(path))
        assert "\n" not in line
        return line.removeprefix(f"{path}: ")
    for trace in traces:
        trace.check()
    return traces


class SoundFile(bytes):
    """A sound file; a failing example is not to print all of it."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def sound_export(tmp_path_factory: pytest.TempPathFactory) -> SoundFile:
    export = nccl_export(group=True)
    for place in range(300):
        export.call("cudaLaunchKernel_v7000", 100 + place, 100.5 + place, correlation=10 + place)
        export.kernel(f"kernel {place}", 101 + place, 101.8 + place, correlation=10 + place)
    export.copy(900, 950, kind=1, source=0, target=2, size=1 << 20)
    return SoundFile(export.write(tmp_path_factory.mktemp("whole") / "whole.sqlite").read_bytes())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no events in it"),  # to SQLite an empty file is a database without tables
        (b"hello", "cannot be read as SQLite"),
        (b"SQLite format 3\x00", "cannot be read as SQLite"),
        (b"\x1f\x8b\x08\x00broken", "gzip is cut off within the first 4 MiB of its content"),
    ],
)
def test_what_is_no_database_gets_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.sqlite"
    path.write_bytes(content)
    found = read_or_refused(path)
    assert isinstance(found, str)
    assert said in found


@SLOW
@given(share=st.floats(0, 1))
def test_a_file_that_is_cut_off_is_refused_or_sound(tmp_path: Path, sound_export: SoundFile, share: float) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes(sound_export[: int(len(sound_export) * share)])
    read_or_refused(path)


@SLOW
@given(seed=st.integers(0, 2**32), count=st.integers(1, 200))
def test_flipped_bytes_are_refused_or_sound(tmp_path: Path, sound_export: SoundFile, seed: int, count: int) -> None:
    damaged = bytearray(sound_export)
    source = random.Random(seed)
    for _ in range(count):
        damaged[source.randrange(100, len(damaged))] = source.randrange(256)
    path = tmp_path / "flipped.sqlite"
    path.write_bytes(damaged)
    read_or_refused(path)


@SLOW
@given(
    st.lists(
        st.tuples(*[st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3), st.floats())] * 8),
        max_size=6,
    )
)
def test_any_value_in_any_column_is_refused_or_sound(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    path = tmp_path / "any.sqlite"
    path.unlink(missing_ok=True)
    small().write(path)
    connection = sqlite3.connect(path)
    for row in rows:
        for table, columns in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "start, end, deviceId, streamId, correlationId, globalPid, gridX, blockX"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, globalTid, nameId, correlationId"),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "start, end, bytes, copyKind, srcKind, dstKind, globalPid, deviceId"),
            ("NVTX_EVENTS", "start, end, eventType, text, globalTid, textId, domainId, binaryData"),
            ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "start, end, syncType, deviceId, globalPid, contextId, eventId"),
        ):
            names = columns.replace("end", '"end"').split(", ")
            marks = ", ".join("?" for _ in names)
            connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", row[: len(names)])
    connection.commit()
    connection.close()
    read_or_refused(path)


def test_rows_without_a_sound_time_are_counted(tmp_path: Path) -> None:
    export = small()
    where = {"globalTid": tid_of(100, 1), "nameId": 1, "correlationId": 0}
    for start, end in ((50, 40), (2**62, 2**62 + 5), (None, 3), (7, None)):
        export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, **where)
    (trace,) = nsys_reader.read(export.write(tmp_path / "report.sqlite"))
    trace.check()
    assert len(trace.rows["calls"]) == 3
    assert dict(trace.source.unplaced) == {
        "CUPTI_ACTIVITY_KIND_RUNTIME: a row that ends before it starts": 1,
        "CUPTI_ACTIVITY_KIND_RUNTIME: a row without a valid time": 2,
        "CUPTI_ACTIVITY_KIND_RUNTIME: a row that never ended": 1,
    }


def test_a_generated_column_cannot_call_anything(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1)")
    connection.execute(
        'ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN "end" INTEGER AS (abs(-1 - 9223372036854775807))'
    )
    connection.commit()
    with pytest.raises(sqlite3.OperationalError, match="integer overflow"):
        connection.execute('SELECT "end" FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchall()
    connection.close()
    (trace,) = nsys_reader.read(path)  # a computed column is not part of the recording
    assert len(trace.rows["kernels"]) == 0
    assert dict(trace.source.unplaced) == {"CUPTI_ACTIVITY_KIND_KERNEL: a row that never ended": 1}


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    before = path.read_bytes()
    nsys_reader.read(path)
    assert [place.name for place in tmp_path.iterdir()] == ["report.sqlite"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(("kernel", "expected"), [("jacobi_kernel", "none"), ("void at::native::copy_<1>()", "torch")])
def test_advice_is_for_what_the_program_is_written_with(tmp_path: Path, kernel: str, expected: str) -> None:
    export = Export()
    export.call("cudaLaunchKernel", 0, 5, correlation=1)
    export.kernel(kernel, 5, 50, correlation=1)
    assert framework(read_one(tmp_path, export)) == expected
