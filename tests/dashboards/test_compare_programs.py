"""Compiled programs in the document of a comparison and in every face of it."""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from perfscope.analyzers.compare.comparison import compare
from perfscope.dashboards.reports import (
    compare_github,
    compare_html,
    compare_json,
    compare_junit,
    compare_markdown,
    compare_text,
)
from perfscope.dashboards.reports.compare_document import of
from perfscope.dashboards.reports.compare_program_json import MOST_ROWS
from perfscope.model.errors import DataError
from tests.compare.programs import OPS, ddp_all_reduce, fused_program, job, program_all_reduce
from tests.conftest import REPOSITORY
from tests.dashboards import compared
from tests.hlo_build import hlo_trace


@lru_cache
def _made() -> dict[str, Any]:
    return compared.programs()


@pytest.fixture
def held() -> dict[str, Any]:
    return copy.deepcopy(_made())


def identical() -> dict[str, Any]:
    return compare_json.document(compare([hlo_trace(fused_program())], [hlo_trace(fused_program(suffix="x", shift=4))]))


class TestDocument:
    def test_rows_that_do_not_sum_are_refused(self, held: dict[str, Any]) -> None:
        held["programs"][0]["rows"][0]["amounts"][0]["head"] += 1
        with pytest.raises(DataError, match="programs: bytes moved a run: its rows sum to 25165825, not to 25165824"):
            of(held)

    def test_a_row_of_another_metric_is_refused(self, held: dict[str, Any]) -> None:
        held["programs"][0]["rows"][0]["amounts"][0]["name"] = "speed"
        with pytest.raises(DataError, match="a row is of 'speed', which the program does not have"):
            of(held)

    def test_identical_with_a_change_is_refused(self, held: dict[str, Any]) -> None:
        held["programs"][0]["identical"] = True
        with pytest.raises(DataError, match="called identical and is not"):
            of(held)

    def test_of_very_many_rows_the_rest_is_one(self) -> None:
        found = compare([hlo_trace(fused_program())], [hlo_trace(compared.split_program())])
        (program,) = found.programs
        (row,) = program.rows
        rows = tuple(replace(row, place=f"model.py:{at}") for at in range(MOST_ROWS + 7))
        totals = {name: (base * len(rows), head * len(rows)) for name, (base, head) in row.amounts.items()}
        many = replace(found, programs=(replace(program, rows=rows, totals=totals),))
        document = of(compare_json.document(many))
        assert len(document.programs[0].rows) == MOST_ROWS
        assert document.programs[0].other_rows.count == 7


class TestFaces:
    @pytest.mark.parametrize("render", [compare_text.render, compare_markdown.render, compare_html.render])
    def test_the_line_that_was_changed_stands_first(self, held: dict[str, Any], render: Any) -> None:
        text = render(of(held))
        for said in (
            "model.py:9", "moved out of a fusion", "3 times", "shows at model.py:10", "+24.0 MiB moved", "+3 launches",
            "7.00 us to 9.00 us", "nothing was measured", "what a reader must know",
        ):  # fmt: skip
            assert said in text.replace("\\_", "_"), said
        assert text.index("model.py:9") < text.index("model.py:10")

    def test_identical_is_said_in_one_line(self) -> None:
        document = of(identical())
        assert "identical: same fingerprint" in compare_text.render(document)
        (_, line) = compare_markdown.render(document).strip().split("\n")
        assert "no change" in line
        assert "identical: same fingerprint" in line
        assert "identical: same fingerprint" in compare_html.render(document)

    def test_an_annotation_stands_at_the_line(self, held: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "model.py").write_text("")
        lines = compare_github.annotated(of(held), tmp_path).splitlines()
        (first,) = [line for line in lines if "bytes moved a run%3A regression" in line]
        assert first.startswith("::error file=model.py,line=9,")
        assert "moved out of a fusion: exp" in first

    def test_a_case_for_each_gate(self, held: dict[str, Any]) -> None:
        held["failed"] = ["lost-fusions: 3 launches were part of a fusion, +24.0 MiB a run: model.py:9"]
        root = ET.fromstring(compare_junit.render(of(held)))
        cases = {
            case.get("name"): case for case in root.iter("testcase") if case.get("classname") == "perfscope.program"
        }
        assert set(cases) == {
            "lost-fusions", "hbm-bytes", "peak", "collective-bytes", "blocking-collectives", "graph-breaks",
        }  # fmt: skip
        assert [name for name, case in cases.items() if case.find("failure") is not None] == ["lost-fusions"]

    def test_a_gate_that_is_none_asks_for_nothing(self, held: dict[str, Any]) -> None:
        held["gates"] = ["programs:nonsense", "peak:2", "programs:2"]
        root = ET.fromstring(compare_junit.render(of(held)))
        assert [case.get("name") for case in root.iter("testcase") if case.get("classname") == "perfscope.program"] == [
            "peak"
        ]


class TestCollectivesOfPlans:
    """Plans of eight processes: an all-reduce that the next line waits for was added, and gradients are wider."""

    @pytest.fixture
    def document(self, tmp_path: Path) -> dict[str, Any]:
        rows = ddp_all_reduce(2, OPS), ddp_all_reduce(4, OPS)
        wide = [replace(row, bytes=2 * row.bytes, dtype="float32") for row in rows]
        sides = job(tmp_path / "base", *rows), job(tmp_path / "head", *wide, program_all_reduce(OPS, OPS, line=41))
        found = compare([sides[0]], [sides[1]])
        gates = found.gates(("programs",))
        return compare_json.document(found, gates=["programs"], failed=gates)

    @pytest.mark.parametrize("render", [compare_text.render, compare_markdown.render, compare_html.render])
    def test_every_face_tells_of_lines_bytes_waits_and_what_is_modelled(
        self, document: dict[str, Any], render: Any
    ) -> None:
        text = render(of(document))
        for said in (
            "train.py:41", "new collective: all-reduce, bfloat16 over 8 ranks", "+1 that block",
            "no kernel can run beside it", "type changed: all-reduce of DistributedDataParallel",
            "+112 MiB sent to other devices", "for it by the model",
        ):  # fmt: skip
            assert said in " ".join(text.split()).replace("\\_", "_"), said

    def test_the_document_keeps_to_its_schema_and_its_rows_sum(self, document: dict[str, Any]) -> None:
        schema = json.loads((REPOSITORY / "docs" / "compare-schema.json").read_text())
        Draft202012Validator(schema).validate(document)
        (program,) = document["programs"]
        for whole in program["amounts"]:
            parts = [one for row in program["rows"] for one in row["amounts"] if one["name"] == whole["name"]]
            assert sum(one["head"] - one["base"] for one in parts) == whole["head"] - whole["base"]
        program["rows"][0]["amounts"][0]["head"] += 1
        with pytest.raises(DataError, match=r"planned collective.*: its rows sum to"):
            of(document)

    def test_junit_fails_the_gates_and_an_annotation_stands_at_the_line(
        self, document: dict[str, Any], tmp_path: Path
    ) -> None:
        root = ET.fromstring(compare_junit.render(of(document)))
        failed = {
            case.get("name")
            for case in root.iter("testcase")
            if case.get("classname") == "perfscope.program" and case.find("failure") is not None
        }
        assert failed == {"collective-bytes", "blocking-collectives"}
        (tmp_path / "train.py").write_text("")
        lines = compare_github.annotated(of(document), tmp_path).splitlines()
        (blocked,) = [line for line in lines if "planned collectives that block a step%3A regression" in line]
        assert blocked.startswith("::error file=train.py,line=41,")
