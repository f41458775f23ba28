"""Predefined queries compared with HTA (traceinsight 0.6.1, HTA_DISABLE_NS_ROUNDING=1) on the same public files.

It leaves out the last step of a recording and works with the file's whole microseconds; docs/peers.md has the table.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pandas as pd
import pytest

from perfscope.analyzers.query import QUERIES, Database
from perfscope.analyzers.readers.load import load_all

pytestmark = pytest.mark.corpus

ALEXNET = "kineto/HolisticTraceAnalysis__alexnet_critical_path.json.gz"
SAMPLED = "kineto/HolisticTraceAnalysis__sampled_rank-0.json.gz"
BERT = "kineto/TraceLens__h100_bert-small.json.gz"
QWEN = "kineto/TraceLens__h100_qwen1.5-0.5b.json.gz"
GRAPH = "kineto/TraceLens__vllm_decode_full_graph.json.gz"
COUNTED = "kineto/HolisticTraceAnalysis__cupti_profiler.json.gz"
MAXTEXT = "nsys_jax/JAX-Toolbox__maxtext_fsdp4_test_data.zip"


@lru_cache(maxsize=4)
def _database(path: Path) -> Database:
    return Database(load_all(path))


def answer(corpus: Path, file: str, query: str) -> pd.DataFrame:
    return _database(corpus / file).query(QUERIES[query].sql if query in QUERIES else query)


def test_temporal_breakdown(corpus: Path) -> None:
    causes = answer(corpus, SAMPLED, "select cause, time_ns from accounts where step = 551").set_index("cause").time_ns
    assert causes.compute == 106_252_000
    assert causes.exposed_communication + causes.exposed_copy == 172_428_000


def test_communication_overlapped_by_computation(corpus: Path) -> None:
    kernels = (
        "select sum(kernels.end_ns - kernels.start_ns) as ns from kernels, steps where number = 551 and communication"
    )
    within = " and kernels.start_ns >= steps.start_ns and kernels.start_ns < steps.end_ns"
    whole = answer(corpus, SAMPLED, kernels + within).ns[0]
    exposed = "select time_ns from accounts where step = 551 and cause = 'exposed_communication'"
    assert whole == 195_327_000
    assert 100 * (1 - answer(corpus, SAMPLED, exposed).time_ns[0] / whole) == pytest.approx(11.81, abs=0.005)


@pytest.mark.parametrize(("file", "most"), [(ALEXNET, {7: 18, 20: 2}), (BERT, {7: 1}), (QWEN, {7: 111})])
def test_queue_length_by_stream(corpus: Path, file: str, most: dict[int, int]) -> None:
    streams = answer(corpus, file, "full_queue")
    assert dict(zip(streams.stream, streams.most_waiting, strict=True)) == most
    assert not streams.full_ms.any()


def test_kernel_breakdown(corpus: Path) -> None:
    kernels = answer(corpus, SAMPLED, "kernel_ranks").set_index("kernel")
    (sends,) = kernels[kernels.index.str.startswith("nccl SendRecv")].itertuples()
    assert (sends.shortest_us, sends.calls) == (11_727, 10)


def test_user_annotations_on_the_host(corpus: Path) -> None:
    spans = answer(corpus, ALEXNET, "annotations").groupby("name").host_ms.sum()
    assert spans["[param|pytorch.model.alex_net|0|0|0|measure|forward]"] == pytest.approx(116.034)
    assert spans["[param|clear_cache]"] == pytest.approx(56.408)


@pytest.mark.parametrize(("file", "ms"), [(BERT, 3.907827), (QWEN, 34.892421)])
def test_user_annotations_on_the_device(corpus: Path, file: str, ms: float) -> None:
    (step,) = answer(corpus, file, "annotations").itertuples()
    assert step.device_span_ms == pytest.approx(ms, abs=0.0002)  # Kineto's own span is some ns shorter


def test_the_path_goes_through_kernels_of_a_cuda_graph(corpus: Path) -> None:
    # HTA: 908 us of the host, no kernel; the kernels of the graph take 10.7 ms
    path = answer(corpus, GRAPH, "select what, sum(duration_ns) as ns from critical_path group by what")
    assert path.set_index("what").ns.kernel == 10_674_517


def test_bus_bandwidth_of_xla_collectives(corpus: Path) -> None:
    kinds = answer(corpus, MAXTEXT, "bandwidth")
    assert kinds["count"].sum() == 160
    largest = kinds.iloc[0]
    assert (largest.operation, largest.message_bytes) == ("all_gather", 146_800_640)
    assert largest.bus_gb_per_s == pytest.approx(310.64, abs=0.01)


@pytest.mark.parametrize(
    ("file", "message_bytes", "ms", "fastest_bus_gb_per_s"),
    [
        (
            "kineto/TraceLens__resnet_act_checkpoint.json.gz",
            2 * 8_816_192,
            26.79824,
            2 * 7 / 8 * 17_632_384 / 8_656_708,
        ),
        ("kineto/HolisticTraceAnalysis__nccl_data.json.gz", 4 * 2_049_000, 11.820962, 8_196_000 / 2_520_607),
    ],
)
def test_messages_of_one_rank_are_the_arguments_of_its_kernels(
    corpus: Path, file: str, message_bytes: int, ms: float, fastest_bus_gb_per_s: float
) -> None:
    messages = answer(corpus, file, "messages")
    (row,) = messages[messages.message_bytes == message_bytes].itertuples()
    assert (row.operation, row.calls) == ("all_reduce", 3)
    assert row.ms == pytest.approx(ms)
    assert row.best_bus_gb_per_s == pytest.approx(fastest_bus_gb_per_s)


@pytest.mark.parametrize(
    ("file", "runs", "ms"),
    [
        ("xplane/TraceLens__mi300_jax08_gemm.xplane.pb.gz", 42, 3.4152),  # xprof, op_profile and hlo_stats
        ("xplane/xprof__tpu_inference_2.xplane.pb.gz", 6_013, 315_123.0),  # xprof extrapolates 315.118 s
    ],
)
def test_the_op_profile_is_a_tree_whose_levels_sum(corpus: Path, file: str, runs: int, ms: float) -> None:
    tree = answer(corpus, file, "op_profile")
    root = tree[tree.program.isna()].iloc[0]
    assert root.runs == runs
    assert root.ms == pytest.approx(ms, rel=1e-4)
    programs = tree[tree.program.notna() & tree.kind.isna()]
    kinds = tree[tree.kind.notna() & tree.instruction.isna()]
    for level in (programs, kinds, tree[tree.instruction.notna()]):
        assert level.runs.sum() == runs
        assert level.ms.sum() == pytest.approx(root.ms)


def test_counters_of_kernels_and_their_ops(corpus: Path) -> None:
    """Results of HTA's test and its notebook `cupti_flops_analysis` for this file; all 77 rows are equal to HTA's."""
    kernels = answer(corpus, COUNTED, """
        select any_value(k.name) as kernel, any_value(s.name) as op, any_value(k.basis) as basis,
               sum(case when metric like '%fma_pred_on.sum' then 2 * value else value end) as flops,
               sum(value) filter (where metric = 'smsp__sass_thread_inst_executed_op_fadd_pred_on.sum') as fadd
        from kernel_counters k join slices s on s.row = k.op group by number order by number
    """)  # fmt: skip
    assert len(kernels) == 77
    assert set(kernels.basis) == {"joined by order of launch; counts are equal: 77 of 77"}
    fifth = kernels.iloc[5]
    assert "fft2d_r2c_32x32" in fifth.kernel
    assert (fifth.op, fifth.fadd) == ("aten::cudnn_convolution", 86_114_304)
    first = kernels.head(5)
    assert first.flops.tolist() == [87_195_648, 18_263_449_600, 148_684_800, 0, 11_943_936]
    assert first.op.tolist() == [
        "aten::uniform_", "aten::cudnn_convolution", "aten::add_", "aten::clamp_min_", "aten::max_pool2d_with_indices",
    ]  # fmt: skip
    assert first.kernel[1] == "__missing__"


def test_flops_of_ops_by_counters(corpus: Path) -> None:
    flops = answer(corpus, COUNTED, "op_flops").set_index("op")[["kernels", "flops"]]
    assert {op: (row.kernels, row.flops) for op, row in flops.iterrows()} == {  # as HTA's frame, summed by its op
        "aten::cudnn_convolution": (28, 49_128_439_808),
        "aten::addmm": (12, 30_162_550_784),
        "aten::add_": (10, 744_947_712),
        "aten::uniform_": (1, 87_195_648),
        "aten::_adaptive_avg_pool2d": (2, 45_530_616),
        "aten::max_pool2d_with_indices": (6, 45_219_840),
        "aten::native_dropout": (4, 17_154_048),
        "aten::clamp_min_": (14, 0),
    }
