"""A comparison as text and JSON: nothing hostile gets through, sums hold, and every screen fits."""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ET
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.dashboards.report import github
from perfscope.dashboards.report.compare import json as compare_json
from perfscope.dashboards.report.compare import junit
from perfscope.dashboards.report.compare.json import MOST_ROWS
from perfscope.dashboards.report.compare.render import render_html, render_markdown, render_text
from perfscope.dashboards.report.compare.words import cause_part, change_text, headline, part_words, side_text, verdict
from perfscope.dashboards.report.renderers.text import NARROWEST
from perfscope.dashboards.report.renderers.values import number, signed_ns
from perfscope.model.documents.comparison import Document, of
from perfscope.model.errors import DataError
from tests.compare.programs import OPS, ddp_all_reduce, fused_program, job, program_all_reduce
from tests.compare.runs import gpu_run, host_run
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_trace
from tests.report import comparisons


@pytest.fixture(scope="module")
def item() -> Comparison:
    return compare([gpu_run()], [gpu_run(item=True)])


def document(comparison: Comparison) -> Document:
    return of(compare_json.document(comparison))


class TestText:
    def test_verdict_first_then_the_line(self, item: Comparison) -> None:
        text = render_text(document(item), width=100)
        first, *_ = text.splitlines()
        assert first.startswith("perfscope: regression: worse: host syncs per step 0 → 1")
        assert text.index("train.py:11") < text.index("The recorded step in parts")
        assert "(not judged: one launch each)" in " ".join(text.split())

    @pytest.mark.parametrize("width", [20, 80, 100, 200])
    def test_it_fits(self, item: Comparison, width: int) -> None:
        for verbose in (False, True):
            lines = render_text(document(item), width=width, verbose=verbose).splitlines()
            assert max(map(len, lines)) <= max(width, NARROWEST)

    def test_nothing_changed_is_said(self) -> None:
        text = render_text(document(compare([host_run()], [host_run()])))
        assert "Changes: all counted metrics are equal" in text
        assert "Findings: none" in text

    def test_what_could_not_be_looked_at_is_said(self) -> None:
        found = document(compare([host_run()], [host_run()]))
        assert "Not compared:" in render_text(found)
        text = render_text(found, verbose=True)
        assert "no device work recorded" in " ".join(text.split())

    def test_causes_and_parts_are_of_one_step(self, item: Comparison) -> None:
        text = render_text(document(item))
        assert "Where the step goes: 1.00 ms → 1.00 ms, 0 ns" in text
        assert "The recorded step in parts: 1.00 ms → 1.00 ms, 0 ns" in text

    def test_kinds_are_shown_where_causes_are_unknown(self, item: Comparison) -> None:
        text = render_text(document(replace(item, account=None)))
        (row,) = [line for line in text.splitlines() if line.strip().startswith("sum")]
        assert row.split() == ["sum", "1.00", "ms", "1.00", "ms", "0", "ns"]

    def test_color_only_where_wanted(self, item: Comparison) -> None:
        assert "\x1b" not in render_text(document(item))
        assert "\x1b[" in render_text(document(item), color=True)


class TestJson:
    def test_it_is_json_and_the_parts_sum(self, item: Comparison) -> None:
        held = json.loads(compare_json.render(item, failed=["a"]))
        assert held["schema"] == "perfscope.compare/1"
        assert held["failed"] == ["a"]
        step = held["step"]
        delta = sum(part["delta_ns"] for part in step["parts"])
        assert delta + step["other_parts"]["head_ns"] - step["other_parts"]["base_ns"] == step["delta_ns"]
        assert sum(side["head_ns"] for side in step["by_kind"].values()) == step["head_ns"]
        assert held["causes"][0]["place"] == "train.py:11"
        assert {one["name"] for one in held["metrics"]} >= {"host syncs per step", "kernels per step"}

    def test_parts_beyond_the_limit_are_one_row(self, item: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compare_json, "MOST_PARTS", 2)
        step = json.loads(compare_json.render(item))["step"]
        assert len(step["parts"]) == 2
        whole = sum(part["head"]["ns"] for part in step["parts"]) + step["other_parts"]["head_ns"]
        assert whole == step["head_ns"]

    def test_numbers_are_plain(self, item: Comparison) -> None:
        def walk(held: Any) -> None:
            assert held is None or isinstance(held, dict | list | str | int | float | bool)
            for one in held.values() if isinstance(held, dict) else held if isinstance(held, list) else ():
                walk(one)

        walk(compare_json.document(item))


