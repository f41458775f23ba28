"""Corrupt files of every format: read into a sound trace, or refused in one line that names the file."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.__main__ import run
from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import DataError
from tests.plugins.kernel_reports.ncu_files import launches, raw
from tests.plugins.kernel_reports.other_files import log
from tests.readers import rocprof_files, test_hlo, test_jax_memory, test_kineto
from tests.readers.memory_snapshots import Allocator
from tests.readers.torch_log.test_torch_trace import TEXT as LOG
from tests.readers.xspace.test_damage import space

FORMATS: dict[str, Callable[[], bytes]] = {
    "csv": lambda: raw(launches()).encode(),
    "hlo.pb": lambda: test_hlo.WHOLE,
    "hlo.txt": test_hlo.TEXT.encode,
    "json": lambda: test_kineto.text(test_kineto.events()).encode(),
    "log": lambda: bytes(LOG),
    "pickle": lambda: pickle.dumps(Allocator(seed=3).run(40).snapshot()),
    "ndjson": lambda: log().encode(),
    "rocprof.json": lambda: json.dumps(rocprof_files.document()).encode(),
    "prof": lambda: test_jax_memory.profile().SerializeToString(),
    "xplane.pb": lambda: space().bytes(),
}
"""A small intact file of each format, by its suffix."""

intact = cache(lambda suffix: FORMATS[suffix]())


@pytest.mark.parametrize("suffix", FORMATS)
def test_changed_bytes(suffix: str) -> None:
    changed_bytes(suffix)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def changed_bytes(suffix: str, data: st.DataObject) -> None:
    content = bytearray(intact(suffix))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(1, len(content))) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"corrupt.{suffix}")
        path.write_bytes(content)
        traces, refusal = [], f"{path}: none"
        try:
            traces = load_all(path)
        except DataError as error:
            refusal = str(error)
        assert refusal.startswith(f"{path}: ")
        assert "\n" not in refusal
        for trace in traces:
            trace.check()


@pytest.mark.parametrize("suffix", sorted({*FORMATS} - {"csv", "log", "ndjson"}))  # one that is cut is a shorter one
def test_the_command_refuses_in_one_line(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(intact(suffix)[:-9])
    assert run(["analyze", str(path)]) == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.strip().splitlines()
    assert line.startswith(f"perfscope: {path}: ")
