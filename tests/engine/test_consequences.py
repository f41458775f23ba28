"""A cause is listed before what its fix removes with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.consequences import FRAMEWORK_SUBJECT, causes_first
from perfscope.model.finding import Finding


def finding(subject: str, cost_ns: int | None = None) -> Finding:
    return Finding(subject=subject, title="", severity="low", basis="measured", advice="", cost_ns=cost_ns)


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


@pytest.mark.parametrize("cause", ["expert_imbalance", "link_contention", "nvlink_stall", "small_collectives"])
@pytest.mark.parametrize(("cost_ns", "first"), [(50, True), (49, False)])
def test_the_cause_of_slow_transfers_is_first_if_it_is_half_of_what_is_exposed(
    cause: str, cost_ns: int, first: bool
) -> None:
    found = [("exposed_communication", finding("all_reduce", 100)), (cause, finding("x", cost_ns))]
    assert next(rule for rule, _ in causes_first(found, lambda pair: pair)) == (cause if first else found[0][0])


def test_slow_links_add_no_work_of_the_framework() -> None:
    assert order(("host_bound", FRAMEWORK_SUBJECT), ("nvlink_stall", "x")) == ["host_bound", "nvlink_stall"]


@pytest.mark.parametrize("cause", ["expert_imbalance", "context_parallel_imbalance"])
def test_a_late_rank_comes_after_its_uneven_work(cause: str) -> None:
    assert order(("straggler", "x"), (cause, "x")) == [cause, "straggler"]


def test_what_soon_ends_the_run_comes_before_small_savings() -> None:
    large, small, leak = finding("x", 100), finding("y", 10), finding("z")
    large, leak = (replace(one, severity="high") for one in (large, leak))
    found = [("launch_bound", large), ("unfused_ops", small), ("peak_owner", small), ("memory_leak", leak)]
    assert [rule for rule, _ in causes_first(found, lambda pair: pair)] == [
        "launch_bound", "memory_leak", "unfused_ops", "peak_owner",
    ]  # fmt: skip
    assert order(("unfused_ops", "x"), ("memory_leak", "x")) == ["unfused_ops", "memory_leak"], "of low severity"
