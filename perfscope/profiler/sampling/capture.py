"""Stack samples of a session: taken in steps that no heavier pass records, and written next to the traces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.model.capture import Message
from perfscope.model.documents.run import Capture
from perfscope.model.documents.stacks import STACKS_FILE, SampledLoader, dump_stacks
from perfscope.model.files import write_atomically
from perfscope.profiler.patching import Undo, wrap
from perfscope.profiler.sampling import workers
from perfscope.profiler.sampling.sampler import StackSampler
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.source_files import SourceFiles

PASS, TOOL = "stacks", "python_stacks"


def available() -> str | None:
    """Why stacks cannot be sampled in this process, or ``None`` if they can."""
    return None if hasattr(sys, "_current_frames") else "this Python does not show the stacks of its threads"


class StackCapture:
    """Stack samples of one process with steps. Methods are called at step boundaries, on the thread of the loop."""

    def __init__(self, message: Message, with_traced: Callable[[], None], stepping: Callable[[], bool]) -> None:
        """Prepare; nothing is sampled yet. No samples are taken if they are not wanted, or another tool records.

        ``with_traced``: called with each sampling of a step of the timing pass. ``stepping``: whether the process has
        steps.
        """
        options = message.options
        self._run = Path(message.directory)
        self._sampler: StackSampler | None = None
        self._loaders = LoaderLog()
        self._written = 0
        self._traced = False
        """Whether steps of the timing pass were sampled since the last writing."""
        if options.stacks and not options.times_only and options.capture is None and available() is None:
            self._sampler = StackSampler(SourceFiles(Path.cwd(), ()), with_traced=with_traced)
            workers.reach_started_workers(message, stepping)

    def watch_loaders(self) -> None:
        """torch is imported."""
        if self._sampler is not None:
            self._loaders.watch()

    def step_begins(self, due: Pass | None) -> None:
        """``due``: the pass that records the step. Structure and detail passes make the host another one."""
        if self._sampler is None:
            return
        if due is None or due.name == "timing":
            self._traced |= due is not None
            self._sampler.resume(traced=due is not None)
        else:
            self._sampler.pause()

    def step_ended(self, number: int, begin_ns: int, end_ns: int) -> None:
        """Times of ``perf_counter_ns``."""
        if self._sampler is not None:
            self._sampler.step(number, begin_ns, end_ns)

    def start_over(self) -> None:
        """Discard the samples so far, because they were not of steps."""
        if self._sampler is not None:
            self._sampler.start_over()

    def stop(self) -> None:
        """No more samples."""
        self._loaders.stop()
        if self._sampler is not None:
            self._sampler.stop()

    def abandon_in_fork(self, *, sample: bool) -> None:
        """In a forked child: the samples are the parent's. With ``sample`` a worker gets a new sampler."""
        self._loaders.stop()
        if self._sampler is not None:
            self._sampler.abandon_in_fork()
            if sample:
                workers.sample_forked(self._run)

    def save(self, directory: Path, run: Path, *, last: bool) -> list[Capture]:
        """Write the samples after a timing pass, if they are twice as many, or ``last``; return the capture."""
        if self._sampler is None:
            return []
        ticks = self._sampler.ticks
        path = directory / STACKS_FILE
        if ticks and (last or self._traced or ticks >= 2 * self._written):
            self._written, self._traced = ticks, False
            write_atomically(path, dump_stacks(self._sampler.document(self._loaders.noted())), durable=False)
        if not self._written:
            return []
        files = [(PASS, path), *((f"{PASS} of a worker", file) for file in workers.files(run))]
        return [
            Capture(
                pass_name=name,
                tool=TOOL,
                state="recorded",
                reason=self._sampler.stopped if file == path else None,
                artifact=file.relative_to(run).as_posix(),
            )
            for name, file in files
        ]


# Which data loaders the program iterates over, with their batch sizes and numbers of workers.


MOST_LOADERS = 100


class LoaderLog:
    """Notes each kind of ``DataLoader`` when an iteration begins; nothing is kept of the loader itself."""

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self._counts: dict[SampledLoader, int] = {}
        self._undo: Undo = lambda: None

    def watch(self) -> None:
        """Wrap ``DataLoader.__iter__``; torch is imported."""
        data: Any = sys.modules.get("torch.utils.data")
        if data is not None:
            self._undo = wrap(data.DataLoader, "__iter__", self._noting)

    def stop(self) -> None:
        """Leave torch as it was."""
        self._undo()

    def noted(self) -> tuple[SampledLoader, ...]:
        """The loaders, each kind once."""
        return tuple(self._counts)

    def _noting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterate(loader: Any) -> Any:
            batch = getattr(loader, "batch_size", None)
            noted = SampledLoader(
                dataset=type(getattr(loader, "dataset", None)).__qualname__,
                batch_size=batch if isinstance(batch, int) else None,
                workers=int(getattr(loader, "num_workers", 0)),
            )
            if noted in self._counts or len(self._counts) < MOST_LOADERS:
                self._counts[noted] = self._counts.get(noted, 0) + 1
            return original(loader)

        return iterate
