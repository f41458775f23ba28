"""Achieved shares of a device's peaks: costs per kernel, rates, utilization."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.ops.achieved import NOTHING, kernel_costs, moved_bytes
from perfscope.analyzers.ops.host_costs import host_costs
from perfscope.analyzers.ops.top_work import TopWork, merge_top_work, top_work
from perfscope.analyzers.readers.load import load_all
from perfscope.model.trace import CopyKind, HostMemory, Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files, every_file
from tests.graphs import GraphBuilder

H100 = "NVIDIA H100 80GB HBM3"
PEAK = 989.4e12
BANDWIDTH = 3352e9
MM = json.dumps([[4096, 4096], [4096, 4096]])
HALF = json.dumps(["c10::BFloat16"] * 2)
MM_FLOPS, MM_BYTES = 2 * 4096**3, 3 * 2 * 4096**2


def with_mm(*kernels: tuple[str, float, float], device: str = H100) -> TraceBuilder:
    b = TraceBuilder()
    b.device(0, device)
    b.step(1, 0, 1_000)
    b.op("aten::mm", 1, 20, external_id=1, shapes=MM, dtypes=HALF)
    for name, start, end in kernels:
        b.kernel(name, start, end, external_id=1)
    return b


def top_of(trace: Trace) -> TopWork:
    top = top_work(trace)
    assert top is not None
    return top


def test_a_product_shows_its_rates_its_share_of_the_roofline_and_the_mfu_of_the_step() -> None:
    top = top_of(with_mm(("nvjet_gemm", 100, 300)).build())
    row = top.kernels[0].achieved
    assert row.flops_per_s == pytest.approx(MM_FLOPS / 200e-6)
    assert row.bytes_per_s == pytest.approx(MM_BYTES / 200e-6)
    assert row.roofline_share == pytest.approx(MM_FLOPS / PEAK / 200e-6)
    assert top.ops[0].achieved == row
    assert top.costed_share == 1.0
    (used,) = top.utilization
    assert (used.device, used.dtype, used.peak_flops) == ("H100 SXM", "bfloat16", PEAK)
    assert used.mfu == used.hfu == pytest.approx(MM_FLOPS / PEAK / 1e-3)


def test_several_kernels_of_an_op_divide_its_cost_and_those_that_help_have_none_of_it() -> None:
    trace = with_mm(("gemm", 100, 200), ("gemm", 200, 500), ("splitKreduce_kernel", 500, 600)).build()
    assert trace.fact(kernel_costs).flops.tolist() == [MM_FLOPS / 4, 3 * MM_FLOPS / 4, 0]
    top = top_of(trace)
    assert top.ops[0].achieved.flops_per_s == pytest.approx(MM_FLOPS / 500e-6)
    rates = {row.name: row.achieved.flops_per_s for row in top.kernels}
    assert rates == {"gemm": pytest.approx(MM_FLOPS / 400e-6), "splitKreduce_kernel": None}


def test_float32_on_the_ordinary_cores_is_held_against_their_peak() -> None:
    b = TraceBuilder()
    b.device(0, H100)
    b.op("aten::mm", 1, 20, external_id=1, shapes=MM, dtypes='["float", "float"]')
    b.kernel("ampere_sgemm_128x128_nn", 100, 3_000, external_id=1)
    share = top_of(b.build()).kernels[0].achieved.roofline_share
    assert share == pytest.approx(MM_FLOPS / 66.9e12 / 2_900e-6)


def test_a_cost_is_looked_for_above_the_op_that_launched() -> None:
    shapes, kinds = json.dumps([[1, 4, 128, 64]] * 3 + [[], []]), json.dumps(["c10::Half"] * 3 + ["Scalar"] * 2)
    b = TraceBuilder()
    b.device(0, H100)
    b.op("aten::_scaled_dot_product_flash_attention", 1, 50, shapes=shapes, dtypes=kinds,
         values='["", "", "", "0.", "False"]')  # fmt: skip
    b.op("vendor::attention", 5, 20, external_id=1, shapes="[[128]]", dtypes='["float"]')
    b.op("aten::fill_", 25, 30, external_id=2, shapes="[[128], []]", dtypes='["float", "Scalar"]')
    b.kernel("fmha", 100, 200, external_id=1)
    b.kernel("fill_kernel", 200, 210, external_id=2)
    costs = b.build().fact(kernel_costs)
    assert costs.flops.tolist() == [4 * 4 * 128 * 128 * 64, 0]
    assert costs.bytes.tolist() == [4 * 2 * 4 * 128 * 64, 512]


def test_what_is_not_known_is_not_costed() -> None:
    b = with_mm(("gemm", 100, 300))
    b.op("vllm::moe_forward", 30, 40, external_id=2, shapes="[[8]]", dtypes='["float"]')
    b.kernel("moe", 300, 500, external_id=2)
    b.kernel("orphan", 500, 600)
    top = top_of(b.build())
    assert top.costed_share == pytest.approx(0.4)
    assert {row.name: row.achieved == NOTHING for row in top.kernels} == {"gemm": False, "moe": True, "orphan": True}


def test_a_device_without_peaks_has_rates_and_no_shares() -> None:
    top = top_of(with_mm(("gemm", 100, 300), device="Test GPU").build())
    assert top.kernels[0].achieved.flops_per_s == pytest.approx(MM_FLOPS / 200e-6)
    assert top.kernels[0].achieved.roofline_share is None
    assert top.utilization == ()


def test_what_checkpointing_runs_again_counts_for_hfu_alone() -> None:
    b = with_mm(("gemm", 100, 200))
    node = "autograd::engine::evaluate_function: MmBackward0"
    b.op(node, 30, 90, tid=2)
    b.op("aten::mm", 40, 50, tid=2, external_id=2, shapes=MM, dtypes=HALF, sequence=5, forward_thread=0)
    b.op("aten::mm", 60, 70, tid=2)
    b.kernel("gemm", 200, 300, external_id=2)
    (used,) = top_of(b.build()).utilization
    assert used.hfu == pytest.approx(2 * used.mfu)
    assert used.flops == MM_FLOPS


def test_collectives_count_what_crosses_the_links() -> None:
    b = TraceBuilder()
    b.device(0, H100)
    b.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 0, 1_000, communication=True)
    b.row("collectives", start_ns=0, end_ns=1_000_000, name=b.code("all_reduce"), kernel=0, group_size=8,
          elements_in=10**8, elements_out=10**8, dtype=b.code("BFloat16"))  # fmt: skip
    row = top_of(b.build()).kernels[0].achieved
    assert row.bytes_per_s == pytest.approx(2e8 * 2 * 7 / 8 / 1e-3)
    assert row.roofline_share == pytest.approx(2e8 * 2 * 7 / 8 / 450e9 / 1e-3)


def test_copies_have_rates_and_those_inside_the_device_a_roof() -> None:
    b = TraceBuilder()
    b.device(0, H100)
    b.copy("Memcpy HtoD", 0, 1_000, size=10**7)
    b.copy("Memcpy DtoD", 1_000, 2_000, size=10**9, kind=CopyKind.DEVICE_TO_DEVICE, host_memory=HostMemory.NONE)
    rows = {row.name: row.achieved for row in top_of(b.build()).kernels}
    assert rows["Memcpy HtoD"].bytes_per_s == pytest.approx(1e10)
    assert rows["Memcpy HtoD"].roofline_share is None
    assert rows["Memcpy DtoD"].roofline_share == pytest.approx(2e9 / BANDWIDTH / 1e-3)


def test_the_op_graph_of_a_run_says_it_where_shapes_were_not_recorded() -> None:
    g = GraphBuilder()
    x = g.input((256, 256))
    g.op("mm", [x, x], flops=2 * 256**3)
    b = TraceBuilder(op_graph=g.graph())
    b.device(0, H100)
    b.step(1, 0, 100)
    b.op("aten::mm", 1, 20, external_id=1)
    b.kernel("gemm", 30, 80, external_id=1)
    costs = b.build().fact(kernel_costs)
    assert (costs.flops.tolist(), costs.bytes.tolist()) == ([2 * 256**3], [2 * 4 * 256**2])


def test_the_detail_pass_of_a_run_says_it_where_neither_did() -> None:
    """A program with torch.compile has no op graph; its graph is an op in one pass and an annotation in the other."""
    graph = "## Call CompiledFxGraph f7ab ##"
    b = TraceBuilder()
    b.device(0, H100)
    b.step(1, 0, 1_000)
    b.op(graph, 0.5, 40)
    b.op("aten::mm", 1, 20, external_id=1)
    b.op("aten::relu", 21, 30, external_id=2)
    b.kernel("nvjet_gemm", 100, 300, external_id=1)
    b.kernel("vectorized_elementwise_kernel", 300, 310, external_id=2)
    detail = TraceBuilder()
    detail.step(1, 0, 5_000)
    detail.annotation(graph, 0.5, 400)
    detail.op("aten::mm", 10, 200, shapes=MM, dtypes=HALF)
    timed = b.build()
    timed = replace(timed, recorded=timed.recorded - {"shapes"})
    trace = replace(timed, detail=detail.build())
    assert trace.fact(kernel_costs).flops[0] == MM_FLOPS
    assert np.isnan(trace.fact(kernel_costs).flops[1]), "it did not run in the detail pass"
    assert np.isnan(timed.fact(kernel_costs).flops[0])


def test_on_the_host_a_cost_is_that_of_the_op_inside_that_works() -> None:
    g = GraphBuilder()
    x = g.input((256, 256))
    g.op("clone", [x])
    g.op("mm", [x, x], flops=2 * 256**3)
    b = TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=g.graph())
    b.step(1, 0, 100)
    b.op("aten::clone", 1, 20)
    b.op("aten::copy_", 2, 19)
    b.op("aten::mm", 30, 50)
    b.op("aten::copy_", 31, 49)  # of an operand: not what the product costs
    trace = b.build()
    costs = host_costs(trace, range(len(trace.rows["slices"])))
    names = [trace.text(int(trace.rows["slices"]["name"][row])) for row in sorted(costs)]
    assert names == ["aten::copy_", "aten::mm"]
    assert moved_bytes(trace, [0]) == 2 * 4 * 256**2


def test_several_traces_are_summed() -> None:
    parts = [top_of(with_mm(("gemm", 100, 300)).build()) for _ in range(2)]
    merged = merge_top_work(parts)
    assert merged is not None
    assert merged.kernels[0].achieved.flops == 2 * MM_FLOPS
    assert merged.utilization[0].mfu == parts[0].utilization[0].mfu
    other = top_of(with_mm(("gemm", 100, 300), device="NVIDIA B200").build())
    both = merge_top_work([*parts, other])
    assert both is not None
    assert [used.device for used in both.utilization] == ["H100 SXM", "B200"]


@pytest.mark.corpus
@pytest.mark.parametrize(
    "path", every_file(corpus_files("kineto", "*.json.gz")), ids=lambda path: path.name.split(".json")[0]
)
def test_nothing_runs_faster_than_its_roofline_but_for_what_fits_in_a_cache(path: Path) -> None:
    (trace,) = load_all(path)
    top = top_work(trace)
    if top is None:
        pytest.skip("no work in it")
    for row in (*top.kernels, *top.ops):
        share = row.achieved.roofline_share
        assert share is None or share < 1.05, row
    for used in top.utilization:
        assert 0 < used.mfu <= used.hfu < 1


@pytest.mark.corpus
def test_megatron_products_reach_what_an_a100_does(corpus: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "astra-sim__megatron_kineto_0.json.gz")
    row = next(row for row in top_of(trace).ops if row.name == "aten::mm")
    assert 0.75 < (row.achieved.roofline_share or 0) < 0.85


@pytest.mark.corpus
def test_kernels_of_a_compiled_program_have_the_cost_of_their_instruction(corpus: Path) -> None:
    """A convolution as an unfolding and a product, which has all the FLOPs."""
    (trace,) = load_all(corpus / "xplane" / "TraceLens__mi300_jax_conv_08.xplane.pb.gz")
    costs, codes = trace.fact(kernel_costs), trace.rows["kernels"]["name"].tolist()
    product = [row for row, code in enumerate(codes) if trace.text(code).startswith("Cijk_")]
    unfolding = [row for row, code in enumerate(codes) if trace.text(code).startswith("Im3d2Col")]
    assert costs.flops[product].sum() / len(product) == pytest.approx(32_715_571_200)
    assert unfolding
    assert not np.nan_to_num(costs.flops[unfolding]).any()
    assert top_of(trace).costed_share > 0.95
