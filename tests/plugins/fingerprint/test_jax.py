"""Fingerprints of JAX programs: hashes, and planted causes of divergence in a program that really runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from perfscope.plugins.fingerprint.compare import compare_runs
from tests.plugins.fingerprint.conftest import HERE, Runs
from tests.plugins.fingerprint.test_planted import LineOf, first_of, placed

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax
PROGRAM = str(HERE / "planted_jax.py")


def hashed(value: Any) -> Any:
    from perfscope.plugins.fingerprint.jax.measure import measure, row_of

    return row_of(np.asarray(jax.jit(measure)(value)), floating=np.issubdtype(np.asarray(value).dtype, np.floating))


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "complex64", "int8"])
def test_a_hash_is_of_the_elements_in_order(dtype: str) -> None:
    value = jax.random.normal(jax.random.key(0), (6, 5)) * 3
    value = value > 0 if dtype == "bool" else value.astype(dtype)
    whole, row, _ = hashed(value)
    assert hashed(value.reshape(30))[0] == whole
    assert hashed(value[0])[0] == row
    assert hashed(value.T)[0] != whole
    changed = value.at[3, 2].set((value[3, 2] == 0).astype(dtype))
    assert hashed(changed)[0] != whole


def test_the_sketch_of_an_array() -> None:
    value = jax.random.normal(jax.random.key(1), (1003,))
    sketch = hashed(value)[2]
    assert sketch[:2] == pytest.approx([float(value.sum()), float(abs(value).max())], rel=1e-4)
    other = hashed(value.at[7].add(0.5))[2]
    assert sum((one - two) ** 2 for one, two in zip(sketch[2:], other[2:], strict=True)) == pytest.approx(
        0.25, rel=1e-3
    )


@pytest.mark.slow
def test_equal_runs_are_equal_and_results_are_those_of_a_plain_run(runs: Runs) -> None:
    a, b = runs(PROGRAM, "base"), runs(PROGRAM, "base", "again")
    document = compare_runs(a, b)
    assert (document.verdict, document.notes) == ("same", ())
    assert document.counts.ops > 150
    plain = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=True)
    assert (a / "stdout.txt").read_text() == plain.stdout


@pytest.mark.slow
def test_another_op_in_the_body_of_a_scan(runs: Runs, line_of: LineOf) -> None:
    first = first_of(compare_runs(runs(PROGRAM, "base"), runs(PROGRAM, "scale")))
    assert (first.cause, first.step_a) == ("control flow", 0)
    assert first.b is not None
    assert (first.b.op, first.b.line.rpartition("/")[2]) == ("mul", line_of("planted_jax.py", "scale"))


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "step"), [("weights", 0), ("seed", 1), ("order", 1)])
def test_arguments_of_a_step(runs: Runs, line_of: LineOf, cause: str, step: int) -> None:
    first = first_of(compare_runs(runs(PROGRAM, "base"), runs(PROGRAM, cause)))
    expected = {"seed": "random"}.get(cause, cause)
    assert (first.cause, first.step_a) == (expected, step)
    assert placed(first) == ("<call>", line_of("planted_jax.py", "step"))
    assert first.same_as_step == (2 if cause == "order" else None)


@pytest.mark.slow
def test_another_formula_of_a_library(runs: Runs, line_of: LineOf) -> None:
    first = first_of(compare_runs(runs(PROGRAM, "base"), runs(PROGRAM, "upgrade")))
    assert (first.cause, placed(first)[1]) == ("control flow", line_of("planted_jax.py", "library"))
