"""The JSON report: its exact content, and every report validates against the documented schema."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.torch_compile.phases import Stage
from perfscope.dashboards.report import json_report
from perfscope.dashboards.report.compare import json as compare_json
from perfscope.dashboards.report.json_report import document, render
from perfscope.dashboards.report.renderers.records import Shape, Shapes, plain
from perfscope.model.finding import Finding, Outcome
from perfscope.model.plugins import named
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY
from tests.report.analyses import HOSTILE_NAMES, analysis, hostile


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    held = json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())
    Draft202012Validator.check_schema(held)
    return Draft202012Validator(held)


def test_content(schema: Draft202012Validator) -> None:
    held = json.loads(render(analysis()))
    schema.validate(held)
    assert [key for key in held if key not in named("results")] == [
        "schema", "sources", "devices", "steps", "outcomes", "run", "windows", "programs", "compile", "collectives",
        "memory", "estimate", "plans", "accounts", "top_work", "large_parts", "what_ifs", "tables", "settings",
        "step_time", "device_doubts", "cores", "critical_paths", "generations", "hardware_counters", "hosts",
    ]  # fmt: skip
    assert held["sources"] == [
        {
            "path": "~/traces/trace.json.gz",
            "format": "kineto",
            "rank": 0,
            "rank_source": None,
            "part": None,
            "events_read": 120_345,
            "events_unplaced": 12,
            "unplaced": {"kernel without a device": 12},
            "repairs": {"unescaped quotes": 2},
            "notes": ["3 kernels were launched before the capture began; they are kept."],
            "world_size": None,
            "backend": None,
            "start_ns": None,
        }
    ]
    assert held["devices"] == [
        {
            "rank": 0,
            "device": 0,
            "name": "NVIDIA H200",
            "span_ns": 206_000_000,
            "busy_ns": 171_000_000,
            "compute_ns": 160_000_000,
            "communication_ns": 16_000_000,
            "exposed_communication_ns": 8_000_000,
            "exposed_copy_ns": 3_000_000,
            "idle_ns": 35_000_000,
            "kernel_time_ns": 176_000_000,
            "kernels": 4321,
        }
    ]
    assert held["steps"][0] == {
        "rank": 0,
        "number": 0,
        "compiled": False,
        "host_ns": None,
        "mark_ns": None,
        "duration_ns": 42_000_000,
        "traced": True,
        "start_ns": 0,
        "what": "",
    }
    assert [(outcome["rule"], outcome["status"]) for outcome in held["outcomes"]] == [
        ("exposed_communication", "abstained"),
        ("host_sync", "flagged"),
        ("input_stall", "clean"),
        ("launch_bound", "clean"),
        ("nvlink_stall", "abstained"),
        ("unfused_ops", "flagged"),
    ]
    assert held["outcomes"][1]["findings"][0] == {
        "subject": ".item() waits",
        "detail": "",
        "title": ".item() makes the host wait 40 times; the device is idle 6.90 ms per step for it",
        "severity": "high",
        "silenced": None,
        "cost_ns": 34_500_000,
        "cost_ns_per_step": 6_900_000,
        "untraced_ns_per_step": None,
        "path_ns": None,
        "once": None,
        "own_ns": None,
        "path_reason": None,
        "cost_bytes": None,
        "cost_over": "trace",
        "basis": "measured",
        "where": {
            "op": "aten::_local_scalar_dense",
            "kernel": None,
            "module": "train.Loop",
            "file": "~/proj/train.py",
            "line": 88,
        },
        "evidence": [
            {"call": "cudaStreamSynchronize", "step": 3, "wait_ns": 1_200_000, "idle_share": 0.91},
            {"call": "cudaStreamSynchronize", "step": 4, "wait_ns": 980_000, "idle_share": 0.4},
        ],
        "spans": [],
        "advice": "Keep the loss on the device and read it every 100 steps:\n\n```python\n"
        "if step % 100 == 0:\n    print(loss.item())\n```\n\nOr use `loss.detach()` and sum on the device.",
        "about": "program",
        "record": "",
        "ranks": [0],
        "covers_ns": {},
        "fix_line": None,
        "count": 1,
    }


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_stay_valid_and_bounded(name: str, schema: Draft202012Validator) -> None:
    text = render(hostile(name))
    schema.validate(json.loads(text))
    text.encode()
    assert "\x1b" not in text
    assert "\\u001b" not in text
    assert len(text) < 300_000


def test_an_analysis_by_the_engine_is_valid(schema: Draft202012Validator) -> None:
    builder = TraceBuilder()
    builder.launched("k", 0, 10, 20, correlation=1)
    builder.step(0, 0, 30)
    held = json.loads(render(analyze(builder.build(), rules=[])))
    schema.validate(held)
    assert held["devices"][0]["kernel_time_ns"] == 10_000


def test_numpy_cells_and_what_is_not_finite() -> None:
    finding = Finding(
        subject="s", title="t", severity="low", basis="measured", advice="a",
        evidence=({"n": np.int64(3), "x": np.float32(0.5), "bad": float("nan"), "far": float("inf")},),  # type: ignore[dict-item]
    )  # fmt: skip
    held = document(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),)))
    assert held["outcomes"][0]["findings"][0]["evidence"] == [{"n": 3, "x": 0.5, "bad": None, "far": None}]
    json.dumps(held, allow_nan=False)


def break_it(held: dict[str, Any], where: str) -> None:
    if where == "undocumented key":
        held["sources"][0]["hostname"] = "node7"
    elif where == "float time":
        held["devices"][0]["idle_ns"] = 0.5
    elif where == "abstained without reason":
        held["outcomes"][0]["reason"] = None
    elif where == "flagged without findings":
        held["outcomes"][1]["findings"] = []
    elif where == "clean with findings":
        held["outcomes"][2]["findings"] = held["outcomes"][1]["findings"]
    elif where == "unknown basis":
        held["outcomes"][1]["findings"][0]["basis"] = "guessed"


@pytest.mark.parametrize(
    "where",
    ["undocumented key", "float time", "abstained without reason", "flagged without findings", "clean with findings",
     "unknown basis"],
)  # fmt: skip
def test_the_schema_can_fail(where: str, schema: Draft202012Validator) -> None:
    held = document(analysis())
    schema.validate(held)
    break_it(held, where)
    with pytest.raises(ValidationError):
        schema.validate(held)


@pytest.mark.parametrize("shapes", [json_report.SHAPES, compare_json.SHAPES])
def test_a_shape_names_fields_that_are_there(shapes: Shapes) -> None:
    assert_fields_are_there(shapes)


def assert_fields_are_there(shapes: Shapes) -> None:
    """Every field that a shape names is one of its record."""
    for record, shape in shapes.items():
        names = {field.name for field in fields(record)} if is_dataclass(record) else set(record.__struct_fields__)
        assert names.issuperset((*shape.left_out, *shape.renamed, *shape.merged)), record


def test_records_are_written_field_by_field() -> None:
    @dataclass
    class Inner:
        ns: int
        hidden: str = "no"

    @dataclass
    class Outer:
        name: str
        inner: Inner
        values: np.ndarray[Any, Any]
        stage: Stage
        ratio: float = math.nan

    shapes = {
        Inner: Shape(left_out=("hidden",), renamed={"ns": "time_ns"}, added={"twice": lambda inner: 2 * inner.ns}),
        Outer: Shape(merged=("inner",)),
    }
    held = plain(Outer("a", Inner(3), np.array([1, 2]), Stage.TRACING), shapes)
    assert held == {"name": "a", "time_ns": 3, "twice": 6, "values": [1, 2], "stage": "tracing", "ratio": None}
