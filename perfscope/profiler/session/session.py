"""Captures inside one process of the user's program: passes at step boundaries, and their results.

Nothing here may reach the program: an error of perfscope becomes the reason why a capture is missing.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter_ns

from perfscope.model.capture import REPEATED_WINDOW_SIZES, WINDOW_SIZES, Message, TimedWindows
from perfscope.model.documents.run import PROCESS_FILE, Process, dump
from perfscope.model.files import write_atomically
from perfscope.profiler.jax.session import JaxSession
from perfscope.profiler.nsys.marks import NsysMarks
from perfscope.profiler.sampling import workers
from perfscope.profiler.sampling.capture import StackCapture
from perfscope.profiler.session import annotate, children, process_state
from perfscope.profiler.session.pass_runner import PassRunner
from perfscope.profiler.session.passes import SETTLING_STEPS, Framework, Pass, first_step
from perfscope.profiler.session.recorders import (
    Progress,
    Recorder,
    Watcher,
    load_companion,
    load_recorders,
    load_watchers,
)
from perfscope.profiler.session.resident import peak_resident_bytes
from perfscope.profiler.session.step_counters import StepCounting
from perfscope.profiler.session.steps import LATE, Source, StepFinder
from perfscope.profiler.session.trigger import Trigger
from perfscope.profiler.torch.compile_log import TorchCompileCapture
from perfscope.profiler.torch.hooks import Hooks
from perfscope.profiler.torch.memory import MemoryRecorder
from perfscope.profiler.torch.program_facts import ProgramFacts

MOST_TIMES = 10_000
"""Untraced step times kept: enough for any statistic, and a manifest that stays small over days."""
WRITE_EVERY_S = 5.0
"""Seconds between two writes of step times: the most that a killed program loses."""

_session: Session | None = None


def attach(message: Message, framework: Framework) -> None:
    """Begin to listen in this process; ``framework`` is imported. Called by the bootstrap, once for each."""
    global _session
    if message.worker_of is not None:
        workers.sample_worker(Path(message.directory), message.worker_of)
        return
    if _session is None:
        _session = Session(message)
        _watch_process()
    _session.listen(framework)


@functools.cache
def _watch_process() -> None:
    atexit.register(_finish)
    os.register_at_fork(after_in_child=_forked)


def is_attached() -> bool:
    """Whether this process is captured already."""
    return _session is not None


def detach() -> None:
    """Keep all captures and end the session, so that another one may begin in this process."""
    global _session
    _finish()
    _session = None


def has_steps() -> bool:
    """Whether the steps of this process are known."""
    return _session is not None and _session.stepping


def has_passes() -> bool:
    """Whether recordings of this process are to come, or run."""
    return _session is not None and _session.recording


def _finish() -> None:
    if _session is not None:
        _session.finish()


def _forked() -> None:
    """In a forked child: everything is the parent's; a process that may have steps begins anew."""
    global _session
    before = _session
    if before is None:
        return
    may_have_steps = before.may_follow and children.forked_as_process(sys._getframe())
    before.abandon(sample=not may_have_steps)
    if may_have_steps:
        _session = Session(replace(before.message, child=True))
        for framework in before.frameworks:
            _session.listen(framework)


