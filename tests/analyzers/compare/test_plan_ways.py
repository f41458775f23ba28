"""Plans that were made in different ways are not held against each other as if the program had changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.compare.comparison import Comparison, compare
from perfscope.analyzers.compare.program_units import PLAN_LAUNCHES
from perfscope.analyzers.torch_plan import way_in_words
from tests.analyzers.plan_parts import graph, kernel, plan, product, trace_of

ASKED = ("programs", "regression", "finding:low", "inconclusive")


def compared(folder: Path, *ways: str) -> Comparison:
    """A plan of two launches against one of four, which moves more bytes."""
    sides = [graph(kernel(), product()), graph(kernel(), kernel("triton_poi_fused_mul_1"), kernel(), product())]
    first, last = (
        [trace_of(folder / str(at), plan(held, way=way))]
        for at, (held, way) in enumerate(zip(sides, ways, strict=True))
    )
    return compare(first, last)


@pytest.mark.parametrize("way", ["cpu-triton", "pretended-device"])
def test_one_way_is_judged(tmp_path: Path, way: str) -> None:
    found = compared(tmp_path, way, way)
    assert found.headline == "regression"
    assert found.gates(("programs",))
    assert not any("different ways" in note for note in found.notes)
    assert found.programs[0].modelled_ns is not None


@pytest.mark.parametrize("ways", [("cpu-triton", "pretended-device"), ("pretended-device", "cpu-triton")])
def test_two_ways_are_named_and_not_judged(tmp_path: Path, ways: tuple[str, str]) -> None:
    found = compared(tmp_path, *ways)
    (note,) = (note for note in found.notes if "planned in different ways" in note)
    assert f"base {way_in_words(ways[0])} and head {way_in_words(ways[1])}" in note
    assert found.headline == "inconclusive"
    assert found.gates(ASKED) == ()
    assert found.programs[0].modelled_ns is None
    launches = next(one for one in found.exact if one.result.name == PLAN_LAUNCHES)
    assert launches.result.verdict == "inconclusive"
    assert (launches.result.base, launches.result.head) == (2, 4)
    assert "planned in different ways" in launches.result.remarks
