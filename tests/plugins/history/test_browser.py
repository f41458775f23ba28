"""The page of a history in a browser: a metric of it, its store as it changes, and every link."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.plugins.history.store import RunStore
from tests.browser.conftest import Server, Tab, serving
from tests.browser.test_crawl import follow_links
from tests.kept_runs import put_run, repository
from tests.plugins.history.records import stored_run
from tests.plugins.history.test_report import runs
from tests.session.test_environment import git

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "perfscope-runs"
    folder.mkdir()
    commits = repository(tmp_path, monkeypatch, 2)
    held = RunStore(folder / "store.sqlite")
    for number, commit in enumerate(commits):
        held.put(stored_run(number, step_ns=1e7, commit=commit))
    put_run(folder, 0)
    return tmp_path


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    cache = home.parent / f"{home.name}-cache"
    cache.mkdir()
    with serving(cache, "perfscope-runs", cwd=home) as held:
        yield held


def test_a_history_follows_its_store_and_what_is_checked_out(tab: Tab, server: Server, home: Path) -> None:
    tab.open(f"{server.base}history?token={server.token}", ".ps-note")
    words = "document.querySelector('#page').innerText"
    tab.until(f"{words}.includes('2 runs that finished')")
    RunStore(home / "perfscope-runs" / "store.sqlite").put(
        stored_run(7, step_ns=1e7, commit=git(home, "rev-parse", "HEAD"))
    )
    tab.until(f"{words}.includes('3 runs that finished')")
    git(home, "commit", "-q", "--allow-empty", "-m", "more")
    head = git(home, "rev-parse", "HEAD")
    tab.until(f"{words}.includes('up to what is checked out ({head[:10]})')")
    assert tab.wrong == []


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with two runs, and a store of runs whose step became longer."""
    folder = tmp_path / "perfscope-runs"
    put_run(folder, 0)
    put_run(folder, 1)
    held = RunStore(folder / "store.sqlite")
    for run in runs():
        held.put(run)
    return folder


def test_a_history_and_one_metric_of_it(tab: Tab, kept: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    with serving(tmp_path / "cache", kept) as server:
        tab.open(f"{server.base}history?token={server.token}", ".ps-history .ps-spark")
        assert "step time 10.0 ms → 12.0 ms" in tab.page.text_content("#page")  # folded
        tab.page.click("#history-metric")
        tab.page.click("[role=option]:visible:has-text('host syncs per step')")
        tab.until("location.search.includes('metric=host')")
        tab.until("document.querySelector('#page h3')?.innerText.startsWith('host syncs')")
        tab.page.wait_for_selector(".js-plotly-plot .main-svg")
        assert tab.wrong == []
        assert tab.went_away() == []


def test_without_a_store_it_says_how_to_get_one(tab: Tab, tmp_path: Path) -> None:
    run = put_run(tmp_path / "runs", 0)
    with serving(tmp_path, run) as alone:
        tab.open(f"{alone.base}history?token={alone.token}", "[role=alert]")
        assert "perfscope history" in tab.page.inner_text("[role=alert]")


def test_every_link(tab: Tab, kept: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    item, *_ = Shelf([kept]).items()
    with serving(tmp_path / "cache", kept) as server:
        follow_links(tab, server, f"overview?run={item.key}", everyday=False)
