"""Hooks in jax: whose call is a step, and that jax is as it was when they are taken out."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.jax import host_syncs
from perfscope.profiler.jax.hooks import FEW_CALLS, LEFT_BEHIND, CalledFunctions, JaxHooks, code_of
from perfscope.profiler.jax.host_syncs import METHODS, SyncLog
from perfscope.profiler.jax.record_log import CallSites
from perfscope.profiler.session.steps import Source, StepFinder

pytestmark = pytest.mark.jax


class Recorded:
    """A recorder that stores its calls."""

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


def test_a_jitted_function_under_grad_alone_runs_at_once_and_is_a_step(hooks: JaxHooks, recorder: Recorded) -> None:
    import jax
    import jax.numpy as jnp

    inner, x = jax.jit(train), jnp.ones(3)
    for _ in range(4):
        x = jax.grad(lambda value: jax.vmap(inner)(value).sum())(x)
    assert recorder.events == [("settled", "calls of train", 2), 2, 3, 4]


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


def named(name: str) -> Any:
    """A function of a program with this name."""
    held: dict[str, Any] = {}
    exec(compile(f"def {name}(): ...", "train.py", "exec"), held)
    return held[name]


def test_an_evaluation_after_few_steps_is_not_the_loop(finder: StepFinder, recorder: Recorded) -> None:
    called, step, evaluation = CalledFunctions(finder), named("update"), named("eval_step")
    for _ in range(3):
        for _ in range(5):
            called(step)
        for _ in range(3 * LEFT_BEHIND):
            called(evaluation)
    assert [event for event in recorder.events if isinstance(event, tuple)] == [
        ("settled", "calls of update", 2), ("settled", "calls of eval_step", LEFT_BEHIND),
        ("settled", "calls of update", 6),
    ]  # fmt: skip


def test_functions_that_take_turns_do_not_displace_each_other(finder: StepFinder, recorder: Recorded) -> None:
    called = CalledFunctions(finder)
    for _ in range(6):
        called(train)
        for _ in range(LEFT_BEHIND - 1):
            called(other)
    assert "unsettled" not in recorder.events
    assert finder.source is Source.JITTED
    counted = [(code.co_name, calls, is_step) for code, calls, is_step in called.counts()]
    assert counted == [("other", 6 * (LEFT_BEHIND - 1), True), ("train", 6, False)]


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
    calls = Recorded()
    with jax.debug_nans(True):
        held = JaxHooks()
        held.install(StepFinder(CaptureOptions(), calls, lambda source: None), make_way=lambda: None)
        root = jax.jit(lambda x: jnp.sqrt(x))
        for _ in range(4):
            root(jnp.float32(1.0))
        assert calls.events == [("settled", "calls of <lambda>", 2), 2, 3, 4]
        with pytest.raises(FloatingPointError):
            root(jnp.float32(-1.0))
        held.remove()
        with pytest.raises(FloatingPointError):
            root(jnp.float32(-1.0))


TURNED_ON_LATER = """
import jax
import jax.numpy as jnp
from perfscope.model.capture import CaptureOptions
from perfscope.profiler.jax.hooks import JaxHooks
from perfscope.profiler.session.steps import StepFinder
from tests.jax_capture.test_hooks import Recorded, raised

calls, held = Recorded(), JaxHooks()
held.install(StepFinder(CaptureOptions(), calls, lambda source: None), make_way=lambda: None)
root = jax.jit(lambda x: jnp.sqrt(x))
jax.config.update("jax_debug_nans", True)
for _ in range(4):
    root(jnp.float32(1.0))
