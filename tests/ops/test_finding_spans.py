"""Where a recording shows what a finding names: ops, regions, blocks, instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.ops.finding_spans import (
    spans_at,
    spans_of_instructions,
    spans_of_peak,
    spans_of_regions,
    spans_of_slices,
    spans_within,
)
from perfscope.model.finding import Span
from perfscope.model.intervals import union
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace
from tests.memory.build import MemoryBuilder


def _us(spans: tuple[Span, ...]) -> list[tuple[float, float]]:
    return [(one.start_ns / 1_000, one.end_ns / 1_000) for one in spans]


def _rows(trace: Trace, name: str) -> list[int]:
    slices = trace.rows["slices"]
    return [row for row in range(len(slices)) if trace.text(int(slices["name"][row])) == name]


def _launching() -> Trace:
    """Two ops that launch a kernel each, the second the longer one, and an op that launches nothing."""
    made = TraceBuilder()
    for at, (launch, start, end) in enumerate(((12, 40, 60), (32, 70, 100))):
        made.op("aten::mm", launch - 2, launch + 8)
        made.launched("gemm", launch, start, end, correlation=at + 1)
    made.op("aten::empty", 50, 52)
    return made.build()


def test_an_op_is_where_its_kernels_run_and_the_longest_comes_first() -> None:
    trace = _launching()
    assert _us(spans_of_slices(trace, _rows(trace, "aten::mm"))) == [(70, 100), (40, 60)]
    assert spans_of_slices(trace, _rows(trace, "aten::empty")) == ()  # it launches nothing: it is nowhere on a device


def test_without_a_device_an_op_is_where_it_ran() -> None:
    made = TraceBuilder()
    made.op("aten::mm", 10, 30)
    trace = made.build()
    assert _us(spans_of_slices(trace, [0])) == [(10, 30)]


def test_a_region_is_one_piece_from_its_first_work_to_its_last() -> None:
    trace = _launching()
    rows = _rows(trace, "aten::mm")
    assert _us(spans_of_regions(trace, [rows])) == [(40, 100)]
    assert spans_of_regions(trace, [[]]) == ()


def test_what_lies_outside_of_the_recording_is_cut_off() -> None:
    made = TraceBuilder()
    made.op("aten::mm", 10, 30)
    found = union(np.array([0, 25_000, 90_000]), np.array([12_000, 200_000, 95_000]))
    assert _us(spans_within(made.build(), found)) == [(25, 30), (10, 12)]


def _memory() -> Trace:
    """Two blocks, the second of which makes the peak until the first one goes; times in us."""
    made = MemoryBuilder()
    made.step(1, 0, 100)
    made.make(1, 100, 10)
    made.make(2, 300, 40)
    made.free(1, 70)
    return made.build()


def test_a_peak_lasts_until_its_memory_changes_and_its_holders_live_as_they_do() -> None:
    (timeline,) = memory_timelines(_memory())
    assert timeline.axis == "ns"
    (peak, larger, smaller) = spans_of_peak(timeline, [0, 1])
    assert _us((peak, smaller)) == [(40, 70), (10, 70)]
    assert larger.start_ns == 40_000
    assert larger.end_ns == timeline.last  # it is never let go
    assert _us(spans_at(timeline, 10_000)) == [(10, 40)]


@pytest.mark.parametrize("change", [{"detail": True}, {"axis": "event"}, {"space": "program"}])
def test_what_has_no_time_of_the_recording_is_nowhere(change: dict[str, Any]) -> None:
    timeline = replace(memory_timelines(_memory())[0], **change)
    assert spans_of_peak(timeline, [0, 1]) == ()
    assert spans_at(timeline, 10_000) == ()


MODULE = hlo_module(
    f"""
    ENTRY %main (a: f32[1048576]) -> f32[1048576] {{
      %a = f32[1048576]{{0}} parameter(0)
      %x = f32[1048576]{{0}} exponential(%a), {GPU}
      ROOT %y = f32[1048576]{{0}} negate(%x)
    }}
    """
)


def test_an_instruction_is_where_its_rows_are() -> None:
    trace = recorded_trace(MODULE, ops=[("x", 0, 10), ("y", 10, 14), ("x", 100, 112), ("y", 112, 116)])
    assert _us(spans_of_instructions(trace, MODULE, ["x"])) == [(100, 112), (0, 10)]
    assert _us(spans_of_instructions(trace, MODULE, ["y", "y", "not there"])) == [(10, 14), (112, 116)]


def test_of_a_program_that_never_ran_there_is_nothing() -> None:
    assert spans_of_instructions(hlo_trace(MODULE), MODULE, ["x", "y"]) == ()
