"""Planted causes of divergence, in programs that really run: each is named at its op and line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfscope.plugins.fingerprint.compare import compare_runs
from perfscope.plugins.fingerprint.result import Difference, FirstDifference
from tests.plugins.fingerprint.conftest import HERE, Runs

pytest.importorskip("torch")
LineOf = Callable[[str, str], str]
slow = pytest.mark.slow
RANKS = str(HERE / "planted_ranks.py")
INFERENCE = str(HERE / "planted_inference.py")


def first_of(document: FirstDifference) -> Difference:
    assert document.first is not None
    return document.first


def placed(difference: Difference) -> tuple[str, str]:
    """Op and line of A."""
    assert difference.a is not None
    return difference.a.op, difference.a.line.rpartition("/")[2]


def test_equal_runs_are_equal_and_results_are_those_of_a_plain_run(runs: Runs) -> None:
    a, b = runs.planted("base"), runs.planted("base", number=1)
    document = compare_runs(a, b)
    assert (document.verdict, document.settings, document.notes) == ("same", (), ())
    assert document.counts.ops > 200
    plain = subprocess.run([sys.executable, HERE / "planted.py"], capture_output=True, text=True, check=True)
    assert (a / "stdout.txt").read_text() == plain.stdout
    assert len(plain.stdout.split()) == 4


def test_a_dropout_seed(runs: Runs, line_of: LineOf) -> None:
    first = first_of(compare_runs(runs.planted("base"), runs.planted("seed")))
    assert (first.cause, first.step_a) == ("random", 1)
    assert placed(first) == ("bernoulli_", line_of("planted.py", "dropout"))


def test_another_formula_in_a_library(runs: Runs, line_of: LineOf) -> None:
    first = first_of(compare_runs(runs.planted("base"), runs.planted("upgrade")))
    assert (first.cause, first.step_a) == ("arguments", 0)
    assert placed(first) == ("gelu", line_of("planted.py", "library"))
    assert first.b is not None
    assert "tanh" in first.b.arguments


@slow
def test_another_default_in_a_module(runs: Runs, line_of: LineOf) -> None:
    first = first_of(compare_runs(runs.planted("base"), runs.planted("epsilon")))
    assert (first.cause, *placed(first)) == ("arguments", "native_layer_norm", line_of("planted.py", "norm"))


@pytest.mark.slow
def test_threads_change_a_sum(runs: Runs, line_of: LineOf) -> None:
    a, b = runs.planted("base"), runs.planted("threads")
    document = compare_runs(a, b)
    if (a / "stdout.txt").read_text() == (b / "stdout.txt").read_text() and document.first is None:
        pytest.skip("this processor sums in the same order with two threads")
    first = first_of(document)
    assert (first.cause, *placed(first)) == ("op", "sum", line_of("planted.py", "loss"))
    assert [(setting.name, setting.a, setting.b) for setting in document.settings] == [("threads", "1", "2")]
    assert first.values[0].error is not None
    assert 0 < first.values[0].error < 1e-4
    within = compare_runs(a, b, tolerance="rounding")
    assert within.verdict == "same"
    assert within.counts.unequal > 0


@slow
def test_rounding_does_not_explain_another_formula(runs: Runs, line_of: LineOf) -> None:
    first = first_of(compare_runs(runs.planted("base"), runs.planted("upgrade"), tolerance="rounding"))
    assert placed(first) == ("gelu", line_of("planted.py", "library"))


@slow
def test_a_branch(runs: Runs, line_of: LineOf) -> None:
    first = first_of(compare_runs(runs.planted("base"), runs.planted("branch")))
    assert (first.cause, first.step_a) == ("control flow", 1)
    assert first.b is not None
    assert (first.b.op, first.b.line.rpartition("/")[2]) == ("mul", line_of("planted.py", "branch"))


@slow
def test_data_in_another_order(runs: Runs) -> None:
    first = first_of(compare_runs(runs.planted("base"), runs.planted("order")))
    assert (first.cause, first.step_a, first.same_as_step) == ("order", 1, 2)


@slow
def test_memory_that_nothing_wrote_is_no_difference(runs: Runs) -> None:
    assert compare_runs(runs.planted("scratch"), runs.planted("scratch", number=1)).verdict == "same"


RESUMED = [
    ("resume-random", "random", "bernoulli_", "dropout"),
    ("resume-optimizer", "optimizer state", "<optimizer>", "optimizer"),
    ("resume-position", "order", "<call>", "loss"),
]


@slow
@pytest.mark.parametrize(("cause", "expected", "op", "mark"), RESUMED)
def test_a_resumed_run_that_is_not_the_same(
    runs: Runs, line_of: LineOf, cause: str, expected: str, op: str, mark: str
) -> None:
    a, b = runs.planted("save"), runs.planted(cause)
    document = compare_runs(a, b)
    first = first_of(document)
    assert (document.shift, first.step_a, first.step_b) == (2, 2, 0)
    assert (first.cause, *placed(first)) == (expected, op, line_of("planted.py", mark))


@slow
def test_a_resumed_run_that_is_the_same(runs: Runs) -> None:
    document = compare_runs(runs.planted("save"), runs.planted("resume"))
    assert (document.verdict, document.shift, document.counts.steps) == ("same", 2, 2)
    assert document.counts.ops > 50


@slow
def test_accumulated_gradients_against_a_large_batch(runs: Runs, line_of: LineOf) -> None:
    large, right, wrong = (runs.planted(cause) for cause in ("large", "accumulate", "accumulate-sum"))
    same = compare_runs(large, right, tolerance="rounding")
    assert (same.verdict, same.mode) == ("same", "gradients")
    assert same.counts.unequal > 0
    first = first_of(compare_runs(large, wrong, tolerance="rounding"))
    assert (first.cause, *placed(first)) == ("gradients", "<optimizer>", line_of("planted.py", "optimizer"))
    factors = [row.factor for row in first.values]
    assert factors
    assert all(factor == pytest.approx(4, rel=1e-3) for factor in factors)


@slow
def test_one_rank_against_two(runs: Runs) -> None:
    one, two, wrong = (runs(RANKS, "one"), ranks(runs, "two"), ranks(runs, "sum"))
    same = compare_runs(one, two, tolerance="rounding")
    assert (same.verdict, same.mode, same.b.ranks) == ("same", "gradients", 2)
    first = first_of(compare_runs(one, wrong, tolerance="rounding"))
    assert (first.cause, first.step_a) == ("gradients", 0)
    assert all(row.factor == pytest.approx(2, rel=1e-3) for row in first.values)
    done = runs.perfscope("parity", str(one), str(two))
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "1 and of 2 ranks" in done.stderr


def ranks(runs: Runs, cause: str) -> Path:
    torchrun = ("torchrun", "--standalone", "--nproc-per-node=2")
    return runs(*torchrun, RANKS, cause)


@slow
def test_a_flipped_bit_is_on_the_rank_that_has_it(runs: Runs, line_of: LineOf) -> None:
    document = compare_runs(ranks(runs, "two"), ranks(runs, "flip"))
    first = first_of(document)
    assert (first.rank_b, first.step_a, first.cause) == (1, 1, "op")
    assert placed(first) == ("tanh", line_of("planted_ranks.py", "tanh"))
    (other,) = (item for item in document.ranks if item.rank_b == 0)
    assert (other.cause, *placed(other)) == ("collective", "c10d.allreduce_", line_of("planted_ranks.py", "all-reduce"))


@slow
def test_a_row_that_depends_on_its_batch(runs: Runs, line_of: LineOf) -> None:
    one, eight = runs(INFERENCE, "1"), runs(INFERENCE, "8")
    if (one / "stdout.txt").read_text() == (eight / "stdout.txt").read_text():
        pytest.skip("products of one row and of eight have the same bits on this processor")
    document = compare_runs(one, eight)
    first = first_of(document)
    assert (document.mode, first.cause) == ("first rows", "op")
    assert placed(first) == ("linear", line_of("planted_inference.py", "call"))
    assert first.values[0].shape_b[0] == 8 * first.values[0].shape_a[0]
