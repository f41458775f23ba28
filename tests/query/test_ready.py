"""The ready queries on traces with known answers."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.ops import uses_tensor_cores
from perfscope.analyzers.query import QUERIES, Database
from perfscope.model.trace import CopyKind, HostMemory
from tests.build import TraceBuilder


def rows(builder: TraceBuilder, name: str, *columns: str) -> list[list[Any]]:
    answer = Database([builder.build()]).query(QUERIES[name].sql)
    picked: list[list[Any]] = answer[list(columns)].values.tolist()
    return picked


def nested() -> TraceBuilder:
    """A module with another inside it, an op that calls an op, two kernels; all times in ms are us / 1000."""
    builder = TraceBuilder()
    builder.annotation("request", 0, 1000)
    builder.python("nn.Module: Net_0", 10, 900)
    builder.python("nn.Module: Linear_0", 20, 400)
    builder.op("aten::linear", 30, 300)
    builder.op("aten::addmm", 40, 240, external_id=1)
    builder.launched("gemm", 50, 100, 400, correlation=1, external_id=1)
    builder.launched("bias", 60, 410, 510, correlation=2, external_id=1)
    builder.op("aten::relu", 500, 600, external_id=2)
    builder.launched("relu", 510, 600, 650, correlation=3, external_id=2)
    return builder


def test_direct_and_inner_time_of_ops() -> None:
    columns = ("name", "host_self_ms", "host_ms", "device_ms", "inner_device_ms", "works")
    assert rows(nested(), "op_times", *columns) == [
        ["aten::addmm", 0.2, 0.2, 0.4, 0.4, 2],
        ["aten::linear", pytest.approx(0.07), 0.27, 0.0, 0.4, 2],
        ["aten::relu", 0.1, 0.1, 0.05, 0.05, 1],
    ]


def test_the_module_tree_has_the_work_inside_it() -> None:
    assert rows(nested(), "modules", "path", "calls", "device_ms", "works") == [
        ["Net_0", 1, 0.45, 3],
        ["Net_0.Linear_0", 1, 0.4, 2],
    ]


def test_annotations_on_the_host_and_on_the_device() -> None:
    columns = ("name", "depth", "host_ms", "device_work_ms", "device_span_ms")
    assert rows(nested(), "annotations", *columns) == [["request", 0, 1.0, 0.45, 0.55]]


def test_an_op_has_the_sequence_of_its_kernels() -> None:
    assert rows(nested(), "op_kernels", "op", "kernels", "calls", "mean_delay_us") == [
        ["aten::addmm", "gemm > bias", 1, 200],
        ["aten::relu", "relu", 1, 90],
    ]


def test_ops_by_category() -> None:
    answer = rows(nested(), "categories", "category", "device_ms")
    assert answer == [["matrix product", 0.4], ["elementwise", 0.05]]


def streams() -> TraceBuilder:
    builder = TraceBuilder()
    builder.kernel("a", 0, 100, stream=7)
    builder.kernel("b", 90, 110, stream=7)  # overlaps on its own stream: counts once
    builder.kernel("c", 50, 150, stream=8)
    builder.copy("copy", 140, 200, stream=9)
    return builder


def test_two_streams_at_a_time() -> None:
    columns = ("stream", "other", "both_ms")
    assert rows(streams(), "stream_overlap", *columns) == [
        [7, 7, pytest.approx(0.11)],
        [7, 8, pytest.approx(0.06)],
        [8, 8, pytest.approx(0.1)],
        [8, 9, pytest.approx(0.01)],
        [9, 9, pytest.approx(0.06)],
    ]


def test_how_many_ran_at_a_time() -> None:
    # one: 0-50, 110-140, 150-200; two: 50-90, 100-110, 140-150; three: 90-100
    answer = rows(streams(), "concurrency", "running", "ms")
    assert answer == [[1, pytest.approx(0.13)], [2, pytest.approx(0.06)], [3, pytest.approx(0.01)]]


def test_time_with_a_full_queue() -> None:
    builder = TraceBuilder()
    for number in range(1030):  # launched 1 us apart, all begin from 5000 us on
        builder.launched("k", number, 5000 + number, 5001 + number, correlation=number, cost=0.5)
    columns = ("most_waiting", "full_ms")
    # the 1024th is launched at 1023 us; at 5006 us, 1030 - 7 are left
    assert rows(builder, "full_queue", *columns) == [[1030, pytest.approx(5.006 - 1.023)]]


def test_bandwidth_of_copies_that_overlap_adds_up() -> None:
    builder = TraceBuilder()
    for start, end, size in ((0, 100, 1_000_000), (50, 150, 500_000)):
        builder.copy("c", start, end, size=size, kind=CopyKind.HOST_TO_DEVICE, host_memory=HostMemory.PINNED)
    assert rows(builder, "copy_bandwidth", "time_ns", "gb_per_s") == [
        [0, 10], [50_000, 15], [100_000, 5], [150_000, 0],
    ]  # fmt: skip


def test_kernels_of_each_rank() -> None:
    traces = []
    for rank, lengths in ((0, (10, 30)), (1, (20,))):
        builder = TraceBuilder(rank=rank)
        for number, length in enumerate(lengths):
            builder.kernel("k", 100 * number, 100 * number + length)
        traces.append(builder.build())
    answer = Database(traces).query(QUERIES["kernel_ranks"].sql)
    assert answer[["rank", "calls", "ms", "shortest_us", "longest_us", "percent"]].values.tolist() == [
        [0, 2, 0.04, 10, 30, 100],
        [1, 1, 0.02, 20, 20, 100],
    ]


def test_percentiles_of_repeated_calls() -> None:
    builder = TraceBuilder()
    for number in range(101):
        builder.annotation("decode", 1000 * number, 1000 * number + number)
    columns = ("name", "calls", "p50_ms", "p90_ms", "p99_ms", "longest_ms")
    assert rows(builder, "percentiles", *columns) == [["decode", 101, 0.05, 0.09, 0.099, 0.1]]


def test_messages_of_one_rank_have_a_bandwidth() -> None:
    builder = TraceBuilder()
    builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 100, communication=True)
    builder.row("collectives", name=builder.code("all_reduce"), start_ns=0, end_ns=100_000, kernel=0, slice=-1,
                group=builder.code("0"), description=-1, group_size=4, ranks=-1, elements_in=250_000,
                elements_out=250_000, dtype=builder.code("Float"), sequence=-1, peer=-1)  # fmt: skip
    columns = ("operation", "message_bytes", "algorithm", "best_algorithm_gb_per_s", "best_bus_gb_per_s")
    assert rows(builder, "messages", *columns) == [["all_reduce", 1_000_000, "RING", 10, 15]]


@pytest.mark.parametrize(
    ("kernel", "uses"),
    [
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", True),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", True),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", True),
        ("ampere_sgemm_32x32_sliced1x4_tn", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", False),
        ("void at::native::vectorized_elementwise_kernel<4>", None),
    ],
)
def test_names_of_tensor_core_kernels(kernel: str, uses: bool | None) -> None:
    assert uses_tensor_cores(kernel) is uses


def test_the_share_of_tensor_cores_is_by_name() -> None:
    builder = TraceBuilder()
    builder.kernel("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", 0, 30)
    builder.kernel("ampere_sgemm_32x32_sliced1x4_tn", 30, 40)
    builder.kernel("fill", 40, 100)
    assert rows(builder, "tensor_cores", "by_name", "percent") == [
        ["not said", 60],
        ["tensor cores", 30],
        ["plain float32", 10],
    ]


def test_a_step_by_what_it_was_spent_on() -> None:
    builder = nested()
    builder.step(1, 0, 1000)
    (parts,) = rows(builder, "step_breakdown", "input_ms", "launch_ms", "host_ms", "compute_ms", "copy_ms", "step_ms")
    answer = Database([builder.build()]).query(QUERIES["step_breakdown"].sql)
    assert (parts[3], parts[-1]) == (pytest.approx(0.45), 1.0)
    assert answer.filter(regex="_ms$").drop(columns="step_ms").sum(axis=1).tolist() == [pytest.approx(1.0)]
