"""What must hold of every comparison, and of one of a program with itself."""

from __future__ import annotations

from perfscope.analyzers.compare.comparison import Comparison


def assert_sums(found: Comparison) -> None:
    """The parts of the step sum to it, on both sides and in their differences."""
    assert found.time is not None
    for step in filter(None, (found.time.median, found.time.worst)):
        step.check()
        assert sum(part.delta_ns for part in step.parts) == step.head_ns - step.base_ns
        assert sum(head for _, head in step.by_kind().values()) == step.head_ns
        assert all(part.count_ns + part.each_ns == part.delta_ns for part in step.parts)


def assert_silent(found: Comparison) -> None:
    """Nothing that can be counted changed, and no gate of it fails; a finding may come or go by its time alone."""
    assert {one.result.verdict for one in found.exact} <= {"no change"}
    assert not any(cause.exact for cause in found.causes)
    assert not any(one.is_worse for one in found.findings)
    assert found.headline == "no change"
    assert found.gates(["regression", "finding:low"]) == ()


def assert_quiet(found: Comparison) -> None:
    """As ``assert_silent``, and every finding is the same: both sides are one recording."""
    assert_silent(found)
    assert {one.change for one in found.findings} <= {"unchanged"}
