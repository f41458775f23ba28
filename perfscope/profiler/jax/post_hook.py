"""Keeps our hook after jitted calls in the one that jax sets: in the form of jax 0.6 and in that of later versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfscope.profiler.patching import Undo, replace


def hook_state(api: Any, state: Any, with_ours: Callable[[Any], Any]) -> Undo:
    """Include our hook in jax's own state, which holds the hook of all threads and that of each.

    ``api``: the module that sets it; ``with_ours``: from a hook of jax, or ``None``, the one that includes ours.
    """

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
            state.set_local(with_ours(hook))  # None, too, hides the hook for all threads

    stand = Stand()
    stand.set_global(stand.theirs)
    if state.value is not state.get_global():  # this thread has a local value, or has had one
        stand.set_local(stand.theirs_here)
    restore = replace(api, "_post_hook_state", stand)

    def undo() -> None:
        restore()
        state.set_global(stand.theirs)
        if state.get_local() is not None:
            state.set_local(stand.theirs_here)

    return undo


def hook_threads(api: Any, jit: Any, with_ours: Callable[[Any], Any]) -> Undo:
    """The same in jax 0.6, whose states are those of the compiled module ``jit``."""
    ours: dict[Any, Any] = {}
    """Each hook of jax, or ``None``, with the hook that includes ours."""

    def include(state: Any, theirs: Any) -> None:
        if theirs is None and state is not jit.global_state():
            state.post_hook = None  # the hook of all threads follows
            return
        if theirs not in ours:
            ours[theirs] = with_ours(theirs)
        state.post_hook = ours[theirs]

    class State:
        """Stands in for a state where jax sets its hook."""

        def __init__(self, state: Any) -> None:
            object.__setattr__(self, "_state", state)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._state, name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "post_hook":
                include(self._state, value)
            else:
                setattr(self._state, name, value)

    class Stand:
        """Stands in for the module with the states."""

        def __getattr__(self, name: str) -> Any:
            return getattr(jit, name)

        def global_state(self) -> State:
            return State(jit.global_state())

        def thread_local_state(self) -> State:
            return State(jit.thread_local_state())

    for state in (jit.global_state(), jit.thread_local_state()):
        include(state, state.post_hook)
    restore = replace(api, "jax_jit", Stand())

    def undo() -> None:
        restore()
        theirs = {with_it: alone for alone, with_it in ours.items()}
        for state in (jit.global_state(), jit.thread_local_state()):
            state.post_hook = theirs.get(state.post_hook, state.post_hook)

    return undo
