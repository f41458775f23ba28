"""All outputs show the same step time: reports, lists of runs, comparisons and the dashboard."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_path
from perfscope.analyzers.savings import step_time
from perfscope.dashboards.report import html_report, json_report, llm, markdown, text
from perfscope.dashboards.report.sections.findings import finding_blocks
from perfscope.model.documents.run_list import REPORT_FILE, list_runs, row_of
from perfscope.model.units import format_ns
from tests.conftest import REPOSITORY, corpus_files

RUNS = [
    REPOSITORY / "fixtures" / name for name in ("cpu-attention-sdpa-checkpoint", "cpu-moe-index-add", "cpu-ssm-scan")
]

MOST_BYTES = 1 << 20
"""Most bytes of a corpus file: larger ones show nothing more and take long."""

TRACES = [path for path in corpus_files("kineto", "*") if path.is_file() and path.stat().st_size < MOST_BYTES][:12]


def shown(analysis: Analysis) -> dict[str, str]:
    """The step time as each format of a report shows it; empty where no step was timed."""
    forms = {
        "text": text.render(analysis, width=400),
        "markdown": markdown.render(analysis),
        "llm": llm.render(analysis),
    }
    found = {name: re.search(r"(?<!\w)step (\d[\d.,]* [num]?s) \(", form) for name, form in forms.items()}
    tile = re.search(r'step time</div><div class="big">([^<]*)</div>', html_report.render(analysis))
    times = {name: match[1] for name, match in found.items() if match is not None}
    return times if tile is None else {**times, "html": tile[1]}


def assert_one_number(path: Path) -> Analysis:
    """Compare formats of the report and a comparison with itself; no saving exceeds the step.

    Returns the analysis.
    """
    traces = load_path(path).traces
    analysis = analyze(traces)
    timed = step_time(analysis)
    if timed is None:
        assert shown(analysis) == {}
        return analysis
    times = shown(analysis)
    assert set(times.values()) == {format_ns(timed.ns)}
    assert len(times) == 4
    assert json_report.document(analysis)["step_time"]["ns"] == timed.ns
    found = compare(traces, traces).step_time
    assert found is not None
    assert (found.base, found.head) == (timed.ns, timed.ns)
    for block in finding_blocks(analysis):
        if block.share_of.startswith("step"):
            assert block.saves is not None
            assert block.share is not None
            assert block.share <= 1
            assert block.share * timed.ns == pytest.approx(block.saves.value) or "rank" in block.share_of
    return analysis


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_runs(path: Path, tmp_path: Path) -> None:
    analysis = assert_one_number(path)
    folder = tmp_path / "20260101-000000-train-0001"
    shutil.copytree(path, folder)
    (listed,) = list_runs(tmp_path)
    timed = step_time(analysis)
    assert timed is not None
    if timed.of != "profiled":
        assert row_of(listed)["step_ns"] == round(timed.ns)
    (folder / REPORT_FILE).write_text(json.dumps(json_report.document(analysis)))
    assert row_of(listed)["step_ns"] == round(timed.ns)


@pytest.mark.corpus
@pytest.mark.skipif(not TRACES, reason="the corpus of real traces is absent")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_traces_of_other_projects(path: Path) -> None:
    assert_one_number(path)
