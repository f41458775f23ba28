"""The hooks in torch that step sources need; each can be removed and restores torch."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from perfscope.profiler.patching import Undo, replace, undo_all, wrap
from perfscope.profiler.session.steps import Source, StepFinder
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.backward_calls import BackwardCalls
from perfscope.profiler.torch.module_calls import ModuleCalls

if TYPE_CHECKING:
    from perfscope.profiler.torch.idle_rows import IdleRows

# Keeps torch's profilers apart: a range that opened under one recording must not close under another.
#
# A ``record_function`` range keeps a place in the buffers of the recording in which it opened. The
# buffers are freed when that recording stops. If another records when the range closes, torch writes the
# end into the freed place and the program dies later, at any place (seen with torch 2.13: 20 of 22 programs
# with such a range). A range that closes while nothing records does no harm.


_MARK = "_perfscope_recording"


class RangeGuard:
    """Counts recordings, marks ranges that open under one, and leaves those open that would close under another."""

    def __init__(self) -> None:
        """No recording yet."""
        self._recording = 0
        self._kept: list[object] = []
        """Handles whose end must not run while a profiler records; they end with the process."""

    def started(self) -> None:
        """A profiler, ours or the program's, is about to record."""
        self._recording += 1

    def install(self) -> list[Undo]:
        """Watch ``record_function``."""
        from torch.autograd.profiler import record_function

        return [
            wrap(record_function, "__enter__", self._entering),
            wrap(record_function, "__exit__", self._leaving),
        ]

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter_range(range_: Any) -> Any:
            answer = original(range_)
            if compat.profiler_records_thread():
                setattr(range_, _MARK, self._recording)
            return answer

        return enter_range

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave_range(range_: Any, *error: Any) -> Any:
            mark = range_.__dict__.pop(_MARK, None)
            if mark is not None and mark != self._recording and compat.profiler_records_thread():
                self._kept.append(range_.record)
                return None
            return original(range_, *error)

        return leave_range


