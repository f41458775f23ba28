"""A cause is listed before what its fix removes with it."""

from __future__ import annotations

import pytest

from perfscope.analyzers.consequences import FRAMEWORK_SUBJECT, causes_first
from perfscope.model.finding import Finding


def finding(subject: str) -> Finding:
    return Finding(subject=subject, title="", severity="low", basis="measured", advice="")


def order(*pairs: tuple[str, str]) -> list[str]:
    return [rule for rule, _ in causes_first([(rule, finding(of)) for rule, of in pairs], lambda pair: pair)]


@pytest.mark.parametrize("cause", ["recomputed_prefix", "single_requests", "repeated_reductions", "eager_fallback"])
def test_the_frameworks_own_work_comes_after_the_cause(cause: str) -> None:
    found = [("input_stall", "loader"), ("host_bound", FRAMEWORK_SUBJECT), ("peak_owner", "x"), (cause, "x")]
    assert order(*found) == ["input_stall", cause, "host_bound", "peak_owner"]


def test_work_of_the_program_is_no_consequence() -> None:
    found = [("host_bound", "host work"), ("recomputed_prefix", "x")]
    assert order(*found) == ["host_bound", "recomputed_prefix"]


def test_a_late_rank_comes_after_reductions_that_need_not_be() -> None:
    assert order(("straggler", "x"), ("repeated_reductions", "x")) == ["repeated_reductions", "straggler"]
    assert order(("straggler", "x"), ("recomputed_prefix", "x")) == ["straggler", "recomputed_prefix"]


def test_without_a_consequence_the_order_is_that_of_the_costs() -> None:
    assert order(("host_sync", "x"), ("single_requests", "x")) == ["host_sync", "single_requests"]
    assert order() == []
