"""Numbers of peers on public files, one test per cause that once gave another number.

The files are in the folder ``peers`` of the corpus under the names in ``FILES``; if one is missing, its test is skipped
and names its source. Cases in the corpus itself are tested with the readers: XLA's trace.json with its last empty
object (``readers/xspace/test_trace_json.py``), runs, stacks and capacity of a TPU (``readers/xspace/test_corpus.py``),
step and DMA of Kineto (``readers/test_kineto_corpus.py``), logs compared with tlparse
(``readers/torch_log/test_corpus.py``).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.programs import programs
from perfscope.analyzers.readers.load import load_all, load_one
from perfscope.analyzers.time import device_times
from perfscope.dashboards.report.compare import json as compare_json
from perfscope.dashboards.report.compare.render import render_text
from perfscope.model.documents.comparison import of
from perfscope.model.trace import CallKind, CopyKind, Trace

pytestmark = pytest.mark.corpus

_HTA = "facebookresearch/HolisticTraceAnalysis@f4d0062c38:tests/data"
_KINETO = "pytorch/kineto@041e7ce99f:tb_plugin/samples"
_TLPARSE = "pytorch/tlparse@{}:tests/inputs"
_PAX = "NVIDIA/JAX-Toolbox@1e1aed908c:.github/workflows/nsys-jax/test_data"
_GALORE = "pytorch/ao@{}:test/galore/profiler_out"
FILES = {
    "mtia_rank_0.json.gz": f"{_HTA}/mtia_trace_single_rank",
    "trace_compare/base.json.gz": f"{_HTA}/trace_compare/base",
    "trace_compare/test.json.gz": f"{_HTA}/trace_compare/test",
    "worker0.1623143089861.pt.trace.json.gz": f"{_KINETO}/resnet50_num_workers_0",
    "worker0.1623212756351.pt.trace.json.gz": f"{_KINETO}/resnet50_num_workers_4",
    "34.83.195.179_6003.xplane.pb": "tensorflow/profiler@d6853e0c4b:demo/plugins/profile/GPU-multi-worker",
    "jax08_attention/tw003.xplane.pb": "AMD-AGI/TraceLens@042a752210:tests/traces/mi300/jax08_attention",
    "934987a2fc2f.xplane.pb": "AMD-AGI/TraceLens@171dd74721:tests/test_data_jax_te_fused_attn_categorization",
    "links.log": _TLPARSE.format("d21829ab8d"),
    "cache_hit_miss.log": f"{_TLPARSE.format('26fd75363c')} (older than that of the corpus)",
    "inductor_provenance_jit_debug_handle_log.txt": _TLPARSE.format("d21829ab8d"),
    "multi_rank_schedule": _TLPARSE.format("d21829ab8d"),
    **{f"pax_fsdp4_4proc_proc{rank}.zip": _PAX for rank in range(4)},
    "3648722_results.pftrace": "D-W-Chiang/JACC.jl@a6fdda4229:faraday.ftpn.ornl.gov",
    "adamw_04-09-23-memory-timeline.json": _GALORE.format("45191aa6a3"),
    "adamw8bit_04-11-01-memory-timeline.json": _GALORE.format("23c1f65049"),
}
"""Name in the folder ``peers`` -> repository, commit and folder there."""


@pytest.fixture
def peers(corpus: Path) -> Path:
    return corpus / "peers"


def public(peers: Path, name: str) -> Path:
    if not (peers / name).exists():
        pytest.skip(f"no {name} in {peers}: it is of {FILES[name]}")
    return peers / name


def test_kernels_and_copies_of_an_mtia(peers: Path) -> None:
    """HTA asserts 54.81 % compute, 2.81 % other and 42.38 % idle, its kernels together 7,305,597 us.

    HTA cuts each of 3,453 durations down to whole us: the file's own sum is 7,309,063.136 us.
    """
    trace = load_one(public(peers, "mtia_rank_0.json.gz"))
    (device,) = trace.fact(device_times)
    kernels, copies = trace.rows["kernels"], trace.rows["copies"]
    length = kernels["end_ns"] - kernels["start_ns"]
    assert (len(kernels), int(length.sum())) == (3_453, 7_309_063_136)
    assert int((length // 1000).sum()) == pytest.approx(7_305_597, abs=len(kernels))
    shares = [100 * part / device.span_ns for part in (device.compute_ns, device.exposed_copy_ns, device.idle_ns)]
    assert shares == pytest.approx([54.81, 2.81, 42.38], abs=0.15)
    directions = Counter({CopyKind.HOST_TO_DEVICE: 15_001, CopyKind.DEVICE_TO_HOST: 7_360})
    assert Counter(map(CopyKind, copies["kind"].tolist())) == directions
    assert int(copies["bytes"].sum()) == 6_555_763_456
    products = analyze([trace], rules=["full_precision_matmul"])["full_precision_matmul"]
    assert "fc-dtype_Float lack the precision" in (products.reason or "")


GOLDEN_STEPS_US = {
    "worker0.1623143089861.pt.trace.json.gz": [187_948, 175_153, 179_733, 174_564, 182_172, 165_983],
    "worker0.1623212756351.pt.trace.json.gz": [182_306, 126_183, 127_181, 123_079, 163_461, 124_198],
}


def until_work_is_done(trace: Trace) -> list[int]:
    """Length of each step from the end of the one before, at least its own begin, until its last work is done; us."""
    steps, calls = trace.rows["steps"], trace.rows["calls"]
    ends = steps["end_ns"].copy()
    for name in ("kernels", "copies"):
        work = trace.rows[name]
        linked = work["call"] >= 0
        launched = calls["start_ns"][work["call"][linked]]
        step = np.searchsorted(steps["start_ns"], launched, side="right") - 1
        inside = (step >= 0) & (launched < steps["end_ns"][np.maximum(step, 0)])
        np.maximum.at(ends, step[inside], work["end_ns"][linked][inside])
    begins = np.maximum(steps["start_ns"], np.concatenate(([steps["start_ns"][0]], ends[:-1])))
    return ((ends - begins) // 1000).tolist()


@pytest.mark.parametrize("name", GOLDEN_STEPS_US)
def test_steps_of_the_old_schema_are_those_of_the_tensorboard_plugin(peers: Path, name: str) -> None:
    """``result_check_file.txt`` of tb_plugin: steps last until their work is done. They are ``Operator`` events."""
    trace = load_one(public(peers, name))
    assert trace.rows["steps"]["number"].tolist() == [5, 6, 7, 8, 9, 10]
    assert until_work_is_done(trace) == GOLDEN_STEPS_US[name]


def test_memory_of_events_without_addresses_is_their_running_sum(peers: Path) -> None:
    """Sum over the file's ``[memory]`` events; memory held before is unknown, so free memory is not reported."""
    trace = load_one(public(peers, "worker0.1623143089861.pt.trace.json.gz"))
    assert [line.peak()[1] for line in trace.fact(memory_timelines)] == [2_791_636_480, 57_803_264]
    near = analyze([trace], rules=["oom_near"])["oom_near"]
    assert (near.status, near.examined) == ("abstained", 0)


