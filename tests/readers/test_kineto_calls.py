"""Lines of Python calls, and names of notebook cells, that `perfscope run` adds to a Kineto trace."""

from __future__ import annotations

from pathlib import Path

from perfscope.model.trace import MISSING, SliceKind
from tests.readers.test_kineto import BASE, events, read, text


def test_lines_of_calls_go_to_their_python_spans(tmp_path: Path) -> None:
    start = BASE + 1_000_625
    calls = {"start_ns": [start, start + 100_000, start + 100_000, start + 500], "line": [31, 40, 41, 50]}
    rows = read(tmp_path, text(events(), perfscopeCalls=calls)).rows["slices"]
    found = {int(at): int(line) for at, line in zip(rows["start_ns"], rows["call_line"], strict=True)}
    python = rows["start_ns"][rows["kind"] == SliceKind.PYTHON].tolist()
    assert [found[at] for at in python] == [31, MISSING], "two calls began at the second"
    assert set(found.values()) == {31, MISSING}, "ops have none"
    cells = read(tmp_path, text(events(), perfscopeCalls={**calls, "cells": {"train.py": "In[2]"}}))
    assert {"In[2](12): loop", "aten::mm"} < {*cells.strings}
    for wrong in ({"start_ns": [start], "line": []}, {"start_ns": [2**70], "line": [1]}, {"line": [1]}, [1]):
        rows = read(tmp_path, text(events(), perfscopeCalls=wrong)).rows["slices"]
        assert (rows["call_line"] == MISSING).all()
