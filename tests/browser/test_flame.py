"""The flame graph in a browser: its ways to look at a tree, and the line of the program with a link to the editor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Server, Tab, serving
from tests.browser.kineto import Kineto

pytestmark = pytest.mark.slow

READY = ".ps-flame[data-ready]"
PROGRAM = "import torch\n\ndef step(model):\n    return model()\n"
SHOWN = """(() => { const one = document.querySelector('.ps-flame').perfscope;
    return one.shown.map((box) => one.label(box.node)); })()"""
SELECT = """(text) => { const one = document.querySelector('.ps-flame').perfscope;
    one.select(one.tree.name.indexOf(text)); }"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("flame")
    (home / "train.py").write_text(PROGRAM)
    os.utime(home / "train.py", (1_000_000, 1_000_000))  # older than the recording: the code that ran
    made = Kineto()
    made.add("python_function", "runpy.py(86): _run_code", 1, 0, 1_000)
    made.add("python_function", "launch.py(7): main", 1, 1, 997)
    for step in range(2):
        at = 2 + 497 * step
        made.add("user_annotation", f"ProfilerStep#{step}", 1, at, 496)
        made.add("python_function", "train.py(3): step", 1, at + 1, 490)
        made.add("cpu_op", "aten::add", 1, at + 2, 20)
        made.add("cpu_op", "aten::mm", 1, at + 50, 300)
    trace = made.write(home / "flame.json")
    with serving(home, trace, cwd=home, options=("--editor", "vscode")) as held:
        yield held


def _open(tab: Tab, server: Server, page: str, query: str, ready: str) -> None:
    tab.open(f"{server.base}{page}?token={server.token}{query}", ready)


def test_steps_are_merged_and_launchers_folded_until_asked(tab: Tab, server: Server) -> None:
    _open(tab, server, "flame", "", READY)
    shown = tab.page.evaluate(SHOWN)
    assert "ProfilerStep \u00d7 2" in shown
    assert any(label.startswith("2 launcher frames: runpy.py(86)") for label in shown)
    assert "launch.py(7): main" not in shown
    tab.page.click("text=all frames")
    tab.until(f"({SHOWN}).includes('launch.py(7): main')")
    tab.page.click("text=each separately")
    tab.until(f"({SHOWN}).includes('ProfilerStep#1')")
    assert "form=apart" in tab.page.url
    assert "frames=show" in tab.page.url
    assert tab.wrong == []


def test_children_stand_by_size_or_by_time(tab: Tab, server: Server) -> None:
    script = """(() => { const one = document.querySelector('.ps-flame').perfscope;
        return one.shown.filter((box) => one.tree.name[box.node].startsWith('aten::'))
          .sort((a, b) => a.x - b.x).map((box) => one.tree.name[box.node]); })()"""
    _open(tab, server, "flame", "", READY)
    assert tab.page.evaluate(script) == ["aten::mm", "aten::add"]
    tab.page.click("text=time order")
    tab.until(f"({script})[0] === 'aten::add'")
    assert tab.wrong == []


def test_a_click_leads_to_the_line_and_the_editor(tab: Tab, server: Server) -> None:
    _open(tab, server, "flame", "", READY)
    tab.page.evaluate(SELECT, "aten::mm")
    link = tab.page.get_attribute("p.ps-source a", "href")
    assert link.startswith("vscode://file/")
    assert link.endswith("/train.py:3")
    assert tab.page.inner_text("pre.ps-source .ps-here").split() == ["3", "def", "step(model):"]
    tab.page.click(".ps-flame >> text=in the timeline")
    tab.page.wait_for_selector(".ps-tl-panel p.ps-source a")  # the first of them is selected, with its line
    assert tab.page.get_attribute("p.ps-source a", "href") == link
    assert tab.wrong == []


def test_the_line_of_a_finding_opens_in_the_editor(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("\n" * 9 + "loss.item()\n")
    os.utime(tmp_path / "train.py", (1_000_000, 1_000_000))
    made = Kineto()
    for step in range(6):
        at = 10_000 * step
        made.add("user_annotation", f"ProfilerStep#{step}", 1, at, 9_900)
        made.add("python_function", "train.py(10): step", 1, at + 1, 9_800)
        made.launched("aten::mm", "sgemm_128", at + 10, 4_000, step + 1, delay=100)
        made.add("cpu_op", "aten::item", 1, at + 100, 5_000)
        made.add("cuda_runtime", "cudaStreamSynchronize", 1, at + 110, 4_800)
    with serving(tmp_path, made.write(tmp_path / "wait.json"), cwd=tmp_path, options=("--editor", "vscode")) as server:
        tab.open(f"{server.base}findings?token={server.token}", ".ps-finding")
        links = "[...document.querySelectorAll('.where a')].map((one) => one.getAttribute('href'))"
        tab.until(f"({links}).length > 0")
        assert all(link.endswith("/train.py:10") for link in tab.page.evaluate(links))
        assert tab.wrong == []
