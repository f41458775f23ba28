"""A comparison as a comment: the verdict first, one line where nothing changed, bounded; no stranger's text acts."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfscope.dashboards.reports.compare_bars import scale_of, text_bar
from perfscope.dashboards.reports.compare_document import of
from perfscope.dashboards.reports.compare_markdown import MOST_CHARACTERS, MOST_METRICS, marker, render
from perfscope.model.errors import UsageError
from perfscope.model.untrusted_text import sanitize
from tests.dashboards import compared
from tests.dashboards.github_markdown import Rendered, commonmark, github

PIECES = st.sampled_from(
    [
        "<", ">", "</details>", "<!--", "-->", "]]>", "&", "&lt;", "&#64;", '"', "'", "`", "```", "~~~", "|", "\\",
        "\n", "\r", "\t", "@a", "@org/team", "#1", "GH-1", "a/b#2", "1a2b3c4", "http://x.y", "www.x.y", "ftp://x",
        "a@b.cd", "mailto:a@b.cd", "\x1b[2J", "\x00", "\u202e", "\u2028", "\u200b", "[b]", "![", "](", "[^1]",
        "[ ] ", "{{", "$$",
        "$`", "**", "__", "~~", "* ", "- ", "1. ", "+ ", "# ", "===", "---", "|-|", ":-:", "    ", "<script>",
        "<a href=x>", "<img src=x>", "javascript:", "k", "日", " ", "0", ":tada:",
    ]
)  # fmt: skip
NAMES = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join))

FORMATS = frozenset({"code", "pre", "p", "br"})
"""What advice may have more of, by what is in it: none of them acts."""

ACTIVE = frozenset({"a", "img", "input", "script", "sup", "section", "del"})


ATTRIBUTES = {
    *((tag, key) for tag in ("th", "td") for key in ("align", "style")), ("pre", "lang"), ("code", "class"),
}  # fmt: skip
"""The side of a cell and the language of code in advice: each parser says them in its own way."""


def shape(page: Rendered) -> list[str]:
    return [tag for tag in page.tags if tag not in FORMATS]


def test_the_verdict_is_in_the_headline_with_its_interval() -> None:
    lines = render(of(compared.in_turns()), key="llama.8b_x-1").splitlines()
    assert lines[0] == "<!-- perfscope-report:llama.8b_x-1 -->"
    assert lines[1] == (
        "### perfscope: 🔴 regression: step time +3.0% (97.2% CI +2.0% … +4.0%); worse: host syncs a step 0 → 1"
    )


def test_what_an_engineer_needs_stands_in_this_order() -> None:
    text = render(of(compared.in_turns()))
    wanted = [
        "main@", "**Gate not met:** step time: regression", "1. <code>train.py:11</code>",
        "| 🔴 regression | step time |",
        "⚪ no change: kernels a step", "**Findings**: 1 new", "<summary>What to do: host-sync at train.py:11",
        "<summary>Kernels: 2 of 3 changed", "<summary>The step in parts", "<summary>Could not look: 11 metrics",
        "<summary>Method and environment", "10 pairs and 6 to confirm, order by seed 3471692537", "| torch | 2.13.0 |",
    ]  # fmt: skip
    assert [text.find(one) for one in wanted] == sorted(text.find(one) for one in wanted)
    assert all(one in text for one in wanted)
    assert "`··········│·─●─······`" in text


def test_nothing_changed_is_one_line() -> None:
    text = render(of(compared.same()))
    first, line = text.splitlines()
    assert first == marker("compare")
    assert line.startswith("⚪ **perfscope: no change** · 4 exact metrics the same; time not judged (one launch each)")
    assert "could not be compared" in line
    assert text.count("\n") == 2


@pytest.mark.parametrize("change", ["failed", "finding", "cause", "kernel", "open"])
def test_it_is_quiet_only_where_nothing_else_says_anything(change: str) -> None:
    held, full = compared.same(), compared.in_turns()
    if change == "failed":
        held["failed"] = ["step time: inconclusive"]
    if change == "finding":
        held["findings"] = full["findings"]
    if change == "cause":
        held["causes"] = full["causes"]
    if change == "kernel":
        held["kernels"] = full["kernels"]
    if change == "open":
        held["metrics"][1]["verdict"] = "inconclusive"
    assert "<details>" in render(of(held))


def test_findings_by_time_alone_are_counted_in_the_quiet_line() -> None:
    held = compared.same()
    held["findings"] = [{**one, "by_time": True} for one in compared.in_turns()["findings"] if one["change"] == "new"]
    text = render(of(held))
    assert text.count("\n") == 2
    assert "1 finding changed (by measured time alone)" in text


def test_a_regression_of_captures_judges_no_time() -> None:
    text = render(of(compared.single()))
    assert "time not judged (one launch each)" in text
    assert "| ▫ not judged" in text
    assert "CI" not in text.splitlines()[1]


def test_bars() -> None:
    held = of(compared.in_turns())
    step_time, p90 = held.metrics[0], held.beside[0]
    end = scale_of((*held.metrics, *held.beside))
    assert end == 0.1
    assert text_bar(p90, end) == "·········─│─●────····"
    assert text_bar(step_time, 0.01)[-1] == "▶"
    assert scale_of(of(compared.single()).metrics) is None


def test_rows_beyond_ten_are_counted() -> None:
    held = compared.in_turns()
    one = held["metrics"][1]
    held["metrics"] += [{**one, "name": f"metric {number}", "verdict": "regression"} for number in range(50)]
    text = render(of(held))
    table = text[text.index("| verdict |") :].split("\n\n")[0].splitlines()
    assert len(table) == 2 + MOST_METRICS
    assert f"and {52 - MOST_METRICS} more metrics that changed" in text


def test_the_largest_is_cut_with_a_notice() -> None:
    name = "a|`<" * 2_500_000
    found = compared.hostile(name)
    text = render(found)
    assert len(text) <= MOST_CHARACTERS
    small = render(found, limit=4_000)
    assert len(small) <= 4_000
    assert "Cut to fit a comment" in small or "Too large for a comment" in small
    assert small.startswith(marker("compare"))
    tiny = render(found, limit=200)
    assert len(tiny) <= 200
    assert "regression" in tiny


def test_a_whole_report_can_be_linked() -> None:
    text = render(of(compared.same()), url="https://example.invalid/a/b?c=1")
    assert text.count("\n") == 2
    assert text.endswith(" · [full report](https://example.invalid/a/b?c=1)\n")
    for bad in ("javascript:alert(1)", "https://a b", "https://a)b", "https://a\n"):
        with pytest.raises(UsageError, match="not an http"):
            render(of(compared.same()), url=bad)


@pytest.mark.parametrize("key", ["", "a b", "-->", "a\n", "é", "x" * 101])
def test_a_key_cannot_end_the_marker(key: str) -> None:
    with pytest.raises(UsageError, match="a key has"):
        render(of(compared.same()), key=key)


@given(NAMES)
@example("</summary></details><!-- x")
@example("a|b|c")
@example("0000000000a")
@example("`a` @user #1 https://x.y")
@example("0\n\n# heading\n\n| a |\n|-|\n| b |\n")
@settings(max_examples=100, deadline=None)
def test_no_name_acts(name: str) -> None:
    text = render(compared.hostile(name))
    text.encode()
    assert len(text) <= MOST_CHARACTERS
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    plain = render(compared.hostile("plain"))
    for read in (github, commonmark):
        page, whole = read(text), read(plain)
        assert page.linked() == []
        assert not ACTIVE & set(page.tags)
        assert {(tag, key) for tag, key, _ in page.attributes} <= ATTRIBUTES
        assert page.comments == whole.comments
        if sanitize(name):  # where a name is empty its place and its line are left out
            assert shape(page) == shape(whole)


@given(NAMES)
@settings(max_examples=60, deadline=None)
def test_a_quiet_line_stays_one(name: str) -> None:
    held = compared.same()
    held["base"]["paths"] = [name]
    held["metrics"][0]["name"] = name
    text = render(of(held))
    assert text.count("\n") == 2
    page = github(text)
    assert page.linked() == []
    assert set(page.tags) <= {"p", "strong", "code"}


def test_why_a_time_is_open_stands_below_the_table() -> None:
    held = compared.in_turns()
    held["metrics"][0] |= {"verdict": "inconclusive", "needed_pairs": 34, "remarks": ["the second batch: +1%"]}
    text = render(of(held))
    assert "The step time is open: the second batch: +1%." in text
    assert "About 34 pairs in all would settle the step time" in text
