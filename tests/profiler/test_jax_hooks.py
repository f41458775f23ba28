"""Hooks in jax: whose call is a step, and that jax is as it was when they are taken out."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.jax.hooks import FEW_CALLS, LEFT_BEHIND, CalledFunctions, JaxHooks, code_of
from perfscope.profiler.session.steps import Source, StepFinder

pytestmark = pytest.mark.jax


class Recorded:
    """A recorder that notes what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def settled(self, source: str, completed: int) -> None:
        self.events.append(("settled", source, completed))

    def unsettled(self) -> None:
        self.events.append("unsettled")

    def broken(self, error: Exception) -> None:
        raise error

    def begin(self, number: int) -> None:
        self.events.append(number)

    def end(self, now: int) -> None:
        pass


@pytest.fixture
def recorder() -> Recorded:
    return Recorded()


@pytest.fixture
def finder(recorder: Recorded) -> StepFinder:
    return StepFinder(CaptureOptions(), recorder, lambda source: None)


@pytest.fixture
def hooks(finder: StepFinder) -> Iterator[JaxHooks]:
    held = JaxHooks()
    held.install(finder, make_way=lambda: None)
    yield held
    held.remove()


def train(x: Any) -> Any:
    return x + 1


def other(x: Any) -> Any:
    return x - 1


class Module:
    def __call__(self, x: Any) -> Any:
        return x * 2

    def method(self, x: Any) -> Any:
        return x * 3


def test_the_users_function_is_found_below_what_wraps_it() -> None:
    import jax

    for wrapped in (
        jax.jit(train),
        jax.jit(functools.partial(train)),
        jax.jit(jax.value_and_grad(train)),
        jax.jit(jax.vmap(jax.checkpoint(train))),
    ):
        assert code_of(wrapped) is train.__code__
    assert code_of(jax.jit(Module())) is Module.__call__.__code__
    assert code_of(jax.jit(Module().method)) is Module.method.__code__
    assert code_of(object()) is None


def test_calls_of_the_first_function_that_comes_again_are_steps(hooks: JaxHooks, recorder: Recorded) -> None:
    import jax
    import jax.numpy as jnp

    step, once = jax.jit(train), jax.jit(other)
    x = once(jnp.ones(3))
    for _ in range(4):
        x = jnp.where(step(x) > 0, x, 0)
    assert recorder.events == [("settled", "calls of train", 2), 2, 3, 4]
    assert hooks.called


def test_calls_while_tracing_are_no_steps_and_a_new_jit_each_time_is_the_same_function(
    hooks: JaxHooks, recorder: Recorded
) -> None:
    import jax
    import jax.numpy as jnp

    inner = jax.jit(other)
    outer = jax.jit(lambda x: inner(inner(x)))
    for _ in range(3):
        outer(jnp.ones(3))
    assert recorder.events[0] == ("settled", "calls of <lambda>", 2)
    recorder.events.clear()
    for _ in range(3):
        jax.jit(lambda x: x + 2)(jnp.ones(3))
    assert recorder.events == []


def test_calls_are_still_seen_after_jax_has_set_the_hook_itself(hooks: JaxHooks, recorder: Recorded) -> None:
    """Differentiating a scan switches jax_debug_nans off for a moment, and with it the hook for good."""
    import jax
    import jax.numpy as jnp

    def loss(x: Any) -> Any:
        return jax.lax.scan(lambda h, row: (jnp.tanh(h + row), h.sum()), x[0], x)[1].sum()

    step = jax.jit(lambda x: x - jax.grad(loss)(x))
    x = jnp.ones((4, 3))
    for _ in range(4):
        x = step(x)
    assert recorder.events == [("settled", "calls of <lambda>", 2), 2, 3, 4]


def test_a_function_compiled_ahead_of_time_is_one_too(hooks: JaxHooks, recorder: Recorded) -> None:
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(train).lower(jnp.ones(3)).compile()
    for _ in range(4):
        compiled(jnp.ones(3))
    assert recorder.events[0][1] == "calls of a compiled function"


def test_a_function_that_is_left_behind_was_not_the_loop(finder: StepFinder, recorder: Recorded) -> None:
    called = CalledFunctions(finder)
    for _ in range(4):
        called(other)
    for _ in range(LEFT_BEHIND):
        called(train)
    assert recorder.events == [
        ("settled", "calls of other", 2), 2, 3, 4,
        "unsettled", ("settled", "calls of train", LEFT_BEHIND), LEFT_BEHIND,
    ]  # fmt: skip


