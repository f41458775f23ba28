"""Calls of jitted functions as jax's own insides tell of them; the rest of what is not public: ``jax_compat``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from perfscope.profiler.jax_compat import Undo, find, trace_state_clean

Called = Callable[[Any], None]
"""Told of a call of a jitted function: the function."""


def has_post_hook() -> bool:
    """Whether jitted calls end with a function that can be set (that of ``jax_debug_nans``)."""
    if hasattr(find("jax._src.api", "_post_hook_state"), "set_global"):
        return True
    return hasattr(_global_jit_state(), "post_hook")


def _global_jit_state() -> Any:
    jit = find("jax._src.lib", "jax_jit")
    return jit.global_state() if hasattr(jit, "global_state") else None


def on_fast_call(called: Called) -> Undo | None:
    """Tell of every jitted call that its compiled program served at once; a hook that was there goes on.

    jax calls it behind the dispatch, on the calling thread, and never for calls inside a function that is traced.
    """
    if not has_post_hook():
        return None
    listening = True

    def with_ours(theirs: Any) -> Any:
        def after_call(function: Any, arguments: Any, named: Any, output: Any) -> None:
            if theirs is not None:
                theirs(function, arguments, named, output)
            if listening:
                called(function)

        return after_call

    # Both forms set the hook again whenever ``jax_debug_nans`` changes, which jax itself does while it
    # differentiates a scan: what is set then must hold ours too.
    state = find("jax._src.api", "_post_hook_state")
    undo = _hook_old_state(with_ours) if state is None else _hook_state(state, with_ours)

    def stop() -> None:
        nonlocal listening
        listening = False  # other threads may keep it
        undo()

    return stop


def _hook_state(state: Any, with_ours: Callable[[Any], Any]) -> Undo:
    api = sys.modules["jax._src.api"]

    class Stand:
        """Stands in for the state where jax sets it."""

        def __init__(self) -> None:
            self.theirs = state.get_global()
            self.theirs_here = state.get_local()

        def __getattr__(self, name: str) -> Any:
            return getattr(state, name)

        def set_global(self, hook: Any) -> None:
            self.theirs = hook
            state.set_global(with_ours(hook))

        def set_local(self, hook: Any) -> None:
            self.theirs_here = hook
            state.set_local(with_ours(hook))  # nothing, too, hides what is set for all threads

    stand = Stand()
    stand.set_global(stand.theirs)
    if state.value is not state.get_global():  # this thread has one of its own, or has had
        stand.set_local(stand.theirs_here)
    setattr(api, "_post_hook_state", stand)  # noqa: B010 (mypy knows no such attribute)

    def undo() -> None:
        if getattr(api, "_post_hook_state", None) is stand:
            setattr(api, "_post_hook_state", state)  # noqa: B010
        state.set_global(stand.theirs)
        if state.get_local() is not None:
            state.set_local(stand.theirs_here)

    return undo


def _hook_old_state(with_ours: Callable[[Any], Any]) -> Undo:
    held = _global_jit_state()
    before = held.post_hook
    ours = with_ours(before)
    held.post_hook = ours

    def undo() -> None:
        if held.post_hook is ours:
            held.post_hook = before

    return undo


def miss_path() -> tuple[Any, str, int] | None:
    """Module, name and the position of the function among the arguments of what serves all other calls."""
    for name, at in (("_run_python_pjit", 2), ("_python_pjit_helper", 0)):
        if find("jax._src.pjit", name) is not None:
            return sys.modules["jax._src.pjit"], name, at
    return None


def on_slow_call(called: Called) -> Undo | None:
    """Tell of the other jitted calls: the first, those that retrace, and those that never take the fast path."""
    place = miss_path()
    clean = trace_state_clean()
    if place is None or clean is None:
        return None
    module, name, at = place
    original = getattr(module, name)

    @functools.wraps(original)
    def run(*arguments: Any, **named: Any) -> Any:
        answer = original(*arguments, **named)
        if clean():  # else it is called by a function that is being traced
            called(arguments[at])
        return answer

    for of in ("traceback_util", "source_info_util"):
        exclude = find(f"jax._src.{of}", "register_exclusion")
        if exclude is not None:
            exclude(__file__)  # jax names the user's frames, in errors and in programs; this is not one
    setattr(module, name, run)

    def undo() -> None:
        if getattr(module, name) is run:
            setattr(module, name, original)

    return undo
