"""The table of docs/workloads.md: its rows are programs, flags and labelled lines that exist, and what was recorded."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

from tests.accuracy.__main__ import RESULTS
from tests.accuracy.cases import Program
from tests.accuracy.known import limit
from tests.accuracy.labels import WORKLOADS
from tests.accuracy.workloads_page import PAGE, PICTURES, picture_of, places, rows, text
from tests.conftest import REPOSITORY

MOST_BYTES = 15_000
"""Largest size of a picture."""


def test_the_table_is_that_of_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_every_row_is_a_program_with_such_flags_and_a_labelled_line() -> None:
    flags = "".join(path.read_text(encoding="utf-8") for path in WORKLOADS.rglob("*.py"))
    for case in rows():
        for program in (case.source, case.twin):
            assert isinstance(program, Program)
            assert (REPOSITORY / f"{program.module.replace('.', '/')}.py").is_file(), program.module
            names = [word[2:] for word in program.arguments if word.startswith("--")]
            assert [name for name in names if not re.search(rf'"(--)?{name}"|\b{name}: int', flags)] == []
        assert places(case) or None in case.expects.values(), case.title


def recorded() -> dict[str, dict[str, Any]]:
    """Title -> result of the rows that were run since first findings are recorded."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["cases"]
    titled = {f"{case['framework']} {case['mode']}: {case['name']}": case for case in results if "first" in case}
    return {case.title: titled[case.title] for case in rows() if case.title in titled}


def test_the_first_finding_of_every_row_is_the_labelled_one_or_the_reason_is_known() -> None:
    results = recorded()
    assert len(results) >= 60
    for case in rows():
        result = results.get(case.title)
        if result is not None and any(answer["found"] for answer in result["answers"]):
            rule = result["first"]["rule"]
            assert rule in case.expects or limit(case.title, rule, "first") is not None, case.title


def test_every_recorded_row_has_a_small_picture_and_none_is_left_over() -> None:
    files = {picture_of(case).name: case.title for case in rows()}
    assert {file.name for file in PICTURES.iterdir()} <= {"legend.svg", *files}
    lacking = {title for name, title in files.items() if not (PICTURES / name).is_file()}
    assert lacking & recorded().keys() == set()
    for file in PICTURES.iterdir():
        assert file.stat().st_size < MOST_BYTES
        assert ET.fromstring(file.read_text(encoding="utf-8")).iter("{*}text")
