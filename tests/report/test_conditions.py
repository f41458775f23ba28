"""Sentences on a run before the account of its recorded steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import Step, analyze
from perfscope.analyzers.savings import reservations
from perfscope.dashboards.report import text
from perfscope.dashboards.report.summary import summarize
from tests.build import TraceBuilder


def _run(free_ms: float, recorded_ms: float = 10) -> str:
    b = TraceBuilder()
    b.step(3, 0, 1_000 * recorded_ms)
    b.op("aten::mm", 0, 1_000 * recorded_ms)
    b.step_times_us = (1_000 * free_ms,) * 20
    analysis = analyze(b.build())
    assert not analysis.findings()
    return text.render(analysis)


def test_a_run_unlike_its_recorded_steps_is_never_fully_explained() -> None:
    said = _run(15)
    assert "the run's steps take 15.0 ms (median), the recorded ones 10.0 ms" in said
    assert "no findings in the recorded steps" in said
    assert "causes are known" not in said


def test_a_profiler_that_makes_steps_longer_is_no_reservation() -> None:
    said = _run(14.9)
    assert "recorded ones" not in said
    assert "causes are known for 100.0%" in said
    assert "recorded ones" not in _run(5)


def test_a_step_that_compiled_is_no_recorded_step_of_the_run() -> None:
    b = TraceBuilder()
    b.step(3, 0, 10_000)
    b.op("aten::mm", 0, 10_000)
    b.step_times_us = (10_000.0,) * 20
    analysis = analyze(b.build())
    compiled = Step(rank=0, number=4, duration_ns=1, traced=True, compiled=True)
    assert reservations(replace(analysis, steps=(*analysis.steps, compiled, compiled))) == ()
    assert summarize(analysis).representative


@pytest.mark.parametrize(("compiling_ns", "warm"), [(0, True), (1_000, True), (2_000, False)])
def test_whether_the_steps_of_the_account_compile(compiling_ns: int, warm: bool) -> None:
    analysis: Any = SimpleNamespace(
        steps=(Step(rank=0, number=4, duration_ns=10_000, traced=True),),
        windows=(),
        compile=SimpleNamespace(detail=None, jax=SimpleNamespace(total_ns=20_000)),
        accounts=(SimpleNamespace(causes_ns={"compilation": (compiling_ns,), "compute": (10_000 - compiling_ns,)}),),
    )
    (found,) = reservations(analysis)
    assert (found.why, found.warm) == ("compiled", warm)
