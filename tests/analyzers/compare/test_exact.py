"""Metrics without chance."""

from __future__ import annotations

import pytest

from perfscope.analyzers.compare.exact import compare_exact, compare_text

GIB = 1 << 30


@pytest.mark.parametrize(
    ("base", "head", "unit", "verdict"),
    [
        (3, 3, "count", "no change"),
        (3, 4, "count", "regression"),
        (4, 3, "count", "improvement"),
        (0, 2, "count", "regression"),
        (1 / 60, 59 / 60, "count", "regression"),  # in every step but one that the recording cut
        (0, 2 / 3, "count", "no change"),  # in two of the three steps that were recorded
        (10 * GIB, 10 * GIB + (1 << 20), "bytes", "no change"),
        (10 * GIB, 10 * GIB + (11 << 20), "bytes", "regression"),
        (1 << 20, 3 << 20, "bytes", "regression"),
        (1 << 20, (1 << 20) + 4096, "bytes", "no change"),
        (10**12, 10**12 + 10**8, "FLOP", "no change"),
        (10**12, 10**12 - 10**10, "FLOP", "improvement"),
    ],
)
def test_one_value_on_each_side_is_enough(base: int, head: int, unit: str, verdict: str) -> None:
    found = compare_exact("metric", [base], [head], unit=unit)
    assert (found.verdict, found.known, found.p, found.gates) == (verdict, "exact", None, True)


def test_more_may_be_better() -> None:
    assert compare_exact("fusions", [5], [4], unit="count", better="higher").verdict == "regression"


def test_launches_that_disagree_among_themselves_must_lie_apart() -> None:
    overlapping = compare_exact("syncs", [3, 5], [4, 6], unit="count")
    assert overlapping.verdict == "inconclusive"
    assert "differs between launches of base: 3 to 5" in overlapping.remarks
    assert compare_exact("syncs", [3, 5], [6, 9], unit="count").verdict == "regression"
    assert compare_exact("syncs", [6, 9], [3, 5], unit="count").verdict == "improvement"


def test_from_none_there_is_no_share() -> None:
    found = compare_exact("graph breaks", [0], [3], unit="count")
    assert found.effect is None
    assert "from none to 3" in found.remarks
    assert compare_exact("graph breaks", [0], [0], unit="count").effect == 0


def test_what_was_not_recorded_is_inconclusive() -> None:
    found = compare_exact("peak", [], [float("nan")], unit="bytes")
    assert (found.verdict, found.remarks) == ("inconclusive", ("not recorded in base and head",))
    with pytest.raises(ValueError):
        compare_exact("peak", [1], [1], unit="parsec")


def test_fingerprints() -> None:
    assert compare_text("HLO", "a1", "a1").verdict == "no change"
    assert compare_text("HLO", "a1", "b2").verdict == "inconclusive"
    assert compare_text("HLO", None, "b2").remarks == ("not recorded in both",)
