"""Steps of loops that update their parameters by hand: which backward passes, and that torch is left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.checkpoint import checkpoint

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.session.steps import StepFinder
from perfscope.profiler.torch.backward_calls import BackwardCalls
from perfscope.profiler.torch.hooks import Hooks
from perfscope.profiler.torch.module_calls import TRAINING_CALLS
from tests.torch_capture.test_module_calls import WARMUP, Recorder

pytestmark = pytest.mark.torch

Watch = Callable[[bool], Recorder]


@pytest.fixture
def watch() -> Iterator[Watch]:
    undo: list[Callable[[], None]] = []

    def install(optimizer_exists: bool = False) -> Recorder:
        recorder = Recorder()
        finder = StepFinder(CaptureOptions(warmup=WARMUP), recorder, lambda _: None)
        undo.append(BackwardCalls(finder, lambda: optimizer_exists).install())
        return recorder

    yield install
    for one in undo:
        one()


def loss_of(weights: torch.Tensor) -> torch.Tensor:
    return (torch.ones(2, 4) @ weights).square().sum()


def weights() -> torch.Tensor:
    return torch.ones(4, 4, requires_grad=True)


def test_backward_passes_of_a_loop_without_an_optimizer_are_steps(watch: Watch) -> None:
    recorder, w = watch(False), weights()
    for _ in range(10):
        loss_of(w).backward()
        w.data -= 0.1 * w.grad
    assert recorder.source == "calls of backward"
    assert recorder.begun == list(range(WARMUP, 11))


def test_torch_autograd_grad_counts_too(watch: Watch) -> None:
    recorder, w = watch(False), weights()
    for _ in range(6):
        (gradient,) = torch.autograd.grad(loss_of(w), [w])
        w.data -= 0.1 * gradient
    assert recorder.source == "calls of grad"
    assert recorder.begun == list(range(WARMUP, 7))


def test_a_second_loss_of_a_step_is_not_a_step(watch: Watch) -> None:
    recorder, one, other = watch(False), weights(), weights()
    for _ in range(6):
        loss_of(one).backward()
        loss_of(other).backward()
    assert recorder.begun == list(range(WARMUP, 7))


def test_one_check_before_the_loop_is_not_the_loop(watch: Watch) -> None:
    recorder, w = watch(False), weights()
    loss_of(w).backward()
    for _ in range(6):
        loss_of(w).backward()
    assert recorder.begun == list(range(WARMUP, 7))


def test_passes_inside_a_pass_are_not_steps(watch: Watch) -> None:
    recorder, w = watch(False), weights()
    for _ in range(6):
        checkpoint(loss_of, w, use_reentrant=True).backward()
    assert recorder.begun == list(range(WARMUP, 7))


def test_a_failing_pass_is_not_a_step(watch: Watch) -> None:
    recorder, w = watch(False), weights()
    for number in range(6):
        loss = loss_of(w).detach() if number == 2 else loss_of(w)
        try:
            loss.backward()
        except RuntimeError:
            assert number == 2
    assert recorder.begun == list(range(WARMUP, 6))


@pytest.mark.parametrize(("passes", "source"), [(TRAINING_CALLS + 1, None), (TRAINING_CALLS + 2, "calls of backward")])
def test_steps_of_an_optimizer_are_awaited_if_there_is_one(watch: Watch, passes: int, source: str | None) -> None:
    recorder, w = watch(True), weights()
    for _ in range(passes):
        loss_of(w).backward()
    assert recorder.source == source


def hooked() -> tuple[Recorder, Hooks]:
    recorder, hooks = Recorder(), Hooks()
    finder = StepFinder(CaptureOptions(warmup=WARMUP), recorder, hooks.forget)
    hooks.install(finder, ours=lambda: False, make_way=lambda: None)
    return recorder, hooks


def test_an_optimizer_that_comes_late_is_better_and_a_model_is_not() -> None:
    recorder, hooks = hooked()
    try:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(TRAINING_CALLS + 6):
            (model(torch.ones(2, 4)) + model(torch.zeros(2, 4))).sum().backward()
        assert recorder.source == "calls of backward"
        for _ in range(6):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert (recorder.source, recorder.begun[-1]) == ("optimizer.step", 6)
    finally:
        hooks.remove()


def test_torch_is_left_as_it_was() -> None:
    before = vars(torch.autograd)["_engine_run_backward"]
    _, hooks = hooked()
    assert vars(torch.autograd)["_engine_run_backward"] is not before
    hooks.remove()
    assert vars(torch.autograd)["_engine_run_backward"] is before
