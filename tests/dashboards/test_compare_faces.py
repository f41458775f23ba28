"""A comparison as HTML, JUnit XML and GitHub annotations: whole, bounded, and no stranger's text acts."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from perfscope.dashboards.reports import compare_github, compare_html, compare_junit, compare_text
from perfscope.dashboards.reports.compare_document import of, parse
from perfscope.dashboards.reports.compare_embedded import MOST_CHARACTERS, embedded
from perfscope.dashboards.reports.compare_svg import axis_of, fall_bar, falls, interval_bar, launches_chart
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize
from tests.dashboards import compared
from tests.dashboards.chromium import binary, browser
from tests.dashboards.test_compare_markdown import NAMES
from tests.dashboards.test_html_report import Parsed

LARGE = 300_000


class TestHtml:
    def test_everything_is_in_it(self) -> None:
        page = Parsed(compare_html.render(of(compared.in_turns())))
        assert page.open == []
        for said in (
            "step time +3.0% (97.2% CI +2.0% … +4.0%)", "Gate not met", "train.py:11", "+260 us a step",
            "Beside it, never gating", "Keep the value on the device", "The step: 1.00 ms → 1.00 ms (0 ns)",
            "flash_fwd_kernel<cutlass::bf16>", "slowest 42.6 ms", "measured, then confirming", "Could not look",
            "order by seed 3471692537", "Unchanged (1)",
        ):  # fmt: skip
            assert said in page.text, said

    def test_the_policy_lets_nothing_in(self) -> None:
        text = compare_html.render(of(compared.in_turns()))
        assert "default-src 'none'" in text
        assert "style=" not in text
        assert not re.search(r"""(?:src|href)=["'](?!data:,)""", text)

    def test_its_json_is_the_document(self) -> None:
        document = of(compared.in_turns())
        page = Parsed(compare_html.render(document))
        assert parse(page.scripts[0][1].encode(), "embedded") == document

    def test_it_is_small_however_large_the_document(self) -> None:
        held = compared.in_turns()
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
        text = compare_html.render(document)
        assert len(text.encode()) < LARGE
        assert "2,960 more" in text
        data = embedded(document)
        assert len(data) <= MOST_CHARACTERS
        cut = parse(data.encode(), "embedded")  # its sums are checked there
        assert cut.step is not None
        assert cut.step.delta_ns == 2_000
        assert any("of findings" in one for one in json.loads(data)["left_out"])

    @given(NAMES)
    @example("</script><script>alert(1)</script>")
    @settings(max_examples=60, deadline=None)
    def test_no_name_acts(self, name: str) -> None:
        page = Parsed(compare_html.render(compared.hostile(name)))
        plain = Parsed(compare_html.render(compared.hostile("plain\n```\ncode\n```\n")))
        assert page.open == []
        assert set(page.tags) <= set(plain.tags) | {"code", "wbr"}
        assert {(tag, key) for tag, key, _ in page.attributes} <= {(tag, key) for tag, key, _ in plain.attributes}
        assert json.loads(page.scripts[0][1])["schema"] == "perfscope.compare/1"

    def test_a_huge_name_is_cut(self) -> None:
        text = compare_html.render(compared.hostile("<k>" * 20_000))
        assert len(text) < LARGE


