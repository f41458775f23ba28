"""Reads system counters of this process at the boundaries of steps: waits for a core, and memory.

Linux only: ``/proc/self/task/<tid>/schedstat`` has the time in which a thread could have run but had no core. A
reading costs some microseconds; readings are spaced so that they take less than `BUDGET` of the time. Between steps of
the timing pass the stack sampler requests more, so that waits have a place in the step.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

from perfscope.model.documents.counters import COUNTERS_FILE, StepCounters, dump_counters
from perfscope.model.documents.run import Capture
from perfscope.model.files import write_atomically
from perfscope.profiler.session.held_names import HeldNames
from perfscope.profiler.session.side_work import SideWorkLog
from perfscope.profiler.session.storage import storage_with_workers

PASS, TOOL = "counters", "step_counters"

BUDGET = 0.0025
"""Largest share of the time for readings of cores."""
NAMES_BUDGET = 0.002
"""Largest share of the time for looks at variables."""
MEMORY_BUDGET = 0.0005
"""Largest share of the time for readings of memory."""
STORAGE_BUDGET = 0.001
"""Largest share of the time for readings of storage."""
MACHINE_EVERY_NS = 500_000_000
"""Between two looks at the machine's processor time and the cgroup; each costs about 30 us."""
MACHINE_EVERY_TRACED_NS = 50_000_000
"""The same in traced steps."""
TASKS_EVERY = 64
"""Readings between two looks at which threads the process has."""
MOST_TASKS = 8
"""Further threads whose waits are read: the ones with most processor time."""
OUR_THREADS = "perfscope-"
"""Begin of the names of perfscope's threads."""
MOST_READINGS = 8_192
"""Readings of steps that are not traced. A longer run keeps every second one, and reads half as often."""
MOST_TRACED_READINGS = 8_192
MOST_STEPS = 4_096
"""Steps kept. A longer run keeps every second, fourth ... step, so that its whole length is in the list."""
MOST_MOMENTS = 512
"""Readings of memory kept, thinned in the same way."""
FIRST_LOOKS = 6
"""Looks at variables that are always taken: fewer show no growth. Further ones must fit the budget."""

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def why_unsupported() -> str | None:
    """Why waiting for a core cannot be read on this system, or ``None`` if it can."""
    if sys.platform != "linux":
        return "waiting for a core is read on Linux only"
    path = Path("/proc/self/schedstat")
    return None if path.exists() else "this kernel does not count waiting for a core (no /proc/self/schedstat)"


def available() -> str | None:
    """Return ``None``: steps and memory are counted on every system."""
    return None


class _Task:
    """A thread of the process by its number, and its open file of scheduler statistics."""

    __slots__ = ("cpu_ns", "file", "wait_ns")

    def __init__(self, number: int) -> None:
        self.file = os.open(f"/proc/self/task/{number}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self.cpu_ns, self.wait_ns = self.read()

    def read(self) -> tuple[int, int]:
        """(Processor time, time it waited for a core), ns, since the thread began."""
        cpu, wait, _ = os.pread(self.file, 96, 0).split()
        return int(cpu), int(wait)

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):
            os.close(self.file)


Reading = tuple[int, int, int, int, int, int]
"""Time, processor time of the thread of the steps and of the process, waits of that thread and of the others, ns;
times the thread lost its core."""


