"""Prompts and rows that are computed one by one, and loops that have no more at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.rules import judged_by

outcome = judged_by("single_requests")
PROMPT = [(1, 32), *[(1, 1)] * 9]


def called(tokens: list[tuple[int, int]], *, rows: int | None = None, calls: int = 20, backward: bool = False) -> Trace:
    """Steps without a profiler with these tokens; ``rows``: of the products of a model without an embedding."""
    g = GraphBuilder()
    if rows is not None:
        g.op("linear", [g.input((rows, 64)), g.input((64, 64), parameter=True)], (rows, 64), line=7)
    t = TraceBuilder(recorded=EVERYTHING - {"device_work"}, step_times_us=(100,) * (len(tokens) or calls),
                     op_graph=None if rows is None else g.graph())  # fmt: skip
    t.step(0, 0, 100)
    t.op("aten::linear", 0, 100)
    if backward:
        t.op("autograd::engine::evaluate_function: AddmmBackward0", 10, 20)
    return replace(t.build(), step_tokens=tuple(tokens))


def test_prompts_of_one_sequence_after_each_other_are_flagged() -> None:
    (finding,) = outcome(called(PROMPT * 3)).findings
    assert finding.title.startswith("3 prompts")
    assert finding.untraced_ns_per_step == round(100_000 * (1 - 1 / 3))
    assert "padding=True" in finding.advice


def test_one_prompt_is_clean() -> None:
    assert outcome(called(PROMPT)).status == "clean"
    assert outcome(called(PROMPT * 2)).status == "flagged"


@pytest.mark.parametrize(
    "trace",
    [
        called([(8, 32), *[(8, 1)] * 9] * 3),
        called([], rows=64),
        called([], rows=1, calls=7),
        called([], rows=1, backward=True),
    ],
    ids=["batches", "many rows per call", "few calls", "training"],
)
def test_other_loops_are_clean(trace: Trace) -> None:
    assert outcome(trace).status == "clean"


def test_calls_of_one_row_are_named_without_a_time() -> None:
    (finding,) = outcome(called([], rows=1)).findings
    assert finding.cost_ns is None
    assert (finding.where.file, finding.where.line) == ("model.py", 7)


def policy(calls: int, *, rows: int = 1, read: str | None = "item") -> Trace:
    """A training step that calls a policy ``calls`` times and reads each answer."""
    g = GraphBuilder()
    weight = g.input((64, 64), parameter=True)
    for _ in range(calls):
        answer = g.op("linear", [g.input((rows, 64)), weight], (rows, 64), line=7)
        g.op("_local_scalar_dense", [answer], (), line=8, host_read=read)
    g.op("mm", [weight, weight], phase="backward")
    t = TraceBuilder(recorded=EVERYTHING - {"device_work"}, op_graph=g.graph())
    t.step(0, 0, 100)
    t.op("autograd::engine::evaluate_function: AddmmBackward0", 10, 20)
    return t.build()


def test_a_policy_that_answers_one_observation_at_a_time_is_flagged() -> None:
    (finding,) = outcome(policy(8)).findings
    assert finding.title == "the model computes one row per call, 8 calls per step"
    assert (finding.where.file, finding.where.line, finding.cost_ns) == ("model.py", 7, None)
    assert "side by side" in finding.advice


@pytest.mark.parametrize(
    "trace",
    [policy(7), policy(8, rows=2), policy(8, read=None), policy(8, read="check")],
    ids=["few calls", "several rows", "no answers", "only checks of arguments"],
)
def test_other_calls_in_training_are_clean(trace: Trace) -> None:
    assert outcome(trace).status == "clean"


def test_reads_of_a_policys_answers_are_not_a_finding() -> None:
    reads = judged_by("host_sync")
    assert [finding.where.line for finding in reads(policy(8)).findings] == []
    assert [finding.where.line for finding in reads(policy(7)).findings] == [8]


def test_without_tokens_and_graph_it_abstains() -> None:
    assert outcome(called([])).status == "abstained"
