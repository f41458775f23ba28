"""Work of a session in a process that has imported jax, besides the passes: hooks, events, syncs, programs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfscope.model.capture import CaptureOptions
from perfscope.model.documents.run import Capture, ProgramFact
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.events import EventLog
from perfscope.profiler.jax.hlo import ProgramLog
from perfscope.profiler.jax.hooks import JaxHooks
from perfscope.profiler.jax.host_syncs import SyncLog
from perfscope.profiler.jax.memory import MemoryLog
from perfscope.profiler.jax.profiler import JaxProfilerCapture
from perfscope.profiler.jax.program_facts import JaxFacts
from perfscope.profiler.jax.record_log import CallSites
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.session.steps import Source, StepFinder

SYNC_STEPS = 64
"""Steps in which syncs are seen: every tenth and every fiftieth step's logging is among them."""

DUMP_FOLDER = "xla-dump"
DUMP_FLAGS = (
    "--xla_dump_hlo_as_text",
    "--xla_dump_hlo_as_proto",
    # Only the pass that decides fusion on GPUs: its dump has the reason why an op was not fused.
    "--xla_dump_hlo_pass_re=priority-fusion",
)
MOST_DUMPS = 10_000

COUNTERS = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit", "largest_alloc_size", "num_allocs")
"""Keys of ``device.memory_stats()`` that are kept."""


class JaxSession:
    """The jax part of a session. ``step``: the number of the running step, ``None`` between steps."""

    def __init__(self, options: CaptureOptions, run: Path, step: Callable[[], int | None]) -> None:
        """Nothing is hooked yet."""
        self.hooks = JaxHooks()
        self._options = options
        self._run = run
        sites = CallSites(Path.cwd())
        self._facts = JaxFacts(sites)
        self._events = EventLog(sites, step, self._facts.look)
        self._syncs = SyncLog(sites, step)
        self._programs = ProgramLog()
        self._memory: MemoryLog | None = None
        self._programs_due = False
        self._programs_found: Capture | None = None
        self._sync_steps = 0
        self._syncs_begun = False
        self._dump: Capture | None = None
        self._marks = True

    def attach(
        self, finder: StepFinder, *, make_way: Callable[[], None], whole: Callable[[], None] | None = None
    ) -> None:
        """Begin to listen; jax is imported, its backends are not up yet."""
        if self._options.xla_dump:
            self._dump = _ask_for_dump(self._run)
        self.hooks.install(finder, make_way=make_way, whole=whole)
        if not self._options.recorders:  # which compile further programs, and read arrays
            self._events.start()
            self._facts.watch()
            self._programs.start()

    def settled(self, source: Source | None) -> None:
        """Steps are known: from here on syncs are of interest."""
        self._marks = source is not Source.STEP_TRACE  # else the program marks its steps itself
        wanted = self._options.level != "light" and not self._options.recorders
        if wanted and not self._syncs_begun and compat.array_class() is not None:
            self._syncs_begun = True
            self._syncs.start()

    def unsettled(self) -> None:
        """Discard the steps so far: another source detects them from here on."""
        self._events.start_over()
        self._syncs.start_over()
        self._sync_steps = 0

    def step_ended(self) -> None:
        """Count a step; after enough of them syncs are not looked for any more."""
        self._syncs.disturbed = False
        if self._syncs.on:
            self._sync_steps += 1
            if self._sync_steps >= SYNC_STEPS:
                self._syncs.stop()

    def capture(self, due: Pass) -> JaxProfilerCapture:
        """The capture of a pass."""
        if self._options.level != "light":
            self._memory = MemoryLog()
        return JaxProfilerCapture(
            due, tracing=self._traces, synchronise=self._wait_at_ends, marks=self._marks, bounded=self._options.whole
        )

    def save(self, directory: Path, *, last: bool = False) -> list[Capture]:
        """Write all files so far, and return their captures. Nothing for a program that does not use jax."""
        if not compat.backends() or self._options.recorders:
            return []
        captures = [self._events.save(directory, self._run)]
        if self._syncs_begun:
            captures.append(self._syncs.save(directory, self._run))
        if self._memory is not None:
            captures.append(self._memory.save(directory, self._run))
        if (self._programs_due or last) and not compat.trace_runs():
            self._programs_due = False
            try:
                self._programs_found = self._programs.save(directory, self._run)
            except Exception as error:
                self._programs_found = self._programs_found or _missing_programs(f"{type(error).__name__}: {error}")
        captures.append(self._programs_found or _missing_programs("the program ended before the snapshot"))
        if self._dump is not None:
            captures.append(self._dump)
        return captures

    def stop(self) -> None:
        """Leave jax as it was."""
        self.hooks.remove()
        self._syncs.stop()
        self._events.stop()
        self._facts.stop()
        self._programs.stop()

    def abandon_in_fork(self) -> None:
        """In a forked child: Python's side goes; jax's own threads did not come along and are not touched."""
        self.hooks.remove()
        self._syncs.stop()
        self._events.stop()

    def facts(self) -> tuple[ProgramFact, ...]:
        """Settings of the program that cost time, and kernels that are interpreted."""
        return (*self._facts.noted(self.hooks.unjitted, self.hooks.outside), *self._facts.calls(self.hooks.counts))

    @property
    def compilations(self) -> int:
        """Programs that jax compiled so far."""
        return self._events.compilations

    def wait(self) -> bool:
        """Wait for all devices; False if none is up, or if the program itself records a trace."""
        if not compat.backends() or compat.trace_runs():
            return False
        self._synchronise()
        return True

    def _synchronise(self) -> None:
        with self._syncs.paused():
            compat.synchronise()
        self._syncs.disturbed = True

    def _wait_at_ends(self) -> None:
        """Before the first traced step and after the last: nothing is queued then, and nothing is timed."""
        self._synchronise()
        if self._memory is not None:
            self._memory.take()

    def _traces(self, on: bool) -> None:
        self._syncs.traced = on
        compat.set_our_trace(on)
        if not on:
            self._programs_due = True


