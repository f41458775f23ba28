"""Steps of a program without an optimizer: from the end of one call of its model to the end of the next.

A generation loop calls its model once per token, an evaluation loop once per batch. Every module is watched until one
has been called often enough from outside all others; from then on only calls of that module. If another model was
called in between, less often, its calls are awaited: a round of speculative decoding has several drafts.

The hooks of all modules are public in torch. They must be absent while torch.compile traces a module: a graph made with
them would be compiled again without them. So they are removed before the first call of a compiled function or module,
and each result of ``torch.compile`` is watched. Hooks of one module are saved and copied with it, so its calls are
wrapped instead.

A call of a compiled function is a step as a model's call is; in a call of a model, the model is watched instead.

The steps are those of one thread. When it has ended, another thread's calls become the steps.
A server may compute each request in a new thread: then each further thread with the same target is a step, from
its begin to its end.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType
from typing import Any

from perfscope.profiler.patching import Undo, wrap
from perfscope.profiler.session.steps import Source, StepFinder
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.watched_calls import watch_calls

TRAINING_CALLS = 16
"""Further calls that are awaited while gradients are recorded: an optimizer that steps after several batches comes
first, and its steps are better."""


MOST_MOVES = 3
"""Times that the steps move to another thread: each time their recording begins anew."""


class _Called:
    """A module or compiled function that was called from outside all modules."""

    def __init__(self, module: Any, first: int) -> None:
        self.module = weakref.ref(module)
        self.calls, self.first, self.last = 0, first, first


class ModuleCalls:
    """Finds the module whose calls are the steps and reports them as ``Source.MODULE``."""

    def __init__(self, finder: StepFinder, called: Callable[[Any, Any, FrameType], None] | None = None) -> None:
        """``finder``: gets the steps. ``called``: gets module, output and frame of calls from outside all modules."""
        self._finder = finder
        self._report = called
        self._inside = threading.local()
        self._calls: dict[int, _Called] = {}
        self._order = 0
        """Number of calls from outside all modules so far."""
        self._all: list[Any] = []
        self._single: list[Undo] = []
        self._single_ids: set[int] = set()
        """Models that are watched because compiled code runs in their calls."""
        self._function: Any = None
        """The compiled function whose calls are the steps."""
        self._owner: Callable[[], threading.Thread | None] = lambda: None
        """The thread of the steps, while it exists."""
        self._kept = 0
        """Its calls since the steps are followed."""
        self._moves = 0
        self._switch = threading.Lock()
        self._name = ""
        self._per_thread = False
        self._watching = False
        self.tokens: tuple[int, int] | None = None
        """(Sequences, tokens of each) of the followed module's last call; ``None`` if no argument shows them."""
        self.ids: Any = None
        """The token ids of that call."""
        self.model: Any = None
        """The followed module; ``None``: a function, or none yet."""

    def install(self) -> Undo:
        """Watch all modules. Returns what takes every hook out."""
        from torch.nn.modules import module

        self._watching = True
        self._all = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        return self._remove

    def _remove(self) -> None:
        self._leave_all()
        self._function = None
        while self._single:
            self._single.pop()()

    def _leave_all(self) -> None:
        for handle in self._all:
            handle.remove()
        self._all = []
        self._watching = False

    def _compiles(self) -> None:
        """Remove the hooks of all modules, because a compiled call is about to begin and a graph must not hold them."""
        for handle in self._all:
            handle.remove()
        self._all = []

    def compiled(self, program: Any, compiled: Any) -> Any:
        """Watch what ``torch.compile`` made of ``program``. Returns what the program gets."""
        import torch

        if not self._watching or compiled is program:
            return compiled
        if isinstance(compiled, torch.nn.Module):
            self._single.append(watch_calls(compiled, self._called_alone))
            return compiled

        @functools.wraps(compiled)
        def call(*arguments: Any, **named: Any) -> Any:
            # Checked first, so that torch.compile finds no code of ours in this function.
            if compat.is_compiling() or not (self._watching or self._function is call):
                return compiled(*arguments, **named)
            return self._call(call, compiled, *arguments, **named)

        return compat.pass_for_compiled(call)

    def _enter(self, *_: Any) -> None:
        if not compat.is_compiling():
            self._inside.depth = getattr(self._inside, "depth", 0) + 1

    def _leave(self, module: Any, _: Any = (), output: Any = None) -> None:
        import torch

        if compat.is_compiling():
            return
        self._inside.depth = max(0, getattr(self._inside, "depth", 0) - 1)
        if self._inside.depth == 0:
            if self._report is not None:
                self._report(module, output, sys._getframe(1))
            self._called(module, sys._getframe(1), trains=torch.is_grad_enabled())

    def _called_alone(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *arguments: Any, **named: Any) -> Any:
            if compat.is_compiling() or not self._watching:
                return original(module, *arguments, **named)
            return self._call(module, functools.partial(original, module), *arguments, **named)

        return call

    def _call(self, called: Any, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a compiled function, or a module that is compiled or holds compiled code."""
        self._compiles()
        local, output = self._inside, None
        local.compiled = getattr(local, "compiled", 0) + 1
        try:
            output = original(*arguments, **named)
            return output
        finally:
            local.compiled -= 1
            if local.compiled == 0:
                self._ended(called, output, arguments, named)

    def _ended(self, called: Any, output: Any, arguments: Any, named: Any) -> None:
        """An outermost call ended: count it, or the calls of the model around it from now on."""
        frame = sys._getframe(2)
        if self._function is called:
            self._note_ids(named.get("input_ids"), *arguments[:1])
            self._called_again()
        elif (model := _outermost_model(frame)) is None:
            if self._report is not None and output is not None and not isinstance(called, FunctionType):
                self._report(called, output, frame)
            self._called(called, frame, trains=_trains(output))
        elif self._watching and id(model) not in self._single_ids:
            self._single_ids.add(id(model))
            self._single.append(watch_calls(model, self._called_alone))

    def _called(self, module: Any, frame: FrameType, *, trains: bool) -> None:
        """A model or a compiled function was called from outside. ``trains``: a backward pass may follow."""
        if not self._watching or _loads_data(frame):
            return
        known = self._calls.get(id(module))
        if known is None or known.module() is not module:
            known = self._calls[id(module)] = _Called(module, self._order)
        known.calls, known.last, self._order = known.calls + 1, self._order, self._order + 1
        least = self._finder.warmup + (TRAINING_CALLS if trains else 0)
        if known.calls >= least and not self._is_part(known, least):
            self._follow(module, known.calls - 1)

    def _is_part(self, mine: _Called, least: int) -> bool:
        """Whether several calls of this module may belong to one of another model, as drafts to their check."""
        if mine.calls >= least + TRAINING_CALLS:
            return False
        later = (other for other in self._calls.values() if other.last > mine.first and other.calls < least)
        return any(other.calls < mine.calls and _has_weights(other.module()) for other in later)

    def _follow(self, module: Any, before: int) -> None:
        """The calls of ``module`` are the steps: one ended now, and ``before`` earlier."""
        self._remove()
        self._calls = {}
        if isinstance(module, FunctionType):
            self._function = module
        else:
            self._single = [watch_calls(module, self._again)]
            self.model = weakref.proxy(module)
        self._owner, self._name = weakref.ref(threading.current_thread()), _name_of(module)
        self._finder.called(Source.MODULE, self._name, before)

    def _again(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return original(module, *arguments, **named)
            finally:
                if not compat.is_compiling():
                    self._note_ids(named.get("input_ids"), *arguments[:1])
                    self._called_again()

        return call

    def _note_ids(self, *given: Any) -> None:
        """Note the first tensor that holds token ids: whole numbers, sequences x tokens. No value is read."""
        import torch

        self.tokens = self.ids = None
        for value in given:
            if isinstance(value, torch.Tensor) and value.dim() == 2 and value.dtype in (torch.int64, torch.int32):
                self.tokens, self.ids = (int(value.shape[0]), int(value.shape[1])), value
                return

    def _called_again(self) -> None:
        owner, thread, local = self._owner(), threading.current_thread(), self._inside
        local.calls = getattr(local, "calls", 0) + 1
        if owner is thread:
            self._kept += 1
        elif not self._per_thread and (owner is None or not owner.is_alive()) and self._switch.acquire(blocking=False):
            self._leave_thread(thread, each=local.calls == 1 and not self._kept)
            self._switch.release()
        if not self._per_thread:
            self._finder.edge(Source.MODULE)

    def _leave_thread(self, thread: threading.Thread, *, each: bool) -> None:
        """The thread of the steps has ended. ``each``: a thread computes one request."""
        if each:
            self._follow_threads(thread)
        elif self._moves < MOST_MOVES:
            self._moves, self._kept = self._moves + 1, 0
            self._owner = weakref.ref(thread)
            self._finder.mistaken(Source.MODULE)
            self._finder.release(Source.MODULE)
            self._finder.called(Source.MODULE, self._name)

    def _follow_threads(self, thread: threading.Thread) -> None:
        """Threads with the target of this one are the steps from now on."""
        target = _code_of(thread)
        if target is None:
            return
        self._per_thread = True
        self._finder.mistaken(Source.MODULE)
        self._finder.release(Source.MODULE)

        def run(original: Callable[..., Any]) -> Callable[..., Any]:
            def run_thread(served: threading.Thread) -> Any:
                if _code_of(served) is not target or not self._finder.thread_enter(Source.MODULE, self._name):
                    return original(served)
                try:
                    return original(served)
                finally:
                    self._finder.thread_exit(Source.MODULE, self._name)

            return run_thread

        self._single.append(wrap(threading.Thread, "run", run))


_LOADING = f"torch{os.sep}utils{os.sep}data{os.sep}"


def _loads_data(frame: FrameType | None) -> bool:
    """Whether a data loader is on the stack: it calls modules of torchvision once per sample."""
    while frame is not None:
        if _LOADING in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _outermost_model(frame: FrameType | None) -> Any:
    """The outermost module whose call is on the stack; ``None`` outside of every call."""
    import torch

    code, model = torch.nn.Module.__call__.__code__, None
    while frame is not None:
        if frame.f_code is code:
            model = frame.f_locals.get("self")
        frame = frame.f_back
    return model


def _name_of(module: Any) -> str:
    """Name of a function, or of a module's class, below what ``torch.compile`` made of it."""
    if isinstance(module, FunctionType):
        return module.__name__
    return type(vars(module)["_modules"].get("_orig_mod", module)).__name__


def _has_weights(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Module) and any(True for _ in module.parameters())


def _trains(output: Any) -> bool:
    """Whether a backward pass may follow a call with this output."""
    return any(value.requires_grad for value in torch_tensors(output))


def _code_of(thread: threading.Thread) -> Any:
    """Code of the function that a thread runs; ``None`` for none, or one written in C."""
    target = getattr(thread, "_target", None)
    return getattr(getattr(target, "__func__", target), "__code__", None)


def torch_tensors(output: Any) -> Iterator[Any]:
    """The tensors of an output: in tuples, lists, mappings, and objects with fields such as in transformers."""
    import torch

    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
        return
    parts: Iterable[Any] = ()
    if isinstance(output, dict):
        parts = output.values()
    elif isinstance(output, list | tuple):
        parts = output
    elif hasattr(output, "__dict__"):
        parts = [value for value in vars(output).values() if isinstance(value, torch.Tensor)]
    for part in parts:
        yield from torch_tensors(part)
