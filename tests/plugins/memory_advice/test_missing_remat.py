"""Flagged close to capacity and out of memory; clean with room; nothing left to checkpoint; abstained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.ops.graph_time import GraphTime, graph_time
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.plugins.memory_advice.simulate import keep_all, simulate
from perfscope.plugins.memory_advice.step_model import StepModel
from perfscope.plugins.memory_advice.step_model_torch import torch_step_model
from tests.build import EVERYTHING, TraceBuilder
from tests.plugins.memory_advice.recorded import recorded
from tests.plugins.memory_advice.steps import checkpointed, layers


def outcome(model: StepModel | None) -> Outcome:
    trace = TraceBuilder(recorded=EVERYTHING if model is None else EVERYTHING | {"op_graph"}).build()
    if model is not None:
        trace.seed(torch_step_model, model)
    return judge(load_rule("missing_remat"), trace)


def model(room: float, **changes: Any) -> StepModel:
    """A step whose peak takes ``room`` of the device."""
    found = layers(6)
    peak = simulate(found, keep_all(found)).peak_bytes
    return replace(found, capacity_bytes=round(peak / room), **changes)


def test_close_to_capacity_names_the_cheapest_first_with_its_curve() -> None:
    (finding,) = outcome(model(0.95)).findings
    assert finding.severity == "medium"
    assert finding.basis == "modelled"
    assert finding.cost_ns is None
    assert (finding.cost_bytes or 0) > 0
    assert "blocks.0" in finding.detail
    assert [row["order"] for row in finding.evidence] == list(range(1, len(finding.evidence) + 1))
    peaks = [int(row["peak_bytes"] or 0) for row in finding.evidence]
    assert peaks == sorted(peaks, reverse=True)
    assert finding.evidence[0]["saved_bytes"] == 100
    assert finding.evidence[0]["recompute_ns"] == 10
    assert finding.evidence[0]["saved_bytes_a_ms"] == 10_000_000
    assert "perfscope advise memory" in finding.advice


def test_only_as_much_as_takes_the_peak_out_of_the_last_tenth() -> None:
    (finding,) = outcome(model(0.905)).findings
    assert finding.cost_bytes == 100
    (wider,) = outcome(model(0.99)).findings
    assert (wider.cost_bytes or 0) > 100


def test_with_a_tenth_free_it_is_clean() -> None:
    assert outcome(model(0.89)).status == "clean"
    assert outcome(model(0.9)).status == "flagged"


def test_what_the_allocator_holds_beyond_the_peak_counts() -> None:
    assert outcome(model(0.8, reserve_share=0.2)).status == "flagged"


def test_out_of_memory_is_high_also_where_the_size_is_unknown() -> None:
    (finding,) = outcome(replace(layers(6), out_of_memory=1)).findings
    assert finding.severity == "high"
    assert "ran out of memory" in finding.title


def test_nothing_left_to_checkpoint_is_clean() -> None:
    assert outcome(checkpointed(model(2.0))).status == "clean"


def test_abstains_where_the_size_is_unknown_or_the_host_computes() -> None:
    unknown = outcome(layers(2))
    assert unknown.status == "abstained"
    assert "memory size of the device was not recorded" in (unknown.reason or "")
    host = outcome(replace(layers(2), on_host=True))
    assert "host's memory" in (host.reason or "")


@pytest.mark.slow
def test_on_a_real_step_the_blocks_are_named_and_the_curve_ends_at_full_checkpointing(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    found = recording.model()
    peak = simulate(found, keep_all(found)).peak_bytes
    (finding,) = outcome(replace(found, capacity_bytes=peak, on_host=False)).findings
    assert {str(row["module"]) for row in finding.evidence} <= {f"Transformer.blocks.{index}" for index in range(3)}
    lowest = min(
        simulate(found, policies).peak_bytes
        for policies in (("full",) * 3, ("full", "full", "keep"), ("full", "full", "selective"))
    )
    assert finding.evidence[-1]["peak_bytes"] == lowest


def test_its_moments_are_the_forward_passes_of_what_would_run_again(tmp_path: Path) -> None:
    """Each op of a real graph is given ten microseconds of the host, in two steps."""
    found = recorded(tmp_path)
    model, ops = found.model(), found.graph.ops
    built = TraceBuilder(recorded=EVERYTHING)
    for at in range(2 * len(ops)):
        built.slice(f"aten::{at}", 10 * at, 10 * at + 10)
    trace = built.build()
    trace = msgspec.structs.replace(trace, op_graph=found.graph)
    steps = np.arange(2 * len(ops), dtype=np.int64).reshape(2, -1)
    trace.seed(graph_time, GraphTime(spans=tuple(steps), matched_share=1.0, on_device=False))
    peak = simulate(model, keep_all(model)).peak_bytes
    trace.seed(torch_step_model, replace(model, capacity_bytes=round(peak * 1.08), on_host=False))
    (finding,) = judge(load_rule("missing_remat"), trace).findings
    first = str(finding.evidence[0]["module"])
    mine = [op.index for op in ops if op.phase == "forward" and f"{op.module}.".startswith(f"{first}.")]
    wanted = {(10_000 * (step + mine[0]), 10_000 * (step + mine[-1] + 1)) for step in (0, len(ops))}
    assert wanted <= {(span.start_ns, span.end_ns) for span in finding.spans}
    backward = min(op.index for op in ops if op.phase == "backward")
    assert all(span.end_ns <= 10_000 * backward or span.start_ns >= 10_000 * len(ops) for span in finding.spans)


def test_abstains_without_an_op_graph() -> None:
    told = outcome(None)
    assert told.status == "abstained"
    assert "op graph" in (told.reason or "")