class CoreReadings:
    """Cumulative scheduler statistics of the thread of the steps, and of other working threads."""

    def __init__(self) -> None:
        """Read nothing until ``begin``."""
        self.unsupported = why_unsupported()
        self._rows: list[Reading] = []
        self._traced_rows: list[Reading] = []
        self._spacing = 1
        self.machine: list[tuple[int, int, int, int]] = []
        self._loop: _Task | None = None
        self._loop_number = 0
        self._others: dict[int, _Task] = {}
        self._spent: dict[int, int] = {}
        self._others_wait = 0
        self._count = 0
        self._cost_ns = 50_000
        self._last_ns = 0
        self._switches = 0
        self._lock = threading.Lock()
        self._cgroup = _cgroup_file("cpu.stat")

    def begin(self) -> None:
        """Follow the calling thread, once."""
        if self._loop is not None or self.unsupported is not None:
            return
        try:
            self._loop_number = threading.get_native_id()
            self._loop = _Task(self._loop_number)
        except (OSError, ValueError) as error:
            self.unsupported = f"waiting for a core cannot be read: {error}"

    def at_boundary(self, *, needed: bool) -> None:
        """A step begins or ends on the thread of the steps. ``needed``: read whatever it costs."""
        now = perf_counter_ns()
        due = now - self._last_ns >= self._spacing * self._cost_ns / BUDGET
        if self._loop is None or not (needed or due):
            return
        with suppress(Exception):
            import resource

            self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        self.read(traced=needed)
        every = MACHINE_EVERY_TRACED_NS if needed else MACHINE_EVERY_NS
        if now - (self.machine[-1][0] if self.machine else 0) >= every:
            self.look_at_machine()

    @property
    def rows(self) -> list[Reading]:
        """The readings so far, by time."""
        return sorted((*self._rows, *self._traced_rows))

    def read(self, *, traced: bool) -> None:
        """Take one reading, on any thread. An internal error ends the readings; its text is kept as the reason."""
        if self._loop is None or not self._lock.acquire(blocking=False):
            return
        try:
            row = self._read(self._loop)
            if traced and len(self._traced_rows) < MOST_TRACED_READINGS:
                self._traced_rows.append(row)
            elif not traced:
                self._rows.append(row)
            if len(self._rows) > MOST_READINGS:
                self._spacing *= 2
                del self._rows[1::2]
        except (OSError, ValueError) as error:
            self.unsupported = f"waiting for a core could not be read any more: {error}"
            self._close()
        finally:
            self._lock.release()

    def stop(self) -> None:
        """Read no more."""
        with self._lock:
            self._close()

    def abandon_in_fork(self) -> None:
        """In a forked child: the readings are the parent's."""
        self._lock = threading.Lock()
        self._close()

    def _close(self) -> None:
        for task in (self._loop, *self._others.values()):
            if task is not None:
                task.close()
        self._loop, self._others = None, {}

    def _read(self, loop: _Task) -> Reading:
        now, before = perf_counter_ns(), thread_time_ns()
        if self._count % TASKS_EVERY == 0:
            self._choose_others()
        self._count += 1
        cpu, wait = loop.read()
        most = 0
        for number, task in list(self._others.items()):
            try:
                task_cpu, task_wait = task.read()
            except (OSError, ValueError):  # the thread is gone
                task.close()
                del self._others[number]
                continue
            most = max(most, task_wait - task.wait_ns)
            task.cpu_ns, task.wait_ns = task_cpu, task_wait
        self._others_wait += most
        self._cost_ns = (7 * self._cost_ns + thread_time_ns() - before) // 8
        self._last_ns = now
        return now, cpu, process_time_ns(), wait, self._others_wait, self._switches

    def _choose_others(self) -> None:
        """Follow the threads that had most processor time since the last choice."""
        ours = {thread.native_id for thread in threading.enumerate() if thread.name.startswith(OUR_THREADS)}
        spent: dict[int, int] = {}
        for folder in Path("/proc/self/task").iterdir():
            number = int(folder.name)
            if number != self._loop_number and number not in ours:
                with suppress(OSError, ValueError):
                    spent[number] = int((folder / "schedstat").read_text().split()[0])
        before, self._spent = self._spent, spent
        order = sorted(spent, key=lambda number: before.get(number, 0) - spent[number])[:MOST_TASKS]
        for number in set(self._others) - set(order):
            self._others.pop(number).close()
        for number in order:
            if number not in self._others:
                with suppress(OSError, ValueError):
                    self._others[number] = _Task(number)

    def look_at_machine(self) -> None:
        """Read the processor time of the machine and of this process, and the cgroup's throttling."""
        busy = throttled = -1
        with suppress(OSError, ValueError, IndexError):
            busy = _busy_ns(Path("/proc/stat").read_text())
        if self._cgroup is not None:
            with suppress(OSError, ValueError):
                throttled = _throttled_ns(self._cgroup.read_text())
        self.machine.append((perf_counter_ns(), busy, process_time_ns(), throttled))
        if len(self.machine) > MOST_MOMENTS:
            del self.machine[1::2]


