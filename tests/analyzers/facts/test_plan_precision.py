"""Products of a plan in float32: of a recorded one whose dtypes are changed, by hand and by the rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.facts.plan_precision import mixed_precision, planned_products
from perfscope.analyzers.facts.plan_time import plan_works
from perfscope.analyzers.finding import AbstainError, Finding
from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.analyzers.load import load
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.torch_plan import HeldPlan
from perfscope.analyzers.trace import Trace
from tests.analyzers.plan_parts import graph, plan, product, trace_of

RECORDED = Path(__file__).resolve().parents[3] / "fixtures" / "plans-h100"


def in_float32(name: str, products: str) -> Trace:
    """A recorded plan as if its operands were float32 and torch had been told ``products``."""
    (trace,) = load(RECORDED / name)
    (held,) = trace.torch_plans
    graphs = tuple(
        replace(
            graph,
            kernels=tuple(
                replace(kernel, dtype=products) if kernel.kind == "product" else kernel for kernel in graph.kernels
            ),
        )
        for graph in held.plan.graphs
    )

    def widened(ops: object) -> object:
        return None if ops is None else replace(ops, tensors=tuple(map(wide, ops.tensors)))  # type: ignore[attr-defined,type-var]

    def wide(tensor: object) -> object:
        return replace(tensor, dtype="float32") if tensor.dtype == "bfloat16" else tensor  # type: ignore[attr-defined,type-var]

    plan = replace(held.plan, graphs=graphs, float32_products=products)  # type: ignore[arg-type]
    trace.torch_plans = (HeldPlan(plan=plan, eager=widened(held.eager), outside=widened(held.outside)),)  # type: ignore[arg-type]
    trace.target = parse_target("h100", None)
    return trace


def found(trace: Trace) -> list[Finding]:
    check = load_rule("full_precision_matmul").plan
    assert check is not None
    return list(check(trace))


@pytest.mark.parametrize("name", ["attention-sdpa", "attention-naive-compiled"])
def test_the_whole_saving_is_that_of_every_product(name: str) -> None:
    trace = in_float32(name, "float32")
    (finding,) = found(trace)
    (work,) = trace.fact(plan_works)
    products = planned_products(work)
    assert products
    device = trace.target.device  # type: ignore[union-attr]

    def least(flops: int, moved: int, dtype: str) -> float:
        return max(flops / device.peak_flops[dtype], moved / device.memory_bandwidth, 1e-6)

    by_hand = sum(
        one.runs * (least(one.flops, one.bytes, "float32") - least(one.flops, one.bytes, "tf32")) for one in products
    )
    assert finding.cost_ns == pytest.approx(by_hand * 1e9, rel=1e-3)
    assert finding.basis == "modelled"
    assert finding.where.file is not None
    assert "set_float32_matmul_precision" in finding.advice


@pytest.mark.parametrize("name", ["attention-sdpa", "attention-naive-compiled"])
def test_tf32_is_clean(name: str) -> None:
    assert found(in_float32(name, "tf32")) == []


def test_a_device_without_another_precision_is_not_judged() -> None:
    trace = in_float32("attention-sdpa", "float32")
    target = trace.target
    assert target is not None
    device = target.device
    trace.target = replace(target, device=replace(device, peak_flops={"float32": device.peak_flops["float32"]}))
    with pytest.raises(AbstainError, match="no faster precision"):
        found(trace)


def among_bfloat16(folder: Path, dtype: str, count: int) -> Trace:
    """A compiled program of six products of 4096^3, ``count`` of them not in bfloat16."""
    large = {"flops": 2 * 4096**3, "shape": "4096x4096x4096", "read_bytes": 64 << 20, "written_bytes": 32 << 20}
    kernels = [product(dtype=dtype if at < count else "bfloat16", **large) for at in range(6)]
    return trace_of(folder, plan(graph(*kernels), float32_products="tf32" if dtype == "tf32" else "float32"))


@pytest.mark.parametrize(("dtype", "times"), [("tf32", "2.0x"), ("float32", "14.8x")])
def test_a_program_of_bfloat16_with_one_product_that_is_not(tmp_path: Path, dtype: str, times: str) -> None:
    trace = among_bfloat16(tmp_path, dtype, 1)
    (finding,) = found(trace)
    peaks = trace.target.device.peak_flops  # type: ignore[union-attr]
    assert finding.cost_ns == pytest.approx(2 * 4096**3 * (1 / peaks[dtype] - 1 / peaks["bfloat16"]) * 1e9, rel=1e-3)
    assert finding.subject == "float32 products among bfloat16 ones"
    said = f"multiply in {dtype} in a program that multiplies in bfloat16 otherwise; in bfloat16 (peak {times})"
    assert said in finding.title
    assert [row["multiplied_in"] for row in finding.evidence] == [dtype]
    assert "torch.bfloat16" in finding.advice
    assert "set_float32_matmul_precision" not in finding.advice


def test_a_program_that_is_mostly_of_tf32_is_what_was_asked_for(tmp_path: Path) -> None:
    trace = among_bfloat16(tmp_path, "tf32", 3)
    (work,) = trace.fact(plan_works)
    assert mixed_precision(planned_products(work)) is None
    assert found(trace) == []


def test_a_program_that_is_mostly_of_float32_is_told_of_tf32(tmp_path: Path) -> None:
    (finding,) = found(among_bfloat16(tmp_path, "float32", 4))
    assert finding.subject == "float32 matrix products"
    assert "in tf32 (peak" in finding.title
