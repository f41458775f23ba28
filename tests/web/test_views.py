"""All views of one recording: golden files, of a job of two ranks and of a trace in which nothing was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.dashboards.web.views import VIEWS
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.web.views import view_of


def rank(number: int) -> Trace:
    """Two steps with ops, kernels, a copy, Python frames and an all-reduce that rank 1 comes late to."""
    made = TraceBuilder(rank=number, path=f"rank{number}.json")
    made.device(0, "NVIDIA H100 80GB HBM3")
    for step in range(2):
        start = 1_000.0 * step
        made.step(step, start, start + 1_000)
        made.python("train.py(12): step", start, start + 900)
        made.op("aten::linear", start + 10, start + 60)
        made.op("aten::mm", start + 20, start + 50)
        made.launched("gemm", start + 25, start + 60, start + 200, correlation=2 * step + 1, blocks=128)
        made.copy("Memcpy HtoD", start + 210, start + 230, size=4096)
        made.kernel(
            "ncclDevKernel_AllReduce", start + 300 + 100 * number, start + 500, stream=9, communication=True,
            correlation=90 + step,
        )  # fmt: skip
    return made.build()


def as_text(view: Any) -> str:
    """JSON, without the content of HTML: cards of the report have their own golden files."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return "<...>" if isinstance(value, str) and value.startswith("<") else value

    return json.dumps(plain(view), indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("findings", "overview")])
def test_two_ranks(name: str, golden: Callable[[str, str], None], tmp_path: Path) -> None:
    view = view_of(name, [rank(0), rank(1)], tmp_path)
    golden(f"{name}.json", as_text(view))


def test_nothing_was_recorded(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    views = {name: view_of(name, [TraceBuilder().build()], tmp_path / name) for name in VIEWS}
    golden("nothing.json", as_text(views))
