"""``step()`` and ``region(name)``: marks in the user's program that cost next to nothing while nothing is recorded.

They tell ``perfscope run`` where steps begin, are NVTX ranges in the domain ``perfscope`` for Nsight
Systems, ``record_function`` ranges while a torch profiler runs, and annotations while a jax trace does.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from perfscope.model import hooks

DOMAIN = "perfscope"
STEP = "step"
EXIT_RANGE = "exit"
"""The NVTX range that closes the range opened by the last plain ``step()``; it is not a step."""
STEP_RANGE = "perfscope.step#"
"""Followed by the step's number: the torch range that a reader takes for a step."""
JAX_STEP = "perfscope.step"
"""Name of the step annotation in a trace of jax's; its number is the statistic ``step_num``."""

Function = TypeVar("Function", bound=Callable[..., Any])
Item = TypeVar("Item")


class Listener(Protocol):
    """Who wants to know of steps and annotations (``perfscope.profiler.session.steps``)."""

    def explicit_edge(self) -> None:
        """``step()`` was called: a step ended here and the next one began."""

    def explicit_enter(self) -> None:
        """That call was a ``with`` statement's: only what is inside is the step."""

    def explicit_exit(self) -> None:
        """The ``with`` statement ended."""

    def annotation_enter(self, name: str) -> None:
        """A range of that name is about to begin."""

    def annotation_exit(self, name: str) -> None:
        """A range of that name ended."""


_listener: Listener | None = None
_nvtx: Any = None
"""The nvtx module while a tool records ranges; ``False`` if no tool does; ``None``: not looked yet."""
_open_step: Any = None
"""The NVTX range of the step that runs."""
_closes_at_exit = False
"""Whether `_close_at_exit` is registered."""
_marks_steps = True
"""Whether `step()` writes NVTX ranges; False if the session does, because it has the steps' numbers."""
_open_record: Any = None
"""The torch range of a ``with step()`` that runs."""
_with_count = 0
_open_jax: Any = None
"""The jax annotation of the step that runs."""
_jax_count = 0


_LOOK_EVERY_S = 1.0
"""Between two looks for a request of ``perfscope attach``; one costs some microseconds."""
_looked = 0.0
_each_step: Callable[[], None] | None = None
"""Called after each plain ``step()``; ``None``: look for a request."""


def request_path(pid: int) -> str:
    """Path of the request to a process to record its next steps, in a folder of the user."""
    return f"/tmp/perfscope-{os.getuid()}/attach-{pid}"  # noqa: S108 (its owner is checked)


def at_each_step(call: Callable[[], None] | None) -> None:
    """Call a function after each plain ``step()``; ``None``: look for requests again."""
    global _each_step
    _each_step = call


def _look_for_request() -> None:
    global _looked
    now = monotonic()
    if now - _looked < _LOOK_EVERY_S:
        return
    _looked = now
    if _listener is None and os.path.exists(request_path(os.getpid())):  # noqa: PTH110 (half the cost)
        hooks.call("record_on_request")


def listen(listener: Listener | None) -> None:
    """Report every mark to ``listener`` from now on; ``None``: stop."""
    global _listener
    _listener = listener


class _Step:
    """Result of ``step()``, so that it also works as ``with perfscope.step():``."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _open_record, _with_count
        if _listener is not None:
            _listener.explicit_enter()
            return
        if _torch_profiler_records():
            # Only a `with` has a defined end: a plain call would leave the last range open, and the work between
            # the loop and the profiler's end would look like a step.
            _open_record = sys.modules["torch.autograd.profiler"].record_function(f"{STEP_RANGE}{_with_count}")
            _open_record.__enter__()
        _with_count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _open_record
        if _open_record is not None:
            _open_record.__exit__(kind, error, trace)
            _open_record = None
        if _open_jax is not None:
            _mark_jax_step(begin=False)
        if _listener is not None:
            _listener.explicit_exit()
        if _nvtx and _marks_steps:
            _mark_step(end_only=True)


_STEP = _Step()


def step() -> _Step:
    """Mark a step boundary: call it at the end of the loop's body, or write ``with perfscope.step():`` around it.

    Called plainly, everything between two calls is one step, including the wait for the data loader. As a
    ``with`` statement only its body is. Where it is used, it alone defines the steps.
    """
    if _listener is not None:
        _listener.explicit_edge()
    elif _open_jax is not None or "jax" in sys.modules:
        _mark_jax_step(begin=True)
    if _nvtx is None:
        _find_nvtx()
    if _nvtx and _marks_steps:
        _mark_step(end_only=False)
    if _each_step is not None:
        _each_step()
    else:
        _look_for_request()
    return _STEP


# torch.compile must call it, not look into it: a listener works outside of any graph.
step._torchdynamo_disable = True  # type: ignore[attr-defined]


def steps(items: Iterable[Item]) -> Iterator[Item]:
    """``for batch in perfscope.steps(loader)``: each turn of the loop is a step, the loader's wait included."""
    for item in items:
        yield item
        step()


