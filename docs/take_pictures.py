"""Takes the pictures of the dashboard that these pages show: ``PYTHONPATH=. python docs/take_pictures.py [NAME]...``.

Needs the `ui`, `test` and `torch` extras, Chromium and the corpus (`PERFSCOPE_CORPUS`). What is recorded is of fixtures
and the corpus, so the pictures change with the pages alone; a run that is shown while it runs is recorded meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import sync_playwright

from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.plugins.history.store import RunStore
from perfscope.plugins.trials.document import Try
from perfscope.plugins.trials.interventions import load_intervention
from tests.browser import chromium
from tests.browser.conftest import Tab, serving
from tests.browser.test_live import PROGRAM
from tests.browser.test_timeline import READY
from tests.conftest import REPOSITORY, corpus_files
from tests.kept_runs import put_run
from tests.plugins.history.test_report import runs
from tests.plugins.trials.launches import attempt, document, left
from tests.plugins.trials.test_page import write

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
        if chosen := {name: picture for name, picture in PICTURES.items() if not wanted or name in wanted}:
            _take(chosen, Path(home), list(things.values()), keys)
    with tempfile.TemporaryDirectory() as home:
        if chosen := {name: picture for name, picture in OF_RUNS.items() if not wanted or name in wanted}:
            with _folder_of_runs(Path(home), live="live" in chosen) as held:
                _take(chosen, Path(home), [held], {})


Picture = tuple[bool, int, Any]
"""Dark or not, height in pixels, and what brings the page to it."""


def _take(pictures: Mapping[str, Picture], home: Path, paths: list[Path], keys: dict[str, str]) -> None:
    """Take pictures of a server of these paths."""
    with serving(home, *paths, cwd=home) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium.binary(), args=["--no-sandbox"])
        for name, (dark, tall, take) in pictures.items():
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


@contextmanager
def _folder_of_runs(home: Path, *, live: bool) -> Iterator[Path]:
    """Runs of fixtures, a run that failed, a store with a history, a try, and a run that runs until the block ends."""
    held = home / "perfscope-runs"
    held.mkdir()
    for name in ("cpu-attention-naive", "cpu-attention-sdpa", "cpu-moe-loop"):
        shutil.copytree(FIXTURES / name, held / name)
    put_run(held, 0)
    put_run(held, 1, exit_code=1, notes=["RuntimeError: loss is NaN"])
    store = RunStore(held / "store.sqlite")
    for run in runs():
        store.put(run)
    write(held / "try-1", _document())
    if not live:
        yield held
        return
    (home / "train.py").write_text(PROGRAM)
    line = [sys.executable, "-m", "perfscope", "run", "-q", "--name", "train", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, cwd=home, env=environment) as process:
        try:
            yield held
        finally:
            (home / "enough").touch()
            process.wait()


def _document() -> Try:
    """A try of real interventions; the times of its launches are made up."""
    tried = {name: attempt(name, share) for name, share in (("debug-off", 0.62), ("fused-optimizer", 0.88))}
    real = [replace(one, intervention=load_intervention(name)) for name, one in tried.items()]
    skipped = left("pin-memory", "the program uses no GPU")
    together = attempt("together", 0.55)
    together = replace(together, intervention=dataclasses.replace(together.intervention, title="all that helped"))
    return document(*real, skipped, together=together, ladder=True, command=("train.py",))


def _live(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """The newest run while it runs, once its first passes are judged."""
    tab.until("/-train-[\\s\\S]*running/.test(document.querySelector('#page').innerText)")
    name = tab.page.evaluate("[...document.querySelectorAll('.ag-row a')].map((one) => one.innerText)[0]")
    tab.open(f"{base}overview", "#page h1")
    tab.until(f"document.body.innerText.includes({json.dumps(name)})")
    tab.until("document.querySelector('.ps-over-now') !== null && document.querySelector('.ps-first') !== null")


def _runs(tab: Tab, base: str, keys: dict[str, str]) -> None:
    tab.open(f"{base}runs", ".ag-row")


def _history(tab: Tab, base: str, keys: dict[str, str]) -> None:
    """The step time over the runs, with the change of its level."""
    tab.open(f"{base}history", ".ps-history .ps-spark")
    tab.page.click(".ps-history tbody a")
    tab.page.wait_for_selector(".js-plotly-plot .main-svg")


def _try(tab: Tab, base: str, keys: dict[str, str]) -> None:
    tab.open(f"{base}tries", ".ps-try-bar")


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


PICTURES: dict[str, Picture] = {
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
"""Pictures of recordings, by name."""

OF_RUNS: dict[str, Picture] = {
    "live": (False, 760, _live),
    "history": (False, 640, _history),
    "runs": (False, 560, _runs),
    "try": (False, 900, _try),
}
"""Pictures of a folder of runs, by name."""

if __name__ == "__main__":
    main(sys.argv[1:])
