"""Reports of plans: their picture and their page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.dashboards.report.blocks import Plot
from perfscope.dashboards.report.renderers.charts import chart_html
from perfscope.plugins.memory_advice.plans import plan_memory
from perfscope.plugins.memory_advice.sections import PlansReport, plan_sections, plans_report, render_html
from perfscope.plugins.memory_advice.step_model import StepModel
from tests.browser.chromium import Page
from tests.plugins.memory_advice.steps import checkpointed, layers
from tests.report.test_memory import page as page

MIB = 1 << 20


def step(count: int) -> StepModel:
    made = layers(count, held=MIB, activation=MIB, product=MIB // 2, temporary=1024)
    slow = tuple(replace(value, cost_ns=value.cost_ns * 1_000_000) for value in made.values)
    return replace(made, values=slow, step_ns=10**9)


def report(model: StepModel, budget: int | None = None, devices: int | None = None) -> PlansReport:
    return plans_report(plan_memory(model, budget_bytes=budget, devices=devices), "step.fake")


def picture(shown: PlansReport) -> str:
    (plot,) = [block for section in plan_sections(shown) for block in section.blocks if isinstance(block, Plot)]
    return chart_html(plot)


def test_where_time_is_not_touched_the_picture_stands() -> None:
    free = step(3)
    free = replace(free, values=tuple(replace(value, cost_ns=0) for value in free.values))
    for shown in (report(free), report(checkpointed(step(6)))):
        assert "nan" not in picture(shown)
        assert picture(shown).count("<title>") == len(shown.rows())


def test_today_and_the_plan_to_take_are_always_named() -> None:
    for model in (step(12), checkpointed(step(12))):
        named = re.findall(r'<text class="ps-said"[^>]*>([^<]*)</text>', picture(report(model, budget=12 * MIB)))
        assert sorted(named) == ["recommended", "today"]


@pytest.mark.parametrize(
    ("count", "width", "dark"), [(1, 390, False), (2, 1280, True), pytest.param(24, 390, True, marks=pytest.mark.slow)]
)
def test_the_page_of_plans_fits(page: Page, tmp_path: Path, count: int, width: int, dark: bool) -> None:
    for number, shown in enumerate((report(step(count)), report(checkpointed(step(count)), count * MIB))):
        file = tmp_path / f"{number}.html"
        file.write_text(render_html(shown))
        page.open(file, width=width, dark=dark)
        assert page.value("document.querySelectorAll('.ps-plot text').length") >= 1
        assert page.value("document.documentElement.scrollWidth") <= width
        assert page.complaints() == []
