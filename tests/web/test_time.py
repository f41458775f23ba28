"""Time by name sums to what was recorded, over all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.server.api import cell, csv_of
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.web.views import view_of

HOSTILE = '=HYPERLINK("http://x")<script>alert(1)</script>'


def _trace(rank: int = 0) -> Trace:
    made = TraceBuilder(rank=rank)
    made.op("aten::mm", 0, 30)
    made.op("aten::copy_", 10, 15)
    made.launched("sgemm", 2, 20, 30 + rank, correlation=1)
    made.launched("sgemm", 5, 40, 44, correlation=2)
    made.launched(HOSTILE, 12, 50, 51, correlation=3)
    made.copy("Memcpy DtoH", 60, 63, size=12)
    return made.build()


def _rows(view: dict, kind: str) -> dict[str, dict]:
    keys = [column["key"] for column in view["tables"][kind]["columns"]]
    return {row[0]: dict(zip(keys, row, strict=True)) for row in view["tables"][kind]["rows"]}


@pytest.mark.corpus
def test_the_sums_of_a_real_trace_are_those_of_its_tables(corpus: Path, tmp_path: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "TraceLens__h100_bert-small.json.gz")
    view = view_of("kernels", [trace], tmp_path)
    work = (trace.rows["kernels"], trace.rows["copies"])
    assert view["tables"]["kernels"]["ns"] == sum(int((rows["end_ns"] - rows["start_ns"]).sum()) for rows in work)
    assert sum(row["calls"] for row in _rows(view, "kernels").values()) == sum(map(len, work))


def test_a_download_holds_every_row_and_no_formula(tmp_path: Path) -> None:
    import json

    view = view_of("kernels", [_trace()], tmp_path / "made")
    (tmp_path / "kernels.json").write_text(json.dumps({"view": view}))
    lines = csv_of(tmp_path, "kernels", "kernels").decode().splitlines()
    assert lines[0].startswith("name,time_ns,share,calls")
    assert len(lines) == 4
    assert not any(line.startswith(("=", '"=')) for line in lines)
    with pytest.raises(DataError, match="no such table"):
        csv_of(tmp_path, "kernels", "nothing")


def _grouped() -> Trace:
    """One kernel name from two lines, in two modules, on two streams, and a copy."""
    made = TraceBuilder(rank=3)
    for layer in range(2):
        at = 100.0 * layer
        made.python(f"nn.Module: Linear_{layer}", at, at + 50)
        made.python(f"model.py({10 + layer}): forward", at + 1, at + 49)
        made.op("aten::mm", at + 2, at + 40)
        made.launched("sgemm", at + 5, at + 60, at + 70 + layer, correlation=layer + 1, stream=7 + layer)
    made.copy("Memcpy DtoH", 300, 305, size=12)
    return made.build()


@pytest.mark.parametrize(
    ("group", "sums"),
    [
        ("what", {"matrix product": 21_000, "copy, layout": 5_000}),
        ("op", {"aten::mm": 21_000, "(not known)": 5_000}),
        ("module", {"Linear_*": 21_000, "(not known)": 5_000}),
        ("line", {"model.py:10": 10_000, "model.py:11": 11_000, "(not known)": 5_000}),
        ("stream", {"device 0, stream 7": 15_000, "device 0, stream 8": 11_000}),
        ("rank", {"rank 3": 26_000}),
    ],
)
def test_each_call_counts_in_its_own_group(tmp_path: Path, group: str, sums: dict[str, int]) -> None:
    view = view_of("kernels", [_grouped()], tmp_path)
    assert {name: row["time_ns"] for name, row in _rows(view, f"kernels-{group}").items()} == sums


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_what_a_spreadsheet_would_run_is_text(text: str) -> None:
    assert cell(text) == f"'{text}"


MODEL = "model.py(3): forward"


def _paths(tree: dict[str, Any]) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """(ns, own, count) by path, the root left out."""
    paths: list[tuple[str, ...]] = []
    for name, parent in zip(tree["name"], tree["parent"], strict=True):
        paths.append((*(paths[parent] if parent > 0 else ()), name) if parent >= 0 else ())
    rows = zip(paths, tree["ns"], tree["own_ns"], tree["count"], strict=True)
    return {path: (ns, own, count) for path, ns, own, count in rows if path}


def _made() -> TraceBuilder:
    made = TraceBuilder()
    made.python(MODEL, 0, 100)
    made.op("aten::linear", 10, 60)
    made.op("aten::mm", 20, 50)
    made.op("aten::mm", 70, 90)
    made.launched("gemm", 25, 60, 90, correlation=1)
    made.launched("gemm", 75, 100, 110, correlation=2)
    made.kernel("nobody_asked", 200, 205)
    return made


def test_a_stack_deeper_than_pythons(tmp_path: Path) -> None:
    made = TraceBuilder()
    for depth in range(1_500):
        made.python(f"deep.py({depth}): f", depth, 4_000 - depth)
    tree = view_of("flame", [made.build()], tmp_path)["trees"]["host"]["apart"]
    assert len(tree["name"]) == 1_501
    assert sum(tree["own_ns"]) == tree["ns"][0] == 4_000_000


def test_what_is_too_small_is_summed_beside_the_others(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.op("large", 0, 100_000)
    for at in range(50):
        made.op(f"small_{at}", 100_000 + at, 100_000.5 + at)
    tree = view_of("flame", [made.build()], tmp_path)["trees"]["host"]["apart"]
    assert _paths(tree)["50 smaller",] == (25_000, 25_000, 50)
    assert sum(tree["own_ns"]) == tree["ns"][0]


@pytest.mark.corpus
def test_the_sums_of_a_real_trace(corpus: Path, tmp_path: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "TraceLens__h100_bert-small.json.gz")
    trees = {kind: forms["apart"] for kind, forms in view_of("flame", [trace], tmp_path)["trees"].items() if forms}
    work = (trace.rows["kernels"], trace.rows["copies"])
    assert trees["device"]["ns"][0] == sum(int((rows["end_ns"] - rows["start_ns"]).sum()) for rows in work)
    slices = trace.rows["slices"]
    outermost = slices["parent"] == -1
    assert trees["host"]["ns"][0] == int((slices["end_ns"] - slices["start_ns"])[outermost].sum())
    for tree in (trees["device"], trees["host"]):
        assert sum(tree["own_ns"]) == tree["ns"][0]
