"""The picture of the plans: what its caption says of its axes, and words that lie on nothing, also on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.advice.plans import plan_memory
from perfscope.analyzers.advice.step_model import StepModel
from perfscope.dashboards.reports.advice_plan_html import render
from perfscope.dashboards.reports.advice_plan_rows import PlansView, plans_view
from perfscope.dashboards.reports.advice_plan_svg import caption, front_picture
from tests.checkpointing.steps import checkpointed, layers
from tests.dashboards.chromium import Page, binary, browser

MIB = 1 << 20
OVERLAPS = """(() => {
  const box = one => { const b = one.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] }
  const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
  // a line of text is higher than its letters
  const tight = one => { const b = box(one); return [b[0], b[1] + 3, b[2], b[3] - 3] }
  const texts = [...document.querySelectorAll('.ps-front text')], points = document.querySelectorAll('.ps-front circle')
  const card = box(document.querySelector('.ps-front').closest('.card'))
  const found = []
  texts.forEach((text, at) => {
    const here = tight(text)
    if (here[0] < card[0] || here[2] > card[2]) found.push(text.textContent + ' leaves the card')
    points.forEach(point => { if (meets(here, box(point))) found.push(text.textContent + ' on a point') })
    texts.slice(at + 1).forEach(other => {
      if (meets(here, tight(other))) found.push(text.textContent + ' on ' + other.textContent)
    })
  })
  return found
})()"""


def step(count: int) -> StepModel:
    made = layers(count, held=MIB, activation=MIB, product=MIB // 2, temporary=1024)
    slow = tuple(replace(value, cost_ns=value.cost_ns * 1_000_000) for value in made.values)
    return replace(made, values=slow, step_ns=10**9)


def view(model: StepModel, budget: int | None = None, devices: int | None = None) -> PlansView:
    return plans_view(plan_memory(model, budget_bytes=budget, devices=devices), "step.fake")


def test_the_caption_says_what_the_plans_add() -> None:
    assert "from +0 to +" in caption(view(step(6)))


def test_where_no_plan_is_slower_the_caption_ends_at_nothing() -> None:
    said = caption(view(checkpointed(step(6))))
    assert re.search(r"from -\d+(\.\d+)? ms to \+0;", said), said
    assert "1 ns" not in said


def test_where_time_is_not_touched_the_caption_says_so_and_the_picture_stands() -> None:
    free = step(3)
    free = replace(free, values=tuple(replace(value, cost_ns=0) for value in free.values))
    shown = view(free)
    assert "adds to the step: nothing, whichever it is;" in caption(shown)
    assert "nan" not in front_picture(shown)


def test_today_and_the_plan_to_take_are_always_named() -> None:
    for model in (step(12), checkpointed(step(12))):
        shown = view(model, budget=12 * MIB)
        drawn = front_picture(shown)
        said = re.findall(r'<text class="ps-said"[^>]*>([^<]*)</text>', drawn)
        assert len(said) == sum(row.recommended or row.today for row in shown.rows) == 2
        assert sum("today" in words for words in said) == 1


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if binary() is None:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("count", [1, 2, 6, 24])
def test_no_words_lie_on_points_or_other_words(page: Page, tmp_path: Path, count: int, width: int, dark: bool) -> None:
    models = (view(step(count)), view(checkpointed(step(count)), count * MIB), view(step(count), 3 * MIB, 8))
    for number, shown in enumerate(models):
        file = tmp_path / f"{number}.html"
        file.write_text(render(shown))
        page.open(file, width=width, dark=dark)
        assert page.value("document.querySelectorAll('.ps-front text').length") >= 1
        assert page.value(OVERLAPS) == []
