"""Gates of an A/B: of its launches, and of what their profiled sisters say exactly."""

from __future__ import annotations

import pytest

from perfscope.analyzers.compare.ab_judge import AbResult
from perfscope.analyzers.compare.ab_profiles import Profiles
from perfscope.commands.ab_ending import gates_not_met, inconclusive
from perfscope.model.documents.ab import Pairs
from tests.compare.runs import gpu_run
from tests.compare.test_ab import CALIBRATION, JUDGE, pairs
from tests.dashboards.test_ab_document import QUIET, WORSE, profiles

ITEM = profiles(gpu_run(), gpu_run(item=True))
SAME = profiles(gpu_run(), gpu_run())
OPEN = JUDGE.result(Pairs(calibration=CALIBRATION, measured=pairs(10, spread=0.1), confirming=()))


@pytest.mark.parametrize(
    ("result", "found", "fail_on", "lines"),
    [
        (WORSE, SAME, ("regression",), ["step time: regression"]),
        (WORSE, ITEM, ("regression",), ["step time: regression", "host syncs a step: regression"]),
        (QUIET, ITEM, ("regression",), ["host syncs a step: regression"]),
        (QUIET, SAME, ("regression", "inconclusive", "finding:low"), []),
        (WORSE, Profiles(), ("regression", "finding:low"), ["step time: regression"]),
        (WORSE, ITEM, (), []),
        (OPEN, ITEM, ("inconclusive",), ["step time: inconclusive"]),
    ],
)
def test_what_fails_a_build(result: AbResult, found: Profiles, fail_on: tuple[str, ...], lines: list[str]) -> None:
    assert list(gates_not_met(result, found, fail_on)) == lines


def test_a_new_finding_fails_where_it_was_asked_for() -> None:
    assert any(": new, " in line for line in gates_not_met(QUIET, ITEM, ("finding:low",)))


def test_the_time_of_a_profiled_pair_was_not_meant_to_be_judged() -> None:
    assert ITEM.comparison is not None
    assert ITEM.comparison.inconclusive != (), "by itself it is not"
    assert list(inconclusive(QUIET, ITEM)) == []
    assert list(inconclusive(OPEN, Profiles())) == ["step time"]