class StepCounting:
    """All counters of one process. Methods are called at step boundaries, on the thread of the steps."""

    def __init__(self, *, wanted: bool) -> None:
        """``wanted``: else nothing is ever read."""
        self._wanted = wanted
        self.cores = CoreReadings()
        self._names = HeldNames()
        self._steps: list[tuple[int, int, int, bool]] = []
        self._every = 1
        self._memory: list[tuple[int, int, int]] = []
        self._names_ns = self._memory_ns = 0
        """Spent on variables and on memory."""
        self._began_ns = 0
        self._local_processes = 1
        self._last_ns = 0
        self._memory_due = 0
        self._resident = ResidentMemory()
        self._written = 0
        self._side = SideWorkLog()
        self._storage: list[tuple[int, int, int, int]] = []
        self._storage_ns = self._storage_cost_ns = 0
        """Spent on all readings of storage, and on the last one."""

    def watch(self) -> None:
        """A framework was imported: note saves and evaluations from here on."""
        if self._wanted:
            self._side.watch()

    def begin(self, *, traced: bool) -> None:
        """A step begins."""
        if self._wanted:
            if not self._began_ns:
                self._began_ns = perf_counter_ns()
                self._local_processes = _local_processes()  # a group of processes may be gone at the end
                self.cores.begin()
            self.cores.at_boundary(needed=traced)

    def end(self, number: int, begin_ns: int, end_ns: int, *, free: bool, traced: bool) -> None:
        """Step ``number`` ended. ``free``: it ran without a profiler; ``traced``: in the timing pass."""
        if not self._wanted:
            return
        self.cores.at_boundary(needed=traced)
        if traced or number % self._every == 0:
            self._steps.append((number, begin_ns, end_ns, free))
        self._side.step_ended(number)
        self._read_storage(number, needed=traced)
        if len(self._steps) > MOST_STEPS:
            self._every *= 2
            self._steps = [step for step in self._steps if not step[3] or step[0] % self._every == 0]
        if free:
            self._look(number)

    def start_over(self) -> None:
        """Discard the steps so far."""
        self._steps.clear()
        self._memory.clear()
        self._memory_due = 0
        self._names.clear()
        self._storage.clear()

    def stop(self) -> None:
        """Count no more."""
        self._wanted = False
        self._side.stop()
        self.cores.stop()
        self._resident.close()

    def abandon_in_fork(self) -> None:
        """In a forked child: everything is the parent's."""
        self._wanted = False
        self._side.stop()
        self.cores.abandon_in_fork()
        self._resident.close()

    def _look(self, number: int) -> None:
        """Read memory and variables after a step, as often as the budget allows."""
        elapsed = perf_counter_ns() - self._began_ns
        affordable = self._names_ns + self._names.last_cost_ns < NAMES_BUDGET * elapsed
        if self._names.due(number) and (affordable or self._names.looks < FIRST_LOOKS):
            self._names.look(number)
            self._names_ns += self._names.last_cost_ns
        due = number >= self._memory_due  # at doubled distances always, so that the whole run is in the list
        if due or self._memory_ns + self._last_ns < MEMORY_BUDGET * elapsed:
            if due:
                first = self._memory[0][0] if self._memory else number
                self._memory_due = number + max(1, number - first)
            before = thread_time_ns()
            self._memory.append((number, self._resident.read(), _device_bytes()))
            if len(self._memory) > MOST_MOMENTS:
                del self._memory[1::2]
            self._last_ns = thread_time_ns() - before
            self._memory_ns += self._last_ns

    def _read_storage(self, number: int, *, needed: bool) -> None:
        """Read the counters of storage after a step. ``needed``: whatever it costs."""
        elapsed = perf_counter_ns() - self._began_ns
        if not needed and self._storage_ns + self._storage_cost_ns > STORAGE_BUDGET * elapsed:
            return
        before = thread_time_ns()
        counted = storage_with_workers()
        if counted is not None:
            self._storage.append((number, perf_counter_ns(), counted.read, counted.fetched))
        if len(self._storage) > MOST_READINGS:
            del self._storage[1::2]
        self._storage_cost_ns = thread_time_ns() - before
        self._storage_ns += self._storage_cost_ns

    def save(self, directory: Path, run: Path, *, last: bool) -> list[Capture]:
        """Write the counts, if they are twice as many as last time or it is the ``last`` time; return the captures."""
        path = directory / COUNTERS_FILE
        if self._wanted and (last or len(self._steps) >= 2 * max(self._written, 1)):
            document = self.document()
            if document is not None:
                self._written = len(self._steps)
                write_atomically(path, dump_counters(document), durable=False)
        if not self._written:
            return []
        return [Capture(pass_name=PASS, tool=TOOL, state="recorded", artifact=path.relative_to(run).as_posix())]

    def document(self) -> StepCounters | None:
        """Counts so far; ``None`` without any."""
        if not self._steps:
            return None
        self.cores.look_at_machine()
        numbers, begins, ends, free = zip(*self._steps, strict=True)
        reads = list(zip(*self.cores.rows, strict=True)) or [()] * 6
        machine = list(zip(*self.cores.machine, strict=True)) or [()] * 4
        memory = list(zip(*self._memory, strict=True)) or [()] * 3
        storage = list(zip(*self._storage, strict=True)) or [()] * 4
        return StepCounters(
            supported=self.cores.unsupported,
            cores=_cores(),
            core_limit=_core_limit(),
            compute_threads=_compute_threads(),
            local_processes=self._local_processes,
            step_number=numbers, step_begin_ns=begins, step_end_ns=ends, step_free=free,
            read_ns=reads[0], cpu_ns=reads[1], process_cpu_ns=reads[2], wait_ns=reads[3], others_wait_ns=reads[4],
            switches=reads[5],
            machine_ns=machine[0], busy_ns=machine[1], own_busy_ns=machine[2], throttled_ns=machine[3],
            memory_step=memory[0], rss_bytes=memory[1], device_bytes=memory[2],
            held=self._names.grown(), side_work=self._side.events(),
            side_work_dropped=self._side.dropped,
            storage_step=storage[0], storage_ns=storage[1], storage_read_bytes=storage[2],
            storage_fetched_bytes=storage[3],
        )  # fmt: skip


