"""Real runs of the workloads: the cause comes first, with its line; the reverse is better; A/A is quiet."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.compare.runs.run_sets import read_set, runs_in
from perfscope.analyzers.compare.runs.sets import compare_sets
from perfscope.analyzers.readers.load import load_all
from tests.compare.conftest import Recorded
from tests.compare.planted import Planted, recorded_in_turns, source_line
from tests.compare.runs import assert_silent, assert_sums
from tests.conftest import REPOSITORY

FORWARD = "def forward(self, x_BLD"
"""Place of the recomputed block, which excess_remat names. Whether a second recompute makes it worse is a matter of
time too; if it is not beyond chance, the block's largest product comes first."""

IN_TORCH = [
    Planted(base="sdpa", head="item", metric="reads by the host per step", line=".item()"),
]
IN_TORCH_SLOW = [
    Planted(base="sdpa", head="naive", metric="ops per step", line="# defect: unfused_attention"),
    Planted(base="sdpa", head="adam-loop", metric="ops per step", line="optimizer.step"),
    Planted(base="sdpa", head="checkpoint", metric="recomputed ops per step", line=FORWARD),
    Planted(base="reentrant", head="nested", metric="FLOPs per step", line=(FORWARD, "self.up(")),
    Planted(base="order-twin", head="order", metric="FLOPs per step", line="# defect: none: a matrix of D * D"),
    Planted(base="opaque-twin", head="opaque", metric="kernels of compiled graphs", line="# defect: none: what stands"),
    Planted(base="float-arg-twin", head="float-arg", metric="recompilations", line="# defect: recompilation: the rate"),
]
IN_JAX = [
    Planted(base="jax", head="jax-float", metric="reads by the host per step", line="float(loss)"),
]
IN_JAX_SLOW = [
    Planted(base="jax", head="jax-checkpoint", metric="recomputed FLOPs", line="@ weights", trades=True),
    Planted(base="jax-checkpoint", head="jax-nested", metric="recomputed FLOPs", line="@ weights"),
    Planted(
        base="jax-order-twin",
        head="jax-order",
        metric="FLOPs per run",
        line="# defect: none: D * D",
        twin="(x_BLD @ weights",
    ),
    Planted(base="jax", head="jax-eager-update", metric="instructions run per step", line="unbiased"),
    Planted(
        base="jax", head="jax-retrace", metric="functions traced again", line="# defect: recompilation: a static int"
    ),
]

slow, jax = pytest.mark.slow, pytest.mark.jax
ALL = [
    *(pytest.param(one, id=str(one)) for one in IN_TORCH),
    *(pytest.param(one, id=str(one), marks=slow) for one in IN_TORCH_SLOW),
    *(pytest.param(one, id=str(one), marks=jax) for one in IN_JAX),
    *(pytest.param(one, id=str(one), marks=(slow, jax)) for one in IN_JAX_SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize("planted", ALL)
def test_the_cause_comes_first(planted: Planted, run_of: Recorded) -> None:
    base, head = load_all(run_of(planted.base)), load_all(run_of(planted.head))
    found = compare(base, head)
    assert found.headline == "regression"
    worse = [one.result.name for one in found.exact if one.result.verdict == "regression"]
    assert any(name.startswith(planted.metric) for name in worse), worse
    assert found.causes[0].exact
    assert planted.is_at(source_line(found.causes[0].place)), found.causes[0].place
    assert found.gates(["regression"]) != ()
    assert_sums(found)
    back = compare(head, base)
    better = [one.result.name for one in back.exact if one.result.verdict == "improvement"]
    assert any(name.startswith(planted.metric) for name in better), better
    assert back.causes[0].place == found.causes[0].place or planted.is_twin(source_line(back.causes[0].place))
    assert back.gates(["finding:low"]) == ()
    if not planted.trades:
        assert back.headline == "improvement"
        assert back.gates(["regression"]) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("sdpa", "sdpa-again"), id="torch", marks=slow),
        pytest.param(("jax", "jax-again"), id="jax", marks=jax),
    ],
)
def test_launches_of_one_program_are_quiet(names: tuple[str, ...], run_of: Recorded) -> None:
    for one, other in itertools.permutations([load_all(run_of(name)) for name in names], 2):
        found = compare(one, other)
        assert_silent(found)
        assert_sums(found)


@slow
@pytest.mark.torch
def test_a_slower_kernel_is_told_by_several_launches(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folders = recorded_in_turns(tmp_path)
    for folder in folders:
        for one, other in itertools.permutations([load_all(run) for run in (runs_in(folder) or ())[:3]], 2):
            assert_silent(compare(one, other))
    sides = [read_set(str(folder), runs_in(folder) or ()) for folder in folders]
    found = compare_sets(*sides)
    assert found.turns.interleaved
    assert len(found.turns.pairs) == 6
    if found.kernels[0].verdict == "inconclusive":
        pytest.skip("six launches a side tell nothing of times here: other programs used the machine")
    assert "Positions" in enclosing(found.comparison.causes[0].place)
    assert found.kernels[0].name.startswith("aten::add at ")
    assert (found.kernels[0].name.partition(" at ")[2], found.kernels[0].verdict) == (
        found.comparison.causes[0].place,
        "regression",
    )
    assert not any(cause.exact for cause in found.comparison.causes)
    assert {one.result.verdict for one in found.comparison.exact} == {"no change"}
    assert_sums(found.comparison)
    back = compare_sets(sides[1], sides[0])
    assert (back.kernels[0].name, back.kernels[0].verdict) == (found.kernels[0].name, "improvement")
    assert back.comparison.causes[0].place == found.comparison.causes[0].place


@slow
def test_a_slower_kernel_of_one_launch_each_is_shown_and_never_judged(run_of: Recorded) -> None:
    """``layout`` is one op on one line on both sides; its time differs, and no count does."""
    found = compare(load_all(run_of("layout-twin")), load_all(run_of("layout")))
    assert found.headline == "no change"
    assert not any(cause.exact for cause in found.causes)
    assert found.gates(["regression", "finding:low"]) == ()
    assert found.time is not None
    (added,) = [
        part
        for part in found.time.median.parts
        if part.key().op == "aten::add" and part.key().file.endswith("kernel_defects.py") and not part.key().phase
    ]
    # the time of one launch is meaningless on a busy machine: `..._by_several_launches` is the proof
    assert added.status in ("slower", "faster", "same")
    assert added.base.calls == added.head.calls


def enclosing(place: str) -> str:
    """The last class of the file that begins above a line."""
    file, _, line = place.rpartition(":")
    lines = (REPOSITORY / file).read_text().splitlines()[: int(line)]
    return [text for text in lines if text.startswith("class ")][-1]
