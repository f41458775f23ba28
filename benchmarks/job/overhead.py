"""Overhead of the ledger per step, in pairs: blocks of steps with and without it, in turns, in one process.

Processor time is that of all threads of the process. Each pair of neighbouring blocks gives one ratio; the median and
its 95 % interval by ranks are printed, for steps of several lengths. Blocks are short, because the speed of a shared
machine changes within seconds. One ledger runs all the time, and its thread rests in the blocks without it: what it
costs once, at its start, is not in the ratios.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

from perfscope.model.capture import CaptureOptions, Message
from perfscope.plugins.job import recorder
from perfscope.plugins.job.recorder import LedgerWatcher
from perfscope.plugins.job.watch import watching
from perfscope.profiler.sampling.switch_interval import ThreadClock
from perfscope.profiler.session.recorders import Progress

WIDTH = 256
BLOCK_S = 0.4
"""Length of a block: the ledger has four samples in it, and a row in every fifth block at first."""
WARM_UP_BLOCKS = 10
"""Blocks before the pairs: the ledger disassembles each function that it meets once."""


class Loop:
    """A training loop whose steps a ledger counts."""

    def __init__(self, repeats: int) -> None:
        """``repeats``: forward passes per step, which make it longer."""
        self.steps = 0
        self._repeats = repeats
        self._model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batch = torch.randn(16, WIDTH)

    def step(self, ended: Callable[[int, int], None] | None) -> None:
        """One step; ``ended``: gets its begin and end."""
        begin = time.perf_counter_ns()
        loss = torch.zeros(())
        for _ in range(self._repeats):
            loss = loss + self._model(self._batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps += 1
        if ended is not None:
            ended(begin, time.perf_counter_ns())


def block(loop: Loop, steps: int, watcher: LedgerWatcher | None) -> tuple[float, float]:
    """(Processor time, time) of some steps, s."""
    ended = None if watcher is None else lambda begin, end: watcher.step_ended(begin, end, free=True)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        loop.step(ended)
    return time.process_time() - cpu, time.perf_counter() - wall


class Gate:
    """The event that ends the ledger's thread, which the thread also waits for between two samples."""

    def __init__(self) -> None:
        """The thread runs."""
        self._ended, self._runs = threading.Event(), threading.Event()
        self._runs.set()

    def rest(self, *, rests: bool) -> None:
        """Have the thread rest after its next sample, or go on."""
        (self._runs.clear if rests else self._runs.set)()

    def wait(self, seconds: float) -> bool:
        """Wait, and as long as the thread rests."""
        over = self._ended.wait(seconds)
        self._runs.wait()
        return over

    def set(self) -> None:
        """End the thread."""
        self._ended.set()
        self._runs.set()

    def is_set(self) -> bool:
        """Whether it ends."""
        return self._ended.is_set()


def pairs(loop: Loop, count: int, folder: Path) -> tuple[list[tuple[float, float]], float]:
    """Ratios of (processor time, time) with and without the ledger, of ``count`` pairs; the order alternates.

    The second result is the share of the ledger's own thread in the processor time of the blocks with it.
    """
    main = threading.get_ident()
    message = Message(directory=str(folder), options=CaptureOptions(), pythonpath=None, follow=False)
    watcher = watching(message, lambda: Progress(steps=loop.steps, inside=True, thread=main))
    gate = watcher._ended = Gate()
    watcher.start()
    steps = 8
    block(loop, steps, watcher)
    took = block(loop, steps, None)[1] / steps
    steps = max(4, math.ceil(BLOCK_S / took))
    for _ in range(WARM_UP_BLOCKS):
        block(loop, steps, watcher)
    ratios: list[tuple[float, float]] = []
    own = next(thread for thread in threading.enumerate() if thread.name == "perfscope-ledger")
    clock, thread_ns, all_s = ThreadClock(own.native_id), 0, 0.0
    for number in range(count):
        sides: dict[bool, tuple[float, float]] = {}
        for with_ledger in (number % 2 == 0, number % 2 == 1):
            gate.rest(rests=not with_ledger)
            if not with_ledger:
                watcher._switch.put_back()
            time.sleep(1.5 * recorder.PERIOD_S)  # the thread is at rest then; both sides begin alike
            clock.since()
            sides[with_ledger] = block(loop, steps, watcher if with_ledger else None)
            thread_ns += clock.since() if with_ledger else 0
        all_s += sides[True][0]
        ratios.append((sides[True][0] / sides[False][0], sides[True][1] / sides[False][1]))
    gate.rest(rests=False)
    watcher.stop()
    return ratios, thread_ns / 1e9 / all_s


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median, and its 95 % interval by the binomial order statistics."""
    ordered = sorted(values)
    count = len(ordered)
    half = 1.96 * math.sqrt(count) / 2
    low, high = max(0, math.floor(count / 2 - half)), min(count - 1, math.ceil(count / 2 + half) - 1)
    return median(ordered), ordered[low], ordered[high]


def main() -> None:
    """Print a line per length of the step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--repeats", type=int, nargs="+", default=[1, 10, 100], help="forward passes per step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        for repeats in options.repeats:
            loop = Loop(repeats)
            took = block(loop, 8, None)[0] / 8
            run = Path(folder) / str(repeats)
            run.mkdir()
            ratios, thread = pairs(loop, options.pairs, run)
            shown = [
                f"{name} {mid - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})"
                for name, values in (
                    ("processor time", [ratio for ratio, _ in ratios]),
                    ("time", [ratio for _, ratio in ratios]),
                )
                for mid, low, high in [interval(values)]
            ]
            print(
                f"step of {took * 1e3:.1f} ms, {len(ratios)} pairs: {', '.join(shown)}; its thread {thread:.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
