"""The program of `make demo`: both loops compute the same, and only one of them has the defects."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    import torch

    from perfscope.workloads import demo as module

    monkeypatch.setattr(module, "WORDS", 3_000)
    yield module
    torch._dynamo.reset()


def losses(demo: object, *, twin: bool, steps: int) -> list[float]:
    loop = demo.Loop(twin=twin)  # type: ignore[attr-defined]
    for _ in range(steps):
        loop.step()
    return [float(loss) for loss in loop.losses]


def test_the_twin_computes_the_same(demo: object) -> None:
    assert losses(demo, twin=True, steps=4) == pytest.approx(losses(demo, twin=False, steps=4), rel=1e-4)


def test_only_the_loop_with_the_defects_compiles_again(demo: object) -> None:
    from torch._dynamo.utils import counters

    compiled = {}
    for twin in (False, True):
        counters.clear()
        losses(demo, twin=twin, steps=4)
        compiled[twin] = counters["stats"]["unique_graphs"]
    assert compiled == {False: 4, True: 1}


def test_the_saving_is_that_of_loops_in_turns(demo: object, capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(["--pairs", "2"])  # type: ignore[attr-defined]
    shown = capsys.readouterr().out
    assert re.search(r"Measured: \d+ ms per step with the five defects, \d+ ms without them", shown)
    assert re.search(r"Saved: -?\d+ ms per step \(-?\d+ to -?\d+ ms in 2 turns", shown)
