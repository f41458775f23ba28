"""The defects that cost memory: what they keep, seen from outside the loop."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tests.workloads.jax.twins import options, tokens, workload

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

STEPS = 5


def held_at_the_end(monkeypatch: pytest.MonkeyPatch, *defects: str) -> list[tuple[tuple[int, ...], int]]:
    """Shapes of the arrays that are alive when the last step has run, and how many of each."""
    from perfscope.workloads.jax import training

    found: dict[tuple[int, ...], int] = {}

    def look(losses: list[Any]) -> list[float]:
        gc.collect()
        for array in jax.live_arrays():
            found[array.shape] = found.get(array.shape, 0) + 1
        return [float(loss) for loss in losses]

    monkeypatch.setattr(training, "report", look)
    training.train(workload("attention").Block, options("attention", "naive", steps=STEPS, defects=frozenset(defects)))
    return sorted(found.items())


def test_a_leak_keeps_the_logits_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    size = workload("attention").SIZES["tiny"]
    logits = (size.batch, size.seq, size.vocab)
    assert dict(held_at_the_end(monkeypatch, "leak")).get(logits) == STEPS
    assert logits not in dict(held_at_the_end(monkeypatch))


@pytest.mark.parametrize(("defects", "given"), [((), True), (("no-donation",), False)])
def test_the_state_is_given_to_the_step(defects: tuple[str, ...], given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.workloads.jax import training

    seen: list[Any] = []

    def look(update: Any, state: Any, options: Any, device: Any) -> list[float]:
        update(state, tokens("attention"))
        seen.extend(jax.tree.leaves(state))
        return []

    monkeypatch.setattr(training, "loop", look)
    training.train(workload("attention").Block, options("attention", "naive", defects=frozenset(defects)))
    assert len(seen) == 43
    assert np.array([array.is_deleted() for array in seen]).all() == given
