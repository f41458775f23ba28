"""Writes the ledger of one process while it runs: where its main thread was, ten times per second, to its end.

A further thread samples the stack of the thread of the steps; the time since the last sample counts for the stack that
it finds. Sums are appended to a file in the run folder, one line of JSON each, at growing intervals. Causes are
assigned when the file is read (`causes.py`). Only the standard library is imported: this runs in the user's process.
"""

from __future__ import annotations

import gc
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from perfscope.model.capture import Message
from perfscope.model.files import write_atomically
from perfscope.plugins.job.machine import CoreTime, Gpu, age_ns, restarts
from perfscope.plugins.job.progress import told
from perfscope.plugins.job.watch import Values, Watch
from perfscope.profiler.sampling.stack_tree import StackReader, StackTree
from perfscope.profiler.sampling.switch_interval import OTHERS_SHARE, SwitchInterval, ThreadClock
from perfscope.profiler.session.checkpoints import Checkpoint, CheckpointLog
from perfscope.profiler.session.process_state import known_rank
from perfscope.profiler.session.ranks import rank_from_environment
from perfscope.profiler.session.recorders import Progress
from perfscope.profiler.session.step_counters import ResidentMemory
from perfscope.profiler.source_files import SourceFiles
from perfscope.profiler.torch.compat import flight_record

SCHEMA = "perfscope.ledger/1"
FOLDER = "ledger"
"""In the run folder; one file a process."""
SUFFIX = ".jsonl"

STACKS_REQUEST, STACKS_ANSWER = "stacks-{pid}.request", "stacks-{pid}.json"
"""In the same folder: a request for the stacks of a process, looked for once per second, and the answer."""
LATEST_SUFFIX = ".latest"
"""After the name of a ledger: the sums since its last row, written over again and again."""
LATEST_NS = 1_000_000_000

PERIOD_S = 0.1
"""Between two samples. One costs 30 to 200 us of processor time: 0.03 to 0.2 %."""
BUDGET = 0.003
"""Largest share of processor time for the thread that samples; a larger one doubles the period."""
LONGEST_PERIOD_S = 1.6
WATCHED_SAMPLES = 100
"""Samples between two looks at the cost."""
ROWS_S = ((60.0, 2.0), (3600.0, 10.0), (86_400.0, 30.0), (float("inf"), 60.0))
"""(Age of the process, time between two rows): a killed process loses at most the last interval, and a week has 12,000
rows."""
STALLED_S = 120.0
"""Smallest time without a completed step after which the stacks of all threads are written."""
STALLED_IN_SET_UP_S = 600.0
"""The same before the first step, for a thread that stays at one place: ranks wait for each other to come."""
STALLED_STEPS = 30
"""The same in mean steps: evaluations and saves take several steps' time."""
MOST_STALLS = 50
"""Stalls that are written per process."""
MOST_FLIGHTS = 3
"""Stalls with torch's record of its last collectives: one takes up to a megabyte."""
FLIGHT = "flight-{pid}-{stall}_rank_{rank}.json"
"""Such a record, in the same folder."""
MOST_DURATIONS = 4_096
"""Steps per row whose median is taken."""

SET_UP, WARM_UP, OUTSIDE, INSIDE = range(4)
"""Phases: before the first step has ended, in the first steps, and after them outside or inside of a step."""
WARM_UP_STEPS = 2


