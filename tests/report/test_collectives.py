"""Collectives of several ranks in all reports: the sentence, kinds, ranks, notes, and silence where there is one."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.sections.collectives import CollectivesSection
from perfscope.dashboards.report import html_report, json_report, markdown, text
from perfscope.dashboards.report.sections.collectives import collectives_sections, ranks_text
from tests.conftest import REPOSITORY
from tests.ranks.build import rank_set
from tests.report.analyses import analysis
from tests.report.cells import rows

LATE = [[0.0, 100.0, 0.0, 0.0], [0.0, 0.0, 300.0, 0.0], [50.0, 0.0, 0.0, 20.0]]
SENTENCE = (
    "3 collectives matched on 4 ranks: the collectives themselves took 1.50 ms, ranks waited 150 us (rank 2) to "
    "430 us (rank 3) for each other"
)


@pytest.fixture(scope="module")
def judged() -> Analysis:
    return analyze(rank_set(LATE, jitter_us=0), ["straggler"])


def test_one_sentence_and_a_row_a_kind(judged: Analysis) -> None:
    (job,) = collectives_sections(judged.collectives)
    assert (job.title, job.summary) == ("Collectives of ranks 0-3 of 4", SENTENCE)
    (kind,) = rows(job.table(""))
    assert kind == {
        "collective": "all_reduce", "group": "0-3 DP?", "message": "1.91 MiB", "calls": "3", "each takes": "500 us",
        "bus bandwidth": "6 GB/s", "wait, mean": "332 us", "waiting": "18.1%", "algorithm": "RING LL",
    }  # fmt: skip
    assert job.table("ranks side by side").column("came last") == (1, 1, 1, 0)


def test_text_is_short_and_tells_all_when_asked(judged: Analysis) -> None:
    short = text.render(judged)
    assert "Collectives of ranks 0-3 of 4: 3 collectives matched on 4 ranks" in short
    assert "came last" not in short
    verbose = text.render(judged, verbose=True)
    assert SENTENCE.replace(" ", "") in re.sub(r"\s", "", verbose)
    assert "came last" in verbose
    assert "looks like DP" in verbose


def test_markdown_and_html_hold_it(judged: Analysis) -> None:
    folded = markdown.render(judged)
    assert f"<details><summary>Collectives of ranks 0-3 of 4: {SENTENCE}</summary>" in folded
    assert "| all\\_reduce |" in folded
    page = html_report.render(judged)
    assert "Collectives of ranks 0-3 of 4" in page
    assert "ranks side by side" in page


def test_json_is_of_the_schema_and_sums(judged: Analysis) -> None:
    held = json.loads(json_report.render(judged))
    schema = json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())
    Draft202012Validator(schema).validate(held)
    (job,) = held["collectives"]["jobs"]
    for rank in job["ranks"]:
        assert rank["wait_ns"] + rank["core_ns"] == rank["duration_ns"]
        (kind,) = job["kinds"]
        assert kind["by_rank"][rank["rank"]]["wait_ns"] == rank["wait_ns"]
    assert (job["recorded"], job["missing"], job["kinds"][0]["axis"]) == ([0, 1, 2, 3], [], "DP")


def test_a_missing_rank_and_what_broke_are_said() -> None:
    missing = analyze(rank_set(LATE)[1:], ["straggler"])
    assert "1 of 4 ranks are missing (rank 0)" in " ".join(text.render(missing).split())
    broken = analysis(collectives=CollectivesSection(problems=("the collectives could not be summed up: x",)))
    for said in (text.render(broken), markdown.render(broken), html_report.render(broken)):
        assert "could not be summed up" in said


def test_one_rank_is_silent() -> None:
    one, several = analyze(rank_set(LATE)[:1], []), analyze(rank_set(LATE), [])
    for render in (text.render, markdown.render, lambda held: html_report.render(held).split("<script")[0]):
        assert "Collectives of" in render(several)
        assert "Collectives of" not in render(one)


def test_names_of_strangers_are_words() -> None:
    section = analyze(rank_set(LATE), []).collectives
    job = section.jobs[0]
    hostile = replace(job.kinds[0], operation="<script>alert(1)</script>|`x`\x1b[31m")
    shown = analysis(collectives=replace(section, jobs=(replace(job, kinds=(hostile,)),)))
    assert "<script>alert" not in html_report.render(shown).split('<script type="application/json"')[0]
    assert "<script>" not in markdown.render(shown)
    assert "\x1b" not in text.render(shown)


def test_ranks_are_told_in_few_words() -> None:
    assert [ranks_text(ranks) for ranks in ((0, 1, 2), (0, 4), (3,), (0, 8, 16, 24, 32))] == [
        "0-2", "0, 4", "3", "0, 8, ... 32",
    ]  # fmt: skip