class region:  # noqa: N801 (used as a function: `with region("name")`, `@region("name")`)
    """A named part of the program: ``with perfscope.region("attention"):`` or ``@perfscope.region("attention")``."""

    __slots__ = ("_heard", "_pushed", "_recorded", "_traced", "name")

    def __init__(self, name: str) -> None:
        """Name the part; nothing begins yet."""
        self.name = name
        self._recorded: Any = None
        self._traced: list[Any] = []
        self._heard = False
        self._pushed = False

    def __enter__(self) -> region:
        if _is_compiling():
            return self
        if _nvtx is None:
            _find_nvtx()
        if _nvtx:
            _nvtx.push_range(self.name, domain=DOMAIN)
            self._pushed = True
        if _torch_profiler_records():
            # The listener hears of it through record_function, as of any other.
            self._recorded = sys.modules["torch.autograd.profiler"].record_function(self.name)
            self._recorded.__enter__()
        if "jax" in sys.modules:
            self._traced += _jax_ranges(self.name)
        if self._recorded is None and _listener is not None:
            _listener.annotation_enter(self.name)
            self._heard = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Close all that was opened, even if a listener was added or removed in between.
        while self._traced:
            self._traced.pop().__exit__(kind, error, trace)
        if self._recorded is not None:
            self._recorded.__exit__(kind, error, trace)
            self._recorded = None
        elif self._heard and _listener is not None:
            _listener.annotation_exit(self.name)
        self._heard = False
        if self._pushed:
            self._pushed = False
            _nvtx.pop_range(domain=DOMAIN)

    def __call__(self, function: Function) -> Function:
        """The function, with a region around each call."""
        name = self.name
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*arguments: Any, **named: Any) -> Any:
                with region(name):
                    return await function(*arguments, **named)

            return cast("Function", awaited)

        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            with region(name):
                return function(*arguments, **named)

        return cast("Function", called)


def _is_compiling() -> bool:
    """Whether torch.compile looks at this call now: a graph holds no ranges, and must not break for one."""
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_compiling())


def _torch_profiler_records() -> bool:
    if "torch.autograd.profiler" not in sys.modules:
        return False
    from perfscope.profiler.torch import compat

    return compat.profiler_records()


def _jax_ranges(name: str) -> list[Any]:
    """The ranges of a region in jax, entered: a scope in a traced function, a mark in a running trace."""
    import jax

    from perfscope.profiler.jax import compat

    ranges: list[Any] = []
    if compat.is_tracing():
        ranges.append(jax.named_scope(name))
    elif compat.trace_runs() or compat.our_trace_runs():
        ranges.append(jax.profiler.TraceAnnotation(name))
    for item in ranges:
        item.__enter__()
    return ranges


def under_nsys() -> bool:
    """Whether Nsight Systems started this process (by the presence of its variable; its value is not read)."""
    return "NSYS_PROFILING_SESSION_ID" in os.environ


def nvtx_problem() -> str | None:
    """Why no tool records NVTX ranges of this process; ``None`` if one does."""
    try:
        import nvtx
    except ImportError:
        return "the package nvtx is not installed"
    if type(nvtx.get_domain(DOMAIN)).__name__ == "DummyDomain":
        return "no tool listens for NVTX ranges"
    return None


