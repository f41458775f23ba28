"""Real traces of others: device time equals a brute-force sweep of the raw JSON, exactly.

The sweep shares no code with the reader or the facts: stdlib json with decimal text, one event list
per device, a counter for each class of work moved up and down at every boundary.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.time.device_time import device_times
from perfscope.model.trace import CallKind, CopyKind, HostMemory, Trace
from tests.conftest import corpus_files, every_file
from tests.readers.brute_force import Work, assert_device_times

FILES = corpus_files("kineto", "*.json.gz")

pytestmark = pytest.mark.corpus

COMMUNICATES = re.compile(r"nccl|multimem_all_reduce", re.IGNORECASE)
"""Every communication kernel of the corpus, found by reading its kernel names."""
WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "copy", "memset": "copy"}
MTIA_OTHER = {"dma_request": "copy", "event_wait": None, "event_record": None}
"""Every other device event of an MTIA is a kernel."""


def raw(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return document


def nanoseconds(us: Decimal | int) -> int:
    scaled = Decimal(us) * 1000
    assert scaled == scaled.to_integral_value()
    return int(scaled)


def work_of(document: dict[str, Any]) -> dict[int, list[Work]]:
    """The work of each device."""
    work: dict[int, list[Work]] = defaultdict(list)
    for event in document["traceEvents"]:
        category = str(event.get("cat", "")).lower()
        kind = MTIA_OTHER.get(event["name"], "kernel") if category == "mtia_ccp_events" else WORK.get(category)
        if event["ph"] != "X" or kind is None:
            continue
        device = event.get("args", {}).get("device", event["pid"])
        start, length = nanoseconds(event["ts"]), nanoseconds(event["dur"])
        if kind == "kernel" and COMMUNICATES.search(event["name"].split("<")[0]):
            kind = "communication"
        work[device].append((kind, start, start + length))
    return work


@pytest.mark.parametrize("path", every_file(FILES), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_device_time_equals_brute_force(path: Path) -> None:
    trace, document = kineto_reader.read(path), raw(path)
    trace.check()
    assert trace.source.events_read == len(document["traceEvents"])
    assert trace.source.events_unplaced == 0
    assert_device_times(trace, work_of(document))


_NO_SPANS = ("trace", "gpu_user_annotation", "cuda_profiler_range")


@pytest.mark.slow
@pytest.mark.parametrize("path", every_file(FILES), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_links_and_times_equal_the_raw_events(path: Path) -> None:
    """Every kernel's call carries its correlation id, every parent encloses its child, every time is exact."""
    trace, document = kineto_reader.read(path), raw(path)
    base = int(document.get("baseTimeNanoseconds", 0))
    spans = Counter(
        (base + nanoseconds(event["ts"]), nanoseconds(event["dur"]), event["name"])
        for event in document["traceEvents"]
        if event["ph"] == "X" and str(event.get("cat", "")).lower() not in _NO_SPANS
    )
    shown: Counter[tuple[int, int, str]] = Counter()
    for table in ("slices", "calls", "kernels", "copies", "sync_records"):
        rows = trace.rows[table]
        lengths = rows["end_ns"] - rows["start_ns"]
        shown.update(
            zip(rows["start_ns"].tolist(), lengths.tolist(), map(trace.text, rows["name"].tolist()), strict=True)
        )
    assert shown == spans
    for table in ("kernels", "copies"):
        _check_calls(trace, table)
        _check_ops(trace, table)
    slices = trace.rows["slices"]
    child = np.flatnonzero(slices["parent"] >= 0)
    parent = slices["parent"][child]
    assert (slices["start_ns"][parent] <= slices["start_ns"][child]).all()
    assert (slices["end_ns"][parent] >= slices["end_ns"][child]).all()
    assert (slices["thread"][parent] == slices["thread"][child]).all()


def _check_calls(trace: Trace, table: str) -> None:
    rows, calls = trace.rows[table], trace.rows["calls"]
    linked = rows["call"] >= 0
    assert (calls["correlation"][rows["call"][linked]] == rows["correlation"][linked]).all()
    orphans = set(rows["correlation"][~linked].tolist())
    assert not orphans & (set(calls["correlation"].tolist()) - {-1})


def _check_ops(trace: Trace, table: str) -> None:
    """Two ways to the op agree: the id that the profiler wrote, and the place of the launch call."""
    rows, calls, slices = trace.rows[table], trace.rows["calls"], trace.rows["slices"]
    linked = np.flatnonzero((rows["op"] >= 0) & (rows["call"] >= 0))
    op, call = rows["op"][linked], rows["call"][linked]
    # record_param_comms is next to the call of its collective, not around it
    named = np.array([trace.text(code) != "record_param_comms" for code in slices["name"][op].tolist()], bool)
    op, call = op[named], call[named]
    assert (slices["start_ns"][op] <= calls["start_ns"][call]).all()
    assert (slices["end_ns"][op] >= calls["end_ns"][call]).all()
    assert (slices["thread"][op] == calls["thread"][call]).all()


