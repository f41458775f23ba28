"""The page of jobs: data of a job and of the table, which runs are one job, and the page in a browser."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.dashboards.web.server.child import main as child
from perfscope.dashboards.web.server.shelf import Shelf, read_view
from perfscope.dashboards.web.server.works import find_work
from perfscope.model.documents.run import RUN_FILE
from perfscope.plugins.job.account import job_account
from perfscope.plugins.job.causes import CAUSES
from perfscope.plugins.job.dashboard.figure import job_figure
from perfscope.plugins.job.dashboard.view import CAUSE_COLORS, MOST_ROWS, job_view, table_view
from perfscope.plugins.job.dashboard.works import JobWork, works
from perfscope.plugins.job.rank import Event
from tests.browser.conftest import Server, Tab, serving
from tests.browser.conftest import browser as browser
from tests.browser.conftest import tab as tab
from tests.plugins.job.written import BEGAN, FIXTURE, S, Written, killed_and_resumed


def requeued(folder: Path) -> Path:
    """A folder with a job of two runs on two nodes, one of them slow, and one of a single run."""
    folder.mkdir()
    for number, name in enumerate(("slurm-7.0", "slurm-7.0-r1")):
        run = folder / name
        run.mkdir()
        shutil.copy(FIXTURE / RUN_FILE, run / RUN_FILE)
        for rank in range(4):
            ledger = Written(run, rank=rank, pid=rank, at=400 * number, host=f"node{rank // 2}")
            for _ in range(30):
                ledger.row({"train": 9 if rank < 2 else 6, "ranks": 1 if rank < 2 else 4}, steps=10)
    killed_and_resumed(folder / "other")
    return folder


def test_the_picture_sums_to_the_account(job: Path) -> None:
    account = job_account([job])
    view = json.loads(json.dumps(job_view([job], account, ()), allow_nan=False))
    held: Counter[str] = Counter()
    for part in view["bins"]:
        held.update({cause: ranks * view["width_ns"] for cause, ranks in part["ranks"].items()})
    assert {cause: pytest.approx(ns, abs=0.1 * S) for cause, ns in held.items()} == {
        cause.cause: cause.ns for cause in account.causes
    }
    assert [row["cause"] for row in view["causes"]] == [cause.cause for cause in account.causes]
    assert {mark["strip"] for mark in view["events"]} == {"killed", "save", "restore", "evaluation"}
    assert "80.4% of 92.0 s of 2 ranks" in view["headline"]
    figure = job_figure(view)
    assert {trace.name for trace in figure.data if trace.type == "bar"} == {cause.cause for cause in account.causes}


def test_each_cause_has_a_colour() -> None:
    assert tuple(CAUSE_COLORS) == CAUSES
    assert len(set(CAUSE_COLORS.values())) == len(CAUSES)


def test_many_events_are_few_marks_and_rows(job: Path) -> None:
    account = job_account([job])
    saves = tuple(
        Event(kind="save", unix_ns=BEGAN + at * S // 100, ns=S, rank=0, line="<b>train.py:60", text="")
        for at in range(9000)
    )
    view = job_view([job], replace(account, events=(*account.events, *saves)), ())
    assert len(view["events"]) < 150
    assert any("saves" in mark["said"] or "save" in mark["said"] for mark in view["events"])
    assert sum(text.count("<tr") for text in view["html"]) < MOST_ROWS + 60
    assert "8,884 more events are left out of the table: perfscope job --json has them" in view["left"]
    assert all("<b>train" not in text for text in view["html"])


def test_runs_of_a_requeued_job_are_one(tmp_path: Path) -> None:
    folder = requeued(tmp_path / "runs")
    (folder / "no-ledger").mkdir()
    shutil.copy(FIXTURE / RUN_FILE, folder / "no-ledger" / RUN_FILE)
    shelf = Shelf([folder])
    table, *jobs = works(shelf)
    assert table.runs == ()
    assert {tuple(run.name for run in job.runs) for job in jobs} == {("slurm-7.0", "slurm-7.0-r1"), ("other",)}
    assert all(find_work(shelf, work.key) == work for work in (table, *jobs))
    assert works(Shelf([folder / "no-ledger"]))[0] == table


def test_a_fingerprint_changes_with_the_ledger(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.plugins.job.dashboard.works.LOOK_S", 1e-9)
    work = JobWork(folder=job.parent, runs=(job,))
    before = work.fingerprint()
    Written(job, rank=5, pid=77).row({"train": 1}, steps=1)
    assert work.fingerprint() != before is not None


def test_the_table_has_goodput_and_the_slow_node(tmp_path: Path) -> None:
    folder = requeued(tmp_path / "runs")
    _, *jobs = works(Shelf([folder]))
    view = table_view([(work, job_account(work.runs)) for work in jobs])
    rows = {row["name"]: row for row in view["jobs"]}
    requeue = next(work for work in jobs if len(work.runs) == 2)
    assert rows["slurm-7.0"]["goodput"] == job_account(requeue.runs).goodput
    first, *others = view["nodes"]
    assert (first["host"], first["slow_jobs"], first["slow_in"]) == ("node0", 1, ["slurm-7.0"])
    assert first["worst"] == "+50%"
    assert not any(row["slow_jobs"] for row in others)


def test_a_child_writes_both_kinds(tmp_path: Path) -> None:
    folder = requeued(tmp_path / "runs")
    for number, work in enumerate(works(Shelf([folder]))):
        into = tmp_path / f"made{number}"
        into.mkdir()
        assert child([*work.command(), str(into)]) == 0
        made: Any = read_view(into, "job")
        assert made["view"]["kind"] == ("job" if work.runs else "table")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = requeued(tmp_path / "runs")
    cache = tmp_path / "cache"
    cache.mkdir()
    with serving(cache, folder) as held:
        yield held


@pytest.mark.slow
def test_the_page_shows_the_table_and_a_job(tab: Tab, server: Server) -> None:
    tab.open(f"{server.base}job?token={server.token}", ".ps-history")
    words = "document.querySelector('#page').innerText"
    tab.until(f"{words}.includes('node0')")
    tab.page.locator(".ps-history a", has_text="slurm-7.0").click()
    tab.until("document.querySelectorAll('.js-plotly-plot .bars path').length > 10")
    tab.until(f"{words}.includes('Slow again and again: node0')")
    tab.page.locator("a", has_text="all jobs").click()
    tab.until(f"{words}.includes('goodput') || {words}.includes('most of the rest')")
    assert tab.wrong == []
