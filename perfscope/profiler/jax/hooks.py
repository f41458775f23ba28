"""The hooks in jax that step sources need; each can be removed and restores jax."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from perfscope.model.frames.side_work import evaluates
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.eager_loop import EagerLoop
from perfscope.profiler.jax.single_operations import SingleOperations
from perfscope.profiler.patching import Undo, replace, undo_all
from perfscope.profiler.session.steps import Source, StepFinder
from perfscope.profiler.source_files import SourceFiles

_OURS = tuple(f"{Path(__file__).parents[2] / folder}/" for folder in ("profiler", "plugins"))
"""Folders of functions that are jitted to record the program; the workloads are programs."""
MOST_UNWRAPPED = 20
"""Decorators looked through for the user's function; a chain that is longer is a loop."""
LEFT_BEHIND = 4
"""Calls of another function, with none of the followed one between them, after which the followed one was
not the loop: a jitted initialiser is called for each layer, and never again."""
FEW_CALLS = 12
"""A function with more calls than that was the loop, and later calls of others are an evaluation."""


def code_of(function: Any) -> CodeType | None:
    """The code of the function that was jitted, below ``functools.partial``, methods and jax's transformations."""
    for _ in range(MOST_UNWRAPPED):
        inner = getattr(function, "__wrapped__", None)
        if inner is None and isinstance(function, functools.partial):
            inner = function.func
        if inner is None:
            inner = getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    if code is None:  # an object that is called, as modules of flax are
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004
    return code if isinstance(code, CodeType) else None


class CalledFunctions:
    """Follows the calls of the program's jitted functions, and determines which one makes the steps.

    It is the first one that is called twice. Functions of jax (``jnp.where``) and of perfscope are not steps, nor are
    calls from inside a function that is being traced.
    """

    def __init__(self, finder: StepFinder | _NoSteps) -> None:
        """Nothing was called yet."""
        self._finder = finder
        self._folders = (*compat.package_folders(), *_OURS)
        self._kinds: dict[int, tuple[CodeType, str | None]] = {}
        self._calls: dict[int, int] = {}
        self._followed: int | None = None
        self._other: int | None = None
        self._others = 0
        self._left: int | None = None
        """The function that was followed before one that evaluates, by its name; it was the loop if it comes again."""
        self._settled = False
        self.eager = ""
        """The function that a loop of single operations calls, if the program jits none; else empty."""
        files = SourceFiles(Path.cwd(), compat.package_folders())
        self.outside = SingleOperations(lambda path: files.is_user(path) and not files.is_installed(path))
        """Operations outside the followed function."""
        self._eager = EagerLoop(
            lambda path: files.is_user(path) and not files.is_installed(path),
            self._turned,
            lambda: self._finder.mistaken(Source.JITTED),
        )

    @property
    def unjitted(self) -> EagerLoop | None:
        """The loop of single operations whose turns are the steps; ``None``: the program jits."""
        return self._eager if self.eager else None

    def counts(self) -> tuple[tuple[CodeType, int, bool], ...]:
        """The program's jitted functions with their calls, and whether a function makes the steps; most calls first."""
        known = [(self._kinds[key][0], calls, key == self._followed) for key, calls in self._calls.items()
                 if key in self._kinds]  # fmt: skip
        return tuple(sorted(known, key=lambda counted: (not counted[2], -counted[1])))

    def _turned(self, name: str, before: int) -> None:
        self.eager = name
        self._finder.called(Source.JITTED, name, before)

    @property
    def any(self) -> bool:
        """Whether a jitted function of the program's own was called."""
        return bool(self._calls)

    def __call__(self, function: Any) -> None:
        """``function`` was called, and its work is on its way."""
        try:
            known = self._know(function)
        except Exception as error:
            self._finder.recorder.broken(error)
            return
        if known is None:
            if not compat.is_tracing():
                (self._eager if self._followed is None else self.outside).operation(sys._getframe(1))
            return
        key, name = known
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        before = 0
        if self._followed is None and calls > 1:
            self._followed, before = key, calls - 1
            if self.eager:
                self.eager = ""
                self._finder.mistaken(Source.JITTED)
        if key == self._left:
            self._left, self._settled = None, True
            self._follow(key, name, calls - 1)
        elif key == self._followed:
            self._others = 0
            self.outside.step(sys._getframe(1))
            self._finder.called(Source.JITTED, name, before)
        elif self._followed is not None:
            self._others = self._others + 1 if key == self._other else 1
            self._other = key
            if self._others >= LEFT_BEHIND and self._calls[self._followed] <= FEW_CALLS and not self._settled:
                self._left = self._followed if self._evaluates(key) and not self._evaluates(self._followed) else None
                self._follow(key, name, calls - 1)

    def _follow(self, key: int, name: str, before: int) -> None:
        """Follow another function, which was called ``before`` this call."""
        self._followed, self._others = key, 0
        self.outside.start_over()
        self._finder.mistaken(Source.JITTED)
        self._finder.called(Source.JITTED, name, before)

    def _evaluates(self, key: int) -> bool:
        known = self._kinds.get(key)
        return known is not None and evaluates(known[0].co_filename, known[0].co_name)

    def _know(self, function: Any) -> tuple[int, str] | None:
        """The function's identity and name, ``None`` for jax's own.

        The same code is the same function, also if it is jitted again in each step.
        No function is kept, because its closure would stay alive.
        """
        code = code_of(function)
        if (mapped := compat.under_pmap(function, code)) is not function:
            code = code_of(mapped)
        if code is None:  # compiled ahead of time by the program, or a function of jax.numpy that has no Python code
            return (id(function), "a compiled function") if compat.is_compiled_call(sys._getframe(2)) else None
        if id(code) not in self._kinds:
            ours = code.co_filename.startswith(self._folders)
            # The code is kept, or its id would go to another one.
            self._kinds[id(code)] = (code, None if ours else code.co_name)
        name = self._kinds[id(code)][1]
        return None if name is None else (id(code), name)


