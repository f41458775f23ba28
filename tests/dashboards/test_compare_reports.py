"""A comparison as text and JSON: nothing hostile gets through, sums hold, and every screen fits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from perfscope.analyzers.compare.comparison import Comparison, compare
from perfscope.dashboards.reports import compare_json, compare_text
from perfscope.dashboards.reports.compare_document import Document, of
from perfscope.dashboards.reports.compare_rows import headline, part_words, told
from perfscope.dashboards.reports.compare_words import change, number, signed_ns, value, verdict
from perfscope.dashboards.reports.text_page import NARROWEST
from tests.compare.runs import gpu_run, host_run


@pytest.fixture(scope="module")
def item() -> Comparison:
    return compare([gpu_run()], [gpu_run(item=True)])


def document(comparison: Comparison) -> Document:
    return of(compare_json.document(comparison))


class TestText:
    def test_verdict_first_then_the_line(self, item: Comparison) -> None:
        text = compare_text.render(document(item), width=100)
        first, *_ = text.splitlines()
        assert first.startswith("perfscope: regression: worse: host syncs a step 0 → 1")
        assert text.index("train.py:11") < text.index("where the recorded time goes")
        assert "time not judged (one launch each)" in " ".join(text.split())

    @pytest.mark.parametrize("width", [20, 80, 100, 200])
    def test_it_fits(self, item: Comparison, width: int) -> None:
        for verbose in (False, True):
            lines = compare_text.render(document(item), width=width, verbose=verbose).splitlines()
            assert max(map(len, lines)) <= max(width, NARROWEST)

    def test_nothing_changed_is_said(self) -> None:
        text = compare_text.render(document(compare([host_run()], [host_run()])))
        assert "nothing changed in what can be counted" in text
        assert "findings: none" in text

    def test_what_could_not_be_looked_at_is_said(self) -> None:
        text = compare_text.render(document(compare([host_run()], [host_run()])))
        assert "could not look:" in text
        assert "no device work recorded" in text

    def test_the_sum_row_is_the_step(self, item: Comparison) -> None:
        text = compare_text.render(document(item))
        (row,) = [line for line in text.splitlines() if line.strip().startswith("sum")]
        assert row.split() == ["sum", "1.00", "ms", "1.00", "ms", "0", "ns"]

    def test_color_only_where_wanted(self, item: Comparison) -> None:
        assert "\x1b" not in compare_text.render(document(item))
        assert "\x1b[" in compare_text.render(document(item), color=True)


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
        assert {one["name"] for one in held["metrics"]} >= {"host syncs a step", "kernels a step"}

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
    for text in (compare_text.render(document(found), verbose=True), compare_json.render(found)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\nperfscope: fine" not in text
        assert "k" * 4100 not in text


class TestWords:
    def test_numbers(self) -> None:
        assert [number(held) for held in (3.0, 1.3333, 12345)] == ["3", "1.33", "12,345"]
        assert [signed_ns(held) for held in (0, 1500, -20)] == ["0 ns", "+1.50 us", "-20 ns"]

    def test_a_metric(self, item: Comparison) -> None:
        syncs = next(one.result for one in item.exact if one.result.name == "host syncs a step")
        assert (value(syncs, syncs.head), change(syncs), verdict(syncs)) == ("1", "from none", "regression")
        bytes_ = replace(syncs, unit="bytes", base=1024.0, head=2048.0, effect=1.0)
        assert (value(bytes_, bytes_.head), change(bytes_)) == ("2.00 KiB", "+100.0%")
        text = replace(syncs, unit="text", base="a", head="b", effect=None, verdict="inconclusive")
        assert (value(text, text.head), change(text), verdict(text)) == ("b", "", "differs")
        assert value(text, None) == "-"

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
        assert part_words(told(one)) == (
            "fused: aten::add, aten::mul, aten::silu → triton_poi_fused_add_mul_silu, 3 → 1 a step"
        )

    def test_an_improvement_is_told_as_one(self) -> None:
        assert headline(document(compare([gpu_run(item=True)], [gpu_run()]))).startswith(
            "improvement: better: host syncs a step"
        )
