"""Loops that hand the whole text to the model for each token, and those that do not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.time.model_calls import growing
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

outcome = judged_by("recomputed_prefix")
ON_HOST = EVERYTHING - {"device_work", "launch_links", "runtime_calls", "waiting_calls"}


def generated(tokens: list[tuple[int, int] | None], *, backward: bool = False) -> Trace:
    """Two profiled steps of 100 us of ops, and steps without a profiler with these tokens."""
    t = TraceBuilder(recorded=ON_HOST, step_times_us=(100,) * len(tokens))
    for step in range(2):
        t.step(step, step * 100, step * 100 + 100)
        t.op("aten::addmm", step * 100, step * 100 + 100)
    if backward:
        t.op("autograd::engine::evaluate_function: AddmmBackward0", 150, 160)
    return replace(t.build(), step_tokens=tuple(tokens))


def test_a_text_that_grows_by_one_token_per_call_is_flagged() -> None:
    (finding,) = outcome(generated([(4, length) for length in range(20, 31)])).findings
    assert "20 to 30" in finding.title
    assert finding.basis == "modelled"
    assert finding.cost_ns_per_step == pytest.approx(100_000 * (1 - 1 / 25))
    assert "use_cache=True" in finding.advice


def test_fewer_calls_than_the_threshold_are_clean() -> None:
    assert outcome(generated([(1, 9), (1, 10), (1, 11)])).status == "clean"
    assert outcome(generated([(1, 9), (1, 10), (1, 11), (1, 12)])).status == "flagged"


@pytest.mark.parametrize(
    "tokens",
    [
        [(8, 64), *[(8, 1)] * 9],
        [(8, 64)] * 10,
        [(8, length) for length in (17, 31, 12, 25, 40, 8)],
        [(length, 64) for length in range(1, 10)],
    ],
    ids=["one token per call", "equal batches", "batches of any length", "batches that grow"],
)
def test_other_loops_are_clean(tokens: list[tuple[int, int] | None]) -> None:
    assert outcome(generated(tokens)).status == "clean"


def test_training_on_longer_and_longer_texts_is_clean() -> None:
    assert outcome(generated([(4, length) for length in range(20, 31)], backward=True)).status == "clean"


def test_without_known_tokens_it_abstains() -> None:
    found = outcome(generated([None, None]))
    assert found.status == "abstained"
    assert "tokens" in (found.reason or "")


def test_the_longest_row_counts() -> None:
    assert growing([(2, 5), (2, 6), None, (2, 9), (2, 10), (2, 11)]) == [9, 10, 11]