def packages() -> Mapping[str, str]:
    """Versions, if jax is imported."""
    if "jax" not in sys.modules:
        return {}
    return dict(zip(("jax", "jaxlib"), compat.version(), strict=True))


def devices() -> list[Mapping[str, str | int]]:
    """The accelerators of this process; a process that has not used one has none, and the CPU does not count."""
    accelerators: list[Mapping[str, str | int]] = []
    for device in compat.devices() if "jax" in sys.modules else ():
        if device.platform != "cpu":
            limit = _counters(device).get("bytes_limit")
            memory = {} if limit is None else {"memory_bytes": limit}
            accelerators.append({"name": str(device.device_kind), "platform": str(device.platform), **memory})
    return accelerators


def memory() -> dict[str, int]:
    """Bytes of the arrays that are alive, and the counters of the first device where it has any."""
    if "jax" not in sys.modules or not compat.backends():
        return {}
    import jax

    arrays = [array for array in jax.live_arrays() if not array.is_deleted()]
    local = compat.devices()
    return {"live_arrays_bytes": sum(int(array.nbytes) for array in arrays), **(_counters(local[0]) if local else {})}


def _counters(device: Any) -> dict[str, int]:
    with contextlib.suppress(Exception):  # a backend may refuse with an exception class of its plugin
        counters = device.memory_stats() or {}
        return {key: int(counters[key]) for key in COUNTERS if key in counters}
    return {}


def _missing_programs(reason: str) -> Capture:
    from perfscope.profiler.jax.hlo import PASS

    return Capture(pass_name=PASS, tool="jax_hlo", state="missing", reason=reason)


def _ask_for_dump(run: Path) -> Capture:
    """Have XLA write each program it compiles, and its decisions on fusion, into a folder of this process's own."""
    name = "xla_dump"
    flags = os.environ.get("XLA_FLAGS", "")
    if "--xla_dump_to" in flags:
        reason = "XLA_FLAGS of the program names a folder for dumps already"
        return Capture(pass_name=name, tool=name, state="missing", reason=reason)
    if compat.backends():
        reason = "jax had started a backend before"
        return Capture(pass_name=name, tool=name, state="missing", reason=reason)
    for number in range(MOST_DUMPS):
        path = run / f"{DUMP_FOLDER}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        os.environ["XLA_FLAGS"] = " ".join(filter(None, (flags, f"--xla_dump_to={path}", *DUMP_FLAGS)))
        return Capture(pass_name=name, tool=name, state="recorded", artifact=path.name)
    raise RuntimeError(f"no free folder after {MOST_DUMPS} tries")
