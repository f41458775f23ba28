"""Reports, the timeline's index and comparisons grow with the trace and no faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.engine import analyze
from perfscope.dashboards.report import REPORTS, render
from perfscope.dashboards.web.timeline.index import build, save
from perfscope.dashboards.web.timeline.lanes import events_of, series_of
from perfscope.model.trace import Trace
from tests.growth.replicated import replicated
from tests.growth.test_growth import COPIES, steep
from tests.growth.traces import training
from tests.growth.work import Work, counting


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    one = training()
    return [replicated(one, copies) for copies in COPIES]


def counted(task: Callable[[], object]) -> Work:
    with counting() as work, work.of("task"):
        task()
    return work


EVERYDAY = ("json", "text")


@pytest.mark.parametrize(
    "form", [form if form in EVERYDAY else pytest.param(form, marks=pytest.mark.slow) for form in REPORTS]
)
def test_reports_are_linear(form: str, traces: list[Trace]) -> None:
    analyses = [analyze([trace]) for trace in traces]
    render(analyses[0], form)
    assert steep([counted(lambda a=a: render(a, form)) for a in analyses]) == {}


def test_the_timeline_is_linear(traces: list[Trace], tmp_path: Path) -> None:
    def index(trace: Trace) -> None:
        save(build(events_of(trace)), tmp_path)
        list(series_of(trace))

    index(traces[0])
    assert steep([counted(lambda t=t: index(t)) for t in traces]) == {}


@pytest.mark.slow
def test_comparisons_are_linear(traces: list[Trace]) -> None:
    compare([traces[0]], [traces[0]])
    assert steep([counted(lambda t=t: compare([replicated(t, 1)], [replicated(t, 1)])) for t in traces]) == {}
