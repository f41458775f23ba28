"""Runs in progress are shown with what they have and turn into the finished ones; long readings can be ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Server, Tab, serving
from tests.conftest import REPOSITORY

pytest.importorskip("torch")

MOST_S = 120
"""The program ends by itself after this, whatever the test does."""
PROGRAM = f"""
import pathlib, time, torch
x, model = torch.randn(64, 64), torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
end = time.monotonic() + {MOST_S}
while time.monotonic() < end and not pathlib.Path("enough").exists():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""
LONG = 400_000
"""Events of a trace that is still being read when a person has found the button."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    held = tmp_path_factory.mktemp("live")
    (held / "perfscope-runs").mkdir()
    (held / "train.py").write_text(PROGRAM)
    line = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":5,"args":{}}'
    (held / "long.json").write_text(
        '{"schemaVersion":1,"traceEvents":[' + ",".join(line % (10 * at) for at in range(LONG)) + "]}"
    )
    (held / "short.json").write_text('{"schemaVersion":1,"traceEvents":[' + line % 0 + "]}")
    return held


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with serving(home, "perfscope-runs", "long.json", "short.json", cwd=home) as held:  # one alone is read at once
        yield held


def _children(process: subprocess.Popen[str]) -> list[str]:
    """Children of all its threads."""
    return [pid for file in Path(f"/proc/{process.pid}/task").glob("*/children") for pid in file.read_text().split()]


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_is_shown_while_it_runs_and_then_finished(tab: Tab, home: Path, server: Server) -> None:
    other = tab.page.context.new_page()
    tab.open(f"{server.base}runs?token={server.token}", "#page h1")
    assert "train" not in tab.page.inner_text("#page")
    line = [sys.executable, "-m", "perfscope", "run", "-q", "--name", "train", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(line, cwd=home, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        tab.until("/-train-[\\s\\S]*running/.test(document.querySelector('#page').innerText)")
        (folder,) = (home / "perfscope-runs").glob("*-train-*")
        other.goto(f"{server.base}overview")  # of the newest: the run
        begun = Tab(other)
        begun.until(f"document.body.innerText.includes({json.dumps(folder.name)})")
        begun.until("/no profiler on/.test(document.querySelector('#page').innerText)")
        early = _steps(begun)
        assert run.poll() is None
        begun.until("document.querySelector('#live').innerText !== ''")  # that it grows, or is being read again
        (home / "enough").touch()
        assert run.wait(60) == 0
    finally:
        run.kill()
        run.wait()
    tab.until("/-train-[\\s\\S]*finished/.test(document.querySelector('#page').innerText)")
    begun.until("document.querySelector('#live').innerText === ''")
    final = json.loads((folder / "report.json").read_text())
    assert early <= _steps(begun)
    assert f"median of {_untraced(final)}," in other.inner_text("#page")
    assert tab.wrong == []


def _steps(tab: Tab) -> int:
    """How many steps the overview's step time is the median of."""
    found = re.search(r"median of ([\d,]+), no profiler", tab.page.inner_text("#page"))
    assert found is not None
    return int(found[1].replace(",", ""))


def _untraced(report: dict[str, list[dict[str, bool]]]) -> str:
    """The same, in the report that the run itself wrote at its end."""
    return f"{sum(not step['traced'] for step in report['steps']):,}"


@pytest.mark.slow
def test_a_long_reading_can_be_ended_and_begun_again(tab: Tab, server: Server) -> None:
    tab.open(f"{server.base}runs?token={server.token}", "#page a[href*='long']")
    (link,) = {
        one for one in tab.page.eval_on_selector_all("#page a", "(all) => all.map((one) => one.href)") if "long" in one
    }
    tab.open(link, "button:has-text('cancel')")
    tab.until("document.querySelector('#page [role=progressbar]') !== null")
    assert len(_children(server.process)) == 1
    tab.page.click("button:has-text('cancel')")
    tab.page.wait_for_selector("button:has-text('read it again')")
    assert "the reading was cancelled" in tab.page.inner_text("#page")
    assert _children(server.process) == []
    tab.page.click("button:has-text('read it again')")
    tab.page.wait_for_selector("button:has-text('cancel')")
    tab.page.wait_for_selector(".ps-report", timeout=60_000)
    assert f"{LONG:,} events" in tab.page.inner_text("#page")
    assert tab.wrong == []


@pytest.mark.slow
def test_an_export_can_be_ended_from_the_menu(tab: Tab, server: Server) -> None:
    tab.open(f"{server.base}runs?token={server.token}", "#page a[href*='long']")
    (link,) = {
        one for one in tab.page.eval_on_selector_all("#page a", "(all) => all.map((one) => one.href)") if "long" in one
    }
    tab.open(link, ".ps-report")
    before = set(_children(server.process))  # maybe the one that read it, which has ended
    tab.page.click("#export")
    tab.page.click("#export-chrome")
    tab.until("/Chrome trace: .* s$/.test(document.querySelector('#live').innerText)")
    (child,) = set(_children(server.process)) - before
    tab.page.click("#export")
    tab.page.click("#export-cancel")
    tab.until("document.querySelector('#live').innerText === 'the export was cancelled'")
    assert child not in _children(server.process)
    tab.page.click("#export")
    assert tab.page.is_visible("#export-chrome")
    assert tab.wrong == []


@pytest.mark.slow
def test_what_is_being_made_ends_with_the_server(home: Path, tmp_path: Path) -> None:
    import time
    import urllib.request

    from perfscope.dashboards.web.server.shelf import key_of

    with serving(tmp_path, home / "long.json") as held:
        url = f"{held.base}api/export/{key_of(home / 'long.json')}/chrome"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {held.token}"})
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 202
        children = _children(held.process)  # one exports; what is served alone may still be read
        assert children
        held.process.terminate()
        assert held.process.wait(20) == 0
    end = time.monotonic() + 20
    while (left := [pid for pid in children if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    assert not list(tmp_path.rglob("export*"))