@pytest.mark.parametrize("calls", [FEW_CALLS, FEW_CALLS + 1])
def test_a_long_loop_stays_the_loop_when_an_evaluation_follows(
    finder: StepFinder, recorder: Recorded, calls: int
) -> None:
    called = CalledFunctions(finder)
    for _ in range(calls):
        called(train)
    for _ in range(30):
        called(other)
    assert ("unsettled" in recorder.events) == (calls == FEW_CALLS)


def test_functions_that_take_turns_do_not_displace_each_other(finder: StepFinder, recorder: Recorded) -> None:
    called = CalledFunctions(finder)
    for _ in range(6):
        called(train)
        for _ in range(LEFT_BEHIND - 1):
            called(other)
    assert "unsettled" not in recorder.events
    assert finder.source is Source.JITTED


def test_a_step_annotation_wins_over_calls_and_may_be_entered_twice(hooks: JaxHooks, recorder: Recorded) -> None:
    import jax
    import jax.numpy as jnp

    step = jax.jit(train)
    for turn in range(3):
        with jax.profiler.StepTraceAnnotation("loop", step_num=turn):
            step(step(jnp.ones(3)))
    assert recorder.events == [("settled", "StepTraceAnnotation loop", 2), 2]
    span = jax.profiler.StepTraceAnnotation("loop", step_num=3)
    for _ in range(2):
        with span:
            pass
    assert recorder.events[2:] == [3, 4]


def test_an_annotation_inside_another_is_no_step(hooks: JaxHooks, finder: StepFinder) -> None:
    import jax

    for turn in range(3):
        with jax.profiler.StepTraceAnnotation("loop", step_num=turn):
            with jax.profiler.StepTraceAnnotation("loop", step_num=turn):
                pass
            with jax.profiler.StepTraceAnnotation("inner", step_num=turn):
                pass
    assert finder.completed[Source.STEP_TRACE] == 3


def test_jax_is_as_it_was_when_the_hooks_are_gone(finder: StepFinder) -> None:
    import jax
    from jax._src import pjit, profiler

    def state() -> dict[str, Any]:
        annotation = {
            name: jax.profiler.StepTraceAnnotation.__dict__.get(name) for name in ("__init__", "__enter__", "__exit__")
        }
        slow = {name: getattr(pjit, name, None) for name in ("_run_python_pjit", "_python_pjit_helper")}
        return {**annotation, **slow, "start": jax.profiler.start_trace, "private": profiler.start_trace}

    before = state()
    held = JaxHooks()
    held.install(finder, make_way=lambda: None)
    changed = state()
    assert all(changed[name] is not before[name] for name in ("__init__", "__enter__", "__exit__", "start", "private"))
    held.remove()
    assert state() == before


def test_an_undo_leaves_alone_what_somebody_else_has_put_there(finder: StepFinder) -> None:
    import jax

    original = jax.profiler.start_trace
    held = JaxHooks()
    held.install(finder, make_way=lambda: None)

    def theirs() -> None:
        pass

    jax.profiler.start_trace = theirs
    try:
        held.remove()
        assert jax.profiler.start_trace is theirs
    finally:
        jax.profiler.start_trace = original


def test_a_check_for_nans_goes_on_below_the_hook(hooks: JaxHooks) -> None:
    """The program may have set jax_debug_nans before jax was hooked: both are heard."""
    import jax
    import jax.numpy as jnp

    hooks.remove()
    calls, old = Recorded(), jax.__version_info__ < (0, 8)
    with jax.debug_nans(True):
        held = JaxHooks()
        held.install(StepFinder(CaptureOptions(), calls, lambda source: None), make_way=lambda: None)
        root = jax.jit(lambda x: jnp.sqrt(x))
        for _ in range(4):
            root(jnp.float32(1.0))
        # In jax 0.6 and 0.7 the check of one thread hides what is set for all.
        assert calls.events in ([("settled", "calls of <lambda>", 2), 2, 3, 4], [] if old else None)
        with pytest.raises(FloatingPointError):
            root(jnp.float32(-1.0))
        held.remove()
        with pytest.raises(FloatingPointError):
            root(jnp.float32(-1.0))
