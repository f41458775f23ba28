"""The document of a comparison read back: what we wrote is the same, what is not one is one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.readers.load import load_path
from perfscope.dashboards.report.compare import json as compare_json
from perfscope.dashboards.report.compare.render import embedded
from perfscope.model.documents.comparison import MOST_BYTES, Document, json_schema, of, parse, read
from perfscope.model.errors import DataError
from tests.compare.runs import gpu_run, host_run
from tests.conftest import REPOSITORY
from tests.report import comparisons


@pytest.fixture
def held() -> dict[str, Any]:
    return compare_json.document(compare([gpu_run()], [gpu_run(item=True)]), failed=["a"], gates=["regression"])


def test_what_we_wrote_is_what_is_read(held: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(compare_json.as_text(held))
    found = read(path)
    assert found == of(held)
    assert found.headline == "regression"
    assert (found.failed, found.gates) == (("a",), ("regression",))
    assert found.causes[0].place == "train.py:11"
    assert found.step is not None
    assert found.step.delta_ns == held["step"]["delta_ns"]
    assert found.method.kind == "single captures"


def test_every_key_that_is_written_is_read(held: dict[str, Any]) -> None:
    """A key that the types leave aside would be lost to every face."""

    def same(ours: Any, theirs: Any, at: str) -> None:
        if isinstance(ours, dict):
            assert set(ours) <= set(theirs), f"{at}: {set(ours) - set(theirs)}"
            for key, value in ours.items():
                same(value, theirs[key], f"{at}.{key}")
        elif isinstance(ours, list):
            assert len(ours) == len(theirs), at
            for index, value in enumerate(ours):
                same(value, theirs[index], f"{at}[{index}]")
        else:
            assert ours == theirs, at

    for one in (held, compare_json.document(compare([host_run()], [host_run(item=True)]))):
        same(json.loads(json.dumps(one)), msgspec.to_builtins(of(one)), "document")


def test_keys_of_a_later_writer_are_left_aside(held: dict[str, Any]) -> None:
    held["later"] = {"deep": [1, {"x": None}]}
    held["metrics"][0]["later"] = 1
    assert isinstance(of(held), Document)
    assert parse(json.dumps(held).encode(), "x").headline == "regression"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "its schema is None; this perfscope reads 'perfscope.compare/1'"),
        (b'{"schema": "perfscope.report/1"}', "its schema is 'perfscope.report/1'"),
        (b"{}", "its schema is None"),
        (b'{"schema": "perfscope.compare/1"}', "missing required field"),
        (b'{"schema": "perfscope.compare/1", "x": ' + b"[" * 200_000, "not valid JSON"),
        (b'{"schema": "perfscope.compare/1"' + b" " * MOST_BYTES, "larger than 32 MiB, not a comparison"),
        (b'{"schema": "' + b"s\\n" * 5000 + b'"}', "this perfscope reads"),
    ],
    ids=lambda value: None if isinstance(value, str) else "content",
)
def test_what_is_none_is_one_line(content: bytes, said: str) -> None:
    with pytest.raises(DataError) as error:
        parse(content, "some/file.json")
    text = str(error.value)
    assert text.startswith("some/file.json: ")
    assert said in text
    assert "\n" not in text
    assert len(text) < 500


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held["step"].update(base_ns=held["step"]["base_ns"] + 1), "its parts sum to"),
        (lambda held: held["step"].update(delta_ns=5), "its change is not head minus base"),
        (lambda held: held["step"]["parts"][0].update(each_ns=12345), "a part's change"),
        (lambda held: held["step"]["by_kind"]["idle"].update(base_ns=12345), "its kinds do not sum"),
        (lambda held: held["findings"][0].update(base=None, head=None), "a finding that neither side has"),
        (lambda held: held["metrics"][0].update(verdict="fine"), "Invalid enum value"),
        (lambda held: held["metrics"][0].update(effect=1e300), "Expected `float`"),
        (lambda held: held["metrics"][0].update(base=float("nan")), "JSON is malformed"),
        (lambda held: held.update(metrics=held["metrics"] * 4000), "Expected `array` of length"),
        (lambda held: held["step"].update(base_ns=1 << 70), "Expected `int`"),
    ],
)
def test_what_does_not_hold_is_refused(held: dict[str, Any], change: Any, said: str) -> None:
    change(held)
    with pytest.raises(DataError, match=r"^f: not (a comparison: |valid JSON )") as error:
        parse(json.dumps(held).encode(), "f")
    assert said in str(error.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(DataError, match=r"no such file|is a directory"):
            read(path)


@pytest.fixture(scope="module")
def documented() -> jsonschema.Draft202012Validator:
    held = json.loads((REPOSITORY / "docs" / "compare-schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(held)
    return jsonschema.Draft202012Validator(held)


def test_it_is_the_schema_of_the_types() -> None:
    assert json.loads((REPOSITORY / "docs" / "compare-schema.json").read_text()) == json_schema()


def test_what_is_written_is_what_it_says(documented: jsonschema.Draft202012Validator) -> None:
    pairs = (
        (gpu_run(), gpu_run(item=True)),
        (gpu_run(), gpu_run(fused=True, line=12)),
        (host_run(), host_run(item=True)),
    )
    for base, head in pairs:
        held = compare_json.document(compare([base], [head]), failed=["a"], gates=["regression"])
        documented.validate(json.loads(compare_json.as_text(held)))
    documented.validate(
        compare_json.document(compare([gpu_run(rank=0), gpu_run(rank=1)], [gpu_run(rank=0), gpu_run(rank=1)]))
    )
    documented.validate(comparisons.interleaved_launches())
    documented.validate(json.loads(embedded(of(comparisons.interleaved_launches()))))


def test_every_key_is_documented(documented: jsonschema.Draft202012Validator) -> None:
    """It allows keys of later writers, so that ours are all there is tested with none allowed."""
    strict = copy.deepcopy(documented.schema)
    for part in (strict, *strict["$defs"].values()):
        if "properties" in part:
            part["additionalProperties"] = False
    jsonschema.Draft202012Validator(strict).validate(comparisons.interleaved_launches())
    jsonschema.Draft202012Validator(strict).validate(comparisons.single_captures())


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.pop("headline"),
        lambda held: held.update(schema="perfscope.compare/2"),
        lambda held: held["metrics"][0].update(verdict="fine"),
        lambda held: held["step"].update(base_ns="1"),
    ],
)
def test_what_is_no_comparison_is_refused(documented: jsonschema.Draft202012Validator, change: Any) -> None:
    held = comparisons.interleaved_launches()
    change(held)
    assert not documented.is_valid(held)


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize(
    ("base", "head"),
    [
        (
            "kineto/HolisticTraceAnalysis__trace_diff_control.json.gz",
            "kineto/HolisticTraceAnalysis__trace_diff_test.json.gz",
        ),
        ("kineto/TraceLens__h100_qwen1.5-0.5b.json.gz", "kineto/TraceLens__mi300_qwen1.5-0.5b.json.gz"),
        ("aot/gpu_attn_naive.hlo.txt.gz", "aot/gpu_attn_naive.hlo.txt.gz"),
    ],
)
def test_comparisons_of_real_recordings(
    documented: jsonschema.Draft202012Validator, corpus: Path, base: str, head: str
) -> None:
    """They are read back, and every face of them is within its limits."""
    from perfscope.dashboards.report.compare import junit
    from perfscope.dashboards.report.compare.render import render_html, render_markdown

    held = compare_json.document(compare(load_path(corpus / base).traces, load_path(corpus / head).traces))
    documented.validate(held)
    document = of(held)
    assert len(render_html(document).encode()) < 300_000
    assert len(render_markdown(document)) < 20_000
    assert len(junit.render(document)) < 100_000