@pytest.mark.skipif(binary() is None, reason="no Chromium on this machine")
def test_a_browser_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    pages = {
        "turns": compare_html.render(of(compared.in_turns())),
        "single": compare_html.render(of(compared.single())),
        "hostile": compare_html.render(compared.hostile("<b>" + "k" * 300 + " \u202e http://x.y")),
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
        assert [(row.start_ns, row.end_ns) for row in rows] == [(0, 1_000), (1_000, 1_080), (1_080, 1_050), (0, 1_050)]
        left, right = axis_of(rows)
        assert 900 < left < 1_000
        assert right > 1_080
        assert 'fill="#cf4a32"' in fall_bar(rows[1], (left, right))
        assert 'fill="#1f8f74"' in fall_bar(rows[2], (left, right))
        with pytest.raises(ValueError, match="lead to 1080 ns, not to 1050"):
            falls(1_000, 1_050, [("a", 80)])

    def test_levels_that_lie_apart_begin_at_zero(self) -> None:
        assert axis_of(falls(100, 1_000, [("a", 900)]))[0] == 0.0

    def test_nothing_at_all_has_an_axis(self) -> None:
        left, right = axis_of(falls(0, 0, []))
        assert left < right

    def test_an_effect_beyond_the_scale_is_an_arrow(self) -> None:
        metric = of(compared.in_turns()).metrics[0]
        assert "<circle" in interval_bar(metric, 0.1)
        assert "<circle" not in interval_bar(metric, 0.01)
        assert "<path" in interval_bar(metric, 0.01)

    def test_launches_without_a_time_are_left_out(self) -> None:
        launches = of(compared.in_turns()).method.launches
        drawn = launches_chart(launches)
        assert drawn is not None
        assert drawn[0].count("<circle") == 31
        assert drawn[1:] == (41_000_000, 42_630_000)
        assert launches_chart([]) is None


class TestJunit:
    def test_a_case_a_metric_and_one_a_severity(self) -> None:
        held = compared.in_turns()
        held["gates"] = ["regression", "finding:medium"]
        suite = ET.fromstring(compare_junit.render(of(held)))[0]
        cases = {case.get("name"): case for case in suite.findall("testcase")}
        assert len(cases) == len(held["metrics"]) + 3
        failure = cases["step time"].find("failure")
        assert failure is not None
        assert failure.get("message") == "regression: 41.2 ms → 42.4 ms, +3.0% [+2.0%, +4.0%]"
        assert "confirmed by a second batch" in (failure.text or "")
        assert cases["kernels a step"].find("failure") is None
        assert cases["no new or worse finding of high severity"].find("failure") is not None
        assert len(cases["no new or worse finding of low severity"]) == 0
        assert suite.get("failures") == "3"

    def test_what_was_not_judged_or_not_asked_for_is_skipped_with_the_reason(self) -> None:
        suite = ET.fromstring(compare_junit.render(of(compared.single())))[0]
        cases = {case.get("name"): case for case in suite.findall("testcase")}
        timed = cases["step time (profiled)"].find("skipped")
        assert timed is not None
        assert "one launch each" in (timed.get("message") or "")
        finding = cases["no new or worse finding of high severity"].find("skipped")
        assert finding is not None
        assert "not asked for with --fail-on finding:high" in (finding.get("message") or "")

    @given(NAMES)
    @example("\x00\x0b\ufffe\ud800]]><x a='\">")
    @settings(max_examples=80, deadline=None)
    def test_it_is_what_readers_of_junit_expect(self, name: str) -> None:
        """The structure of the schemas that Jenkins and GitLab read by: elements, their order and attributes."""
        text = compare_junit.render(compared.hostile(name))
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
        lines = compare_github.annotated(of(compared.in_turns()), checkout).splitlines()
        assert lines[0].startswith(
            "::error file=train.py,line=11,title=perfscope%3A step time%3A regression"
            "::step time: 41.2 ms → 42.4 ms +3.0%25"
        )
        assert [line.split("::")[1].split()[0] for line in lines] == ["error", "error", "warning"]
        assert "train.py,line=11" in lines[2]

    def test_a_gate_that_no_metric_tells_of_is_told(self, checkout: Path) -> None:
        held = compared.same()
        held["failed"] = ["step time (profiled): inconclusive"]
        said = compare_github.annotated(of(held), checkout)
        assert said == "::error title=perfscope%3A gate not met::step time (profiled): inconclusive\n"

    def test_ten_of_a_kind(self, checkout: Path) -> None:
        held = compared.in_turns()
        held["findings"] = [one for one in held["findings"] if one["change"] == "new"] * 15
        lines = compare_github.annotated(of(held), checkout).splitlines()
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
        assert compare_github.relative(file, checkout) == found

    def test_escapes(self) -> None:
        said = compare_github.command("error", {"title": "a:b,c%\r\n"}, "x%\n::y")
        assert said == "::error title=a%3Ab%2Cc%25%0D%0A::x%25%0A::y"

    @given(NAMES)
    @example("\n::set-env name=A::b")
    @example("##[add-mask]x")
    @settings(max_examples=80, deadline=None)
    def test_each_line_is_one_command_of_ours(self, name: str) -> None:
        text = compare_github.annotated(compared.hostile(name), Path("/nowhere"))
        assert text.endswith("\n")
        for line in text[:-1].split("\n"):
            assert COMMAND.fullmatch(line), line
            assert "\r" not in line

    def test_the_summary_is_appended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "summary.md"
        file.write_text("before\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
        assert compare_github.summarize(of(compared.in_turns()), link="https://example.invalid/x") is None
        text = file.read_text()
        assert text.startswith("before\n\n### perfscope: 🔴 regression")
        assert "<!--" not in text
        assert "[full report](https://example.invalid/x)" in text

    def test_a_full_summary_is_left_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "summary.md"
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
        file.write_text("x" * (compare_github.MOST_SUMMARY - 1_000))
        assert compare_github.summarize(of(compared.in_turns())) is None
        assert file.read_text().endswith("step time +3.0% (97.2% CI +2.0% … +4.0%); worse: host syncs a step 0 → 1\n")
        assert file.stat().st_size <= compare_github.MOST_SUMMARY
        file.write_text("x" * compare_github.MOST_SUMMARY)
        assert "is full" in str(compare_github.summarize(of(compared.in_turns())))
        assert file.stat().st_size == compare_github.MOST_SUMMARY

    def test_without_a_job_it_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        assert "is not set" in str(compare_github.summarize(of(compared.same())))
        with pytest.raises(DataError, match="cannot be written"):
            compare_github.summarize(of(compared.same()), file=str(tmp_path))

    def test_what_else_is_printed_is_no_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
        assert compare_github.inert("::error::x\n") == "::error::x\n"
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        first, line, last = compare_github.inert("::error::x\n").splitlines()
        token = first.removeprefix("::stop-commands::")
        assert (line, last) == ("::error::x", f"::{token}::")
        assert len(token) == 32
        assert token not in compare_github.inert("x")


def test_names_are_cut_in_every_face() -> None:
    name = "n" * 100_000
    document = compared.hostile(name)
    for text in (compare_junit.render(document), compare_github.annotated(document, Path("/nowhere"))):
        assert "n" * 5_000 not in text
        assert sanitize(name) in text


def test_a_document_of_many_rows_is_drawn_in_part() -> None:
    held = compared.in_turns()
    held["metrics"] = [{**held["metrics"][0], "name": f"metric {number}"} for number in range(1_000)]
    held["notes"] = [f"note {number}" for number in range(1_000)]
    document = of(held)
    text = compare_text.render(document, verbose=True)
    assert "metric 199" in text
    assert "metric 200" not in text
    assert text.count("    and 800 more") == 2
    assert compare_html.render(document).count("<tr>") < 200
    assert len(ET.fromstring(compare_junit.render(document))[0]) <= compare_junit.MOST_CASES + 4
