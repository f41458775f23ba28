"""The pull request comment: whole, bounded, and no name in it formats, links or mentions."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from perfscope.dashboards.report.markdown import MOST_CHARACTERS, render
from perfscope.dashboards.report.renderers.markdown import code, escape, in_html
from perfscope.model.finding import Finding, Outcome, Where
from tests.report.analyses import HOSTILE_NAMES, MS, analysis, hostile


def test_whole_comment(golden: Callable[[str, str], None]) -> None:
    golden("analysis.md", render(analysis()))


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("`x`", r"\`x\`"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("@user", "@\u200buser"),
        ("see #12", "see #\u200b12"),
        ("!1 %2 &3 100% a&b", "!\u200b1 %\u200b2 &amp;\u200b3 100% a&amp;b"),
        ("see GH-12, gh-3", "see GH-\u200b12, gh-\u200b3"),
        ("0000000000a", "0000\u200b0000\u200b00a"),
        ("at 1a2b3c4, not 1234567 or deadbeef", "at 1a2b\u200b3c4, not 1234567 or deadbeef"),
        ("http://x", "http:\u200b//x"),
        ("www.x.org", "www\u200b.x.org"),
        ("[t](u)", r"\[t\](u)"),
        ("*a* _b_ ~c~ $d$", r"\*a\* \_b\_ \~c\~ \$d\$"),
        ("# heading", r"\# heading"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("p10-p90 of 1.5", "p10-p90 of 1.5"),
    ],
)
def test_words_are_words(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_code_and_html_lines() -> None:
    assert code("a|`b`<T>@u") == "<code>a&#124;&#96;b&#96;&lt;T&gt;@\u200bu</code>"
    assert in_html("a`b` <T> @u") == "a`b` &lt;T&gt; @\u200bu"


OUR_TAGS = {"<code>", "</code>", "<details>", "</details>", "<summary>", "</summary>"}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names(name: str) -> None:
    text = render(hostile(name))
    text.encode()
    assert len(text) < MOST_CHARACTERS
    assert set(re.findall(r"<[^>]*>", text)) <= OUR_TAGS
    assert not re.search(r"@\w", text)
    assert "://" not in text
    for block in re.split(r"\n(?!\|)", text):  # every row of a table has the cells of its head
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, rows


def test_a_fence_that_is_left_open_is_closed() -> None:
    finding = Finding(subject="s", title="t", severity="low", basis="measured", advice="see\n```python\nx = 1\n")
    text = render(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),)))
    assert text.count("```") == 2
    assert text.index("```python") < text.rindex("```") < text.index("</details>")


def test_many_findings_are_cut_with_a_notice() -> None:
    findings = tuple(
        Finding(
            subject=str(n), title=f"finding {n} " + "x" * 200, severity="low", basis="measured", advice="y " * 1500,
            cost_ns=1, cost_ns_per_step=(900 - n) * MS, where=Where(op="op" * 50),
        )
        for n in range(500)
    )  # fmt: skip
    text = render(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=findings),)))
    assert len(text) <= MOST_CHARACTERS
    kept = text.count("<details><summary>r: ")
    assert f"_{500 - kept} more findings do not fit here" in text
    assert text.count("<details>") == text.count("</details>")
    assert "_450 more findings are not in this table._" in text
    assert "note: 3 kernels" in text
