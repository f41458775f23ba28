"""Calls of a model whose answers are remembered while a plan waits for training to begin."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfscope.profiler.ahead.torch.remembered_calls import RememberedCalls  # noqa: E402


class Counted:
    """Calls through ``RememberedCalls``; counts those that ran."""

    def __init__(self, result: Any = None) -> None:
        self.module, self.known, self.ran = torch.nn.Linear(4, 2), RememberedCalls(), 0
        self.result = result

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        def original() -> Any:
            self.ran += 1
            return self.module(arguments[0]) if self.result is None else self.result

        return self.known.call(self.module, arguments, named, original)


def test_equal_inputs_without_gradients_run_once() -> None:
    calls = Counted()
    with torch.no_grad():
        first, second = calls(torch.ones(3, 4)), calls(torch.zeros(3, 4))
    assert (calls.ran, first.shape, second.shape) == (1, (3, 2), (3, 2))
    second.unsqueeze_(0)
    assert first.shape == (3, 2)


@pytest.mark.parametrize("other", [{"x": torch.ones(5, 4)}, {"x": torch.ones(3, 4), "flag": True}])
def test_other_inputs_run(other: dict[str, Any]) -> None:
    calls = Counted()
    with torch.no_grad():
        calls(torch.ones(3, 4))
        calls(other.pop("x"), **other)
    assert calls.ran == 2


def test_training_runs_and_so_does_evaluation_after_it() -> None:
    calls = Counted()
    calls(torch.ones(3, 4))
    calls(torch.ones(3, 4))
    assert calls.ran == 2
    with torch.no_grad():
        calls(torch.ones(3, 4))
        calls.module.eval()
        calls(torch.ones(3, 4))
    assert calls.ran == 4


def test_inputs_and_results_with_a_state_are_not_remembered() -> None:
    with torch.no_grad():
        cached = Counted()
        for _ in range(2):
            cached(torch.ones(3, 4), cache=object())
        iterator = Counted(result=iter(()))
        for _ in range(2):
            iterator(torch.ones(3, 4))
    assert (cached.ran, iterator.ran) == (2, 2)


def test_results_in_tuples_and_dicts_are_renewed() -> None:
    calls = Counted(result={"logits": (torch.ones(2), None), "steps": 3})
    with torch.no_grad():
        calls(torch.ones(3, 4))
        first, second = calls(torch.ones(3, 4)), calls(torch.ones(3, 4))
    first.pop("logits")
    assert (calls.ran, second["steps"], second["logits"][1]) == (1, 3, None)
