"""Products of a plan in float32: of a recorded one whose dtypes are changed, by hand and by the rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.facts.plan_precision import full_products
from perfscope.analyzers.facts.plan_time import plan_works
from perfscope.analyzers.finding import AbstainError, Finding
from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.analyzers.load import load
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.torch_plan import HeldPlan
from perfscope.analyzers.trace import Trace

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
    products = full_products(work)
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
