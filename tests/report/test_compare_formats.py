"""A comparison as a comment: the verdict first, one line where nothing changed, bounded; no stranger's text acts."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfscope.dashboards.report import github
from perfscope.dashboards.report.blocks import Effect
from perfscope.dashboards.report.charts import falls, launches_plot, waterfall
from perfscope.dashboards.report.compare import junit
from perfscope.dashboards.report.compare.render import (
    MOST_CHARACTERS,
    MOST_EMBEDDED,
    OPEN_ROWS,
    embedded,
    marker,
    render_html,
    render_text,
)
from perfscope.dashboards.report.compare.render import render_markdown as render
from perfscope.dashboards.report.compare.sections import compare_sections, detail_sections, verdict_section
from perfscope.dashboards.report.compare.words import change_value
from perfscope.dashboards.report.renderers.charts import chart_html
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.values import interval_bar, scale_of, text_bar
from perfscope.model.documents.comparison import of, parse
from perfscope.model.errors import DataError, UsageError
from perfscope.model.untrusted_text import sanitize
from tests.browser.chromium import binary, browser
from tests.report import comparisons
from tests.report.github_markdown import Rendered, commonmark
from tests.report.github_markdown import github as rendered_by_github
from tests.report.test_html import Parsed

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
"""Markup allowed in advice, by kind of element: none of it is active."""

ACTIVE = frozenset({"a", "img", "input", "script", "sup", "section", "del"})


ATTRIBUTES = {
    *((tag, key) for tag in ("th", "td") for key in ("align", "style")), ("pre", "lang"), ("code", "class"),
}  # fmt: skip
"""The side of a cell and the language of code in advice, which parsers report differently."""


def shape(page: Rendered) -> list[str]:
    return [tag for tag in page.tags if tag not in FORMATS]


@pytest.mark.parametrize("name", ["interleaved_launches", "programs", "single_captures"])
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    document = of(getattr(comparisons, name)())
    file = f"compare-{name.replace('_', '-')}"
    golden(f"{file}.txt", render_text(document) + "\n=== -v\n\n" + render_text(document, verbose=True))
    golden(f"{file}.md", render(document))
    shown = (verdict_section(document), *compare_sections(document), *detail_sections(document))
    golden(f"{file}.html", "\n".join(sections_html(shown)).replace("><", ">\n<"))


def test_the_verdict_is_in_the_headline_with_its_interval() -> None:
    lines = render(of(comparisons.interleaved_launches()), key="llama.8b_x-1").splitlines()
    assert lines[0] == "<!-- perfscope-report:llama.8b_x-1 -->"
    assert lines[1] == (
        "### perfscope: 🔴 regression: step time +3.0% (97.2% CI +2.0% … +4.0%); worse: host syncs per step 0 → 1"
    )


def test_what_an_engineer_needs_stands_in_this_order() -> None:
    text = render(of(comparisons.interleaved_launches()))
    wanted = [
        "main@", "**Gate not met:** step time: regression",
        "| 🔴 regression | step time |",
        "no change: kernels per step", "| <code>train.py:11</code>", "**Findings**: 1 new",
        "<summary>What to do: host_sync at train.py:11",
        "<summary>Kernels: 2 of 3 changed", "<summary>The recorded step in parts", "<summary>Not compared: 11 metrics",
        "<summary>Method and environment", "10 pairs of launches and 6 to confirm, order by seed 3471692537",
        "| torch | 2.13.0 |",
    ]  # fmt: skip
    assert [text.find(one) for one in wanted] == sorted(text.find(one) for one in wanted)
    assert all(one in text for one in wanted)
    assert "`··········│···──●──··`" in text


def test_a_difference_that_does_not_count_is_shown_as_one() -> None:
    """Two of four steps in which a kernel ran are three of four there: rows of calls per step show it, too."""
    document = comparisons.single_captures()
    (kernels,) = (metric for metric in document["metrics"] if metric["name"] == "kernels per step")
    kernels |= {"base": 3.0, "head": 2.5, "effect": -1 / 6}
    assert "no change: kernels per step (3 → 2.50: below the threshold), copies per step," in render(of(document))


def test_nothing_changed_is_one_line() -> None:
    text = render(of(comparisons.unchanged_captures()))
    first, line = text.splitlines()
    assert first == marker("compare")
    assert line.startswith("⚪ **perfscope: not judged** · step time (profiled) ")
    assert "; 4 exact metrics the same" in line
    assert "could not be compared" in line
    assert text.count("\n") == 2


@pytest.mark.parametrize("change", ["failed", "finding", "cause", "kernel", "open"])
def test_it_is_quiet_only_where_nothing_else_says_anything(change: str) -> None:
    held, full = comparisons.unchanged_captures(), comparisons.interleaved_launches()
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
    held = comparisons.unchanged_captures()
    held["findings"] = [
        {**one, "by_time": True} for one in comparisons.interleaved_launches()["findings"] if one["change"] == "new"
    ]
    text = render(of(held))
    assert text.count("\n") == 2
    assert "1 finding changed (by measured time alone)" in text


def test_a_regression_of_captures_judges_no_time() -> None:
    text = render(of(comparisons.single_captures()))
    assert re.search(r"step time \(profiled\) .* → .* \(not judged: one launch each\)", text)
    assert "not judged" in text
    assert "CI" not in text.splitlines()[1]


def test_bars() -> None:
    held = of(comparisons.interleaved_launches())
    rows = [[change_value(metric)] for metric in (*held.metrics, *held.beside)]
    end = scale_of(rows)
    assert end == 0.1
    step_time, p90 = (change_value(metric) for metric in (held.metrics[0], held.beside[0]))
    assert isinstance(step_time, Effect)
    assert isinstance(p90, Effect)
    assert text_bar(p90, end) == "·········─│─●────····"
    assert text_bar(step_time, 0.01)[-1] == "▶"
    assert scale_of([[change_value(metric)] for metric in of(comparisons.single_captures()).metrics]) is None


def test_rows_beyond_ten_are_counted() -> None:
    held = comparisons.interleaved_launches()
    one = held["metrics"][1]
    held["metrics"] += [{**one, "name": f"metric {number}", "verdict": "regression"} for number in range(50)]
    text = render(of(held))
    table = text[text.index("| verdict |") :].split("\n\n")[0].splitlines()
    assert len(table) == 2 + OPEN_ROWS
    assert f"and {52 - OPEN_ROWS} more metrics" in text


@pytest.mark.slow
def test_the_largest_is_cut_with_a_notice() -> None:
    name = "a|`<" * 2_500_000
    found = comparisons.hostile(name)
    text = render(found)
    assert len(text) <= MOST_CHARACTERS
    small = render(found, limit=4_000)
    assert len(small) <= 4_000
    assert "Too large for a comment" in small
    assert small.startswith(marker("compare"))
    tiny = render(found, limit=200)
    assert len(tiny) <= 200
    assert "regression" in tiny


def test_a_whole_report_can_be_linked() -> None:
    text = render(of(comparisons.unchanged_captures()), url="https://example.invalid/a/b?c=1")
    assert text.count("\n") == 2
    assert text.endswith(" · [full report](https://example.invalid/a/b?c=1)\n")
    for bad in ("javascript:alert(1)", "https://a b", "https://a)b", "https://a\n"):
        with pytest.raises(UsageError, match="not an http"):
            render(of(comparisons.unchanged_captures()), url=bad)


@pytest.mark.parametrize("key", ["", "a b", "-->", "a\n", "é", "x" * 101])
def test_a_key_cannot_end_the_marker(key: str) -> None:
    with pytest.raises(UsageError, match="a key has"):
        render(of(comparisons.unchanged_captures()), key=key)


@given(NAMES)
@example("</summary></details><!-- x")
@example("a|b|c")
@example("0000000000a")
@example("`a` @user #1 https://x.y")
@example("0\n\n# heading\n\n| a |\n|-|\n| b |\n")
@settings(max_examples=30, deadline=None)
def test_no_name_acts(name: str) -> None:
    text = render(comparisons.hostile(name))
    text.encode()
    assert len(text) <= MOST_CHARACTERS
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    plain = render(comparisons.hostile("plain"))
    for read in (rendered_by_github, commonmark):
        page, whole = read(text), read(plain)
        assert page.linked() == []
        assert not ACTIVE & set(page.tags)
        assert {(tag, key) for tag, key, _ in page.attributes} <= ATTRIBUTES
        assert page.comments == whole.comments
        if sanitize(name):  # where a name is empty its place and its line are left out
            assert shape(page) == shape(whole)


@given(NAMES)
@settings(max_examples=20, deadline=None)
def test_a_quiet_line_stays_one(name: str) -> None:
    held = comparisons.unchanged_captures()
    held["base"]["paths"] = [name]
    held["metrics"][0]["name"] = name
    text = render(of(held))
    assert text.count("\n") == 2
    page = rendered_by_github(text)
    assert page.linked() == []
    assert set(page.tags) <= {"p", "strong", "code"}


def test_why_a_time_is_open_stands_below_the_table() -> None:
    held = comparisons.interleaved_launches()
    held["metrics"][0] |= {"verdict": "inconclusive", "needed_pairs": 34, "remarks": ["the second batch: +1%"]}
    text = render(of(held))
    assert "step time is open: the second batch: +1%" in text
    assert "about 34 pairs in all would settle the step time" in text


LARGE = 300_000


class TestHtml:
    def test_everything_is_in_it(self) -> None:
        page = Parsed(render_html(of(comparisons.interleaved_launches())))
        assert page.open == []
        for said in (
            "step time +3.0% (97.2% CI +2.0% … +4.0%)", "gate not met", "train.py:11", "+80.0 us",
            "Also measured, never gating", "Keep the value on the device", "1.00 ms → 1.00 ms, 0 ns",
            "flash_fwd_kernel<cutlass::bf16>", "slowest 42.6 ms", "measured, then confirming", "Not compared",
            "order by seed 3471692537", "Unchanged (1)",
        ):  # fmt: skip
            assert said in page.text, said

    def test_the_policy_lets_nothing_in(self) -> None:
        text = render_html(of(comparisons.interleaved_launches()))
        assert "default-src 'none'" in text
        assert "style=" not in text
        assert not re.search(r"""(?:src|href)=["'](?!data:,)""", text)

    def test_its_json_is_the_document(self) -> None:
        document = of(comparisons.interleaved_launches())
        page = Parsed(render_html(document))
        assert parse(page.scripts[0][1].encode(), "embedded") == document

    def test_it_is_small_however_large_the_document(self) -> None:
        held = comparisons.interleaved_launches()
        part = held["step"]["parts"][0]
        nothing = {**part, "delta_ns": 1, "count_ns": 0, "each_ns": 1,
                   "base": {**part["base"], "ns": 0}, "head": {**part["head"], "ns": 1}}  # fmt: skip
        held["step"]["parts"] += [nothing] * 2_000
        for side in (held["step"], held["step"]["by_kind"]["idle"]):
            side["head_ns"] += 2_000
        held["step"]["delta_ns"] += 2_000
        held["causes"] *= 3_000
        held["findings"] *= 3_000
        held["kernels"] *= 3_000
        document = of(held)
        text = render_html(document)
        assert len(text.encode()) < LARGE
        assert "2,960 more" in text
        data = json.loads(embedded(document))
        assert len(embedded(document)) <= MOST_EMBEDDED
        assert data["headline"] == document.headline
        assert data["left_out"]

    @given(NAMES)
    @example("</script><script>alert(1)</script>")
    @settings(max_examples=20, deadline=None)
    def test_no_name_acts(self, name: str) -> None:
        page = Parsed(render_html(comparisons.hostile(name)))
        plain = Parsed(render_html(comparisons.hostile("plain\n```\ncode\n```\n")))
        assert page.open == []
        assert set(page.tags) <= set(plain.tags) | {"code", "wbr"}
        assert {(tag, key) for tag, key, _ in page.attributes} <= {(tag, key) for tag, key, _ in plain.attributes}
        assert json.loads(page.scripts[0][1])["schema"] == "perfscope.compare/1"

    @pytest.mark.slow
    def test_a_huge_name_is_cut(self) -> None:
        text = render_html(comparisons.hostile("<k>" * 20_000))
        assert len(text) < LARGE


