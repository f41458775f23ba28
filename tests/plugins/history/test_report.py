"""A history as text, JSON and a page: its content, its limits, and that untrusted text is inactive."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.values import amount_text
from perfscope.plugins.history import report as report
from perfscope.plugins.history.report import history_sections, programs, sparkline
from perfscope.plugins.history.series import history
from perfscope.plugins.history.stored_run import StoredMetric, StoredRun
from tests.plugins.history.records import stored_run
from tests.report.test_json import assert_fields_are_there


def runs(count: int = 24, **other: object) -> list[StoredRun]:
    return [
        stored_run(number, step_ns=1e7 + 1e4 * (number % 3) + (2e6 if number >= 12 else 0), **other)
        for number in range(count)
    ]


def hostile() -> list[StoredRun]:
    evil = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e"
    made = []
    for number, run in enumerate(runs()):
        metric = replace(run.metrics[0], name=evil)
        software = {"torch": evil + str(number >= 12)}
        run = replace(run, name=evil, branch=evil, id=evil + str(number), hardware={"gpu": evil}, software=software)
        made.append(replace(run, metrics=(metric, run.metrics[1]), command=(evil,), perfscope=evil))
    return made


def test_blocks() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0, 0]) == "▄▄▄"
    assert sparkline([1, 2, 3, 8]) == "▁▂▃█"
    assert sparkline([100.0, 100.1, 100.0]) == "▄▅▄", "less than what matters looks flat"
    assert len(sparkline(list(range(1, 1000)), 40)) == 40
    assert sparkline([1.0] * 500 + [2.0] * 500, 10) == "▁▁▁▁▁█████"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(1.5e6, "ns", "1.50 ms"), (3 << 20, "bytes", "3.00 MiB"), (2e9, "FLOP", "2.00 G"), (3, "count", "3"),
     (2.5, "count", "2.50"), (12_345, "count", "12,345")],
)  # fmt: skip
def test_amounts(value: float, unit: str, shown: str) -> None:
    assert amount_text(unit, value) == shown


def test_what_changed_at_one_place_is_told_once() -> None:
    read = [
        replace(run, metrics=(run.metrics[0], replace(run.metrics[1], value=float(number >= 12))))
        for number, run in enumerate(runs())
    ]
    found = history(read)
    moved = programs(found)[0].moved()
    assert [len(changes) for changes in moved] == [2]
    text = report.render_text(found, count_between=lambda older, newer: 7)
    assert text.count("changed after ") == 1
    assert " (7 commits)" in " ".join(text.split())
    assert "step time 10.0 ms → 12.0 ms (+20.0%), p " in text
    assert "host syncs per step 0 → 1" in text


def test_what_never_moved_is_one_line() -> None:
    metrics = tuple(StoredMetric(name=f"count {letter}", unit="count", known="exact", value=3.0) for letter in "abcd")
    found = history([stored_run(number, metrics=metrics) for number in range(3)])
    text = report.render_text(found)
    assert "the same in all runs: count a 3, count b 3, count c 3, count d 3" in " ".join(text.split())
    assert "▄" not in text
    assert report.render_text(found, verbose=True).count("▄▄▄") == 4


def test_of_a_single_run_nothing_is_said_to_have_stayed_the_same() -> None:
    metrics = tuple(StoredMetric(name=f"count {letter}", unit="count", known="exact", value=3.0) for letter in "abcd")
    text = report.render_text(history([stored_run(0, metrics=metrics)]))
    assert "its only run: count a 3, count b 3, count c 3, count d 3" in " ".join(text.split())
    assert "the same in all runs" not in " ".join(text.split())


def test_much_of_it_is_cut_on_the_screen() -> None:
    many = [replace(run, command=("train.py", str(number % 9))) for number, run in enumerate(runs())]
    text = report.render_text(history(many))
    assert len(re.findall(r"(?m)^  train: train.py", text)) == 6
    assert len(re.findall(r"(?m)^  train: train.py", report.render_text(history(many), verbose=True))) == 9
    alone = report.render_text(history(runs(30), metrics=["step time"]))
    assert alone.count("-train-") == 20
    assert "and 10 more runs" in alone


def test_golden(golden: Callable[[str, str], None]) -> None:
    found = history(runs())
    golden("history.txt", report.render_text(found) + "\n=== -v\n\n" + report.render_text(found, verbose=True))
    golden("history.html", "\n".join(sections_html(tuple(history_sections(found)))).replace("><", ">\n<"))


def test_the_json_is_whole() -> None:
    found = history(runs())
    held = json.loads(report.render_json(found))
    assert held["schema"] == "perfscope.history/1"
    step = next(one for one in held["series"] if one["metric"] == "step time")
    assert [point["value"] for point in step["points"]] == [run.metrics[0].value for run in runs()]
    assert step["changes"][0]["index"] == 12
    assert step["changes"][0]["up_to_run"] == runs()[12].id
    assert step["hardware"] == {"gpu": "1 x Test GPU", "cpu": "Test CPU"}
    assert step["command"] == ["train.py"]


def test_strangers_texts_do_nothing() -> None:
    found = history(hostile())
    text, page, data = (
        report.render_text(found, verbose=True),
        report.render_html(found),
        report.render_json(found),
    )
    for out in (text, page, data):
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert "onerror" in page, "as text"


def test_a_shape_names_fields_that_are_there() -> None:
    assert_fields_are_there(report.SHAPES)
