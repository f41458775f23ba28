"""The document of a sweep and its faces: schema, text, page, figure; strangers' documents in one line."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perfscope.dashboards import figures
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.markdown import sections_markdown
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.ahead.sweep import sections as sweep
from perfscope.plugins.ahead.sweep.assemble import sweep_document
from perfscope.plugins.ahead.sweep.document import Sweep, SweptVariant, dump, json_schema, load
from perfscope.plugins.ahead.sweep.front import Swept
from tests.conftest import REPOSITORY
from tests.plugins.ahead.sweep.points import MEMORY, point
from tests.report.test_sections import terminal

MS = 1_000_000
AXES = (
    Swept(name="policy", values=("none", "dots", "<full>")),
    Swept(name="seq", values=("512", "1024"), kind="size"),
)


def document(points: list[SweptVariant] | None = None) -> Sweep:
    held = points or [
        point("policy=none seq=512", 10 * MS, 20 * MS, 400, programs=("jit_step",), folder="variants/a"),
        point("policy=none seq=1024", 30 * MS, 40 * MS, MEMORY + 600),
        point("policy=dots seq=512", 11 * MS, 21 * MS, 300, reused=True),
        point("policy=dots seq=1024", None, None, None, reason="no <such> \x1b[31m thing"),
        point("policy=<full> seq=512", 12 * MS, 22 * MS, 300),
        SweptVariant(settings={"policy": "<full>", "seq": "1024"}, state="not reached"),
    ]
    return sweep_document(
        AXES, held, name="train", command=("train.py",), created_utc="2026-01-01T00:00:00+00:00", notes=("assumed",)
    )


def test_the_documented_schema_is_the_schema_of_the_types() -> None:
    held = json.loads((REPOSITORY / "docs" / "sweep-schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(held)
    assert held == json_schema()
    jsonschema.Draft202012Validator(held).validate(json.loads(dump(document())))


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_bytes(dump(document()))
    assert load(tmp_path) == load(tmp_path / "sweep.json") == document()
    first, second, third, fourth, fifth, last = document().variants
    assert [one.on_front for one in document().variants] == [True, False, True, False, False, False]
    assert fifth.dominated_by == (2,)
    assert (second.state, fourth.state, last.state) == ("does not fit", "failed", "not reached")
    assert first.step_ns == pytest.approx(200**0.5 * MS)
    assert third.reused
    assert not document().complete
    assert [(one.held, one.fits_to, one.first_that_does_not) for one in document().reaches] == [
        ("policy=none", 512, 1024), ("policy=dots", 512, None), ("policy=<full>", 512, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw.update(schema="perfscope.sweep/9"), "its schema is 'perfscope.sweep/9'"),
        (lambda raw: raw["variants"][0].update(state="great"), "Invalid enum value"),
        (lambda raw: raw["variants"][0].update(peak_bytes=-1), "peak_bytes"),
        (lambda raw: raw["variants"][0].update(step_low_ns=1 << 70), "step_low_ns"),
        (lambda raw: raw["variants"][0].update(dominated_by=[99]), "do not agree"),
        (lambda raw: raw["variants"][0].update(settings={"policy": "none"}), "do not agree"),
        (lambda raw: raw.pop("axes"), "axes"),
    ],
)
def test_a_document_that_is_wrong_is_one_line(tmp_path: Path, change: Any, said: str) -> None:
    raw = copy.deepcopy(json.loads(dump(document())))
    change(raw)
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(DataError) as caught:
        load(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"[]", b"null"])
def test_what_is_no_document_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "sweep.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"sweep\.json: "):
        load(file)


def test_golden(golden: Callable[[str, str], None]) -> None:
    shown = tuple(sweep.sweep_sections(document()))
    golden("sweep.txt", terminal(shown) + "\n=== -v\n\n" + terminal(shown, verbose=True))
    golden("sweep.md", sections_markdown(shown))
    golden("sweep.html", "\n".join(sections_html(shown)).replace("><", ">\n<"))


def test_the_table_marks_the_front_and_says_the_rest() -> None:
    text = sweep.render_text(document())
    assert "perfscope: train: 6 variants for H100 SXM" in text
    rows = [line.split()[:3] for line in text.splitlines() if line.startswith("  front ")]
    assert rows == [["front", "none", "512"], ["front", "dots", "512"]]
    assert "10.0 to 20.0 ms" in text
    assert "dominated by policy=dots" in text
    assert "no <such> thing" in " ".join(text.split())
    assert "\x1b" not in text
    assert "160.0%  no" in text
    assert "times are modelled, not measured" in text
    assert "assumed" in text


def test_the_page_escapes_what_strangers_named_and_loads_nothing() -> None:
    page = sweep.render_html(document())
    assert "<full>" not in page
    assert "&lt;full&gt;" in page
    assert "\x1b" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert page.count('<circle class="ps-ring"') == 2
    assert "memory: 1000 B" in page
    assert json.loads(page.split('id="perfscope-sweep">')[1].split("</script>")[0])["schema"] == "perfscope.sweep/1"


def test_a_sweep_of_which_nothing_is_known_has_a_page_without_a_picture() -> None:
    nothing = document([point("policy=none seq=512", None, None, None, reason="no")])
    assert '<svg class="ps-plot"' not in sweep.render_html(nothing)
    assert "failed" in sweep.render_text(nothing)


def test_the_figure_has_a_line_a_choice(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    (tmp_path / "sweep.json").write_bytes(dump(document()))
    figure = figures.pareto(tmp_path)
    assert [line.name for line in figure.data] == ["policy=none", "policy=dots", "policy=&lt;full&gt;"]
    assert list(figure.data[0].y) == [400 / 2**30, 1600 / 2**30]
    assert figure.data[0].x[0] == pytest.approx(200**0.5)
    assert figure.data[0].error_x.array[0] == pytest.approx(20 - 200**0.5)
    assert list(figure.data[0].marker.line.width) == [2, 0]
    assert figure.layout.xaxis.type == "log"
    with pytest.raises(UsageError, match="no variant"):
        figures.pareto(document([point("policy=none seq=512", None, None, None)]))