@pytest.mark.slow
@pytest.mark.skipif(binary() is None, reason="no Chromium on this machine")
def test_a_browser_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    pages = {
        "turns": render_html(of(comparisons.interleaved_launches())),
        "single": render_html(of(comparisons.single_captures())),
        "hostile": render_html(comparisons.hostile("<b>" + "k" * 300 + " \u202e http://x.y")),
    }
    with browser(tmp_path / "profile") as page:
        for name, text in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(text)
            for width in (320, 390, 1280):
                for dark in (False, True):
                    page.open(file, width=width, dark=dark)
                    page.value("document.querySelectorAll('details').forEach(one => one.open = true)")
                    assert page.complaints() == []
                    assert page.requests()[1:] == [one for one in page.requests()[1:] if one.startswith("data:")]
                    assert page.value("document.documentElement.scrollWidth") <= width, (name, width)


class TestPictures:
    def test_a_waterfall_leads_from_base_to_head(self) -> None:
        rows = falls(1_000, 1_050, [("a", 80), ("b", -30)])
        drawn = waterfall(rows)
        assert [lane.amount for lane in drawn.lanes] == ["1.00 us", "+80 ns", "-30 ns", "1.05 us"]
        assert 900 < drawn.start < 1_000
        assert drawn.end > 1_080
        assert [(box.start, box.end, box.color) for lane in drawn.lanes[1:3] for box in lane.boxes] == [
            (1_000, 1_080, "#cf4a32"), (1_050, 1_080, "#1f8f74"),
        ]  # fmt: skip
        with pytest.raises(ValueError, match="lead to 1080 ns, not to 1050"):
            falls(1_000, 1_050, [("a", 80)])
        assert "not at zero" in chart_html(drawn)
        assert "not at zero" not in chart_html(waterfall(falls(100, 1_000, [("a", 900)])))
        assert "nan" not in chart_html(waterfall(falls(0, 0, [])))

    def test_an_effect_beyond_the_scale_is_an_arrow(self) -> None:
        effect = Effect(0.03, 0.02, 0.04, least=0.02, tone="worse")
        assert "<circle" in interval_bar(effect, 0.1)
        assert "<circle" not in interval_bar(effect, 0.01)
        assert "<path" in interval_bar(effect, 0.01)

    def test_launches_without_a_time_are_left_out(self) -> None:
        launches = of(comparisons.interleaved_launches()).method.launches
        drawn = launches_plot(launches)
        assert drawn is not None
        assert len(drawn.dots) == 31
        assert (drawn.y.low, drawn.y.high) == (41_000_000, 42_630_000)
        assert launches_plot([]) is None


