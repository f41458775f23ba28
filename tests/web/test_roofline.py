"""The roofline of ops whose shapes the profiler recorded: its numbers are those of the kernels' table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.figures import roofline
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.web.views import view_of

SIZE = 4096


def _trace() -> Trace:
    """Two calls of one product and a sum on an H100, and a kernel of an op without shapes."""
    made = TraceBuilder()
    made.device(0, "NVIDIA H100 80GB HBM3")
    size = f"[{SIZE}, {SIZE}]"
    for at in (0.0, 1_000.0):
        made.op("aten::mm", at, at + 20, shapes=f"[{size}, {size}]", dtypes='["c10::BFloat16", "c10::BFloat16"]')
        made.launched("gemm_bf16", at + 5, at + 100, at + 400, correlation=int(at) + 1)
    made.op("aten::sum", 2_000, 2_020, shapes=f"[{size}]", dtypes='["c10::BFloat16"]')
    made.launched("reduce_kernel", 2_005, 2_100, 2_120, correlation=5_000)
    made.op("my::op", 3_000, 3_020)
    made.launched("mine", 3_005, 3_100, 3_200, correlation=6_000)
    return made.build()


def _rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


def test_ops_with_shapes_lie_below_the_roofs_of_their_device(tmp_path: Path) -> None:
    view = view_of("roofline", [_trace()], tmp_path)
    product, total = _rows(view["tables"]["calls"])
    assert (product["name"], product["runs"], product["time_ns"]) == ("aten::mm", 2, 600_000)
    assert product["flops"] == 2 * SIZE**3
    assert product["bytes"] == 3 * 2 * SIZE**2
    assert product["rate"] == pytest.approx(2 * SIZE**3 / 300e-6)
    assert product["of_roof"] == pytest.approx(2 * SIZE**3 / 300e-6 / 989e12, rel=0.01)
    assert (product["bound"], product["what"]) == ("compute", "matrix product")
    assert (total["name"], total["intensity"], total["bound"]) == ("aten::sum", None, "memory")
    assert view["costed"] == [620_000, 720_000]
    assert [device["name"] for device in view["devices"]] == ["H100 SXM"]


def test_the_time_of_ops_of_the_host_is_their_own(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.op("aten::mm", 0, 100, shapes="[[64, 64], [64, 64]]", dtypes='["float", "float"]')
    view = view_of("roofline", [made.build()], tmp_path)
    (row,) = _rows(view["tables"]["calls"])
    assert (row["time_ns"], row["flops"], row["least_ns"]) == (100_000, 2 * 64**3, None)
    assert "CPU" in view["lacks"][0]


def test_the_axes_are_marked_in_round_numbers(tmp_path: Path) -> None:
    view = view_of("roofline", [_trace()], tmp_path)
    figure = roofline(_rows(view["tables"]["calls"]), view["devices"])
    for axis in (figure.layout.xaxis, figure.layout.yaxis):
        assert len(axis.tickvals) == len(axis.ticktext) > 3
        assert {f"{value:.0e}"[0] for value in axis.tickvals} <= {"1", "2", "5"}
    assert "200 T" in figure.layout.yaxis.ticktext


def _points(*rows: tuple[str, float, float, float]) -> list[dict[str, Any]]:
    """(Name, time, FLOP/byte, FLOP/s)."""
    whole = sum(time for _, time, _, _ in rows)
    return [
        {
            "name": name, "line": "", "time_ns": time, "share": time / whole, "basis": "measured", "rate": rate,
            "intensity": intensity, "of_roof": 0.5, "bound": "compute",
        }
        for name, time, intensity, rate in rows
    ]  # fmt: skip


def test_the_points_with_most_time_have_labels_that_do_not_overlap() -> None:
    alike = [(f"aten::{at}_product_of_large_matrices", 1e6 - at, 100.0 + at / 1e3, 1e14) for at in range(8)]
    device = {"name": "X", "bandwidth": 1e12, "peaks": [{"label": "fp32", "flops": 1e15}]}
    figure = roofline(_points(*alike, alike[0], ("tiny", 1.0, 10.0, 1e12)), [device])
    labels = [note for note in figure.layout.annotations if note.showarrow]
    assert [note.text for note in labels] == [f"{at}_product_of_larg… 50.0%" for at in range(6)]
    heights = sorted(note.ay for note in labels)
    assert all(above - below >= 14 for below, above in pairwise(heights)), heights


@pytest.mark.corpus
def test_numbers_agree_with_the_table_of_kernels(corpus: Path, tmp_path: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz")
    points = _rows(view_of("roofline", [trace], tmp_path / "roofline")["tables"]["calls"])
    kernels = _rows(view_of("kernels", [trace], tmp_path / "kernels")["tables"]["kernels"])
    (attention,) = [row for row in points if "flash_attention" in row["name"]]
    (kernel,) = [row for row in kernels if row["op"] == attention["name"]]
    for key in ("flops_per_s", "rate"), ("roofline_share", "of_roof"):
        assert kernel[key[0]] == pytest.approx(attention[key[1]], rel=1e-9)
