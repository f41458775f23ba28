"""``import perfscope``: the names a user has, each loaded when it is first used."""

from __future__ import annotations

import gzip
import inspect
import json
from importlib.metadata import version
from pathlib import Path

import pytest

import perfscope
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all, load_one
from tests.build import TraceBuilder

NAMES = [
    "Analysis", "CompiledFor", "Finding", "Outcome", "Trace", "__version__", "analyze", "compare", "compile_for",
    "figures", "load", "load_all", "region", "step",
]  # fmt: skip


def test_the_names() -> None:
    assert sorted(perfscope.__all__) == NAMES
    assert set(NAMES) <= set(dir(perfscope))
    for name in NAMES:
        assert getattr(perfscope, name) is getattr(perfscope, name)
        assert getattr(perfscope, name).__doc__


def test_they_are_the_same_things_as_in_their_modules() -> None:
    assert perfscope.load is load_one
    assert perfscope.load_all is load_all
    assert perfscope.analyze is analyze
    assert perfscope.Analysis is Analysis
    assert perfscope.__version__ == version("perfscope")


def test_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'perfscope' has no attribute 'profile'"):
        perfscope.profile  # noqa: B018


def test_every_public_name_has_a_home_and_every_home_is_public() -> None:
    source = inspect.getsource(perfscope)
    for name in set(NAMES) - {"__version__", "figures"}:
        assert f" as {name}\n" in source, f"{name} is not declared for type checkers"


def test_from_trace_to_findings() -> None:
    builder = TraceBuilder()
    builder.launched("k", 0, 10, 20, correlation=1)
    analysis = perfscope.analyze(builder.build(), rules=[])
    assert isinstance(analysis, perfscope.Analysis)
    assert analysis.devices[0].busy_ns == 10_000
    assert "perfscope" in analysis._repr_html_()


@pytest.mark.corpus
def test_the_tour(corpus: Path) -> None:
    trace = perfscope.load(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz")
    assert {"start_ns", "end_ns", "name", "device", "stream"} <= set(trace.kernels.columns)
    analysis = perfscope.analyze(trace)
    assert {outcome.status for outcome in analysis} <= {"flagged", "clean", "abstained"}
    assert "MI300X" in trace._repr_html_()


def test_memory_of_a_run() -> None:
    run = Path(__file__).parents[1] / "fixtures" / "cpu-attention-sdpa"
    trace = perfscope.load(run)
    events = json.loads(gzip.decompress((run / "rank00000" / "detail.pt.trace.json.gz").read_bytes()))["traceEvents"]
    recorded = [event["args"]["Bytes"] for event in events if event["name"] == "[memory]"]
    assert sorted(trace.memory["bytes"]) == sorted(recorded)
    assert len(recorded) > 100
    assert "memory (detail pass)" in trace._repr_html_()