class Hooks:
    """Listens in torch for steps, annotations, optimizers and the program's own profilers."""

    def __init__(self) -> None:
        """Nothing is hooked yet."""
        self._undo: dict[Source, list[Undo]] = {}
        self._always: list[Undo] = []
        self._guard = RangeGuard()
        self._modules: ModuleCalls | None = None
        self._idle: IdleRows | None = None
        self._first_optimizer: Callable[[], Any] = lambda: None
        self._optimizer_made = False
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that have stepped."""
        self.program_profilers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Profilers of the program's own that record, or are about to."""

    def tokens(self) -> tuple[int, int] | None:
        """(Sequences, tokens of each) of the last call of the model whose calls are the steps.

        Its ids are kept for `idle_rows`, so this is called once per kept step.
        """
        modules = self._modules
        if self._idle is not None:
            self._idle.note(*((None,) if modules is None else (modules.ids, modules.model)))
        if modules is None:
            return None
        modules.ids = None
        return modules.tokens

    def idle_rows(self) -> tuple[int | None, ...]:
        """Rows without work in the calls of the kept steps, in order; empty if unknown. Waits for the device."""
        counts = () if self._idle is None else self._idle.counts()
        return () if all(count is None for count in counts) else counts

    def forget_idle_rows(self) -> None:
        """Forget the ids of all steps."""
        if self._idle is not None:
            self._idle.clear()

    def install(
        self,
        finder: StepFinder,
        *,
        ours: Callable[[], bool],
        make_way: Callable[[], None],
        called: Callable[[Any, Any, FrameType], None] | None = None,
    ) -> None:
        """Hook torch, which is imported.

        ``ours()``: whether the profiler that starts is our own; ``make_way()``: called before one of
        the program's own starts; ``called``: gets module, output and frame of calls of models.
        """
        from perfscope.profiler.torch.idle_rows import IdleRows

        self._modules, self._idle = ModuleCalls(finder, called), IdleRows()
        # Before the others: these stay when the hooks of the step sources, which depend on them, are removed.
        self._always = [*self._guard.install(), self._hook_profilers(ours, make_way), self._hook_compile(finder)]
        self._undo = {
            Source.MODULE: [self._modules.install()],
            Source.BACKWARD: [BackwardCalls(finder, lambda: self._optimizer_made).install()],
            Source.OPTIMIZER: [self._hook_optimizers(finder)],
            Source.PROFILER: [_hook_profiler_step(finder)],
            Source.ANNOTATION: [_hook_record_function(finder), *_hook_cuda_nvtx(finder)],
        }

    def forget(self, source: Source) -> None:
        """Take the hooks of a source out."""
        for undo in self._undo.pop(source, ()):
            undo()

    def forget_sources(self) -> None:
        """Take the hooks of all sources out; the program's own profilers are still seen."""
        for source in list(self._undo):
            self.forget(source)

    def remove(self) -> None:
        """Take everything out."""
        self.forget_sources()
        while self._always:
            self._always.pop()()

    def _hook_optimizers(self, finder: StepFinder) -> Undo:
        """See every optimizer's step end, outside the range that torch puts around it.

        A post hook of the optimizer would run inside that range, which would then straddle the boundary.
        """
        from torch.optim import Optimizer

        original = Optimizer.profile_hook_step
        listening = [True]
        stepping = set[int]()
        """Optimizers in their step, which may call that of a base class."""

        def watched(hooked: Callable[..., Any], owner: Any = None) -> Callable[..., Any]:
            """``owner``: the optimizer, if the function has it already."""

            @functools.wraps(hooked)
            def step(*arguments: Any, **named: Any) -> Any:
                # Checked first, so that torch.compile finds no code of ours in this function:
                # a profiler that starts below a compiled frame can crash the program.
                if compat.is_compiling() or not listening[0]:
                    return hooked(*arguments, **named)
                optimizer = arguments[0] if owner is None else owner
                if id(optimizer) in stepping:
                    return hooked(*arguments, **named)
                stepping.add(id(optimizer))
                try:
                    answer = hooked(*arguments, **named)
                finally:
                    stepping.discard(id(optimizer))
                self._stepped(optimizer, finder)
                return answer

            return step

        @functools.wraps(original)
        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            self._optimizer_made = True  # torch hooks a class when the first optimizer of it is made
            return watched(original(function))

        undone = [replace(Optimizer, "profile_hook_step", staticmethod(profile_hook_step))]
        known = _watch_known_optimizers(Optimizer, watched)
        self._optimizer_made = bool(known)
        undone += known

        def undo() -> None:
            listening[0] = False
            for restore in reversed(undone):
                restore()

        return undo

    def _hook_compile(self, finder: StepFinder) -> Undo:
        """See what ``torch.compile`` makes of functions, models and optimizers, whose steps have no hook then."""
        import torch

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def compile_(*arguments: Any, **named: Any) -> Any:
                compiled = original(*arguments, **named)
                program = next(iter(arguments), named.get("model"))
                if program is None:  # a decorator, which calls this function again
                    return compiled
                optimizer = getattr(program, "__self__", None)
                if not isinstance(optimizer, torch.optim.Optimizer) or Source.OPTIMIZER not in self._undo:
                    return compiled if self._modules is None else self._modules.compiled(program, compiled)

                @functools.wraps(compiled)
                def step(*given: Any, **by_name: Any) -> Any:
                    answer = compiled(*given, **by_name)
                    if not compat.is_compiling() and Source.OPTIMIZER in self._undo:
                        self._stepped(optimizer, finder)
                    return answer

                return compat.pass_for_compiled(step)

            return compile_

        return wrap(torch, "compile", make)

    def _stepped(self, optimizer: Any, finder: StepFinder) -> None:
        self.optimizers.add(optimizer)
        if self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)
        if self._first_optimizer() is optimizer:
            finder.edge(Source.OPTIMIZER)

    def _hook_profilers(self, ours: Callable[[], bool], make_way: Callable[[], None]) -> Undo:
        """See the program's own profilers come and go: Kineto can serve one at a time."""
        from torch.autograd.profiler import profile

        def prepare(original: Callable[..., Any]) -> Callable[..., Any]:
            def prepare_trace(profiler: Any, *arguments: Any, **named: Any) -> Any:
                self._guard.started()
                if not ours():
                    self.program_profilers.add(profiler)
                    make_way()
                return original(profiler, *arguments, **named)

            return prepare_trace

        def leave(original: Callable[..., Any]) -> Callable[..., Any]:
            def exit_(profiler: Any, *arguments: Any, **named: Any) -> Any:
                try:
                    return original(profiler, *arguments, **named)
                finally:
                    self.program_profilers.discard(profiler)

            return exit_

        undo = [wrap(profile, "_prepare_trace", prepare), wrap(profile, "__exit__", leave)]
        return undo_all(undo)