def test_streams_and_steps_of_a_tensorflow_profile(peers: Path) -> None:
    """xprof: 1,330 kernels, 29,690.7 us; a device computes 14.88 ms of a step of 21.31 ms.

    The two GPUs ran their step one after the other; times of each device are sums over the file's streams.
    """
    trace = load_one(public(peers, "34.83.195.179_6003.xplane.pb"))
    found = [(one.ordinal, one.busy_ns, one.compute_ns, one.kernels) for one in trace.fact(device_times)]
    assert found[1:] == [(4, 14_983_622, 14_825_385, 665), (6, 15_050_451, 14_865_363, 665)]
    assert sum(one.kernel_time_ns for one in trace.fact(device_times)) == pytest.approx(29_690_700, abs=100)
    steps = trace.rows["steps"]
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [19_865_491, 21_310_352]
    assert {one.name for one in trace.fact(device_times)} == {"V100 SXM2"}


@pytest.mark.parametrize(
    ("name", "device", "capacity"),
    [
        ("34.83.195.179_6003.xplane.pb", "V100 SXM2", 15_477_102_400),
        ("jax08_attention/tw003.xplane.pb", "MI300X", 154_606_239_744),
        ("934987a2fc2f.xplane.pb", "MI355X", 299_944_250_900),
    ],
)
def test_capacity_is_the_allocators_and_devices_without_a_name_have_one(
    peers: Path, name: str, device: str, capacity: int
) -> None:
    """xprof's ``memoryCapacity``, not the board's memory; it names AMD's devices by their architecture."""
    trace = load_one(public(peers, name))
    assert {one.name for one in trace.fact(device_times)} == {device}
    assert {one.capacity_bytes for one in trace.fact(memory_timelines) if one.space == "device"} == {capacity}