# System data on the process and its cgroup.


class ResidentMemory:
    """The memory of this process, by an open file of the system's."""

    def __init__(self) -> None:
        self._file: int | None = None

    def read(self) -> int:
        """Resident bytes; -1 if the system does not report them."""
        try:
            if self._file is None:
                self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._file, 128, 0).split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            return -1

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def _device_bytes() -> int:
    """Bytes that torch's allocator of the current device has given out, or that JAX's arrays hold."""
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return int(torch.cuda.memory_allocated())
    jax: Any = sys.modules.get("jax")
    with suppress(Exception):
        from perfscope.profiler.jax import compat

        if jax is not None and compat.backends():
            return sum(int(array.nbytes) for array in jax.live_arrays() if not array.is_deleted())
    return -1


def _cores() -> int:
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _compute_threads() -> int:
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        return int(torch.get_num_threads()) if torch is not None else 0
    return 0


def _local_processes() -> int:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    with suppress(Exception):  # ranks that a program starts by itself meet at a local address
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is not None and os.environ.get("MASTER_ADDR") in ("localhost", "127.0.0.1", "::1"):
            return int(distributed.get_world_size()) if distributed.is_initialized() else 1
    return 1


def _cgroup_folders() -> list[Path]:
    """Folders of the cgroup of this process that may limit its processor time, v2 and v1, innermost first."""
    folders = []
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            roots = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct") if controllers else ("/sys/fs/cgroup",)
            folders += [Path(root + path) for root in roots] + [Path(root) for root in roots]
    return folders


def _cgroup_file(name: str) -> Path | None:
    """The statistics file that counts throttling; ``None`` if it is missing."""
    for folder in _cgroup_folders():
        with suppress(OSError):
            if "throttled" in (folder / name).read_text():
                return folder / name
    return None


def _busy_ns(text: str) -> int:
    """Time that the cores of the machine ran processes or interrupts, summed over the cores, from ``/proc/stat``.

    Time taken by the hypervisor (steal) and by guests is not in it: guests are counted as user time already.
    """
    user, nice, system, _idle, _waiting, interrupts, soft = (int(part) for part in text.split(None, 8)[1:8])
    return (user + nice + system + interrupts + soft) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _throttled_ns(text: str) -> int:
    """``throttled_usec`` of cgroup v2, ``throttled_time`` (ns) of v1."""
    values = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    return int(values["throttled_usec"]) * 1000 if "throttled_usec" in values else int(values.get("throttled_time", -1))


def _core_limit() -> float | None:
    """Cores' worth of processor time that the cgroup may use; ``None``: no limit."""
    limits = []
    for folder in _cgroup_folders():
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            limits.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            micros = int((folder / "cpu.cfs_quota_us").read_text())
            if micros > 0:
                limits.append(micros / int((folder / "cpu.cfs_period_us").read_text()))
    return min(limits, default=None)