class TestJunit:
    def test_a_case_a_metric_and_one_a_severity(self) -> None:
        held = comparisons.interleaved_launches()
        held["gates"] = ["regression", "finding:medium"]
        suite = ET.fromstring(junit.render(of(held)))[0]
        cases = {case.get("name"): case for case in suite.findall("testcase")}
        assert len(cases) == len(held["metrics"]) + 3
        failure = cases["step time"].find("failure")
        assert failure is not None
        assert failure.get("message") == "regression: 41.2 ms → 42.4 ms, +3.0% [+2.0%, +4.0%]"
        assert "confirmed by a second batch" in (failure.text or "")
        assert cases["kernels per step"].find("failure") is None
        assert cases["no new or worse finding of high severity"].find("failure") is not None
        assert len(cases["no new or worse finding of low severity"]) == 0
        assert suite.get("failures") == "3"

    def test_what_was_not_judged_or_not_asked_for_is_skipped_with_the_reason(self) -> None:
        suite = ET.fromstring(junit.render(of(comparisons.single_captures())))[0]
        cases = {case.get("name"): case for case in suite.findall("testcase")}
        timed = cases["step time (profiled)"].find("skipped")
        assert timed is not None
        assert "one launch each" in (timed.get("message") or "")
        finding = cases["no new or worse finding of high severity"].find("skipped")
        assert finding is not None
        assert "not asked for with --fail-on finding:high" in (finding.get("message") or "")

    @given(NAMES)
    @example("\x00\x0b\ufffe\ud800]]><x a='\">")
    @settings(max_examples=30, deadline=None)
    def test_it_is_what_readers_of_junit_expect(self, name: str) -> None:
        """The structure of the schemas that Jenkins and GitLab read by: elements, their order and attributes."""
        text = junit.render(comparisons.hostile(name))
        whole = ET.fromstring(text.encode())
        assert (whole.tag, set(whole.attrib)) == ("testsuites", {"name", "tests", "failures", "errors"})
        (suite,) = whole
        assert set(suite.attrib) == {"name", "tests", "failures", "errors", "skipped"}
        assert [one.tag for one in suite] == ["testcase"] * (len(suite) - 1) + ["system-out"]
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        for word in ("failure", "skipped"):
            key = "failures" if word == "failure" else word
            assert int(suite.get(key, "")) == sum(case.find(word) is not None for case in cases)
        for case in cases:
            assert set(case.attrib) == {"classname", "name", "time"}
            assert [one.tag for one in case] in (
                [], ["failure"], ["skipped"], ["system-out"], ["skipped", "system-out"],
            )  # fmt: skip
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", text)


