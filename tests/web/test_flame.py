"""Flame graphs: what is repeated is one node, launchers are folded, and nothing of the time is lost by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.timeline.lanes import Category
from perfscope.dashboards.web.timeline.names import name_id
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.web.views import view_of

LAYERS = 3
STEPS = 2


def _trace() -> Trace:
    """Two steps of three layers below four frames of a launcher; the second layer runs no copy."""
    made = TraceBuilder()
    last = STEPS * 1_000 + 10
    for depth, name in enumerate(("<string>(1): <module>", "runpy.py(86): _run_code", "launch.py(7): main")):
        made.python(name, depth, 2 * last - depth)
    number = 0
    for step in range(STEPS):
        start = 10 + 1_000.0 * step
        made.annotation(f"ProfilerStep#{step}", start, start + 900)
        made.python("train.py(12): train", start + 1, start + 890)
        for layer in range(LAYERS):
            at = start + 10 + 200 * layer
            made.python(f"nn.Module: Block_{layer}", at, at + 150)
            made.python("torch/nn/modules/module.py(1743): _call_impl", at + 1, at + 149)
            made.python("model.py(3): forward", at + 2, at + 148)
            made.op("aten::mm", at + 10, at + 50)
            number += 1
            made.launched("sgemm_128", at + 20, at + 30, at + 100, correlation=number)
    return made.build()


def _rows(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(tree, values, strict=True)) for values in zip(*tree.values(), strict=True)]


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return view_of("flame", [_trace()], tmp_path_factory.mktemp("flame"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["host", "device"])
def test_steps_and_layers_are_one_node(view: dict[str, Any], kind: str) -> None:
    merged, apart = (_rows(view["trees"][kind][form]) for form in ("merged", "apart"))
    (step,) = [row for row in merged if row["name"] == "ProfilerStep"]
    (block,) = [row for row in merged if row["name"] == "nn.Module: Block"]
    assert (step["merged"], block["merged"]) == (STEPS, LAYERS)
    assert block["ids"] == ",".join(name_id(f"nn.Module: Block_{layer}") for layer in range(LAYERS))
    assert len([row for row in apart if row["name"].startswith("nn.Module: Block_")]) == STEPS * LAYERS
    assert merged[0]["ns"] == apart[0]["ns"] == sum(row["own_ns"] for row in merged)


def test_frames_that_only_lead_to_the_program_are_folded(view: dict[str, Any]) -> None:
    rows = _rows(view["trees"]["device"]["merged"])
    folds = {row["name"]: row["fold"] for row in rows}
    assert folds["<string>(1): <module>"].startswith("3 launcher frames: ")
    assert folds["launch.py(7): main"] == folds["torch/nn/modules/module.py(1743): _call_impl"] == "-"
    assert not folds["train.py(12): train"]
    assert not folds["model.py(3): forward"]


def test_nodes_have_the_colours_and_lines_of_the_timeline(view: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in _rows(view["trees"]["device"]["merged"])}
    assert rows["aten::mm"]["category"] == rows["sgemm_128"]["category"] == Category.MATRIX
    assert rows["train.py(12): train"]["category"] == Category.PYTHON
    assert rows["nn.Module: Block"]["category"] == Category.MODULE
    assert rows["aten::mm"]["line"] == "model.py:3"


def test_the_first_start_orders_by_time(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.op("aten::add", 0, 5)
    made.op("aten::mm", 10, 90)
    rows = _rows(view_of("flame", [made.build()], tmp_path)["trees"]["host"]["merged"])
    assert [row["name"] for row in rows[1:]] == ["aten::mm", "aten::add"]
    assert [row["name"] for row in sorted(rows[1:], key=lambda row: row["first_ns"])] == ["aten::add", "aten::mm"]


def test_two_ranks_are_summed(tmp_path: Path) -> None:
    one, two = (view_of("flame", traces, tmp_path / str(len(traces))) for traces in ([_trace()], [_trace(), _trace()]))
    first, both = (_rows(each["trees"]["host"]["merged"]) for each in (one, two))
    assert [row["name"] for row in first] == [row["name"] for row in both]
    assert [2 * row["ns"] for row in first] == [row["ns"] for row in both]


@pytest.mark.corpus
def test_the_layers_of_a_real_model(corpus: Path, tmp_path: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz")
    forms = view_of("flame", [trace], tmp_path)["trees"]["device"]
    rows = _rows(forms["merged"])
    assert [row["merged"] for row in rows if row["name"] == "nn.Module: Qwen2DecoderLayer"] == [24]
    assert len(rows) < len(forms["apart"]["name"]) / 5
    assert any(row["fold"].startswith("10 launcher frames") for row in rows)


def test_what_says_most_stands_first(view: dict[str, Any], tmp_path: Path) -> None:
    assert view["kinds"] == ["device", "host"]
    made = TraceBuilder()
    made.op("aten::mm", 0, 50)
    made.kernel("gemm", 10, 90)  # launched by nothing that was recorded
    assert view_of("flame", [made.build()], tmp_path)["kinds"] == ["host", "device"]
