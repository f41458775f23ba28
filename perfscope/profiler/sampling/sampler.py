"""Samples the Python stacks of all threads from a separate thread, and stops itself if that costs too much.

It uses ``sys._current_frames`` under the interpreter's lock; no signal, no trace function, no other process.

The activity of a thread in C is derived from its line and its processor time: a thread without any sleeps or waits.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable

from perfscope.model.documents.stacks import SampledLoader, StackSamples, StackThread
from perfscope.profiler.sampling.stack_tree import StackReader, StackTree
from perfscope.profiler.sampling.switch_interval import OTHERS_SHARE, SwitchInterval, ThreadClock
from perfscope.profiler.source_files import SourceFiles

PERIOD_S = 0.020
"""Between two samples at first. A sample costs 20 to 150 us, by how long the system takes to wake a thread."""
SHORTEST_PERIOD_S = 0.005
LONGEST_PERIOD_S = 0.160
TRACED_PERIOD_S = 0.005
"""Period in the few steps of the timing pass, whose samples are assigned to the trace: these steps are slower anyway,
and their time is compared with that of steps without a profiler."""
BUDGET = 0.0025
"""Processor time of the sampling thread over the clock; the period is halved and doubled to stay between half of it and
all of it. The turns that it takes from the program are not in it: with them it stays below 1 %."""
WATCHED_TICKS = 40
"""Samplings between two looks at the cost."""

MOST_TICKS = 6_000
"""A minute of steps: the share of a line that takes a twentieth is known to a tenth of itself."""
MOST_ROWS = 40_000
MOST_TRACED_TICKS, MOST_TRACED_ROWS = 2_000, 8_000
"""Further ones of a timing pass that is requested later; with all of them there are at most twice as many rows."""
MOST_STEPS = 10_000


class _Thread(ThreadClock):
    """A thread of the program."""

    __slots__ = ("name", "native_id", "row")

    def __init__(self, row: int, name: str, native_id: int | None) -> None:
        super().__init__(native_id)
        self.row, self.name, self.native_id = row, name, native_id


class StackSampler:
    """One a process."""

    def __init__(
        self,
        files: SourceFiles,
        *,
        name: str = "main",
        worker: int | None = None,
        with_traced: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing runs yet. ``name``, ``worker``: of the process, as in the document.

        ``with_traced``: called with each sampling of a step of the timing pass.
        """
        self._with_traced = with_traced
        self._tree = StackTree(files)
        self._stacks = StackReader()
        self._name, self._worker = name, worker
        self._loop = threading.main_thread().ident
        """The thread of the program's steps."""
        self._threads: dict[int, _Thread] = {}
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        """(Time, duration it represents, its delay, thread, innermost node, processor time of the thread)."""
        self._steps: list[tuple[int, int, int]] = []
        self._thread: threading.Thread | None = None
        self._resumed_ns = time.perf_counter_ns()
        self._awake = threading.Event()
        self._ended = self._full = False
        self._most_ticks, self._most_rows = MOST_TICKS, MOST_ROWS
        self._period_s, self._traced = PERIOD_S, False
        self._cpu_ns = self._wall_ns = 0
        self._judged_ns = (0, 0)
        """Both values when the cost was last checked."""
        self.ticks = 0
        self.stopped: str | None = None
        """Why it stopped before the program did."""
        self._switch = SwitchInterval()

    def resume(self, *, traced: bool) -> None:
        """Sample the steps from here on. ``traced``: these are steps of the timing pass."""
        self._traced = traced
        if self._full and not traced:
            self._awake.clear()
        if self._ended or self._awake.is_set() or (self._full and not self._makes_room()):
            return
        if self._thread is None:
            self._loop = threading.get_ident()
            self._notice_collections()
            self._thread = threading.Thread(target=self.run, name="perfscope-stacks", daemon=True)
            self._thread.start()
        self._switch.put()
        self._resumed_ns = time.perf_counter_ns()
        self._awake.set()

    def _makes_room(self) -> bool:
        """Whether there is room for a recording that is requested after the samples are complete."""
        if not self._traced or len(self._rows) >= 2 * MOST_ROWS:
            return False
        self._most_ticks, self._most_rows = self.ticks + MOST_TRACED_TICKS, len(self._rows) + MOST_TRACED_ROWS
        return True

    def pause(self) -> None:
        """Take no samples until ``resume``."""
        if not self._ended:
            self._awake.clear()

    def step(self, number: int, begin_ns: int, end_ns: int) -> None:
        """A step ended; times of ``perf_counter_ns``. A step that was not sampled is ignored."""
        if not self._ended and self._awake.is_set() and (self._traced or len(self._steps) < MOST_STEPS):
            self._steps.append((number, begin_ns, end_ns))

    def start_over(self) -> None:
        """Discard the steps so far, and their samples."""
        self._steps, self._rows = [], []

    def stop(self) -> None:
        """End the thread; the samples stay."""
        self._ended = True
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * LONGEST_PERIOD_S)

    def abandon_in_fork(self) -> None:
        """In a forked child, which has no such thread."""
        self._ended = True
        self._release()

    def sample_all(self, twice_as_much: Callable[[], None]) -> None:
        """Sample on the calling thread until the end; ``twice_as_much`` is called whenever there is."""
        self._awake.set()
        self._notice_collections()
        self.run(twice_as_much)

    def run(self, twice_as_much: Callable[[], None] = lambda: None) -> None:
        """The loop of the sampling thread. An internal error ends it and is reported."""
        try:
            self._loop_until_ended(twice_as_much)
        except Exception as error:
            self.stopped = f"perfscope failed here: {type(error).__name__}: {error}"
        finally:
            self._ended = True
            self._release()

    def _notice_collections(self) -> None:
        """Before the sampling thread starts: it may run for the first time after a collection."""
        gc.callbacks.insert(0, self._tree.collected)

    def _loop_until_ended(self, twice_as_much: Callable[[], None]) -> None:
        own, often, before = threading.get_ident(), 64, time.perf_counter_ns()
        while not self._ended:
            kept_waiting = False
            if not self._awake.is_set():
                self._switch.put_back()
                self._awake.wait()
                before = self._resumed_ns
                # A call that holds the lock may have kept this thread from running since it was resumed.
                kept_waiting = time.perf_counter_ns() - before > PERIOD_S * 1e9
            cpu = time.thread_time_ns()
            due = before if kept_waiting else self._sleep()
            now = time.perf_counter_ns()
            if self._ended or not self._awake.is_set() or not self._stacks.ready():
                continue
            if self._traced:
                self._with_traced()
            others_ns = self._sample(now, now - before, now - due, own)
            self._switch.put(alone=others_ns <= OTHERS_SHARE * (now - before))
            self._cpu_ns += time.thread_time_ns() - cpu
            self._wall_ns += now - before
            before = now
            self._watch_cost()
            if self.ticks >= often:
                often *= 2
                twice_as_much()

    def _sleep(self) -> int:
        """Sleep one period; the time at which it was over.

        It is by a quarter longer or shorter: steps that last as long must not always be seen in one place.
        """
        spread = 0.75 + 0.5 * (self.ticks * 0.6180339887 % 1)  # multiples of the golden ratio fill [0, 1) evenly
        seconds = (TRACED_PERIOD_S if self._traced else self._period_s) * spread
        until = time.perf_counter_ns() + round(seconds * 1e9)
        time.sleep(seconds)
        return until

    def _sample(self, now: int, elapsed: int, delay: int, own: int) -> int:
        """Take the stacks of all threads that worked; the processor time of those but the one of the steps, ns."""
        self.ticks += 1
        others = 0
        for ident in list(sys._current_frames()):
            if ident == own:
                continue
            thread = self._threads.get(ident) or self._meet(ident)
            spent = thread.since()
            if ident != self._loop:
                if not spent:
                    continue  # it has not run since, and waits where it did
                others += max(spent, 0)
            stack = self._stacks.read(ident) if len(self._rows) < self._most_rows else None
            collection = self._tree.collection
            if collection is not None and collection.fills(ident, now - delay, now):
                stack = collection.stack
            if stack is not None:
                self._rows.append((now, elapsed, delay, thread.row, self._tree.add(stack), spent))
        return others

    def _meet(self, ident: int) -> _Thread:
        """A new thread; a thread made in C has no name."""
        known = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
        thread = _Thread(
            len(self._threads),
            f"thread {len(self._threads)}" if known is None else known.name,
            None if known is None else known.native_id,
        )
        self._threads[ident] = thread
        return thread

    def _release(self) -> None:
        self._switch.put_back()
        if self._tree.collected in gc.callbacks:
            gc.callbacks.remove(self._tree.collected)

    def _watch_cost(self) -> None:
        """Sample less often if it costs too much, and not at all if that is not enough."""
        if self.ticks >= self._most_ticks or len(self._rows) >= self._most_rows:
            self._full = True
            self._awake.clear()
        elif not self.ticks % WATCHED_TICKS:
            cpu_ns, wall_ns = self._cpu_ns - self._judged_ns[0], self._wall_ns - self._judged_ns[1]
            self._judged_ns = self._cpu_ns, self._wall_ns
            if self._traced:
                return
            if cpu_ns <= BUDGET * wall_ns / 2:
                self._period_s = max(self._period_s / 2, SHORTEST_PERIOD_S)
            elif cpu_ns > BUDGET * wall_ns and self._period_s < LONGEST_PERIOD_S:
                self._period_s *= 2
            elif cpu_ns > BUDGET * wall_ns:
                self.stopped = (
                    f"sampling took {cpu_ns / wall_ns:.1%} of the time, which is above its budget: it stopped"
                )
                self._ended = True

    def document(self, loaders: tuple[SampledLoader, ...] = ()) -> StackSamples:
        """The samples so far. ``loaders``: data loaders of the program."""
        rows = self._rows[:]
        times, lasts, delays, threads, leaves, spent = zip(*rows, strict=True) if rows else ((),) * 6
        tree = self._tree.save(leaves)
        return StackSamples(
            name=self._name,
            worker=self._worker,
            period_ns=round(self._period_s * 1e9),
            cpu_ns=self._cpu_ns,
            wall_ns=self._wall_ns,
            stopped=self.stopped,
            threads=tuple(
                StackThread(name=thread.name, native_id=thread.native_id, loop=ident == self._loop)
                for ident, thread in self._threads.copy().items()
            ),
            texts=tree.texts,
            frames=tree.frames,
            time_ns=times,
            lasts_ns=lasts,
            delay_ns=delays,
            thread=threads,
            frame=tree.leaves,
            cpu_ns_of=spent,
            steps=tuple(self._steps),
            loaders=loaders,
        )