def test_instructions_of_a_tpu_take_what_its_line_of_ops_shows(corpus: Path) -> None:
    """xprof: ``jit_f`` ran 400 times on 4 devices, 784 ms each; copies parallel to the core count for nothing."""
    trace = load_one(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz")
    ran = [one.execution for one in trace.fact(programs) if one.execution is not None]
    assert sum(one.instructions_ns for one in ran) == pytest.approx(315.1e9, rel=1e-3)
    assert max(one.span_ns / one.count for one in ran) == pytest.approx(784e6, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "graphs"),
    [("links.log", 1), ("cache_hit_miss.log", 3), ("inductor_provenance_jit_debug_handle_log.txt", 1)],
)
def test_graphs_of_a_log_are_what_inductor_compiled(peers: Path, name: str, graphs: int) -> None:
    """``inductor_output_code`` artifacts of tlparse 0.4.3: an inference graph is logged as a forward one, too."""
    (rank,) = analyze([load_one(public(peers, name))]).compile.ranks
    assert rank.graphs == graphs


def test_ranks_of_logs_are_those_of_their_names(peers: Path) -> None:
    """As in tlparse: every record of all three has rank 0."""
    sources = [trace.source for trace in load_all(public(peers, "multi_rank_schedule"))]
    assert [(source.rank, source.rank_source) for source in sources] == [(rank, "file name") for rank in range(3)]


def test_processes_of_nsys_jax_are_ranks_and_are_compared(peers: Path) -> None:
    """nsys-jax: collectives take 49 ms on process 0, 6,388, 7,883 and 8,783 ms on the others, which wait for it.

    They wait before the first step, and ``straggler`` counts lateness in steps: it compared, and is clean.
    """
    traces = [load_one(public(peers, f"pax_fsdp4_4proc_proc{rank}.zip")) for rank in range(4)]
    named = [(trace.source.rank, trace.source.rank_source) for trace in traces]
    assert named == [(rank, "thread metadata") for rank in range(4)]
    together = analyze(traces, rules=["straggler"])
    (job,) = together.collectives.jobs
    waits = [sum(kind.wait_ns.get(rank, 0) for kind in job.kinds) for rank in range(4)]
    assert (job.recorded, job.matched) == ((0, 1, 2, 3), 119)
    assert waits[0] < 30e6
    assert min(waits[1:]) > 6e9
    assert (together["straggler"].status, together["straggler"].examined) == ("clean", 119)
    assert analyze(traces[:1], rules=["straggler"])["straggler"].status == "abstained"


def test_syncs_of_rocprofv3_wait(peers: Path) -> None:
    """Rows of the file: 8 hipStreamSynchronize, 4 hipDeviceSynchronize; each HSA wait is inside a call of HIP."""
    trace = load_one(public(peers, "3648722_results.pftrace"))
    calls = trace.rows["calls"]
    waits = [trace.text(code) for code in calls["name"][calls["kind"] == CallKind.SYNC].tolist()]
    assert Counter(waits) == {"hipStreamSynchronize": 8, "hipDeviceSynchronize": 4}
    assert "waiting_calls" in trace.recorded
    assert analyze([trace], rules=["host_sync"])["host_sync"].status != "abstained"


def test_counts_of_a_comparison_are_per_step_in_every_row(peers: Path) -> None:
    """HTA's trace_compare: work after the last step is in no row, and a metric is the sum of its rows.

    New ops according to HTA: AddmmBackward0, All2All_Pooled_Req, CatBackward0.
    """
    base, head = (load_one(public(peers, f"trace_compare/{name}.json.gz")) for name in ("base", "test"))
    comparison = compare([base], [head])
    metrics = {metric.result.name: (metric.result.base, metric.result.head) for metric in comparison.exact}
    assert comparison.time is not None
    parts = comparison.time.median.parts
    for name, kinds in (("kernels per step", {"compute", "communication"}), ("copies per step", {"copy"})):
        rows = [(part.base.calls, part.head.calls) for part in parts if part.kind in kinds]
        assert metrics[name] == tuple(map(sum, zip(*rows, strict=True)))
    report = render_text(of(compare_json.document(comparison)))
    assert "kernels per step (3 → 2.50: below the threshold)" in report
    for op in ("AddmmBackward0", "All2All_Pooled_Req", "CatBackward0"):
        assert f"{op} (0.5)" in report