class Session:
    """The state of capture in one process."""

    def __init__(self, message: Message) -> None:
        """Plan the passes; nothing is hooked yet."""
        self.message = message
        self.options = message.options
        self._run = Path(message.directory)
        self._pid = os.getpid()
        self._finished = False
        self._passes = PassRunner(self.options, self._run, self._before)
        self._first = first_step(self.options)
        self._trigger = Trigger(self._run)
        self._hooks = Hooks()
        self.frameworks: list[Framework] = []
        self._jax: JaxSession | None = None
        self._compile: TorchCompileCapture | None = None
        profiles = not (self.options.times_only or self.options.recorders)
        self._memory = MemoryRecorder(self._run, wanted=profiles)
        self._recorders: list[Recorder] = []
        self._watchers: list[Watcher] = []
        self._marks = None if message.recording is None else NsysMarks(self.options, message.recording)
        self._counting = StepCounting(wanted=profiles)
        self._stacks = StackCapture(message, lambda: self._counting.cores.read(traced=True), lambda: self.stepping)
        self._facts = ProgramFacts()
        self._companion = load_companion(message)
        self._finder = StepFinder(self.options, self, self._forget)
        self._process: Process | None = None
        self._source: str | None = None
        self._number = 0
        self._ended = 0
        self._running = False
        self._begin_ns = 0
        self._settling = 0
        self._compiled, self._compiles = 0, False
        """Number of torch.compile's compilations when the last step began, and whether it compiled in that step."""
        self._times: list[int] = []
        self._tokens: list[tuple[int, int] | None] = []
        self._windows = self._new_windows()
        self._drained = False
        """Whether the device was idle when the step began. Otherwise its time is not comparable."""
        self._written = 0.0

    @property
    def stepping(self) -> bool:
        """Whether its steps are known."""
        return self._source is not None

    @property
    def recording(self) -> bool:
        """Whether a pass runs or is to come; True until its steps are known."""
        return not self.stepping or self._passes.active is not None or bool(self._passes.to_come)

    @property
    def may_follow(self) -> bool:
        """Whether a process that this one starts may capture in its place."""
        message, options = self.message, self.options
        plain = not (message.companion or message.recording or options.times_only or options.recorders)
        return plain and not options.alone and not self.stepping

    def listen(self, framework: Framework) -> None:
        """Hook the framework and the annotations, or begin at once with ``--whole``."""
        try:
            process_state.mark_attached(self._run)
            self.frameworks.append(framework)
            if self._companion is not None:
                self._companion.attach(framework)
            if framework == "jax":
                self._jax = JaxSession(self.options, self._run, lambda: self._number if self._running else None)
                self._jax.attach(
                    self._finder,
                    make_way=lambda: self._make_way("jax_profiler"),
                    whole=self._begin_whole if self.options.whole else None,
                )
            elif framework == "torch":
                make_way = functools.partial(self._make_way, "torch_profiler")
                called = self._facts.graph_calls.called
                self._hooks.install(self._finder, ours=lambda: self._passes.starting, make_way=make_way, called=called)
                self._compile = TorchCompileCapture(
                    self.options, place=self._place, announce=self._write, counts=lambda: self._finder.completed
                )
                self._compile.start()
                self._facts.watch()
                self._memory.listen()
                self._stacks.watch_loaders()
            if len(self.frameworks) == 1:
                self._recorders = load_recorders(self.options, lambda: self._finder)
                self._watchers = load_watchers(self.message, self._progress)
                for watcher in self._watchers:
                    watcher.start()
            self._counting.watch()
            for recorder in self._recorders:
                recorder.start(framework)
            if self._finder.source is not None:
                for source in set(Source) - {self._finder.source}:  # its steps came too late
                    self._forget(source)
            elif not self.options.whole:
                annotate.listen(self._finder)
            elif framework == "torch":
                self._hooks.forget_sources()
                self._begin_whole()
        except Exception as error:
            self.broken(error)

    def _progress(self) -> Progress:
        source = self._finder.source if self._finder.source is not None else self._finder.best()
        if source is None:
            return Progress(steps=0, inside=False, thread=None)
        return Progress(
            steps=self._finder.completed.get(source, 0), inside=self._running, thread=self._finder.thread_of(source)
        )

    def _begin_whole(self) -> None:
        """With ``--whole``: at once, or with the first jitted call, before which jax has no backend."""
        if self._running:
            return
        try:
            self._first = 0
            self.settled("whole program", 0)
            self.begin(0)
        except Exception as error:
            self.broken(error)

    def _forget(self, source: Source) -> None:
        self._hooks.forget(source)
        if self._jax is not None:
            self._jax.hooks.forget(source)

    def _framework(self, source: Source | None) -> Framework:
        """Framework whose passes run: the one that defines the steps, else the one that computes."""
        if len(self.frameworks) == 1:
            return self.frameworks[0]
        if source in (Source.STEP_TRACE, Source.JITTED):
            return "jax"
        if source in (Source.PROFILER, Source.ANNOTATION, Source.OPTIMIZER, *LATE):
            return "torch"
        jax_computes = self._jax is not None and self._jax.hooks.called and not self._hooks.optimizers
        return "jax" if jax_computes else "torch"

    def settled(self, source: str, completed: int) -> None:
        """Steps are known now: claim a directory, print the plan."""
        self._source = source
        if not children.claim_steps(self._run, self.message):
            self._passes.give_up("another process of the run has steps")
            self._silence()
            return
        if self.message.child:
            children.at_process_end(self.finish)
        self._ended = completed
        self._first = max(self._first, completed)
        self._passes.plan(self._framework(self._finder.source))
        if self._process is None:
            self._process = process_state.inspect_process(self._run)
        else:  # claimed when the first function was compiled: more is known of this process now
            self._process = process_state.refresh_process(self._process, self._run)
            if self._compile is not None:
                self._compile.moved(self._place())
        if self._jax is not None:
            self._jax.settled(self._finder.source)
        if self._marks is None:
            process_state.print_plan(self.options, self._process, source, self._first, self._passes.to_come)
        self._write()

    def _place(self) -> Path:
        """The directory of this process, claimed now if it was not."""
        if self._process is None:
            self._process = process_state.inspect_process(self._run)
        return self._run / self._process.directory

    def unsettled(self) -> None:
        """``perfscope.step()`` was called after captures of another source began: start over."""
        self._passes.start_over()
        if self._marks is not None:
            self._marks.start_over()
        self._times.clear()
        self._tokens.clear()
        self._hooks.forget_idle_rows()
        self._stacks.start_over()
        self._counting.start_over()
        self._windows = self._new_windows()
        if self._jax is not None:
            self._jax.unsettled()
        self._running = False
        self._first = first_step(self.options)

    def begin(self, number: int) -> None:
        """Step ``number`` is about to begin: start a pass if one is due. Ends with the clock."""
        try:
            self._number = number
            if self._companion is not None:
                self._companion.step(number)
            for recorder in self._recorders:
                recorder.step_begins()
            compilations = 0 if self._compile is None else self._compile.compilations
            self._compiles, self._compiled = compilations > self._compiled, compilations
            alone = self._process is None or (self._process.world_size or 1) == 1
            if (steps := self._trigger.steps(number, alone=alone)) and not self.options.whole:
                self._passes.record_again(steps, self._framework(self._finder.source))
            if self._passes.active is None and self._passes.to_come and number >= self._first:
                self._start()
                if self._passes.active is None:
                    self._settling = max(self._settling, int(self._passes.rests(number)))
            if self._passes.active is not None:
                if self._compile is not None and self._passes.active.due.tool == "torch_profiler":
                    self._compile.step_begins(number)
                self._passes.active.begin_step(number)
            elif self._marks is not None:
                if monotonic() - self._written > WRITE_EVERY_S:
                    self._write()
                self._marks.begin(number)
            else:
                if monotonic() - self._written > WRITE_EVERY_S:
                    self._write()
                self._open_window(number)
            self._stacks.step_begins(None if self._passes.active is None else self._passes.active.due)
            self._counting.begin(traced=self._traces_times())
        except Exception as error:
            self.broken(error)
        self._running = True
        self._begin_ns = perf_counter_ns()

    def end(self, now: int) -> None:
        """The step that was begun ended at ``now``."""
        if not self._running:
            return
        self._running = False
        self._ended = self._number + 1
        try:
            self._stacks.step_ended(self._number, self._begin_ns, now)
            alone = self._passes.active is None and self._marks is None and not (self._settling or self._drained)
            self._counting.end(self._number, self._begin_ns, now, free=alone, traced=self._traces_times())
            for watcher in self._watchers:
                watcher.step_ended(self._begin_ns, now, free=alone)
            if self._jax is not None:
                self._jax.step_ended()
            if self._passes.active is not None:
                if self._passes.end_step(self._number):
                    self._pass_ended()
            elif self._marks is not None:
                self._marks.end()  # times under a profiler are not those of the program alone: none are kept
            elif self.options.recorders:
                pass  # nor are those of steps in which a plug-in records
            elif self._settling > 0:
                self._settling -= 1
            else:
                if len(self._times) < MOST_TIMES and not self._drained:
                    self._times.append(now - self._begin_ns)
                    self._tokens.append(self._hooks.tokens())
                self._windows.after_step()
        except Exception as error:
            self.broken(error)

    def _traces_times(self) -> bool:
        return self._passes.active is not None and self._passes.active.due.name == "timing"

    def _new_windows(self) -> TimedWindows:
        return TimedWindows(
            self._wait, self._compilations, REPEATED_WINDOW_SIZES if self.options.times_only else WINDOW_SIZES
        )

    def _compilations(self) -> int:
        return sum(side.compilations for side in (self._jax, self._compile) if side is not None)

    def _wait(self) -> bool:
        waited = self._jax is not None and self._jax.wait()
        return process_state.wait_for_cuda() or waited

    def _open_window(self, number: int) -> None:
        """Open a window of timed steps after the last pass, or long enough before the first."""
        steps = self._windows.next_size
        fits = (
            steps
            and not self._settling
            and not self.options.recorders
            and (not self._passes.to_come or number + steps <= self._first)
        )
        self._drained = bool(fits) and self._windows.before_step()

    def broken(self, error: Exception) -> None:
        """Give up in this process and report the reason, an error of perfscope."""
        reason = f"perfscope failed here: {type(error).__name__}: {error}"
        try:
            self._passes.give_up(reason)
            self._silence()
            process_state.note_failure(self._run, reason)
            self._write()
        except Exception:  # noqa: S110 (it cannot be reported anywhere, and the program must go on)
            pass

    def finish(self) -> None:
        """Keep all captures, because the process exits."""
        if os.getpid() != self._pid or self._finished:
            return
        self._finished = True
        try:
            now = perf_counter_ns()
            for watcher in self._watchers:
                watcher.stop()
            if self.options.whole:
                self.end(now)
            if self._passes.active is not None:
                self._passes.finish(self._number)
                self._pass_ended()
            self._stacks.stop()
            best = self._finder.best()
            if self._source is None and best is not None and self._finder.completed[best]:
                self._source = self._finder.label(best)
                self._ended = self._finder.completed[best]
                self._passes.plan(self._framework(best))
                steps = "1 step" if self._ended == 1 else f"{self._ended} steps"
                self._passes.delay = f"the program took {steps} ({self._source}) and ended before"
                self._place()
            self._process = process_state.finish_ab_launch(self.message, self._process)
            if self._companion is not None:
                self._companion.save()
            self._write(last=True)
            self._silence()
        except Exception as error:
            self.broken(error)

    def abandon(self, *, sample: bool = True) -> None:
        """In a forked child: everything is the parent's. ``sample``: it may be a data loader's worker."""
        try:
            self._passes.abandon_in_fork()
            annotate.listen(None)
            self._hooks.remove()
            if self._compile is not None:
                self._compile.abandon_in_fork()
            self._memory.stop()
            if self._jax is not None:
                self._jax.abandon_in_fork()
            self._stacks.abandon_in_fork(sample=sample)
            self._counting.abandon_in_fork()
            for recorder in self._recorders:
                recorder.abandon_in_fork()
            for watcher in self._watchers:
                watcher.abandon_in_fork()
        except Exception:  # noqa: S110 (the child shares the run directory with its parent and must not write there)
            pass

    def _silence(self) -> None:
        annotate.listen(None)
        self._hooks.remove()
        own = (self._memory, self._compile, self._jax, self._stacks, self._counting, self._facts)
        for side in (*own, *self._recorders):
            if side is not None:
                side.stop()

    def _start(self) -> None:
        assert self._process is not None
        self._windows.drop()
        profiles = bool(self._hooks.program_profilers)
        self._passes.start(self._number, self._place(), self._jax, program_profiles=profiles, compiles=self._compiles)
        if self._passes.active is not None:
            self._write()

    def _before(self, due: Pass) -> None:
        """Before a pass: record the memory of the program now, because the pass cannot see it."""
        assert self._process is not None
        self._process = self._memory.before(self._process, due, self._number, self._hooks.optimizers)

    def _pass_ended(self) -> None:
        assert self._process is not None
        self._process = self._memory.after(self._process, self._number, last=not self._passes.to_come)
        if not self._passes.to_come:
            self._settling = SETTLING_STEPS
        self._write()

    def _make_way(self, tool: str) -> None:
        """Stop our profiler with its data, because the program starts one; it may resume later."""
        try:
            self._windows.drop()
            if self._passes.make_way(tool):
                self._write()
        except Exception as error:
            self.broken(error)

    def _write(self, *, last: bool = False) -> None:
        self._written = monotonic()
        if self._process is None:
            return
        directory = self._place()
        captures = self._passes.captures()
        if self._marks is not None:
            captures.append(self._marks.capture())
        if self._jax is not None:
            captures += self._jax.save(directory, last=last)
        if self._compile is not None:
            source = self._finder.source if self._finder.source is not None else self._finder.best()
            captures += self._compile.save(directory, self._run, source, last=last)
        captures += self._memory.save(directory)
        for recorder in self._recorders:
            captures += recorder.save(directory, self._run, last=last)
        if any(capture.artifact for capture in captures):  # samples alone show nothing: they need a trace
            captures += self._stacks.save(directory, self._run, last=last)
            captures += self._counting.save(directory, self._run, last=last)
        process = replace(
            self._process,
            child=self.message.child,
            step_source=self._source,
            steps_seen=self._ended,
            warmup=self.options.warmup,
            untraced_step_ns=tuple(self._times),
            untraced_step_tokens=tuple(self._tokens) if any(self._tokens) else (),
            untraced_step_idle_rows=self._hooks.idle_rows() if last and any(self._tokens) else (),
            window_ns=self._windows.ns,
            window_steps=self._windows.steps,
            window_compilations=self._windows.compiled,
            windows_ns=tuple(self._windows.each_ns) if self.options.times_only else (),
            torch_compilations=self._compile.compilations
            if self._compile is not None and self._compile.looks
            else None,
            facts=(*self._facts.noted(), *(() if self._jax is None else self._jax.facts())),
            resident_bytes=peak_resident_bytes(),
            captures=tuple(captures),
        )
        # The program waits for this, and a slow disk must not be felt between its steps.
        write_atomically(directory / PROCESS_FILE, dump(process), durable=False)
