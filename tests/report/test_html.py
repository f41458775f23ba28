"""The HTML report as text: self-contained, escaped, bounded. The browser's view is in test_html_in_browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from perfscope.analyzers.engine import Step, analyze
from perfscope.dashboards.report.blocks import Head, Table
from perfscope.dashboards.report.html_report import MOST_FINDINGS, MOST_STEPS, render
from perfscope.dashboards.report.json_report import document
from perfscope.dashboards.report.renderers.html import FEWEST_OPEN, blocks_html
from perfscope.model.finding import Finding, Outcome
from perfscope.model.trace.core_facts import CoreFacts
from tests.browser.chromium import Page, binary, browser
from tests.build import EVERYTHING, TraceBuilder
from tests.conftest import REPOSITORY
from tests.report.analyses import HOSTILE_NAMES, MS, analysis, compiled, device, hostile, memory, source


class Parsed(HTMLParser):
    """Tags, attributes and words of a page; what a browser would make of it."""

    VOID = frozenset({"meta", "link", "rect", "br", "wbr"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"
        if tag not in ("b", "code"):
            self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def test_everything_is_on_the_page() -> None:
    page = Parsed(render(analysis()))
    assert page.open == []
    for words in (
        "6.90 ms", "17.0% of step", "host_sync: .item() makes the host wait 40 times", "~/proj/train.py:88", "measured",
        "cudaStreamSynchronize", "1.20 ms", "if step % 100 == 0:", "saving unknown", "structural", "Not evaluated",
        "exposed_communication, nvlink_stall: not recorded: collectives with their sizes", "Evaluated and clean",
        "input_stall", "77.7%", "17.0%", "median of 12 without a profiler", "12 kernel without a device",
        "2 unescaped quotes", "largest saving first",
    ):  # fmt: skip
        assert words in page.text, words


def test_nothing_is_loaded_and_the_policy_knows_the_two_inline_blocks() -> None:
    text = render(analysis())
    page = Parsed(text)
    policy = next(value for tag, key, value in page.attributes if (tag, key) == ("meta", "content") and "src" in value)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for block in (re.findall(r"<style>(.*?)</style>", text, re.DOTALL), [page.scripts[1][1]]):
        digest = base64.b64encode(hashlib.sha256(block[0].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    loading = [(tag, key, value) for tag, key, value in page.attributes if key in ("src", "href", "action", "srcset")]
    assert loading == [("link", "href", "data:,")]
    assert not [key for _, key, _ in page.attributes if key == "style" or key.startswith("on")]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_the_json_is_embedded_and_valid() -> None:
    attributes, text = Parsed(render(analysis())).scripts[0]
    assert attributes == {"type": "application/json", "id": "perfscope-report"}
    assert json.loads(text) == document(analysis())


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_words_and_nothing_else(name: str) -> None:
    text = render(hostile(name))
    page, plain = Parsed(text), Parsed(render(hostile("plain")))
    assert page.open == []
    assert set(page.tags) - {"code", "wbr"} <= set(plain.tags) - {"code"}
    assert {(tag, key) for tag, key, _ in page.attributes} <= {(tag, key) for tag, key, _ in plain.attributes}
    assert len(page.scripts) == 2
    json.loads(page.scripts[0][1])
    assert "</" not in page.scripts[0][1]
    assert len(text) < 400_000
    text.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_a_name_is_shown_as_it_is() -> None:
    assert "kernel <script>alert(1)</script> costs" in Parsed(render(hostile("<script>alert(1)</script>"))).text


@pytest.mark.slow
def test_a_huge_analysis_stays_small_and_says_what_is_left_out() -> None:
    findings = tuple(
        Finding(subject=str(n), title=f"finding {n} " + "x" * 250, severity="low", basis="measured", advice="y " * 500,
                cost_ns=1, cost_ns_per_step=n * MS, evidence=({"name": "z" * 150, "n": n},) * 20)
        for n in range(1000)
    )  # fmt: skip
    held = analysis(
        sources=tuple(source(f"rank{rank}.json", rank) for rank in range(1024)),
        devices=tuple(device(rank, compute=rank % 100) for rank in range(1024)),
        steps=tuple(Step(rank=0, number=n, duration_ns=MS, traced=False) for n in range(100_000)),
        outcomes=(Outcome(rule="host_sync", status="flagged", findings=findings),),
    )
    text = render(held)
    page = Parsed(text)
    assert len(text) < 6_000_000
    assert f"{1000 - MOST_FINDINGS} more findings" in page.text
    assert "and 960 more" in page.text
    embedded = json.loads(page.scripts[0][1])
    assert embedded["left_out"] == [f"{100_000 - MOST_STEPS} steps", f"{1000 - MOST_FINDINGS} findings"]
    Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())).validate(embedded)


def test_all_rules_blind_is_not_clean() -> None:
    blind = (Outcome(rule="host_sync", status="abstained", reason="not recorded: x"),)
    page = Parsed(render(analysis(outcomes=blind)))
    assert "nothing is known to be clean" in page.text
    assert "Not evaluated" in page.text
    heading = "Evaluated and clean"
    assert heading in Parsed(render(analysis())).text
    assert heading not in page.text


def test_an_empty_analysis_has_a_page() -> None:
    page = Parsed(render(analysis(sources=(), devices=(), steps=(), outcomes=())))
    assert page.open == []
    assert "nothing was read" in page.text


@pytest.mark.parametrize(
    ("advice", "blocks", "paragraphs"),
    [
        ("Do `this`:\n\n```python\nx = 1\n\ny = 2\n```\nthen that", ["x = 1\n\ny = 2"], ["Do this:", "then that"]),
        ("Do:\n\n    a = 1\n    b = 2\n\nDone", ["a = 1\nb = 2"], ["Do:", "Done"]),
        ("one\ntwo\n\nthree", [], ["one two", "three"]),
        ("```\nnever closed", ["never closed"], []),
        ("", [], []),
    ],
)
def test_advice_becomes_paragraphs_and_code(advice: str, blocks: list[str], paragraphs: list[str]) -> None:
    finding = Finding(subject="s", title="t", severity="low", basis="measured", advice=advice)
    text = render(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),)))
    inside = text[text.index('<div class="chips">') : text.index("</article>")]
    assert re.findall(r"<pre[^>]*>(.*?)</pre>", inside, re.DOTALL) == blocks
    found = [re.sub(r"</?code>", "", part) for part in re.findall(r"<p>(.*?)</p>", inside)]
    assert found == paragraphs
    assert inside.count('class="copy"') == len(blocks)


def test_a_run_shows_what_was_run_and_nothing_else_of_its_manifest() -> None:
    run = {
        "command": ["train.py", "--hf-token", "abcdef123456"], "git": {"commit": "1a2b3c4", "dirty": True},
        "packages": {"torch": "2.13.0"}, "state": "finished", "driver": None, "hostname": "node7.secret",
    }  # fmt: skip
    page = Parsed(render(analysis(run=run)))
    assert "command train.py --hf-token [hidden]" in page.text
    assert "git commit 1a2b3c4, dirty yes" in page.text
    assert "packages torch 2.13.0" in page.text
    assert "driver" not in page.text
    assert "node7" not in page.text
    assert "Run" not in [word.strip() for word in Parsed(render(analysis())).words]


def test_evidence_beyond_the_first_rows_is_folded() -> None:
    rows = tuple({"n": n} for n in range(25))
    finding = Finding(subject="s", title="t", severity="low", basis="measured", advice="", evidence=rows)
    page = Parsed(render(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),))))
    assert f"{20 - FEWEST_OPEN} more rows" in page.text
    assert "and 5 more rows in the JSON report" in page.text


def test_a_fold_without_a_title_has_a_word_to_open_it() -> None:
    folded = Table(heads=(Head("part", "text"),), rows=(("compute",),), detail=True)
    assert "<summary>details</summary>" in "".join(blocks_html((folded,)))


def test_one_step_is_one() -> None:
    steps = tuple(Step(rank=0, number=number, duration_ns=MS, traced=True) for number in range(2))
    assert "Step times" not in render(analysis(steps=steps[:1]))  # the tile has all of it
    assert "<span>2 steps</span>" in render(analysis(steps=steps))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if binary() is None:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def written(folder: Path, text: str) -> Path:
    file = folder / "report.html"
    file.write_text(text)
    return file


def fits(page: Page) -> bool:
    inside, outside = page.value("[document.documentElement.scrollWidth, innerWidth]")
    return bool(inside <= outside)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (768, False), (1280, False)])
def test_opens_quietly_and_fits(page: Page, tmp_path: Path, width: int, dark: bool) -> None:
    ranks = range(64)
    held = analysis(
        devices=tuple(device(rank, compute=160 - rank % 3) for rank in ranks),
        sources=tuple(source(f"rank{rank}.json", rank) for rank in ranks),
        compile=compiled(),
        memory=memory("cuda:0"),
    )
    file = written(tmp_path, render(held))
    page.open(file, width=width, dark=dark)
    assert page.complaints() == []
    assert page.requests() == [file.resolve().as_uri()]
    assert fits(page)
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(18, 22, 28)" if dark else "rgb(246, 247, 249)")


@pytest.mark.parametrize("name", ["</script><img src=x onerror=alert(1)>", "k" * 1_000_000], ids=["markup", "long"])
def test_hostile_names_run_nothing_and_fit_a_phone(page: Page, tmp_path: Path, name: str) -> None:
    file = written(tmp_path, render(hostile(name)))
    page.open(file, width=390)
    assert page.complaints() == []
    assert page.dialogs() == []
    assert page.requests() == [file.resolve().as_uri()]
    assert page.value("document.scripts.length") == 2
    assert page.value("document.images.length") == 0
    assert fits(page)


def test_code_can_be_copied(page: Page, tmp_path: Path) -> None:
    page.open(written(tmp_path, render(analysis())), width=1280)
    page.value("document.querySelector('button.copy').click()")
    assert page.value("getSelection().toString()").strip() == "if step % 100 == 0:\n    print(loss.item())"
    assert page.complaints() == []


def test_the_embedded_report_can_be_read_back(page: Page, tmp_path: Path) -> None:
    page.open(written(tmp_path, render(hostile("</script><b>"))), width=1280)
    title = "JSON.parse(document.getElementById('perfscope-report').textContent).outcomes[0].findings[0].title"
    assert page.value(title) == "kernel </script><b> costs"


def test_the_check_sees_what_it_must_see(page: Page, tmp_path: Path) -> None:
    text = render(analysis())
    wide = text.replace(
        "<main>", '<main><svg width="3000" height="9"></svg><img src="https://example.invalid/x.png">', 1
    )
    page.open(written(tmp_path, wide), width=390)
    assert not fits(page)
    assert page.complaints() != []
    inline = text.replace("<main>", "<main><script>alert(1)</script>", 1)
    page.open(written(tmp_path, inline), width=390)
    assert any("Content Security Policy" in line for line in page.complaints())


def test_what_puts_the_numbers_in_doubt_stands_above_the_figures() -> None:
    b = TraceBuilder(recorded=EVERYTHING | {"core_waits", "run_steps"})
    b.step(0, 0, 1_000)
    b.op("aten::mm", 0, 1_000)
    b.run_step(0, 0, 1_000, wait=400)
    b.core_facts = CoreFacts(cores=2, other_cores=1.5)
    page = render(analyze(b.build()))
    warning = page.index("other processes used 1.5 of the 2 cores")
    assert page.index("<header>") < warning < page.index('class="tiles"')