def nvtx_ranges() -> Any:
    """Writer of NVTX ranges, with the functions of the module ``nvtx``; ``False`` if no tool records them."""
    if _nvtx is None:
        _find_nvtx()
    return _nvtx


def leave_steps_to_session() -> None:
    """From now on ``step()`` writes no NVTX range."""
    global _marks_steps
    _marks_steps = False


def _find_nvtx() -> None:
    """Look once for a tool that records NVTX ranges.

    Nsight Systems 2022.4 and 2023.x report that they do not, but record. If the workaround is impossible
    every range is lost without a message, so we print one.
    """
    global _nvtx
    problem = nvtx_problem()
    if problem is None:
        import nvtx

        _nvtx = nvtx
        return
    _nvtx = False
    if under_nsys():
        _nvtx = insistent_ranges(DOMAIN) or False
        if not _nvtx:
            print(
                f"perfscope: Nsight Systems records no perfscope ranges: {problem}; "
                "with nsys 2022 or 2023 install 'nvtx<0.2.12'",
                file=sys.stderr,
            )


def _mark_jax_step(*, begin: bool) -> None:
    """While a jax trace runs each step is an annotation in it. One that never ends leaves nothing in the trace.

    So, other than with torch, a plain ``step()`` may open it: an open range is not taken for a step.
    """
    global _open_jax, _jax_count
    if _open_jax is not None:
        _open_jax.__exit__(None, None, None)
        _open_jax = None
    if begin:
        from perfscope.profiler.jax import compat

        if compat.trace_runs():
            from jax.profiler import StepTraceAnnotation

            _open_jax = StepTraceAnnotation(JAX_STEP, step_num=_jax_count)
            _open_jax.__enter__()
        _jax_count += 1


def _mark_step(*, end_only: bool) -> None:
    global _closes_at_exit, _open_step
    if _open_step is not None:
        _nvtx.end_range(_open_step)
        _open_step = None
    if not end_only:
        _open_step = _nvtx.start_range(STEP, domain=DOMAIN)
        if not _closes_at_exit:
            atexit.register(_close_at_exit)
            _closes_at_exit = True


def _close_at_exit() -> None:
    """Mark the final `step()` as an end, so that later work is not taken for another step.

    Nsight Systems would close an open range at the end of the recording, and it would look like a long step.
    """
    if _open_step is not None:
        closing = _nvtx.start_range(EXIT_RANGE, domain=DOMAIN)
        _mark_step(end_only=True)
        _nvtx.end_range(closing)


# NVTX ranges under versions of Nsight Systems that deny listening, though they listen.
#
# nvtx 0.2.12 and later check whether the tool enables a domain (``nvtxDomainIsEnabled``) and otherwise record nothing.
# Nsight Systems 2022.4 and 2023.x return no although they record what they are sent (NVIDIA/NVTX issue 126).


class InsistentRanges:
    """The functions of the module ``nvtx`` that we use, for a domain that ignores the tool's answer."""

    def __init__(self, domain: Any) -> None:
        """``domain``: an ``nvtx.Domain``."""
        self._domain = domain

    def push_range(self, message: str, *, domain: str) -> None:
        """Open a range of this thread's stack. ``domain`` is ours already; the module takes it, so we do."""
        self._domain.push_range(message=message)

    def pop_range(self, *, domain: str) -> None:
        """Close the innermost."""
        self._domain.pop_range()

    def start_range(self, message: str, *, domain: str) -> Any:
        """Open a range that may close anywhere; its handle."""
        return self._domain.start_range(message=message)

    def end_range(self, handle: Any) -> None:
        """Close it."""
        self._domain.end_range(handle)


def insistent_ranges(name: str) -> InsistentRanges | None:
    """Ranges in the domain ``name`` that are always recorded; ``None`` where this nvtx package is built in another way.

    ``Domain.__new__`` does the check; the domain is made without it. nvtx below 0.2.12 has no check.
    """
    try:
        from nvtx._lib import lib

        domain = object.__new__(lib.Domain)
        domain.handle = lib.DomainHandle(name)
        domain.__init__(name)
        domain.end_range(domain.start_range(message="perfscope"))
    except Exception:  # private names of the package: any of them may be gone
        return None
    return InsistentRanges(domain)