COMMAND = re.compile(
    r"::(error|warning|notice)( (?:file|line|title)=[^:,\r\n]*(?:,(?:file|line|title)=[^:,\r\n]*)*)?::.*"
)


class TestGitHub:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        (tmp_path / "src").mkdir()
        for name in ("train.py", "src/model.py"):
            (tmp_path / name).write_text("")
        return tmp_path

    def test_lines_are_annotated(self, checkout: Path) -> None:
        lines = github.annotated(of(comparisons.interleaved_launches()), checkout).splitlines()
        assert lines[0].startswith(
            "::error file=train.py,line=11,title=perfscope%3A step time%3A regression"
            "::step time: 41.2 ms → 42.4 ms +3.0%25"
        )
        assert [line.split("::")[1].split()[0] for line in lines] == ["error", "error", "warning"]
        assert "train.py,line=11" in lines[2]

    def test_a_gate_that_no_metric_tells_of_is_told(self, checkout: Path) -> None:
        held = comparisons.unchanged_captures()
        held["failed"] = ["step time (profiled): inconclusive"]
        said = github.annotated(of(held), checkout)
        assert said == "::error title=perfscope%3A gate not met::step time (profiled): inconclusive\n"

    def test_ten_of_a_kind(self, checkout: Path) -> None:
        held = comparisons.interleaved_launches()
        held["findings"] = [one for one in held["findings"] if one["change"] == "new"] * 15
        lines = github.annotated(of(held), checkout).splitlines()
        warnings = [line for line in lines if line.startswith("::warning")]
        assert len(warnings) == 10
        assert warnings[-1] == "::warning title=perfscope::and more: see the summary"

    @pytest.mark.parametrize(
        ("file", "found"),
        [
            ("train.py", "train.py"),
            ("./train.py", "train.py"),
            ("/elsewhere/base-1a2b/src/model.py", "src/model.py"),
            ("~/checkout/train.py", "train.py"),
            ("src/../train.py", None),
            ("../train.py", None),
            ("/usr/lib/python3/site-packages/train.py", None),
            ("other.py", None),
            ("src", None),
            ("", None),
            ("a\x00b", None),
            ("x" * 300, None),
        ],
    )
    def test_places_are_files_of_the_repository(self, checkout: Path, file: str, found: str | None) -> None:
        assert github.relative(file, checkout) == found

    def test_escapes(self) -> None:
        said = github.command("error", {"title": "a:b,c%\r\n"}, "x%\n::y")
        assert said == "::error title=a%3Ab%2Cc%25%0D%0A::x%25%0A::y"

    @given(NAMES)
    @example("\n::set-env name=A::b")
    @example("##[add-mask]x")
    @settings(max_examples=30, deadline=None)
    def test_each_line_is_one_command_of_ours(self, name: str) -> None:
        text = github.annotated(comparisons.hostile(name), Path("/nowhere"))
        assert text.endswith("\n")
        for line in text[:-1].split("\n"):
            assert COMMAND.fullmatch(line), line
            assert "\r" not in line

    def test_the_summary_is_appended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "summary.md"
        file.write_text("before\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
        assert github.add_to_summary(of(comparisons.interleaved_launches()), link="https://example.invalid/x") is None
        text = file.read_text()
        assert text.startswith("before\n\n### perfscope: 🔴 regression")
        assert "<!--" not in text
        assert "[full report](https://example.invalid/x)" in text

    def test_a_full_summary_is_left_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "summary.md"
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
        file.write_text("x" * (github.MOST_SUMMARY - 1_000))
        assert github.add_to_summary(of(comparisons.interleaved_launches())) is None
        assert file.read_text().endswith("step time +3.0% (97.2% CI +2.0% … +4.0%); worse: host syncs per step 0 → 1\n")
        assert file.stat().st_size <= github.MOST_SUMMARY
        file.write_text("x" * github.MOST_SUMMARY)
        assert "is full" in str(github.add_to_summary(of(comparisons.interleaved_launches())))
        assert file.stat().st_size == github.MOST_SUMMARY

    def test_without_a_job_it_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        assert "is not set" in str(github.add_to_summary(of(comparisons.unchanged_captures())))
        with pytest.raises(DataError, match="cannot be written"):
            github.add_to_summary(of(comparisons.unchanged_captures()), file=str(tmp_path))

    def test_what_else_is_printed_is_no_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
        assert github.inert("::error::x\n") == "::error::x\n"
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        first, line, last = github.inert("::error::x\n").splitlines()
        token = first.removeprefix("::stop-commands::")
        assert (line, last) == ("::error::x", f"::{token}::")
        assert len(token) == 32
        assert token not in github.inert("x")


def test_names_are_cut_in_every_face() -> None:
    name = "n" * 100_000
    document = comparisons.hostile(name)
    for text in (junit.render(document), github.annotated(document, Path("/nowhere"))):
        assert "n" * 5_000 not in text
        assert sanitize(name) in text


def test_a_document_of_many_rows_is_drawn_in_part() -> None:
    held = comparisons.interleaved_launches()
    held["metrics"] = [{**held["metrics"][0], "name": f"metric {number}"} for number in range(1_000)]
    held["notes"] = [f"note {number}" for number in range(1_000)]
    document = of(held)
    text = render_text(document, verbose=True)
    assert "regression  metric 39" in text
    assert "regression  metric 40" not in text
    assert "and 960 more" in text
    assert render_html(document).count("<tr>") < 200
    assert len(ET.fromstring(junit.render(document))[0]) <= junit.MOST_CASES + 4
