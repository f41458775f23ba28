"""Pipelines of torch.distributed.pipelining: the plan of every rank compared with the same program over gloo."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.plans import pipeline_step
from perfscope.model.errors import PerfscopeError
from perfscope.model.trace import Trace
from perfscope.plugins.ahead.sweep.evaluate import evaluate_trace
from tests.plugins.ahead import distributed_programs
from tests.plugins.ahead.test_torch_processes import exchanged_in, planned, run_ranks

pytestmark = [pytest.mark.aot, pytest.mark.slow]

WORLD = 4
ACTIVATION = 4 * 256 * 4
"""Bytes of a micro-batch of 4 rows."""


def moved(trace: Trace) -> list[Counter[tuple[str, int]]]:
    """Sends and receives of each planned rank by bytes."""
    found = []
    for held in trace.torch_plans:
        assert held.plan.failure is None
        assert held.plan.not_covered == ()
        assert held.plan.processes is not None
        found.append(Counter((one.kind, one.bytes) for one in held.plan.processes.eager or ()))
    return found


def really_moved(steps: list[list[dict[str, Any]]]) -> Counter[tuple[str, int]]:
    first, *others = [exchanged_in(events, WORLD) for events in steps]
    assert others == [first] * len(others)
    return first


@pytest.mark.parametrize(("kind", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_every_rank_sends_what_it_sends_when_it_runs(tmp_path: Path, kind: str, chunks: int) -> None:
    text = distributed_programs.PIPELINE.replace("@KIND@", kind)
    trace = planned(tmp_path, text, f"h100x{WORLD}")
    measured = [really_moved(steps) for steps in run_ranks(tmp_path, text, WORLD, observed=range(WORLD))]
    assert moved(trace) == measured
    stages = [[rank + chunk * WORLD for chunk in range(chunks)] for rank in range(WORLD)]
    last = WORLD * chunks - 1
    for rank, sent in enumerate(measured):  # an activation forward and a gradient backward per micro-batch
        wanted = 8 * sum((stage < last) + (stage > 0) for stage in stages[rank])
        assert sent == {("send", ACTIVATION): wanted, ("recv", ACTIVATION): wanted}
    step = pipeline_step(trace)
    assert step is not None
    assert step.problem == ""
    assert step.step_ns is not None
    assert [list(one.stages) for one in step.rows] == stages
    assert step.slowest.rank == 1  # it has one block more
    assert all(one.waits_ns.low >= 0 and one.works_ns.low + one.waits_ns.low == step.step_ns.low for one in step.rows)
    variant = evaluate_trace(trace, (), {})
    assert (variant.state, variant.peak_bytes) == ("fits", max(one.peak_bytes or 0 for one in step.rows))
    assert (variant.step_low_ns, variant.step_high_ns) == (step.step_ns.low, step.step_ns.high)


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    text = distributed_programs.PIPELINE.replace("@KIND@", "1f1b").replace('os.environ.get("FAIL")', '"2"')
    with pytest.raises(PerfscopeError, match=r"rank 2 of the pipeline: ValueError at train\.py:\d+: this rank fails"):
        planned(tmp_path, text, f"h100x{WORLD}")
