"""The documented schema of a comparison: it is one, and everything that is written is what it says."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perfscope.analyzers.compare.comparison import compare
from perfscope.analyzers.readers.load import load_path
from perfscope.dashboards.reports import compare_json
from perfscope.dashboards.reports.compare_document import json_schema, of
from perfscope.dashboards.reports.compare_embedded import embedded
from tests.compare.runs import gpu_run, host_run
from tests.conftest import REPOSITORY
from tests.dashboards import compared


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
    documented.validate(compared.in_turns())
    documented.validate(json.loads(embedded(of(compared.in_turns()))))


def test_every_key_is_documented(documented: jsonschema.Draft202012Validator) -> None:
    """It allows keys of later writers, so that ours are all there is tested with none allowed."""
    strict = copy.deepcopy(documented.schema)
    for part in (strict, *strict["$defs"].values()):
        if "properties" in part:
            part["additionalProperties"] = False
    jsonschema.Draft202012Validator(strict).validate(compared.in_turns())
    jsonschema.Draft202012Validator(strict).validate(compared.single())


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
    held = compared.in_turns()
    change(held)
    assert not documented.is_valid(held)


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
    from perfscope.dashboards.reports import compare_html, compare_junit, compare_markdown

    held = compare_json.document(compare(load_path(corpus / base).traces, load_path(corpus / head).traces))
    documented.validate(held)
    document = of(held)
    assert len(compare_html.render(document).encode()) < 300_000
    assert len(compare_markdown.render(document)) < 20_000
    assert len(compare_junit.render(document)) < 100_000
