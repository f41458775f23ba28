"""The picture of a memory in a real browser: its words lie on no other words, and those of the axis on no area."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.dashboards.reports.html_report import render
from perfscope.model.trace import Trace
from tests.dashboards.chromium import Page, binary, browser
from tests.memory.build import MemoryBuilder

GIB = 1 << 30
OVERLAPS = """(() => {
  const box = one => { const b = one.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] }
  // a line of text is higher than its letters
  const tight = one => { const b = box(one); return [b[0], b[1] + 3, b[2], b[3] - 3] }
  const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
  const texts = [...document.querySelectorAll('.ps-memory text')]
  const card = box(document.querySelector('.ps-memory').closest('.card'))
  const plot = box(document.querySelector('.ps-memory')), found = []
  texts.forEach((text, at) => {
    const here = tight(text)
    if (here[0] < card[0] || here[2] > card[2]) found.push(text.textContent + ' leaves the card')
    if (text.getAttribute('x') === '-6' && here[2] > plot[0]) found.push(text.textContent + ' on the areas')
    texts.slice(at + 1).forEach(other => {
      if (meets(here, tight(other))) found.push(text.textContent + ' on ' + other.textContent)
    })
  })
  return found
})()"""


def steps(count: int, *, fullest: int, capacity: int | None = None) -> Trace:
    """``count`` steps, numbered from 1000, that hold 10 + 54 GiB each, and the ``fullest`` of them 18 more."""
    b = MemoryBuilder(rank=None)
    b.device(0)
    if capacity is not None:
        b.tables["devices"][-1]["memory_bytes"] = capacity
    b.starts_with(10 * GIB)
    for step in range(count):
        b.step(1000 + step, 200 * step, 200 * step + 190)
        for block in range(6):
            size = (9 + 3 * (step == fullest)) * GIB
            b.make(1 + block, size, 200 * step + 5 + 10 * block, reserved_bytes=78 * GIB)
        for block in range(6):
            b.free(1 + block, 200 * step + 100 + 10 * block, reserved_bytes=78 * GIB)
    return b.build()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if binary() is None:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    ("count", "fullest", "numbers"), [(1, 0, 1), (3, 1, 3), (4, 3, 4), (7, 0, 3), (40, 23, 4), (240, 239, 4)]
)
def test_words_lie_on_nothing(page: Page, tmp_path: Path, count: int, fullest: int, numbers: int, width: int) -> None:
    for capacity in (80 * GIB, 141 * GIB, None):
        file = tmp_path / f"{capacity}.html"
        file.write_text(render(analyze([steps(count, fullest=fullest, capacity=capacity)], [])))
        page.open(file, width=width)
        assert page.value(OVERLAPS) == []
        texts = page.value("[...document.querySelectorAll('.ps-memory text')].map(one => one.textContent)")
        assert sum(text.startswith("step ") for text in texts) == numbers
        assert ("size of the device" in texts) == (capacity == 80 * GIB)
        assert "64.0 GiB" in texts
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