class JaxHooks:
    """Listens in jax for steps and for the program's own traces."""

    def __init__(self) -> None:
        """Nothing is hooked yet."""
        self._undo: dict[Source, list[Undo]] = {}
        self._always: list[Undo] = []
        self._calls: CalledFunctions | None = None

    @property
    def unjitted(self) -> EagerLoop | None:
        """The loop of single operations whose turns are the steps; ``None``: the program jits."""
        return None if self._calls is None else self._calls.unjitted

    @property
    def outside(self) -> SingleOperations | None:
        """Operations outside the jitted function that makes the steps; ``None``: nothing was hooked."""
        return None if self._calls is None else self._calls.outside

    @property
    def counts(self) -> tuple[tuple[CodeType, int, bool], ...]:
        """Calls of jitted functions: `CalledFunctions.counts`."""
        return () if self._calls is None else self._calls.counts()

    @property
    def called(self) -> bool:
        """Whether the program called one of its jitted functions."""
        return self._calls is not None and self._calls.any

    def install(
        self,
        finder: StepFinder,
        *,
        make_way: Callable[[], None],
        whole: Callable[[], None] | None = None,
    ) -> None:
        """Hook jax, which is imported.

        ``make_way()``: called before a trace of the program's own starts; ``whole()``: called once, when the
        program has called its first jitted function, jax's own among them: before, there is no backend.
        """
        self._calls = CalledFunctions(finder if whole is None else _NoSteps(finder))
        listener = self._calls if whole is None else _once(whole, self._calls)
        undos = (compat.on_fast_call(listener), compat.on_slow_call(listener))
        self._undo = {
            Source.JITTED: [undo for undo in undos if undo is not None],
            Source.STEP_TRACE: [_hook_step_annotation(finder)] if whole is None else [],
        }
        self._always = _hook_start_trace(make_way)

    def forget(self, source: Source) -> None:
        """Take the hooks of a source out."""
        for undo in self._undo.pop(source, ()):
            undo()

    def remove(self) -> None:
        """Take everything out."""
        for source in list(self._undo):
            self.forget(source)
        while self._always:
            self._always.pop()()


class _NoSteps:
    """Replaces a finder if the whole program is captured: calls are counted but are not steps."""

    def __init__(self, finder: StepFinder) -> None:
        self.recorder = finder.recorder

    def called(self, source: Source, name: str, before: int = 0) -> None:
        """Nothing follows."""

    def mistaken(self, source: Source) -> None:
        """Nothing follows."""


def _once(first: Callable[[], None], then: Callable[[Any], None]) -> Callable[[Any], None]:
    called_before = False

    def called(function: Any) -> None:
        nonlocal called_before
        if not called_before:
            called_before = True
            first()
        then(function)

    return called


def _hook_step_annotation(finder: StepFinder) -> Undo:
    """See ``with jax.profiler.StepTraceAnnotation("train", step_num=n)`` begin and end."""
    from jax.profiler import StepTraceAnnotation

    init, enter, leave = StepTraceAnnotation.__init__, StepTraceAnnotation.__enter__, StepTraceAnnotation.__exit__

    def named(span: Any, name: str, **facts: Any) -> None:
        # Whether it is recorded is settled when it is made: a trace that is due must run by then.
        finder.span_enter(Source.STEP_TRACE, name)
        init(span, name, **facts)
        span._perfscope_name, span._perfscope_begun = name, True

    def entered(span: Any) -> Any:
        if not getattr(span, "_perfscope_begun", False):  # it is entered for the second time
            finder.span_enter(Source.STEP_TRACE, getattr(span, "_perfscope_name", ""))
        span._perfscope_begun = False
        return enter(span)

    def left(span: Any, *error: Any) -> Any:
        answer = leave(span, *error)
        finder.span_exit(Source.STEP_TRACE, getattr(span, "_perfscope_name", ""))
        return answer

    ours = {"__init__": named, "__enter__": entered, "__exit__": left}
    return undo_all([replace(StepTraceAnnotation, name, function) for name, function in ours.items()])


def _hook_start_trace(make_way: Callable[[], None]) -> list[Undo]:
    """See the program start a trace: jax serves one at a time, and the program's has priority."""
    import jax.profiler

    original = jax.profiler.start_trace

    @functools.wraps(original)
    def start_trace(*arguments: Any, **named: Any) -> Any:
        make_way()
        return original(*arguments, **named)

    modules = [sys.modules.get(name) for name in ("jax.profiler", compat.PROFILER_MODULE)]
    return [
        replace(module, "start_trace", start_trace)
        for module in modules
        if getattr(module, "start_trace", None) is original
    ]
