"""``perfscope.compare``: from traces or paths to a comparison that draws itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfscope
from perfscope.analyzers.compare.comparison import Comparison
from perfscope.analyzers.compare.comparison import compare as compared
from perfscope.model.errors import DataError, UsageError
from tests.compare.runs import gpu_run
from tests.dashboards.test_html_report import Parsed


def test_traces() -> None:
    found = perfscope.compare(gpu_run(), [gpu_run(item=True)])
    assert isinstance(found, Comparison)
    assert found.headline == "regression"
    assert found.causes[0].place == "train.py:11"
    plain = compared([gpu_run()], [gpu_run(item=True)])
    assert (found.metrics, found.findings, found.notes) == (plain.metrics, plain.findings, plain.notes)


@pytest.mark.corpus
def test_paths(corpus: Path) -> None:
    trace = corpus / "kineto" / "TraceLens__h100_bert-small.json.gz"
    assert perfscope.compare(trace, str(trace)).headline == "no change"


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a side holds no trace"):
        perfscope.compare([], gpu_run())
    with pytest.raises(DataError):
        perfscope.compare(tmp_path / "none", gpu_run())


def test_faces() -> None:
    found = perfscope.compare(gpu_run(), gpu_run(item=True))
    assert found.document()["schema"] == "perfscope.compare/1"
    assert "### perfscope: 🔴 regression" in found.markdown()
    assert found.html().startswith("<!DOCTYPE html>")


def test_it_draws_itself() -> None:
    drawn = perfscope.compare(gpu_run(), gpu_run(item=True))._repr_html_()
    page = Parsed(drawn)
    assert page.open == []
    for said in ("regression: worse: host syncs a step 0 → 1", "train.py:11", "1 new, 1 unchanged", "3 metrics"):
        assert said in page.text, said
    assert "script" not in page.tags


def test_a_hostile_name_stays_text() -> None:
    drawn = perfscope.compare(gpu_run(), gpu_run(file="<img src=x>'\"", item=True))._repr_html_()
    assert "img" not in Parsed(drawn).tags