HOSTILE = "x\x1b[31m\nperfscope: fine\u202e" + "k" * 5000


def test_hostile_names_stay_on_their_line() -> None:
    found = compare([gpu_run()], [gpu_run(kernel=HOSTILE, file="a\x1b]0;b\x07.py", item=True)])
    for text in (render_text(document(found), verbose=True), compare_json.render(found)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\nperfscope: fine" not in text
        assert "k" * 4100 not in text


class TestWords:
    def test_numbers(self) -> None:
        assert [number(held) for held in (3.0, 1.3333, 12345)] == ["3", "1.33", "12,345"]
        assert [signed_ns(held) for held in (0, 1500, -20)] == ["0 ns", "+1.50 us", "-20 ns"]

    def test_a_metric(self, item: Comparison) -> None:
        syncs = next(one.result for one in item.exact if one.result.name == "host syncs per step")
        assert (side_text(syncs, "head"), change_text(syncs), verdict(syncs)) == ("1", "from none", "regression")
        bytes_ = replace(syncs, unit="bytes", base=1024.0, head=2048.0, effect=1.0)
        assert (side_text(bytes_, "head"), change_text(bytes_)) == ("2.00 KiB", "+100.0%")
        text = replace(syncs, unit="text", base="a", head="b", effect=None, verdict="inconclusive")
        assert (side_text(text, "head"), change_text(text), verdict(text)) == ("b", "", "differs")
        assert side_text(replace(text, head=None), "head") == "-"

    def test_single_captures_have_no_verdict(self, item: Comparison) -> None:
        assert item.step_time is not None
        assert verdict(item.step_time).startswith("not judged")
        looks = replace(item.step_time, verdict="regression")
        assert verdict(looks) == "not judged (looks like regression)"

    def test_a_fusion_says_what_became_of_what(self) -> None:
        found = compare([gpu_run()], [gpu_run(fused=True)])
        step = document(found).step
        assert step is not None
        (one,) = [part for part in step.parts if part.status == "fused"]
        assert part_words(cause_part(one)) == (
            "fused: aten::add, aten::mul, aten::silu → triton_poi_fused_add_mul_silu, 3 → 1 per step"
        )

    def test_an_improvement_is_told_as_one(self) -> None:
        assert headline(document(compare([gpu_run(item=True)], [gpu_run()]))).startswith(
            "improvement: better: host syncs per step"
        )


@lru_cache
def _made() -> dict[str, Any]:
    return comparisons.programs()


@pytest.fixture
def held() -> dict[str, Any]:
    return copy.deepcopy(_made())


def identical() -> dict[str, Any]:
    return compare_json.document(compare([hlo_trace(fused_program())], [hlo_trace(fused_program(suffix="x", shift=4))]))


class TestDocument:
    def test_rows_that_do_not_sum_are_refused(self, held: dict[str, Any]) -> None:
        held["programs"][0]["rows"][0]["amounts"][0]["head"] += 1
        with pytest.raises(DataError, match="programs: bytes moved per run: its rows sum to 25165825, not to 25165824"):
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
        found = compare([hlo_trace(fused_program())], [hlo_trace(comparisons.split_program())])
        (program,) = found.programs
        (row,) = program.rows
        rows = tuple(replace(row, place=f"model.py:{at}") for at in range(MOST_ROWS + 7))
        totals = {name: (base * len(rows), head * len(rows)) for name, (base, head) in row.amounts.items()}
        many = replace(found, programs=(replace(program, rows=rows, totals=totals),))
        document = of(compare_json.document(many))
        assert len(document.programs[0].rows) == MOST_ROWS
        assert document.programs[0].other_rows.count == 7


class TestFaces:
    @pytest.mark.parametrize("render", [render_text, render_markdown, render_html])
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
        assert "identical: same fingerprint" in render_text(document)
        (_, line) = render_markdown(document).strip().split("\n")
        assert "no change" in line
        assert "identical: same fingerprint" in line
        assert "identical: same fingerprint" in render_html(document)

    def test_an_annotation_stands_at_the_line(self, held: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "model.py").write_text("")
        lines = github.annotated(of(held), tmp_path).splitlines()
        (first,) = [line for line in lines if "bytes moved per run%3A regression" in line]
        assert first.startswith("::error file=model.py,line=9,")
        assert "moved out of a fusion: exp" in first

    def test_a_case_for_each_gate(self, held: dict[str, Any]) -> None:
        held["failed"] = ["lost-fusions: 3 launches were part of a fusion, +24.0 MiB a run: model.py:9"]
        root = ET.fromstring(junit.render(of(held)))
        cases = {
            case.get("name"): case for case in root.iter("testcase") if case.get("classname") == "perfscope.program"
        }
        assert set(cases) == {
            "lost-fusions", "hbm-bytes", "peak", "collective-bytes", "blocking-collectives", "graph-breaks",
        }  # fmt: skip
        assert [name for name, case in cases.items() if case.find("failure") is not None] == ["lost-fusions"]

    def test_a_gate_that_is_none_asks_for_nothing(self, held: dict[str, Any]) -> None:
        held["gates"] = ["programs:nonsense", "peak:2", "programs:2"]
        root = ET.fromstring(junit.render(of(held)))
        assert [case.get("name") for case in root.iter("testcase") if case.get("classname") == "perfscope.program"] == [
            "peak"
        ]


class TestCollectivesOfPlans:
    """Plans of eight processes: an all-reduce that the next line waits for was added, and gradients are wider."""

    @pytest.fixture
    def document(self, tmp_path: Path) -> dict[str, Any]:
        rows = ddp_all_reduce(2, OPS), ddp_all_reduce(4, OPS)
        wide = [msgspec.structs.replace(row, bytes=2 * row.bytes, dtype="float32") for row in rows]
        sides = job(tmp_path / "base", *rows), job(tmp_path / "head", *wide, program_all_reduce(OPS, OPS, line=41))
        found = compare([sides[0]], [sides[1]])
        gates = found.gates(("programs",))
        return compare_json.document(found, gates=["programs"], failed=gates)

    @pytest.mark.parametrize("render", [partial(render_text, width=400), render_markdown, render_html])
    def test_every_face_tells_of_lines_bytes_waits_and_what_is_modelled(
        self, document: dict[str, Any], render: Any
    ) -> None:
        text = render(of(document))
        for said in (
            "train.py:41", "new collective: all-reduce, bfloat16 over 8 ranks", "+1 that block",
            "no kernel can run at the same time", "type changed: all-reduce of DistributedDataParallel",
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
        root = ET.fromstring(junit.render(of(document)))
        failed = {
            case.get("name")
            for case in root.iter("testcase")
            if case.get("classname") == "perfscope.program" and case.find("failure") is not None
        }
        assert failed == {"collective-bytes", "blocking-collectives"}
        (tmp_path / "train.py").write_text("")
        lines = github.annotated(of(document), tmp_path).splitlines()
        (blocked,) = [line for line in lines if "planned blocking collectives per step%3A regression" in line]
        assert blocked.startswith("::error file=train.py,line=41,")
