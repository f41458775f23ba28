"""Takes the pictures of the dashboard that these pages show: ``PYTHONPATH=. python docs/take_pictures.py [NAME]...``.

Needs the `ui` and `test` extras, Chromium and the corpus (`PERFSCOPE_CORPUS`). What is recorded is of fixtures and the
corpus, so the pictures change with the pages alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser import chromium
from tests.browser.conftest import Tab, serving
from tests.browser.test_timeline import READY
from tests.conftest import REPOSITORY, corpus_files

FIXTURES = REPOSITORY / "fixtures"
TO = REPOSITORY / "docs" / "pictures"
WIDE = 1280
GRIDS = """[...document.querySelectorAll('.ps-grid')].every((one) => {
  const head = one.querySelector('[role=columnheader]');
  return head && getComputedStyle(head).visibility === 'visible';
})"""
"""Their code comes behind the page's, and until then they are empty."""


def main(wanted: list[str]) -> None:
    """Take all pictures, or those that are named."""
    with tempfile.TemporaryDirectory() as home:
        ranks = Path(home) / "ranks"
        ranks.mkdir()
        for file in corpus_files("kineto", "torchrec__sst_sleep*"):
            (ranks / file.name).symlink_to(file)
        things = {
            "ranks": ranks,
            "moe": FIXTURES / "cpu-moe-loop",
            "naive": FIXTURES / "cpu-attention-naive",
            "sdpa": FIXTURES / "cpu-attention-sdpa",
            "lengths": FIXTURES / "advice" / "varying_lengths",
            "program": FIXTURES / "programs-h100" / "transformer-sharding",
            "save": FIXTURES / "advice" / "save_often",
            "model": corpus_files("kineto", "TraceLens__h100_qwen1.5-0.5b.json.gz")[0],
        }
        keys = {name: item.key for name, item in zip(things, Shelf(list(things.values())).items(), strict=True)}
        with serving(Path(home), *things.values()) as server, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium.binary(), args=["--no-sandbox"])
            for name, (dark, tall, take) in PICTURES.items():
                if wanted and name not in wanted:
                    continue
                context = browser.new_context(viewport={"width": WIDE, "height": tall})
                context.set_default_timeout(120_000)
                tab = Tab(context.new_page())
                tab.open(f"{server.base}runs?token={server.token}", "#dark >> nth=0")
                if dark:
                    tab.page.focus("#dark")
                    tab.page.keyboard.press("Space")
                take(tab, server.base, keys)
                tab.until(GRIDS)
                tab.page.wait_for_timeout(900)
                tab.page.screenshot(path=TO / f"{name}.png")
                context.close()
            browser.close()


def _finding(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """The longest piece of the finding of rank 2, with what the other ranks do meanwhile."""
    tab.open(f"{base}findings?run={keys['ranks']}", ".ps-look a")
    tab.page.click(".ps-look a")
    tab.page.wait_for_selector(READY)
    tab.page.wait_for_selector(".ps-tl-panel h2")


def _event(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """The op of a product, and the piece of a step around it."""
    tab.open(f"{base}timeline?run={keys['moe']}&t0=1092000&t1=1200000&find=%5Eaten%3A%3Amm%24", READY)
    tab.page.wait_for_timeout(1_500)
    tab.page.focus(".ps-tl-find")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".ps-tl-panel h2")
    tab.page.fill(".ps-tl-find", "")  # nothing is dimmed then
    tab.page.focus(".ps-tl-canvas")


def _ranks(tab: Tab, base: str, keys: dict[str, str]) -> None:
    tab.open(f"{base}ranks?run={keys['ranks']}", ".ps-chart .main-svg")


def _steps(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """Two steps of two programs, below their comparison."""
    tab.open(f"{base}compare?base={keys['naive']}&head={keys['sdpa']}&show=step", READY)
    tab.page.wait_for_timeout(2_000)
    tab.page.evaluate("""() => {
      document.getElementById('timeline-base').perfscope.pick_step(1);
      const title = [...document.querySelectorAll('h2')].find((one) => one.innerText === 'Timelines');
      window.scrollTo(0, title.getBoundingClientRect().top + window.scrollY - 70);
    }""")


def _compile(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """Reasons of recompilations."""
    tab.open(f"{base}compile?run={keys['lengths']}", ".ps-reasons")


def _summary(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """The verdict, and the change of the step by cause."""
    tab.open(f"{base}compare?base={keys['naive']}&head={keys['sdpa']}", "#account table")


def _schedule(tab: Tab, base: str, keys: dict[str, str]) -> None:
    tab.open(f"{base}timeline?run={keys['program']}", "#page h1")
    tab.until("document.querySelector('#page h1').innerText === 'Timeline'")


def _stacks(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """The stacks that were sampled while a checkpoint was saved."""
    tab.open(f"{base}timeline?run={keys['save']}", READY)
    tab.page.wait_for_timeout(1_500)


def _flame(tab: Tab, base: str, keys: dict[str, str]) -> None:
    tab.open(f"{base}flame?run={keys['save']}", ".ps-flame[data-ready]")


def _roofline(tab: Tab, base: str, keys: dict[str, str]) -> None:
    tab.open(f"{base}roofline?run={keys['model']}", ".ps-chart .main-svg")


def _graph(tab: Tab, base: str, keys: dict[str, str]) -> None:
    tab.open(f"{base}graph?run={keys['naive']}", ".ps-graph-picture svg")


PICTURES: dict[str, tuple[bool, int, Any]] = {
    "compare": (False, 860, _summary),
    "compare-steps": (False, 900, _steps),
    "compile": (False, 640, _compile),
    "compiled-schedule": (False, 720, _schedule),
    "findings-on-timeline": (False, 900, _finding),
    "flame": (False, 760, _flame),
    "graph": (False, 820, _graph),
    "ranks": (False, 760, _ranks),
    "roofline": (False, 640, _roofline),
    "sampled-stacks": (False, 620, _stacks),
    "timeline": (True, 655, _event),
}
"""Name -> dark or not, height in pixels, and what brings the page to it."""

if __name__ == "__main__":
    main(sys.argv[1:])
