"""``perfscope.profile``: captures a part of a program from inside, as ``perfscope run`` captures a whole one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from perfscope.model import hooks
from perfscope.model.capture import WAIT_S, CaptureOptions, Level
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run
from perfscope.model.errors import DataError, NotStartedError
from perfscope.profiler.launch.program import Ended, Target
from perfscope.profiler.launch.record import await_others, begun, ended_as, message_for, task_of_run, write_first
from perfscope.profiler.session import annotate

Function = TypeVar("Function", bound=Callable[..., Any])
FRAMEWORKS = ("torch", "jax")


class Profile:
    """A captured part of this process: ``with perfscope.profile() as profile:``.

    Its steps are found as under ``perfscope run``, so it has to enclose the loop and not one step. Nothing happens
    where the process is captured already, and where the run folder cannot be written the program goes on without.
    """

    def __init__(
        self,
        name: str | None,
        level: Level,
        output: Path,
        *,
        quiet: bool,
        steps: tuple[int, int] | None = None,
    ) -> None:
        """``output``: folder of the run directories; ``quiet``: print nothing at the end; ``steps``: half open."""
        script = sys.argv[0] if sys.argv and sys.argv[0] else "python"
        self._name = name or Path(script).stem or "python"
        self._target = Target(arguments=(script, *sys.argv[1:]), title=self._name)
        self._options = CaptureOptions(level=level, quiet=quiet, steps=steps)
        self._output, self._quiet = output, quiet
        self._run: Run | None = None
        self._alive = contextlib.ExitStack()
        """Shows that the run goes on, until it ends."""
        self._joined = False
        self.directory: Path | None = None
        """Run directory; ``None`` before it begins, and where nothing is captured."""

    def __enter__(self) -> Self:
        try:
            self.begin()
        except (NotStartedError, DataError, OSError) as error:
            print(f"perfscope: nothing is captured: {error}", file=sys.stderr)
            self.directory = None
        return self

    def begin(self) -> None:
        """Begin to capture; ``NotStartedError``, ``DataError`` or ``OSError`` if that is impossible."""
        from perfscope.profiler.session import session

        if session.is_attached():
            return
        loaded = [name for name in FRAMEWORKS if name in sys.modules]
        if not loaded:
            raise NotStartedError("import torch or jax before perfscope.profile() begins")
        task, joined = task_of_run(self._output, None)
        self._joined = joined is not None
        self.directory = run_folders.create(self._output, self._name) if joined is None else joined.directory
        self._run = begun(self._target, self._options, self.directory, self._name, task)
        self._alive.enter_context(run_folders.alive(self.directory, self._run.task))
        write_first(self.directory, self._run)
        message = message_for(self._options, self.directory, follow=False, recording=None)
        for framework in loaded:
            session.attach(message, framework)  # type: ignore[arg-type]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is None or self.directory is None:
            return
        from perfscope.profiler.session import session

        session.detach()
        try:
            with self._alive:
                self._end(failed=kind is not None)
        except (DataError, OSError) as problem:
            print(f"perfscope: the run could not be kept: {problem}", file=sys.stderr)

    def _end(self, *, failed: bool) -> None:
        assert self._run is not None
        assert self.directory is not None
        ended = Ended(code=int(failed), signal=None, interrupted=False)
        done = ended_as(self._run, ended, self.directory, self._options, leads=self._run.task == 0)
        run_folders.write(self.directory, done)
        if self._joined and self._run.task == 0 and not failed:
            await_others(self.directory, task_of_run(self._output, None)[0], WAIT_S)
            done = ended_as(self._run, ended, self.directory, self._options, leads=True)
            run_folders.write(self.directory, done)
        if self._quiet or self._run.task:
            return
        for note in done.notes:
            print(f"perfscope: {note}", file=sys.stderr)
        if done.artifacts(self.directory):
            print(f"perfscope: {self.directory}: `perfscope analyze {self.directory}` reports", file=sys.stderr)

    def analysis(self) -> Any:
        """The `perfscope.Analysis` of the recording, after its end; ``None`` where nothing was captured here."""
        return None if self.directory is None else hooks.call("analysis_of_run", self.directory)


@overload
def profile(function: Function, /) -> Function: ...


@overload
def profile(
    *, name: str | None = None, level: Level = "default", output: str | Path = "perfscope-runs", quiet: bool = False
) -> Any: ...


def profile(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    level: Level = "default",
    output: str | Path = "perfscope-runs",
    quiet: bool = False,
) -> Any:
    """Capture what a ``with`` statement encloses, or each call of a function that is decorated with it.

    ``name``: of the run, the script's if not given; ``level``: as of ``perfscope run``; ``output``: folder that keeps
    the run directories; ``quiet``: print nothing at the end. The block contains the loop over the steps.
    """
    made = functools.partial(_Profiled, name, level, Path(output), quiet=quiet)
    return made() if function is None else made()(function)


class _Profiled(Profile):
    """A `Profile` that also decorates a function: each of its calls is a run."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function whose calls are captured."""

        @functools.wraps(function)
        def profiled(*arguments: Any, **named: Any) -> Any:
            with Profile(self._name, self._options.level, self._output, quiet=self._quiet):
                return function(*arguments, **named)

        return profiled


class Training:
    """The capture of one training at a time, which a callback of a trainer begins, divides into steps, and ends."""

    def __init__(self, **options: Any) -> None:
        """``options``: those of `profile`."""
        self._options = options
        self._profile: Profile | None = None
        self._runs = False

    def begin(self) -> None:
        """The training begins. One that failed before without a word has ended with it."""
        self.end(failed=True)
        profile_: Profile = profile(**self._options)
        self._profile, self._runs = profile_.__enter__(), True
        atexit.register(self.end, failed=True)

    def step(self) -> None:
        """A step of the training ended, and the next one begins."""
        if self._runs:
            annotate.step()

    def end(self, *, failed: bool = False) -> None:
        """The training ended."""
        if self._profile is not None and self._runs:
            self._runs = False
            atexit.unregister(self.end)
            error = RuntimeError if failed else None
            self._profile.__exit__(error, None, None)

    def analysis(self) -> Any:
        """The `perfscope.Analysis` of the last training, after its end; ``None`` if nothing was captured."""
        return None if self._profile is None else self._profile.analysis()


def trace_handler(output: str | Path = "perfscope-traces", *, quiet: bool = False) -> Callable[[Any], None]:
    """Return a handler for the program's ``torch.profiler.profile``: ``on_trace_ready=perfscope.trace_handler()``.

    It writes the trace of each rank and cycle into ``output``; ``perfscope analyze`` takes those of a cycle as one job.
    A trace that cannot be written costs a line on stderr, never the program.
    """
    cycles = 0

    def handle(profiler: Any) -> None:
        nonlocal cycles
        rank = _rank()
        path = Path(output) / f"cycle{cycles}" / f"rank{rank:05d}.pt.trace.json.gz"
        cycles += 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            print(f"perfscope: {path}: the trace could not be written: {error}", file=sys.stderr)
            return
        if not quiet and rank == 0:
            print(f"perfscope: `perfscope analyze {path.parent}` reports", file=sys.stderr)

    return handle


def _rank() -> int:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return 0