class LedgerWatcher:
    """The ledger of one process."""

    def __init__(self, message: Message, progress: Callable[[], Progress], watch: Watch | None = None) -> None:
        """Nothing runs yet. ``watch``: gets the values of each row."""
        self._watch = watch
        self._folder = Path(message.directory) / FOLDER
        self._progress = progress
        self._tree = StackTree(SourceFiles(Path.cwd(), ()))
        self._reader = StackReader()
        self._checkpoints = CheckpointLog()
        self._memory = ResidentMemory()
        self._gpu = Gpu()
        self._core, self._own_core = CoreTime(), CoreTime()
        self._clocks: dict[int, ThreadClock] = {}
        """Clocks of the other threads with Python frames, by identifier."""
        self._switch = SwitchInterval()
        self._file: Any = None
        self._latest: Any = None
        self._latest_ns = 0
        """Time of the last row in either file."""
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._period_s = PERIOD_S
        self._cpu_ns = self._wall_ns = self._samples = self._row_samples = 0
        self._main = threading.main_thread().ident
        self._times: dict[tuple[int, int], int] = {}
        """(Node, phase) -> ns since the last row."""
        self._since_step: dict[tuple[int, int], int] = {}
        """The same since the last completed step."""
        self._core_ns = self._ran_ns = self._late_ns = 0
        self._durations: list[int] = []
        """Durations of the steps since the last row, ns."""
        self._from_ns = self._last_ns = 0
        self._began_ns = 0
        self._nodes = 0
        """Nodes that were written."""
        self._texts: dict[str, int] = {}
        self._unwritten: dict[str, list[Any]] = {"texts": [], "nodes": [], "calls": []}
        """Parts of lines that the file system refused."""
        self._torn = False
        """Whether the last line may be in the file in part."""
        self._called: set[int] = set()
        """Nodes whose callee was written."""
        self._steps = self._step_ns = self._free = self._free_ns = 0
        self._completed = self._written_steps = 0
        self._tokens = 0
        self._step_seen_ns = self._same_since_ns = 0
        self._same_node = -1
        self._mean_ns = 0.0
        self._stalls = 0
        self._stalled = False
        self._rank: tuple[int | None, int | None] = (None, None)

    def start(self) -> None:
        """Open the file and begin to sample. An error of the file system leaves the program without a ledger."""
        now = time.perf_counter_ns()
        age = age_ns()
        self._began_ns = now - age
        self._from_ns = self._last_ns = self._step_seen_ns = self._same_since_ns = now
        info = rank_from_environment(os.environ)
        self._rank = (None, None) if info is None else (info.rank, info.world_size)
        began_unix_ns = time.time_ns() - age
        head = {
            "schema": SCHEMA,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "rank": self._rank[0],
            "world": self._rank[1],
            "restart": restarts(),
            "program": Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "",
            "began_ns": self._began_ns,
            "from_ns": now,
            "unix_ns": began_unix_ns,
        }
        name = f"{head['host']}-{head['pid']}-{began_unix_ns // 1_000_000_000}{SUFFIX}"
        try:
            self._folder.mkdir(exist_ok=True)
            self._file = (self._folder / name).open("ab", buffering=0)
            self._latest = (self._folder / f"{name}{LATEST_SUFFIX}").open("wb", buffering=0)
        except OSError:
            return
        self._append(head)
        self._checkpoints.watch()
        gc.callbacks.insert(0, self._tree.collected)
        self._thread = threading.Thread(target=self._run, name="perfscope-ledger", daemon=True)
        self._thread.start()

    def step_ended(self, begin_ns: int, end_ns: int, *, free: bool) -> None:
        """A step ended, on the thread of the steps."""
        self._steps += 1
        self._step_ns += end_ns - begin_ns
        if len(self._durations) < MOST_DURATIONS:
            self._durations.append(end_ns - begin_ns)
        if free:
            self._free += 1
            self._free_ns += end_ns - begin_ns

    def stop(self) -> None:
        """Write the last row, and what was sampled since the last step."""
        if self._file is None or self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * LONGEST_PERIOD_S)
        with suppress(Exception), self._lock:
            self._sample()
            self._row(last=True)
            self._file.close()
            self._latest.close()
            (self._folder / self._latest.name).unlink()
        self._file = None
        self._release()

    def abandon_in_fork(self) -> None:
        """In a forked child: the file is the parent's."""
        self._ended.set()
        self._file = None
        self._lock = threading.Lock()
        self._release()

    def _release(self) -> None:
        self._checkpoints.stop()
        self._memory.close()
        self._core.close()
        self._own_core.close()
        self._switch.put_back()
        if self._tree.collected in gc.callbacks:
            gc.callbacks.remove(self._tree.collected)

    def _run(self) -> None:
        due = time.perf_counter_ns() + self._interval_ns()
        while True:
            period_s = self._period_s * (0.75 + 0.5 * (self._samples * 0.6180339887 % 1))
            planned_ns = time.perf_counter_ns() + round(period_s * 1e9)
            if self._ended.wait(period_s):
                return
            cpu = time.thread_time_ns()
            try:
                with self._lock:
                    before = self._last_ns
                    self._sample(planned_ns)
                    stalled = self._watch_steps()
                    if self._last_ns >= due or self._checkpoints.ended:
                        self._row()
                        due = self._last_ns + self._interval_ns()
                        self._latest_ns = self._last_ns
                    elif self._last_ns - self._latest_ns > LATEST_NS:
                        self._keep_latest()
                if stalled:
                    self._keep_flight_record()
            except Exception as error:  # the program must not feel it; the reader sees that rows end here
                with suppress(Exception):
                    self._append({"failed": f"{type(error).__name__}: {error}"[:300]})
                    self._switch.put_back()
                return
            self._cpu_ns += time.thread_time_ns() - cpu
            self._wall_ns += self._last_ns - before
            self._watch_cost()

    def _interval_ns(self) -> int:
        age_s = (time.perf_counter_ns() - self._began_ns) / 1e9
        return round(next(every for until, every in ROWS_S if age_s < until) * 1e9)

    def _watch_cost(self) -> None:
        if self._samples % WATCHED_SAMPLES == 0:
            if self._cpu_ns > BUDGET * self._wall_ns:
                self._period_s = min(2 * self._period_s, LONGEST_PERIOD_S)
            self._cpu_ns = self._wall_ns = 0

    def _sample(self, planned_ns: int | None = None) -> None:
        """Count the time since the last sample for the stack of now; the part without a core for that.

        ``planned_ns``: when this thread wanted to run: it may have waited for the interpreter since.
        """
        progress = self._progress()
        thread = progress.thread or self._main
        stack = None if thread is None else self._reader.read(thread)
        now = time.perf_counter_ns()
        late = 0 if planned_ns is None else now - planned_ns
        elapsed, self._last_ns = now - self._last_ns, now
        self._samples += 1
        collection = self._tree.collection
        if collection is not None and thread is not None and collection.fills(thread, now - elapsed, now):
            stack = collection.stack
        node = -1 if stack is None else self._tree.add(stack)
        if node != self._same_node:
            self._same_node, self._same_since_ns = node, now
        ran, waited = self._core.since(thread)
        ran, waited = min(elapsed, ran), min(elapsed, waited)
        late = max(0, late - self._own_core.since(threading.get_ident())[1])
        self._core_ns += waited
        self._ran_ns += ran
        self._late_ns += late
        self._checkpoints.sampled(progress.steps, elapsed, ran, waited, late)
        self._switch.put(alone=self._others_ns(thread) <= OTHERS_SHARE * elapsed)
        if progress.steps != self._completed:
            self._completed = progress.steps
            self._step_seen_ns = now
            self._since_step.clear()
        phase = SET_UP if not progress.steps else WARM_UP if progress.steps < WARM_UP_STEPS else OUTSIDE
        if phase == OUTSIDE and progress.inside:
            phase = INSIDE
        for times in (self._times, self._since_step):
            times[node, phase] = times.get((node, phase), 0) + elapsed - waited

    def _others_ns(self, thread: int | None) -> int:
        """Processor time since the last call of the threads with Python frames but this one and that of the steps."""
        spent = 0
        alive = sys._current_frames().keys() - {thread, threading.get_ident()}
        for gone in self._clocks.keys() - alive:
            del self._clocks[gone]
        for new in alive - self._clocks.keys():
            native = next((known.native_id for known in threading.enumerate() if known.ident == new), None)
            self._clocks[new] = ThreadClock(native)
        for clock in self._clocks.values():
            spent += max(0, clock.since())
        return spent

    def _watch_steps(self) -> bool:
        """Write the stacks of all threads once no step has ended for long; whether that is found now."""
        if self._completed:
            since_ns = self._step_seen_ns
            stalled = bool(self._mean_ns) and self._last_ns - since_ns > max(
                STALLED_S * 1e9, STALLED_STEPS * self._mean_ns
            )
        else:
            since_ns = self._same_since_ns
            stalled = self._last_ns - since_ns > STALLED_IN_SET_UP_S * 1e9
        found = stalled and not self._stalled and self._stalls < MOST_STALLS
        if found:
            self._stalls += 1
            stacks = list(self._all_stacks())
            self._append({**self._news([node for _, node in stacks]), "stalled": since_ns, "stacks": stacks})
        self._stalled = stalled
        return found

    def _all_stacks(self) -> Iterator[tuple[str, int]]:
        """(Name, innermost node) of each thread but this one."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident in list(sys._current_frames()):
            stack = self._reader.read(ident) if ident != threading.get_ident() else None
            if stack is not None:
                yield names.get(ident, "thread"), self._tree.add(stack)

    def _answer(self) -> None:
        """Write the stacks of all threads if `perfscope attach` left a request."""
        request = self._folder / STACKS_REQUEST.format(pid=os.getpid())
        if not os.path.exists(request):  # noqa: PTH110 (half the cost)
            return
        stacks = []
        for name, node in self._all_stacks():
            frames = []
            while node >= 0:
                node, file, line, function = self._tree.position(node)
                frames += [[file, line, function]] if file else []
            stacks.append([name, frames])
        with suppress(OSError):
            request.unlink()
            write_atomically(self._folder / STACKS_ANSWER.format(pid=os.getpid()), _line(stacks), durable=False)

    def _keep_flight_record(self) -> None:
        """Write torch's record of its last collectives next to the ledger."""
        rank = self._rank[0]
        if rank is None or self._stalls > MOST_FLIGHTS:
            return
        name = FLIGHT.format(pid=os.getpid(), stall=self._stalls, rank=rank)
        with suppress(Exception):  # a private interface of torch
            record = flight_record()
            if record:
                (self._folder / name).write_bytes(record)

    def _row(self, *, last: bool = False) -> None:
        """Append the sums since the last row. They are kept for the next one if that fails."""
        if self._steps:
            self._mean_ns = self._step_ns / self._steps
        said, rank = told(), known_rank(sys.modules.get("torch"))
        row = {**self._sums(last=last), "resident": self._memory.read()}
        events = self._checkpoints.taken()
        if events:
            row["checkpoints"] = [_event(event) for event in events]
            row["storing"] = [event.storing.row(event.begin_ns) for event in events if event.storing is not None]
        durations, self._durations = self._durations, []
        if rank[0] is not None and rank != self._rank:
            row["rank"], row["world"] = rank
        row.update(self._gpu.read())
        if last:
            row["tail"] = [[node, phase, ns] for (node, phase), ns in self._since_step.items()]
        if not self._append(row):
            self._checkpoints.put_back(events)
            return
        if self._watch is not None:
            self._watch_values(row, durations)
        self._from_ns, self._core_ns, self._ran_ns, self._late_ns = self._last_ns, 0, 0, 0
        self._row_samples = self._samples
        self._times.clear()
        self._steps = self._step_ns = self._free = self._free_ns = 0
        self._written_steps, self._tokens = self._completed, said.tokens
        self._rank = rank if rank[0] is not None else self._rank

    def _sums(self, *, last: bool = False) -> dict[str, Any]:
        """The sums since the last row, with the nodes and texts that no line in the file has."""
        said = told()
        row: dict[str, Any] = {
            **self._news([node for node, _ in (*self._times, *(self._since_step if last or self._stalled else ()))]),
            "from": self._from_ns,
            "to": self._last_ns,
            "unix": time.time_ns() - (time.perf_counter_ns() - self._last_ns),
            "at": [[node, phase, ns] for (node, phase), ns in self._times.items()],
            "core": self._core_ns,
            "ran": self._ran_ns,
            "late": [self._late_ns, self._samples - self._row_samples],
            "steps": self._completed - self._written_steps,
            "timed": [self._steps, self._step_ns, self._free, self._free_ns],
        }
        if said.tokens != self._tokens:
            row["tokens"] = said.tokens - self._tokens
        if said.loss is not None and math.isfinite(said.loss):  # JSON has no other numbers
            row["loss"] = said.loss
        if self._stalled:
            row["stuck"] = [[node, phase, ns] for (node, phase), ns in self._since_step.items()]
        return row

    def _keep_latest(self) -> None:
        """Write the row that would be next over the one in the second file: a process that is killed loses a second."""
        self._latest_ns = self._last_ns
        self._answer()
        with suppress(OSError):
            size = os.fstat(self._file.fileno()).st_size
            os.pwrite(self._latest.fileno(), _line({**self._sums(), "after": size}), 0)

    def _watch_values(self, row: dict[str, Any], durations: list[int]) -> None:
        """Give the watch the values of a row that was written; keep the changes that it finds."""
        assert self._watch is not None
        step_ns = median(durations) if durations else None
        values = Values(
            step_ns=step_ns,
            tokens_per_s=row.get("tokens", 0) / (row["steps"] * step_ns / 1e9) if row["steps"] and step_ns else None,
            memory=max(row["resident"], 0) + (row["gpu"][2] if "gpu" in row else 0),
            loss=told().loss,
        )
        changes = self._watch.row(values, steps=self._completed, now_ns=self._last_ns)
        if changes:
            self._append({"changed": [[_finite(value) for value in change] for change in changes]})

    def _news(self, leaves: list[int]) -> dict[str, Any]:
        """Nodes and texts that no line in the file has."""
        news = self._unwritten

        def text(word: str) -> int:
            known = self._texts.get(word)
            if known is None:
                known = self._texts[word] = len(self._texts)
                news["texts"].append(word)
            return known

        for node in range(self._nodes, len(self._tree)):
            caller, file, line, function = self._tree.position(node)
            news["nodes"].append([caller, text(file), line, text(function)])
            self._nodes += 1
        for node in sorted(set(leaves) - self._called - {-1}):
            self._called.add(node)
            callee = self._tree.callee(node)
            if callee is not None:
                news["calls"].append([node, text(callee)])
        return {key: value for key, value in news.items() if value}

    def _append(self, line: dict[str, Any]) -> bool:
        """Write one line; False if the file system refuses it, as a full disk does."""
        if self._file is None:
            return False
        text = _line(line)
        text = b"\n" + text if self._torn else text
        self._torn = True
        try:
            if self._file.write(text) != len(text):
                return False
        except OSError:
            return False
        self._torn = False
        if line.keys() & self._unwritten.keys():
            self._unwritten = {key: [] for key in self._unwritten}
        return True


def _line(row: Any) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _event(event: Checkpoint) -> list[Any]:
    return [event.kind, event.call, event.begin_ns, event.end_ns, event.line, event.ok, event.done_ns, event.place]
