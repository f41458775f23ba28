"""The TensorBoard folder, opened by the real XProf and by our own reader."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import DataError
from perfscope.plugins.exports import tensorboard as exporter
from perfscope.plugins.exports.export import Subject, export
from tests.build import TraceBuilder
from tests.plugins.exports.trace_equality import totals
from tests.plugins.exports.traces import SECRET, everything

TRACE_VIEWER = """
import json, sys
from xprof.convert import raw_to_tool_data
data, _ = raw_to_tool_data.xspace_to_tool_data(sys.argv[1:], "trace_viewer", {})
print(json.dumps([e for e in json.loads(data)["traceEvents"] if e.get("ph") == "X"]))
"""
"""In a separate process, because XProf includes TensorFlow's protos."""


def test_a_trace_becomes_an_xspace_that_says_the_same(tmp_path: Path) -> None:
    traces = [everything(rank=0), everything(rank=1, base=9)]
    remarks = export(Subject(traces=tuple(traces)), "tensorboard", tmp_path / "out")
    assert "made from our tables" in remarks[-1]
    folder = tmp_path / "out" / "plugins" / "profile" / "perfscope"
    assert [one.name for one in sorted(folder.iterdir())] == ["rank00000.xplane.pb", "rank00001.xplane.pb"]
    for trace, back in zip(traces, load_all(tmp_path / "out"), strict=True):
        back.check()
        ours, theirs = totals(trace), totals(back)
        for key in ("kernels", "kernels ns", "kernels streams", "kernels launched", "calls", "calls ns", "steps ns"):
            assert theirs[key] == ours[key], key
        assert theirs["copies streams"] == ours["copies streams"]
        assert theirs["slices"] == ours["slices"] + ours["steps"]  # there a step is a span as well
    assert not any(SECRET.encode() in one.read_bytes() for one in folder.iterdir())


@pytest.mark.slow
def test_xprof_shows_every_span(tmp_path: Path) -> None:
    pytest.importorskip("xprof")
    trace = everything()
    export(Subject(traces=(trace,)), "tensorboard", tmp_path / "out")
    (file,) = (tmp_path / "out").rglob("*.xplane.pb")
    done = subprocess.run([sys.executable, "-c", TRACE_VIEWER, str(file)], capture_output=True, text=True, check=True)
    events = json.loads(done.stdout.strip().splitlines()[-1])
    shown = {event["name"]: event for event in events}
    for table in ("slices", "calls", "kernels", "copies"):
        rows = trace.rows[table]
        for code in rows["name"][rows["end_ns"] > rows["start_ns"]].tolist():  # XProf leaves out empty spans
            assert trace.strings[code].replace(SECRET, "[hidden]") in shown
    assert shown["gemm"]["dur"] == pytest.approx(30.0)


@pytest.mark.corpus
def test_a_profile_of_xla_is_copied_as_it_was(tmp_path: Path, corpus: Path) -> None:
    file = corpus / "xplane" / "TraceLens__mi300_jax08_gemm.xplane.pb.gz"
    remarks = export(Subject(traces=tuple(load_all(file))), "tensorboard", tmp_path / "out")
    (copied,) = (tmp_path / "out").rglob("*.xplane.pb")
    assert copied.read_bytes() == gzip.decompress(file.read_bytes())
    assert any("copies of what the profiler wrote" in remark for remark in remarks)


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="nothing in it has a time"):
        export(Subject(traces=(TraceBuilder().build(),)), "tensorboard", tmp_path / "out")
    monkeypatch.setattr(exporter, "LARGEST", 100)
    with pytest.raises(DataError, match="more than 100 bytes as XSpace"):
        export(Subject(traces=(everything(),)), "tensorboard", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