def _hook_profiler_step(finder: StepFinder) -> Undo:
    from torch.profiler import profile

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(profiler: Any, *arguments: Any, **named: Any) -> Any:
            answer = original(profiler, *arguments, **named)
            finder.edge(Source.PROFILER)
            return answer

        return step

    return wrap(profile, "step", make)


def _hook_record_function(finder: StepFinder) -> Undo:
    from torch.autograd.profiler import record_function

    def enter(original: Callable[..., Any]) -> Callable[..., Any]:
        def enter_range(range_: Any) -> Any:
            if not compat.is_compiling():
                finder.annotation_enter(range_.name)
            return original(range_)

        return enter_range

    def leave(original: Callable[..., Any]) -> Callable[..., Any]:
        def leave_range(range_: Any, *error: Any) -> Any:
            answer = original(range_, *error)
            if not compat.is_compiling():
                finder.annotation_exit(range_.name)
            return answer

        return leave_range

    undo = [wrap(record_function, "__enter__", enter), wrap(record_function, "__exit__", leave)]
    return undo_all(undo)


def _hook_cuda_nvtx(finder: StepFinder) -> list[Undo]:
    """``torch.cuda.nvtx.range_push`` and ``range_pop``, whose ranges are a stack for each thread."""
    nvtx = sys.modules.get("torch.cuda.nvtx")
    if nvtx is None:
        return []
    open_ranges = threading.local()

    def push(original: Callable[..., Any]) -> Callable[..., Any]:
        def range_push(message: str) -> Any:
            if compat.is_compiling():
                return original(message)
            finder.annotation_enter(message)
            answer = original(message)
            open_ranges.names = [*getattr(open_ranges, "names", ()), message]
            return answer

        return range_push

    def pop(original: Callable[..., Any]) -> Callable[..., Any]:
        def range_pop() -> Any:
            answer = original()
            if not compat.is_compiling() and (names := getattr(open_ranges, "names", None)):
                finder.annotation_exit(names.pop())
            return answer

        return range_pop

    return [wrap(nvtx, "range_push", push), wrap(nvtx, "range_pop", pop)]


def _watch_known_optimizers(optimizers: type, watched: Callable[..., Any]) -> list[Undo]:
    """Watch optimizers that were made before: torch has hooked their classes, and a scheduler may hold their step."""
    kinds, found = [optimizers], list[type]()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if getattr(vars(kind).get("step"), "hooked", False) and kind not in found:
            found.append(kind)
    undone = [replace(kind, "step", watched(vars(kind)["step"])) for kind in found]
    objects = gc.get_objects() if found else ()
    holders = [held for held in objects if issubclass(type(held), optimizers) and "step" in vars(held)]
    return [*undone, *(replace(held, "step", watched(held.step, held)) for held in holders)]