print(calls.events, raised(root, -1.0))
held.remove()
print(raised(root, -1.0))
jax.config.update("jax_debug_nans", False)
print(raised(root, -1.0))
"""


def raised(function: Any, value: float) -> bool:
    import jax.numpy as jnp

    try:
        function(jnp.float32(value))
    except FloatingPointError:
        return True
    return False


def test_a_check_for_nans_that_is_turned_on_later_keeps_the_hook() -> None:
    """In a separate process: a local value of the setting, once there, hides the later one from jax itself."""
    done = subprocess.run([sys.executable, "-c", TURNED_ON_LATER], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Invalid nan value")]
    assert lines == ["[('settled', 'calls of <lambda>', 2), 2, 3, 4] True", "True", "False"], done.stderr


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncLog]:
    import jax

    assert jax.devices()
    held = SyncLog(CallSites(Path(__file__).parent), lambda: 7)
    held.start()
    yield held
    held.stop()


def records(log: SyncLog, folder: Path) -> list[dict[str, Any]]:
    (folder / "rank00000").mkdir(exist_ok=True)
    capture = log.save(folder / "rank00000", folder)
    assert capture.artifact == "rank00000/syncs.jsonl"
    return [json.loads(line) for line in (folder / capture.artifact).read_text().splitlines()[1:]]


def test_each_way_to_read_a_value_is_one_record_and_gives_what_it_gave(log: SyncLog, tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    x, n, v = jnp.float32(2.5), jnp.int32(3), jnp.arange(3)
    assert (float(x), int(n), bool(n), complex(x)) == (2.5, 3, True, 2.5 + 0j)
    assert [0, 1, 2, 4][n] == 4
    assert (x.item(), v.tolist(), str(n), f"{x:.1f}") == (2.5, [0, 1, 2], "3", "2.5")
    assert repr(n) == "Array(3, dtype=int32)"
    assert [int(item) for item in np.asarray(jax.device_get(v))] == [0, 1, 2]
    jax.block_until_ready({"a": x, "b": [v]})
    x.block_until_ready()
    found = records(log, tmp_path)
    assert [item["call"] for item in found] == [
        "float", "int", "bool", "complex", "index", "item", "tolist", "str", "format", "repr",
        "device_get", "block_until_ready", "block_until_ready",
    ]  # fmt: skip
    assert {item["file"] for item in found} == {"test_hooks.py"}
    assert {item["step"] for item in found} == {7}
    assert all(item["ready"] and item["duration_ns"] >= 0 for item in found)
    assert found[-2]["bytes"] == 4 + 12


def test_iterating_over_an_array_of_one_device_reads_nothing_on_the_host(log: SyncLog, tmp_path: Path) -> None:
    import jax

    key, used = jax.random.split(jax.random.key(0))
    first, _ = jax.numpy.arange(2)
    assert key.shape == used.shape == ()
    assert int(first) == 0
    assert [item["call"] for item in records(log, tmp_path)] == ["int"]


def test_iterating_over_an_array_that_is_divided_is_a_read(
    log: SyncLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    monkeypatch.setattr(host_syncs, "_stays_on_device", lambda array: False)
    list(jnp.arange(2))
    assert [item["call"] for item in records(log, tmp_path)] == ["iter"]


def test_an_array_that_is_not_there_yet_is_a_stall(
    log: SyncLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    monkeypatch.setattr(host_syncs, "_ready", lambda value: False)
    float(jnp.float32(1))
    (found,) = records(log, tmp_path)
    assert found["ready"] is False


def test_an_error_of_the_program_stays_its_own(log: SyncLog, tmp_path: Path) -> None:
    import jax.numpy as jnp

    with pytest.raises(TypeError):
        float(jnp.ones(3))
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        gone.block_until_ready()
    found = records(log, tmp_path)
    assert [item.get("ready") for item in found] == [True, None], "of a deleted array nobody can say"
    assert float(jnp.float32(1)) == 1.0, "and the guard against reads in reads is open again"
    assert len(records(log, tmp_path)) == 3


def test_an_error_of_our_own_is_counted_and_not_raised(
    log: SyncLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(CallSites, "here", fail)
    assert float(jnp.float32(2)) == 2.0
    log.save(_folder(tmp_path), tmp_path)
    assert json.loads((tmp_path / "rank00000" / "syncs.jsonl").read_text())["dropped"] == 1


def _folder(path: Path) -> Path:
    (path / "rank00000").mkdir()
    return path / "rank00000"


def test_tracing_reads_nothing_and_another_thread_is_told_apart(log: SyncLog, tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    jax.jit(lambda x: x * 2)(jnp.ones(3))
    assert records(log, tmp_path) == []
    thread = threading.Thread(target=lambda: float(jnp.float32(1)))
    thread.start()
    thread.join()
    (found,) = records(log, tmp_path)
    assert found["main_thread"] is False


def test_paused_means_ours(log: SyncLog, tmp_path: Path) -> None:
    import jax.numpy as jnp

    with log.paused():
        jnp.ones(3).block_until_ready()
    assert records(log, tmp_path) == []


def test_a_read_in_an_installed_package_is_of_the_line_that_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    (tmp_path / "waiting_package.py").write_text("def wait(array):\n    return array.block_until_ready()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    log = SyncLog(CallSites(Path(__file__).parent), lambda: 7)
    package = importlib.import_module("waiting_package")
    log.start()
    try:
        package.wait(jnp.ones(3))
    finally:
        log.stop()
    (found,) = records(log, tmp_path)
    assert (found["file"], found["library"]) == ("test_hooks.py", "waiting_package.py:2")
    assert found["function"] == "test_a_read_in_an_installed_package_is_of_the_line_that_calls_it"


def test_when_it_is_full_the_wrappers_go(log: SyncLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import jax.numpy as jnp

    monkeypatch.setattr(log._lines, "_most", 2)
    for _ in range(4):
        float(jnp.float32(1))
    assert not log.on
    assert len(records(log, tmp_path)) == 2


def test_jax_is_as_it_was_afterwards() -> None:
    import jax
    from jax._src.array import ArrayImpl

    def state() -> list[Any]:
        return [*(ArrayImpl.__dict__.get(name) for name in METHODS), jax.block_until_ready, jax.device_get]

    before = state()
    log = SyncLog(CallSites(Path.cwd()), lambda: None)
    log.start()
    during = state()
    assert sum(now is not then for now, then in zip(during, before, strict=True)) == len(METHODS) + 2
    log.stop()
    assert all(now is then for now, then in zip(state(), before, strict=True))
