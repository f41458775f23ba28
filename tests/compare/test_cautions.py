"""Other programs, other machines and busy machines are named before a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.compare.runs.cautions import cautions, compare_loaded
from perfscope.analyzers.readers.load import load_path
from perfscope.dashboards.report.compare.json import document
from perfscope.dashboards.report.compare.render import render_html, render_markdown, render_text
from perfscope.dashboards.web.views.compare import view_of
from perfscope.model.documents.comparison import of
from perfscope.model.documents.run import Run
from tests.kept_runs import put_run

RUN = Run(
    id="1",
    name="train",
    created_utc="2026-01-01T00:00:00+00:00",
    command=("train.py", "--lr", "1"),
    state="finished",
    script="train.py",
    platform={"system": "Linux", "cpu": "Old CPU"},
)


def test_runs_of_one_program_on_one_machine_need_no_caution() -> None:
    assert list(cautions(RUN, replace(RUN, id="2", machine_load={"others_share": 0.1, "steal_share": 0.0}))) == []
    assert list(cautions(None, RUN)) == []


def test_another_program_or_other_arguments() -> None:
    (line,) = cautions(RUN, replace(RUN, script="infer.py"))
    assert "different programs, train.py and infer.py" in line
    (line,) = cautions(RUN, replace(RUN, command=("train.py", "--lr", "2")))
    assert "`train.py --lr 1` and `train.py --lr 2`" in line


def test_another_machine() -> None:
    (line,) = cautions(RUN, replace(RUN, platform={"system": "Linux", "cpu": "New CPU"}))
    assert "cpu Old CPU and New CPU" in line
    assert list(cautions(RUN, replace(RUN, platform={}))) == []  # not known is not different


@pytest.mark.parametrize("name", ["others_share", "steal_share"])
def test_a_busy_machine(name: str) -> None:
    (line,) = cautions(replace(RUN, machine_load={name: 0.42}), RUN)
    assert "42.0% of the processors while base ran" in line


def test_they_stand_before_the_verdict_in_every_report(tmp_path: Path) -> None:
    base = load_path(put_run(tmp_path, 0))
    head = load_path(put_run(tmp_path, 1, fixture="cpu-attention-sdpa-item", machine_load={"others_share": 0.5}))
    comparison = of(document(compare_loaded(base, head)))
    busy, verdict = "while head ran", "regression"
    assert comparison.headline == verdict
    for text in (
        render_text(comparison),
        render_html(comparison).partition("<header>")[2],
    ):
        assert 0 < text.index(busy) < text.lower().index(verdict)
    assert busy in render_markdown(comparison)
    assert busy in view_of(comparison)["verdict"], "the card of the verdict has them on the page"
