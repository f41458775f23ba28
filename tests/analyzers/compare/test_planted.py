"""Real runs of the workloads: the cause comes first, with its line; the reverse is better; A/A is quiet."""

from __future__ import annotations

import itertools

import pytest

from perfscope.analyzers.compare.comparison import compare
from perfscope.analyzers.load import load
from tests.analyzers.compare.assertions import assert_silent, assert_sums
from tests.analyzers.compare.conftest import Recorded
from tests.analyzers.compare.planted import Planted, source_line

IN_TORCH = [
    Planted(base="sdpa", head="item", metric="reads by the host a step", line=".item()"),
    Planted(base="sdpa", head="naive", metric="ops a step", line="# defect: L * M scores"),
]
IN_TORCH_SLOW = [
    Planted(base="sdpa", head="adam-loop", metric="ops a step", line="optimizer.step"),
    Planted(base="sdpa", head="checkpoint", metric="recomputed ops a step", line="def forward(self, x_BLD"),
    Planted(base="reentrant", head="nested", metric="FLOPs a step", line="self.up("),
    Planted(base="order-twin", head="order", metric="FLOPs a step", line="# defect: a matrix of D * D"),
    Planted(base="opaque-twin", head="opaque", metric="kernels of compiled graphs", line="# defect: what stands"),
    Planted(base="float-arg-twin", head="float-arg", metric="recompilations", line="# defect: the rate"),
]
IN_JAX = [
    Planted(base="jax", head="jax-float", metric="reads by the host a step", line="float(loss)"),
]
IN_JAX_SLOW = [
    Planted(base="jax", head="jax-checkpoint", metric="recomputed FLOPs", line="@ weights", trades=True),
    Planted(base="jax-checkpoint", head="jax-nested", metric="recomputed FLOPs", line="@ weights"),
    Planted(base="jax-order-twin", head="jax-order", metric="FLOPs a run", line="# defect: D * D"),
    Planted(base="jax", head="jax-eager-update", metric="instructions run a step", line="unbiased"),
    Planted(base="jax", head="jax-retrace", metric="functions traced again", line="# defect: a static int"),
]

slow, jax = pytest.mark.slow, pytest.mark.jax
ALL = [
    *(pytest.param(one, id=str(one)) for one in IN_TORCH),
    *(pytest.param(one, id=str(one), marks=slow) for one in IN_TORCH_SLOW),
    *(pytest.param(one, id=str(one), marks=jax) for one in IN_JAX),
    *(pytest.param(one, id=str(one), marks=(slow, jax)) for one in IN_JAX_SLOW),
]


@pytest.mark.parametrize("planted", ALL)
def test_the_cause_comes_first(planted: Planted, run_of: Recorded) -> None:
    base, head = load(run_of(planted.base)), load(run_of(planted.head))
    found = compare(base, head)
    assert found.headline == "regression"
    worse = [one.result.name for one in found.exact if one.result.verdict == "regression"]
    assert any(name.startswith(planted.metric) for name in worse), worse
    assert found.causes[0].exact
    assert planted.line in source_line(found.causes[0].place), found.causes[0].place
    assert found.gates(["regression"]) != ()
    assert_sums(found)
    back = compare(head, base)
    better = [one.result.name for one in back.exact if one.result.verdict == "improvement"]
    assert any(name.startswith(planted.metric) for name in better), better
    assert back.causes[0].place == found.causes[0].place
    assert back.gates(["finding:low"]) == ()
    if not planted.trades:
        assert back.headline == "improvement"
        assert back.gates(["regression"]) == ()


@pytest.mark.parametrize(
    "names", [pytest.param(("sdpa", "sdpa-again"), id="torch"), pytest.param(("jax", "jax-again"), id="jax", marks=jax)]
)
def test_launches_of_one_program_are_quiet(names: tuple[str, ...], run_of: Recorded) -> None:
    for one, other in itertools.permutations([load(run_of(name)) for name in names], 2):
        found = compare(one, other)
        assert_silent(found)
        assert_sums(found)
