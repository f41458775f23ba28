"""Exports, and the reader of what they write, grow with the trace and no faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.readers.kineto.reader import read
from perfscope.model.trace import Trace
from perfscope.plugins.exports import PLUGIN
from perfscope.plugins.exports.export import Subject, export
from tests.growth.test_growth import COPIES, steep
from tests.growth.test_growth_edges import counted
from tests.growth.test_growth_edges import traces as traces


@pytest.mark.parametrize("form", PLUGIN.exports)
def test_exports_are_linear(form: str, traces: list[Trace], tmp_path: Path) -> None:
    def write(trace: Trace, name: str) -> None:
        export(Subject(traces=(trace,)), form, tmp_path / name)

    write(traces[0], "first")  # what is computed once a process
    assert steep([counted(lambda t=t, n=n: write(t, f"out{n}")) for n, t in enumerate(traces)]) == {}


def test_the_kineto_reader_is_linear(traces: list[Trace], tmp_path: Path) -> None:
    files = [tmp_path / f"{copies}.json" for copies in COPIES]
    for trace, file in zip(traces, files, strict=True):
        export(Subject(traces=(trace,)), "chrome", file)
    read(files[0])
    assert steep([counted(lambda f=f: read(f)) for f in files]) == {}
