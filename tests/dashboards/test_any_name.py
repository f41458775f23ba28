"""Whatever a trace calls its kernels: every report renders, stays whole and lets nothing through."""

from __future__ import annotations

import json
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from perfscope.dashboards.reports import html_report, json_report, markdown, text
from perfscope.model.untrusted_text import MASK
from tests.dashboards.built import hostile
from tests.dashboards.test_html_report import Parsed
from tests.dashboards.test_markdown import OUR_TAGS
from tests.dashboards.test_shown import SECRETS

PIECES = st.sampled_from(
    ["<", ">", "</script>", "<!--", "-->", "]]>", "&", "&lt;", '"', "'", "`", "```", "|", "\\", "\n", "\r", "\t", "@a",
     "#1", "http://x", "www.x.y", "\x1b[2J", "\x9b", "\x00", "\u202e", "\u2028", "\ud800", "[b]", "![", "](", "{{",
     "${", "$$", "**", "__", "~~", "<!DOCTYPE", "javascript:", "onload=", "k", "日", "é", " ", "0", "=", "- ",
     "1. ", "+"]
)  # fmt: skip
NAMES = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join))


@given(NAMES)
@example("000\u093a")  # a mark that takes no room on a terminal
@settings(max_examples=150, deadline=None)
def test_every_report_holds(name: str) -> None:
    held = hostile(name)
    # a name may look like code, and is then shown as code: safe, and nothing else than the page has for code
    plain = Parsed(html_report.render(hostile("plain\n```\ncode\n```\n")))

    shown = text.render(held, verbose=True)
    assert all(cell_len(line) <= text.WIDTH for line in shown.splitlines())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)

    comment = markdown.render(held)
    outside_code = re.sub(r"(?ms)^(`{3,})[^\n]*\n.*?^\1$", "", comment)
    assert set(re.findall(r"</?[a-zA-Z!][^>]*>", outside_code)) <= OUR_TAGS
    assert not re.search(r"@\w|(?<!/)https?://", comment)

    page = Parsed(html_report.render(held))
    assert page.open == []
    assert set(page.tags) <= set(plain.tags) | {"code", "wbr"}
    assert {(tag, key) for tag, key, _ in page.attributes} <= {(tag, key) for tag, key, _ in plain.attributes}
    assert json.loads(page.scripts[0][1])["schema"] == "perfscope.report/1"

    json.loads(json_report.render(held))
    for report in (shown, comment, page.text):
        report.encode()


@given(st.sampled_from(SECRETS), st.sampled_from(["", " ", "=", "/", "token="]))
@settings(max_examples=40, deadline=None)
def test_no_secret_is_in_any_report(secret: str, before: str) -> None:
    held = hostile(f"x{before} {secret} y")
    reports = (
        text.render(held, verbose=True),
        markdown.render(held),
        html_report.render(held),
        json_report.render(held),
    )
    for report in reports:
        assert secret not in report.replace("\n", "")
        assert "hidden" in report
    assert MASK in reports[0]
