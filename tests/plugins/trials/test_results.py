"""Values of two launches: the same, different, or not compared."""

from __future__ import annotations

import math

import pytest

from perfscope.plugins.trials.process_report import ProcessTrial, RecordedValue
from perfscope.plugins.trials.results import TOLERANCES, compare_results, error_between, tolerance_of
from tests.plugins.trials.launches import report, value


def test_equal_values_are_the_same() -> None:
    results = compare_results([report(3.0, 2.0)], [report(3.0, 2.0)])
    assert (results.state, results.compared, results.steps, results.largest_error) == ("same", 2, 2, 0.0)


@pytest.mark.parametrize(("factor", "state"), [(0.9, "same"), (1.1, "different")])
def test_the_tolerance_is_that_of_the_dtype(factor: float, state: str) -> None:
    changed = 2.0 * (1 + factor * TOLERANCES["float32"])
    assert compare_results([report(2.0)], [report(changed)]).state == state


def test_it_grows_with_the_step() -> None:
    error = 2.5 * TOLERANCES["float32"]
    assert compare_results([report(2.0, 2.0, 2.0)], [report(2.0, 2.0, 2.0 * (1 + error))]).state == "same"
    different = compare_results([report(2.0, 2.0, 2.0)], [report(2.0, 2.0 * (1 + error), 2.0)])
    assert (different.state, different.first_step, different.what) == ("different", 1, "loss")
    assert different.largest_error == pytest.approx(error, rel=1e-6)


def test_a_wider_tolerance_of_the_user_takes_its_place() -> None:
    assert compare_results([report(2.0)], [report(2.1)]).state == "different"
    assert compare_results([report(2.0)], [report(2.1)], widened=0.1).state == "same"
    assert tolerance_of("float32", 1, 0.1) == pytest.approx(0.2)


def test_whole_numbers_must_be_equal() -> None:
    counts = [ProcessTrial(values=(value(number, dtype="int32"),)) for number in (7, 8)]
    assert compare_results(counts[:1], counts[1:]).state == "different"


def test_the_first_value_that_differs_is_named() -> None:
    base = ProcessTrial(
        values=(value(1.0, kind="gradients", name="SGD"), value(1.0, kind="output", name="Model"), value(1.0))
    )
    other = ProcessTrial(values=tuple(value(2.0, kind=one.kind, name=one.name) for one in base.values))
    results = compare_results([base], [other])
    assert results.what == "output of Model", "a step computes it before the loss and the gradients"


def test_values_that_became_infinite_differ() -> None:
    assert error_between(value(1.0), value(0.0, nonfinite=1)) == math.inf
    results = compare_results([report(1.0)], [ProcessTrial(values=(value(0.0, nonfinite=1),))])
    assert (results.state, results.largest_error) == ("different", None)


def test_equal_norms_hide_no_other_elements() -> None:
    base = value(0.0, size=2, norm=1.0, sample=(1.0, 0.0))
    assert error_between(base, value(0.0, size=2, norm=1.0, sample=(0.0, 1.0))) == pytest.approx(math.sqrt(2))


def test_what_cannot_be_compared_is_not_the_same() -> None:
    nothing = compare_results([report(1.0)], [report()])
    assert nothing.state == "not compared"
    assert "recorded in one launch only: loss" in nothing.reason
    assert compare_results([], []).state == "not compared"


def test_what_one_launch_alone_recorded_is_said() -> None:
    more = ProcessTrial(values=(*report(1.0).values, value(1.0, kind="output", name="Model")))
    results = compare_results([more], [report(1.0)])
    assert (results.state, results.reason) == ("same", "recorded in one launch only: output of Model")


def test_ranks_are_held_against_the_same_rank() -> None:
    ranks = [ProcessTrial(rank=rank, values=(value(float(rank + 1)),)) for rank in (0, 1)]
    assert compare_results(ranks, ranks[::-1]).state == "same"


def layer(name: str, number: float) -> RecordedValue:
    return value(number, kind="output", name=name)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([("first", 1.0), ("second", 2.0)], "second"),
        ([("first", 1.0), ("second", 1.0)], ""),
        ([("first", 2.0), ("other", 2.0)], ""),
    ],
)
def test_the_first_layer_that_differs_is_named(layers: list[tuple[str, float]], named: str) -> None:
    base = ProcessTrial(
        values=(value(1.0, kind="output", name="Model"),), layers=(layer("first", 1.0), layer("second", 1.0))
    )
    other = ProcessTrial(
        values=(value(2.0, kind="output", name="Model"),), layers=tuple(layer(*pair) for pair in layers)
    )
    results = compare_results([base], [other])
    assert (results.state, results.layer) == ("different", named)
    assert results.reason.endswith(f", first in module {named}" if named else "at step 0")


def test_of_gradients_that_of_the_parameter_that_differs_most_is_named() -> None:
    base = value(3.0, kind="gradients", name="SGD", size=9, sample=(2.0, 2.0, 1.0), parts=("a", "b", "c"))
    other = value(3.5, kind="gradients", name="SGD", size=9, sample=(2.0, 2.2, 1.3), parts=("a", "b", "c"))
    results = compare_results([ProcessTrial(values=(base,))], [ProcessTrial(values=(other,))])
    assert (results.what, results.layer) == ("gradients of SGD", "c")
    assert results.reason.endswith(", most in c")
