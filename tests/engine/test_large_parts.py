"""Whatever takes a fifth of the step is in a finding or has a reason, in every report."""

from __future__ import annotations

import json

import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.large_parts import AT_ROOFLINE, LARGE_SHARE, LargePart
from perfscope.dashboards.report import html_report, json_report, llm, markdown, text
from perfscope.dashboards.report.sections.large_parts import _line
from tests.build import EVERYTHING, TraceBuilder

ON_HOST = EVERYTHING - {"device_work", "launch_links", "runtime_calls", "waiting_calls"}
PRODUCT = "[[{rows}, 1024], [1024, 1024]]"
FLOATS = '["float", "float"]'


def on_host(ops: list[tuple[str, float]], *, rows: int = 0, rules: tuple[str, ...] = ("data_movement",)) -> Analysis:
    """Three steps of 1,000 us with these ops, one after the other, and small ones of ten names in the rest."""
    t = TraceBuilder(recorded=ON_HOST)
    left = 1000 - sum(us for _, us in ops)
    filled = [*ops, *((f"aten::small_{number}", left / 10) for number in range(10))]
    for step in range(3):
        at = step * 1000.0
        t.step(step, at, at + 1000)
        for name, us in filled:
            shapes = PRODUCT.format(rows=rows) if rows and name == "aten::mm" else None
            t.op(name, at, at + us, shapes=shapes, dtypes=FLOATS if shapes else None)
            at += us
    return analyze(t.build(), rules=rules)


def on_device(us: float, *, name: str = "NVIDIA A100-SXM4-80GB", idle: float = 1) -> Analysis:
    """A step with one product on a device, and some idle time."""
    dtypes = '["c10::BFloat16", "c10::BFloat16"]'
    t = TraceBuilder()
    t.device(0, name)
    t.step(0, 0, us + idle)
    t.op("aten::mm", 0, 1, external_id=1, shapes=PRODUCT.format(rows=4096), dtypes=dtypes)
    t.kernel("ampere_bf16_s16816gemm_bf16", 0, us, external_id=1)
    return analyze(t.build(), rules=("data_movement",))


def test_a_large_op_of_a_cpu_says_that_its_peak_is_not_known() -> None:
    (part,) = on_host([("aten::mm", 800)], rows=512).large
    assert (part.kind, part.name, part.reason, part.rule) == ("op", "aten::mm", "no_peak", None)
    assert part.share == pytest.approx(0.8)
    assert not part.judged


def test_below_a_fifth_only_the_largest_is_named() -> None:
    (part,) = on_host([("aten::mm", 190), ("aten::add", 150)]).large
    assert (part.name, part.share < LARGE_SHARE) == ("aten::mm", True)
    assert {part.name for part in on_host([("aten::mm", 250), ("aten::add", 210)]).large} == {"aten::mm", "aten::add"}


def test_a_product_of_few_rows_is_bound_by_memory() -> None:
    assert on_host([("aten::mm", 800)], rows=1).large[0].reason == "few_rows"
    assert on_host([("aten::mm", 800)], rows=512).large[0].reason != "few_rows"


def test_many_short_calls_are_the_price_of_a_call() -> None:
    assert on_host([("aten::add", 5)] * 120).large[0].reason == "short_calls"


def test_time_between_many_short_ops_is_what_starting_them_costs() -> None:
    def between(ops: int, core_wait: float = 0) -> LargePart:
        b = TraceBuilder(recorded=ON_HOST)
        b.step(0, 0, 1_000)
        each = 1_000 / ops
        for number in range(ops):
            b.op("aten::add", number * each, (number + 0.5) * each)
        if core_wait:
            b.core_reading(0, 1_000, core_wait)
        return next(part for part in analyze(b.build(), rules=("data_movement",)).large if part.kind == "cause")

    many = between(50)
    assert (many.reason, many.calls) == ("many_ops", 50)
    assert "50 ops per step, 10.0 us of Python and dispatch" in _line(many)
    assert between(10).reason == "no_rule", "50 us before each op are more than starting it costs"
    assert between(10, core_wait=200).reason == "no_core"
    assert between(10, core_wait=50).reason == "no_rule"


def test_what_a_finding_is_about_names_its_rule() -> None:
    found = on_host([("aten::cat", 400), ("aten::mm", 400)], rows=512)
    assert {part.name: part.rule for part in found.large} == {"aten::cat": "data_movement", "aten::mm": None}
    rest = text.render(found)
    assert "Also large" in rest
    assert "aten::mm" in rest


def test_a_kernel_at_its_roofline_is_fine_and_a_slow_one_is_not_judged() -> None:
    flops = 2 * 4096 * 1024 * 1024
    least_us = flops / 312e12 * 1e6
    fast, slow = on_device(least_us / 0.9).large, on_device(least_us * 10).large
    assert fast[0].reason == "at_roofline"
    assert fast[0].achieved.roofline_share is not None
    assert fast[0].achieved.roofline_share >= AT_ROOFLINE
    assert slow[0].reason == "below_roofline"


def test_a_device_that_is_not_in_the_catalogue_has_no_peak() -> None:
    assert on_device(900, name="Test GPU").large[0].reason == "no_peak"


def test_idle_time_without_a_finding_is_a_part_of_its_own() -> None:
    part = next(part for part in on_device(100, idle=900).large if part.kind == "cause")
    assert part.reason == "no_rule"
    assert part.share > LARGE_SHARE


@pytest.mark.parametrize("render", [text.render, markdown.render, html_report.render, llm.render])
def test_no_findings_never_stands_alone(render: object) -> None:
    shown = render(on_host([("aten::mm", 800)], rows=512))  # type: ignore[operator]  # each takes an analysis
    assert "aten::mm" in shown
    assert "not judged" in shown
    assert "Largest parts" in shown


def test_json_has_every_part_with_its_reason() -> None:
    held = json.loads(json_report.render(on_host([("aten::cat", 400), ("aten::mm", 400)], rows=512)))["large_parts"]
    assert {part["name"]: part["reason"] for part in held} == {"aten::cat": "finding", "aten::mm": "no_peak"}
    assert all(0 <= part["share"] <= 1 for part in held)


def test_shares_of_all_parts_sum_to_at_most_the_step() -> None:
    found = on_host([("aten::mm", 300), ("aten::cat", 300), ("aten::add", 300)], rows=512)
    assert sum(part.share for part in found.large if part.kind == "op") <= 1.0
