"""Hooks in torch: each is heard, and each leaves torch as it was."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.profiler.session.steps import Source
from perfscope.profiler.torch.hooks import Hooks

pytestmark = pytest.mark.torch


class Heard:
    """Stands for a step finder."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def edge(self, source: Source) -> None:
        self.events.append(source)

    def annotation_enter(self, name: str) -> None:
        self.events.append(f"+{name}")

    def annotation_exit(self, name: str) -> None:
        self.events.append(f"-{name}")


def attributes() -> list[Any]:
    """What hooks may replace, as it stands now."""
    import torch
    from torch.autograd.profiler import profile as kineto
    from torch.autograd.profiler import record_function

    return [
        torch.optim.Optimizer.__dict__["profile_hook_step"].__func__,
        torch.profiler.profile.__dict__["step"],
        record_function.__dict__["__enter__"],
        record_function.__dict__["__exit__"],
        torch.cuda.nvtx.range_push,
        torch.cuda.nvtx.range_pop,
        kineto.__dict__["_prepare_trace"],
        kineto.__dict__["__exit__"],
    ]


def test_everything_is_heard_and_taken_out_again() -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    class Descent(torch.optim.SGD):
        """Of its own: torch wraps a class's step once, when the first of it is made."""

        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    before = attributes()
    hooks, heard, way = Hooks(), Heard(), []
    hooks.install(heard, ours=lambda: False, make_way=lambda: way.append(1))  # type: ignore[arg-type]
    try:
        assert all(now is not then for now, then in zip(attributes(), before, strict=True))
        first = Descent([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        second = Descent([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        first.step()
        second.step()
        assert [event for event in heard.events if event is Source.OPTIMIZER] == [Source.OPTIMIZER], "the first alone"
        assert set(hooks.optimizers) == {first, second}
        heard.events.clear()
        with record_function("mine"):
            pass
        assert heard.events == ["+mine", "-mine"]
        heard.events.clear()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            assert len(hooks.program_profilers) == 1
            profiler.step()
        assert way == [1]
        assert heard.events == [Source.PROFILER]
        assert len(hooks.program_profilers) == 0
    finally:
        hooks.remove()
    assert all(now is then for now, then in zip(attributes(), before, strict=True))
    heard.events.clear()
    first.step()
    assert heard.events == [], "an optimizer that was made under the hooks is silent without them"


def test_our_own_profiler_makes_nobody_give_way() -> None:
    from torch.profiler import ProfilerActivity, profile

    hooks, way = Hooks(), []
    hooks.install(Heard(), ours=lambda: True, make_way=lambda: way.append(1))  # type: ignore[arg-type]
    try:
        with profile(activities=[ProfilerActivity.CPU]):
            assert len(hooks.program_profilers) == 0
    finally:
        hooks.remove()
    assert way == []


def test_what_somebody_else_replaced_since_is_left_alone() -> None:
    from torch.autograd.profiler import record_function

    original = record_function.__enter__
    hooks = Hooks()
    hooks.install(Heard(), ours=lambda: False, make_way=lambda: None)  # type: ignore[arg-type]
    try:

        def theirs(self: Any) -> Any:
            return original(self)

        record_function.__enter__ = theirs
        hooks.remove()
        assert record_function.__enter__ is theirs
    finally:
        hooks.remove()
        record_function.__enter__ = original
