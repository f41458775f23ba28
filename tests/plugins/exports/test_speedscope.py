"""speedscope files against speedscope's own schema (``file-format-schema.json`` of speedscope 1.25, MIT)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.exports.export import Subject, export
from tests.build import TraceBuilder
from tests.plugins.exports.traces import SECRET, everything

SCHEMA = json.loads(Path(__file__).with_name("speedscope-schema.json").read_text())


def written(folder: Path, *traces: Trace) -> dict[str, Any]:
    export(Subject(traces=traces), "speedscope", folder / "t.speedscope.json")
    found: dict[str, Any] = json.loads((folder / "t.speedscope.json").read_text())
    jsonschema.validate(found, SCHEMA)
    for profile in found["profiles"]:
        if profile["type"] == "evented":
            balanced(profile["events"])
    return found


def balanced(events: list[dict[str, Any]]) -> None:
    """speedscope refuses a file whose frames do not close in the order they opened, or whose time goes back."""
    stack: list[int] = []
    last = events[0]["at"]
    for event in events:
        assert event["at"] >= last
        last = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    assert not stack


def named(found: dict[str, Any], stack: list[int]) -> list[str]:
    return [found["shared"]["frames"][frame]["name"] for frame in stack]


def test_threads_open_and_close_their_frames(tmp_path: Path) -> None:
    found = written(tmp_path, everything(base=7))
    first, second, lane, _ = found["profiles"]
    assert (first["name"], first["unit"], first["startValue"], first["endValue"]) == (
        "rank 0 · host 1 thread 1", "nanoseconds", 0, 200_000,
    )  # fmt: skip
    opened = [event for event in first["events"] if event["type"] == "O"]
    assert named(found, [event["frame"] for event in opened])[:4] == ["aten::mm", "inner", "empty", "cudaLaunchKernel"]
    assert lane["name"] == "rank 0 · host 1 thread 2 (2)"
    assert named(found, [lane["events"][0]["frame"]]) == ["crossing"]
    assert second["endValue"] == 340_000
    assert SECRET not in json.dumps(found)


def test_device_time_by_the_stack_that_launched_it(tmp_path: Path) -> None:
    found = written(tmp_path, everything())
    profile = found["profiles"][-1]
    assert profile["name"] == "rank 0 · device time by host stack"
    stacks = {tuple(named(found, stack)): ns for stack, ns in zip(profile["samples"], profile["weights"], strict=True)}
    assert stacks["aten::mm", "gemm"] == 30_000
    assert stacks["aten::mm", "inner", "overlapping"] == 40_000
    assert stacks["touching", "first"] == 10_000
    assert stacks["Memset",] == 1_000
    assert sum(stacks.values()) == profile["endValue"] == 131_000


@pytest.mark.corpus
def test_xla_time_by_scope(tmp_path: Path, corpus: Path) -> None:
    (trace,) = load_all(corpus / "aot" / "attn_naive.xplane.pb.gz")
    found = written(tmp_path, trace)
    profile = found["profiles"][-1]
    assert profile["name"] == "XLA time by scope"
    assert sum(profile["weights"]) == trace.fact(hlo_time).total_ns
    assert profile["weights"] == sorted(profile["weights"], reverse=True)
    longest = named(found, profile["samples"][0])
    assert longest[1] in ("forward", "backward", "recompute")
    assert any("file" in found["shared"]["frames"][stack[-1]] for stack in profile["samples"])


def test_a_trace_without_stacks_is_refused(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 1)
    with pytest.raises(DataError, match="no stacks"):
        written(tmp_path, builder.build())
    assert list(tmp_path.iterdir()) == []