def test_known_answers(corpus: Path) -> None:
    """Figures published for these files by independent measurements."""
    (qwen,) = kineto_reader.read(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz").fact(device_times)
    assert (qwen.busy_ns, qwen.span_ns) == (45_647_300, 49_652_832)
    for rank in range(8):
        (device,) = kineto_reader.read(corpus / "kineto" / f"astra-sim__megatron_kineto_{rank}.json.gz").fact(
            device_times
        )
        assert device.rank == rank
        assert device.exposed_communication_ns > 0.4 * device.span_ns


def test_dma_requests_have_the_direction_and_bytes_that_the_file_says(corpus: Path) -> None:
    path = corpus / "kineto" / "HolisticTraceAnalysis__mtia_inference_rank_0.json.gz"
    requests = [event["args"] for event in raw(path)["traceEvents"] if event.get("name") == "dma_request"]
    copies = kineto_reader.read(path).rows["copies"]
    directions = Counter({"HOST_TO_DEVICE": 427, "DEVICE_TO_HOST": 450})
    assert Counter(args["direction"] for args in requests) == directions
    assert Counter(CopyKind(kind).name for kind in copies["kind"].tolist()) == directions
    assert int(copies["bytes"].sum()) == sum(args["size"] for args in requests) == 788_900_408
    assert set(copies["host_memory"].tolist()) == {HostMemory.UNKNOWN}


def test_a_step_of_the_old_schema_is_an_operator(corpus: Path) -> None:
    """In 2021 Kineto wrote ranges of ``record_function`` in the category of ops."""
    trace = kineto_reader.read(corpus / "kineto" / "kineto__gpu_metrics_input.json.gz")
    (step,) = (
        event for event in raw(corpus / "kineto" / "kineto__gpu_metrics_input.json.gz")["traceEvents"]
        if event.get("name") == "ProfilerStep#2"
    )  # fmt: skip
    assert step["cat"] == "Operator"
    steps = trace.rows["steps"]
    assert steps["number"].tolist() == [2]
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [nanoseconds(step["dur"])]


def test_ids_that_repeat_the_correlation_name_no_op(corpus: Path) -> None:
    """The sampled files write the correlation id as external id on device rows: ops come from the call's place."""
    trace = kineto_reader.read(corpus / "kineto" / "HolisticTraceAnalysis__sampled_rank-0.json.gz")
    kernels = trace.rows["kernels"]
    assert (kernels["external_id"] == kernels["correlation"]).all()
    linked = kernels["op"] >= 0
    calls, slices = trace.rows["calls"], trace.rows["slices"]
    call = kernels["call"][linked]
    op = kernels["op"][linked]
    assert (slices["start_ns"][op] <= calls["start_ns"][call]).all()
    assert (slices["end_ns"][op] >= calls["start_ns"][call]).all()


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("TraceLens__vllm_decode_full_graph", "MI300X"),  # no name, the properties of the chip
        ("TraceLens__mi300_qwen1.5-0.5b", "AMD Instinct MI300X VF"),  # device 2 of the node, 0 of the process
        ("TraceLens__sglang_qwen3-8b_decode", "AMD Instinct MI300X"),
        ("HolisticTraceAnalysis__mi250_minitoy_train_ROCm6_2_kineto", "AMD Radeon Graphics"),
    ],
)
def test_devices_are_named_where_the_file_tells(corpus, name, device):
    trace = kineto_reader.read(corpus / "kineto" / f"{name}.json.gz")
    assert {trace.text(int(code)) for code in trace.rows["devices"]["name"]} == {device}


@pytest.mark.parametrize("rank", [0, 1])
def test_ascend_traces_have_device_work(corpus, rank):
    """The file's own "Overlap Analysis" track: what it calls computing is the union of the kernels, in us."""
    path = corpus / "ascend" / f"Ascend-msinsight__level1_rank{rank}_trace_view.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))
    trace = kineto_reader.read(path)
    (device,) = trace.fact(device_times)
    assert trace.text(int(trace.rows["devices"]["name"][0])) == "Ascend NPU"
    total = {
        name: sum(float(event["dur"]) for event in events if event.get("name") == name and event["ph"] == "X")
        for name in ("Computing", "Communication", "Communication(Not Overlapped)")
    }
    assert device.compute_ns == pytest.approx(1000 * total["Computing"], rel=0.01)
    assert device.exposed_communication_ns == pytest.approx(1000 * total["Communication(Not Overlapped)"], rel=0.01)
    linked = trace.rows["kernels"]["call"] >= 0
    assert linked.mean() > 0.9
    assert (trace.rows["calls"]["kind"][trace.rows["kernels"]["call"][linked]] == CallKind.KERNEL).mean() > 0.9
