"""Programs of several processes, planned as the first of them: its process group, its collectives, step by step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from perfscope.profiler.aot.torch_collectives import CollectiveBook, Groups, asked_by
from perfscope.profiler.aot.torch_collectives_graph import graph_collectives
from perfscope.profiler.aot.torch_fake_ddp import plan_ddp
from perfscope.profiler.aot.torch_fake_group import FakeGroup
from perfscope.profiler.aot.torch_memory import MemoryLedger
from perfscope.profiler.aot.torch_processes_file import (
    Bucket,
    GraphCollectives,
    GraphRun,
    Moment,
    PlannedCollective,
    PlannedProcesses,
)

ONE_RANK = "rank 0 is planned: what other ranks do otherwise (uneven parts, branches by rank) is not seen"
UNUSED = "the program sets up no process group: it is planned as one process that knows nothing of the others"
BUCKETS = (
    "DistributedDataParallel: buckets follow its documented rule (order of the gradients, bucket_cap_mb); torch's own "
    "reducer did not run"
)


class Processes:
    """Install it before the ledger of memory, which must have seen an op before the book asks for its line.

    ``ops()``: ops of the step that are in its op graph so far.
    """

    def __init__(
        self,
        *,
        count: int,
        local: int,
        pretended: bool,
        ledger: MemoryLedger,
        ops: Callable[[], int],
    ) -> None:
        """``count`` devices of the target, ``local`` of them on a machine."""
        self._count, self._ops, self._ledger = count, ops, ledger
        self.group = FakeGroup(count=count, local=local, pretended=pretended)
        self._groups = Groups()
        self._problems: dict[str, None] = {}
        self.book = CollectiveBook(self._now, lambda: ledger.context, self._groups, self._problem)
        self._runs: list[GraphRun] | None = None
        self._seen_runs: tuple[GraphRun, ...] = ()
        self._eager: tuple[PlannedCollective, ...] | None = None
        self._outside: tuple[PlannedCollective, ...] | None = None
        self._inside: list[GraphCollectives] = []
        self._buckets: tuple[Bucket, ...] = ()

    def install(self) -> None:
        """Change torch in this process. ``install_book`` comes when the fake world is entered."""
        import torch.distributed as distributed

        self.group.install()
        self._ledger.for_device = lambda: asked_by() != "the program"  # its mesh is of the device
        if distributed.is_available():
            plan_ddp(
                self._told,
                problem=self._problem,
                note=lambda text: self.group.notes.setdefault(text),
                held=lambda tensor: self._ledger.name(tensor, "gradient"),
                exchanges=self.book,
            )

    def install_book(self) -> None:
        """Look at ops from now on."""
        import torch
        import torch.distributed as distributed

        if not distributed.is_available():
            return
        self.book.install()
        host: Any = torch.cpu
        device: Any = torch.cuda
        for name, answer in self.book.clock.answers().items():
            for module in (host, device):
                if hasattr(module, name):
                    setattr(module, name, torch.compiler.disable(answer) if callable(answer) else answer)
        device.synchronize = lambda *_: self.book.clock.everything(self.book.asked())

    def begin(self) -> None:
        """A step begins."""
        self._runs = []
        self.book.begin()

    def end(self, *, eager: bool, planned: bool) -> None:
        """It ended."""
        rows, runs = self.book.take(), tuple(self._runs or ())
        self._runs = None
        if eager:
            self._eager = rows
        elif planned:
            self._outside, self._seen_runs = rows, runs

    def asleep(self) -> AbstractContextManager[None]:
        """While ops are dispatched that are not the program's own."""
        return self.book.asleep()

    def called(self, number: int) -> None:
        """A planned graph is run."""
        if self._runs is not None:
            self._runs.append(GraphRun(graph=number, ops=self._ops()))

    def planned(
        self, number: int, scheduled: Any, place_of: Callable[[Any], Any], launches: Callable[[Any], bool]
    ) -> None:
        """A graph was planned; ``launches(node)``: whether a scheduled node is one of its kernels."""
        found = graph_collectives(scheduled, self._groups, place_of, launches)
        if found:
            self._inside.append(GraphCollectives(graph=number, collectives=found))

    def found(self) -> PlannedProcesses | None:
        """What is known of the job; ``None`` for a program of one process."""
        if not self.group.world_size:
            return None
        notes = [ONE_RANK, *self.group.notes]
        if self._buckets:
            notes.append(BUCKETS)
        return PlannedProcesses(
            world_size=self.group.world_size,
            backend=self.group.backend,
            groups=tuple(self._groups.lists),
            eager=self._eager,
            outside=self._outside,
            inside=tuple(self._inside),
            runs=self._seen_runs,
            buckets=self._buckets,
            left=self.book.left,
            notes=tuple(notes),
        )

    def not_covered(self) -> tuple[str, ...]:
        """What of the job is not in the plan, a sentence each."""
        return tuple(self._problems)

    def notes(self) -> tuple[str, ...]:
        """What is to be said of a plan where no process group was set up."""
        return (UNUSED,) if self._count > 1 and not self.group.world_size else ()

    def _now(self) -> Moment:
        return Moment(ops=self._ops(), runs=len(self._runs or ()))

    def _told(self, buckets: tuple[Bucket, ...]) -> None:
        self._buckets = buckets

    def _problem(self, text: str) -> None:
        self._problems[text] = None
