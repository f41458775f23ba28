"""Samplers in the processes that the program starts with ``multiprocessing``: a data loader's workers, mostly.

A forked child gets one by the hook that ends captures in it. A child that is spawned (or forked by a fork server)
begins as a new interpreter: while such a child is started the environment names our bootstrap, which takes itself out
again.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscope.model.capture import VARIABLE, Message
from perfscope.model.documents.stacks import STACKS_SUFFIX, WORKERS_FOLDER, dump_stacks
from perfscope.model.files import write_atomically
from perfscope.profiler.patching import wrap
from perfscope.profiler.sampling.sampler import StackSampler
from perfscope.profiler.source_files import SourceFiles

MOST_WORKERS = 32
"""Files of one run."""
AWAITED_S = 10.0
"""A child that ``multiprocessing`` has not made a worker by then is something else."""
POLL_S = 0.02

_worker_of: int | None = None
"""In a process that is a worker, or starts them for another: the process with steps."""


def files(run: Path) -> list[Path]:
    """Files that the workers of this process wrote."""
    return sorted((run / WORKERS_FOLDER).glob(f"{os.getpid()}-*{STACKS_SUFFIX}"))[:MOST_WORKERS]


def reach_started_workers(message: Message, stepping: Callable[[], bool]) -> None:
    """Have children that are spawned from here on sample themselves; with ``follow`` they have their own sessions.

    ``stepping``: whether this process has steps. Before, only workers of data loaders are sampled.
    """
    if message.follow:
        return
    from multiprocessing.process import BaseProcess

    text = replace(message, worker_of=os.getpid()).dump()
    folder = str(Path(__file__).parents[1] / "bootstrap")

    def sampled(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def start(process: Any) -> None:
            started = process._start_method in ("spawn", "forkserver") and VARIABLE not in os.environ
            if not started or not (stepping() or _loads(process)):
                original(process)
                return
            path = os.environ.get("PYTHONPATH")
            os.environ[VARIABLE] = text
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, path)))
            try:
                original(process)
            finally:
                os.environ.pop(VARIABLE, None)
                if path is None:
                    os.environ.pop("PYTHONPATH", None)
                else:
                    os.environ["PYTHONPATH"] = path

        return start

    wrap(BaseProcess, "start", sampled)


def _loads(process: Any) -> bool:
    return str(getattr(getattr(process, "_target", None), "__module__", "")).startswith("torch.utils.data")


def sample_forked(run: Path) -> None:
    """In a forked child: sample it if it turns out to be a worker."""
    sample_worker(run, _worker_of if _worker_of is not None else os.getppid())


def sample_worker(run: Path, worker_of: int) -> None:
    """Sample this process once it is a worker. ``worker_of``: the process with steps."""
    global _worker_of
    if _worker_of is None:
        os.register_at_fork(after_in_child=lambda: sample_forked(run))
    _worker_of = worker_of
    name = f"{worker_of}-{os.getpid()}{STACKS_SUFFIX}"
    target = _sample, (run / WORKERS_FOLDER / name,)
    threading.Thread(target=target[0], args=target[1], name="perfscope-stacks", daemon=True).start()


def _sample(path: Path) -> None:
    process = _await_worker()
    if process is None:
        return
    try:
        path.parent.mkdir(exist_ok=True)
        if len(list(path.parent.iterdir())) >= MOST_WORKERS:
            return
    except OSError:  # the run folder is gone, or cannot be written
        return
    sampler = StackSampler(SourceFiles(Path.cwd(), ()), name=process.name, worker=_loader_worker())

    def save() -> None:
        with suppress(OSError):
            write_atomically(path, dump_stacks(sampler.document()), durable=False)

    def finish() -> None:
        sampler.stop()
        if sampler.ticks:
            save()

    sys.modules["multiprocessing.util"].Finalize(None, finish, exitpriority=0)
    atexit.register(finish)
    sampler.sample_all(save)


def _await_worker() -> Any:
    """The process as ``multiprocessing`` calls it, once it is a worker; ``None`` if it does not become one."""
    until = time.monotonic() + AWAITED_S
    while time.monotonic() < until:
        time.sleep(POLL_S)
        processes: Any = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            time.sleep(POLL_S)  # it forgets the finalizers of its parent first
            return processes.current_process()
    return None


def _loader_worker() -> int | None:
    data: Any = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return None if info is None else int(info.id)
