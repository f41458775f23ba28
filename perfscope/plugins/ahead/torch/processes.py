"""Programs of several processes, planned as one rank of them: process group and collectives, step by step."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from perfscope.model.documents.torch_plan import (
    Bucket,
    GraphCollectives,
    GraphRun,
    PlannedCollective,
    PlannedProcesses,
    StepPosition,
)
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.collectives import (
    CollectiveRecorder,
    GroupTable,
    collective_origin,
    graph_collectives,
)
from perfscope.plugins.ahead.torch.cuda import on_host
from perfscope.plugins.ahead.torch.ddp import install_ddp_model
from perfscope.plugins.ahead.torch.memory import MemoryLedger
from perfscope.plugins.ahead.torch.pipelines import PipelineWatch

# ``torch.distributed`` as one rank of a multi-process launcher sees it, without the other processes.
#
# The process group is torch's own "fake" one: it has the requested size and exchanges nothing, so results have the
# right shapes. When the program gathers Python objects of other ranks, it gets its own object for each.


PORT = "29500"
"""torchrun's own port; nothing listens there."""

SINGLE_PROCESS_REFUSAL = (
    "torch.nn.DataParallel drives several devices from one process, which is not covered: use DistributedDataParallel"
)
FSDP1 = "FullyShardedDataParallel is not covered by a plan, because it needs an accelerator; fully_shard (FSDP2) is"
REFUSALS = (("torch.distributed.fsdp.fully_sharded_data_parallel", ("FullyShardedDataParallel",), FSDP1),)
"""(module, classes, why they are not covered)."""

PIPELINE_NOTE = "one rank of each stage is planned: differences of other ranks that hold the same stage are not seen"
ONE_RANK_NOTE = "rank 0 is planned: differences of other ranks (uneven parts, branches by rank) are not seen"
NO_PROCESS_GROUP = "the program sets up no process group: it is planned as one independent process"
BUCKET_NOTE = (
    "DistributedDataParallel: its buckets are modelled from parameter sizes (reverse order of registration, "
    "bucket_cap_mb); the reducer did not run, and copies into and out of buckets are not costed"
)


class FakeProcessGroup:
    """Replaces the other processes. ``count`` devices, ``local`` of them per machine; ``rank`` of this process."""

    def __init__(self, *, count: int, local: int, rank: int) -> None:
        self._count, self._local, self._rank = count, local, rank
        self.world_size = 0
        """As set by the program; 0 before."""
        self.backend: str | None = None
        self.notes: dict[str, None] = {}

    def environment(self) -> dict[str, str]:
        """Environment variables that torchrun would set for this rank."""
        if self._count == 1:
            return {}
        node, local = divmod(self._rank, self._local)
        return {
            "RANK": str(self._rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(node), "ROLE_RANK": str(self._rank),
            "WORLD_SIZE": str(self._count),
            "LOCAL_WORLD_SIZE": str(self._local), "ROLE_WORLD_SIZE": str(self._count), "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost", "MASTER_PORT": PORT, "TORCHELASTIC_RUN_ID": "planned",
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def install(self) -> None:
        """Change torch in this process permanently."""
        os.environ.update(self.environment())
        data_parallel: Any = torch.nn.DataParallel
        if self._count > 1:
            data_parallel.__init__ = _refuse_call(SINGLE_PROCESS_REFUSAL)
        distributed = importlib.import_module("torch.distributed")
        if not distributed.is_available():
            return
        compat.load_fake_groups()
        from torch.distributed import device_mesh, distributed_c10d

        modules: tuple[Any, ...] = (distributed, distributed_c10d, device_mesh)
        for name, make in (
            ("init_process_group", self._init_process_group),
            ("new_group", _any_backend),
            ("split_group", _any_backend),
        ):
            made = make(getattr(distributed_c10d, name))
            for module in modules:
                if hasattr(module, name):
                    setattr(module, name, made)
        outside: Any = distributed  # torch's own code calls distributed_c10d and gets the truth
        outside.get_backend = lambda *_, **__: self.backend or "nccl"
        for name, answer in {
            "is_nccl_available": lambda: True,
            "is_torchelastic_launched": lambda: self._count > 1,
            "monitored_barrier": lambda *_, **__: None,
            "all_gather_object": self._objects("all_gather_object", lambda into, own, *_, **__: _fill(into, own)),
            "broadcast_object_list": self._objects("broadcast_object_list", lambda *_, **__: None),
            "gather_object": self._objects(
                "gather_object", lambda own, object_gather_list=None, *_, **__: _fill(object_gather_list, own)
            ),
            "scatter_object_list": self._objects(
                "scatter_object_list", lambda into, given=None, *_, **__: _fill(into, given[0] if given else None)
            ),
        }.items():
            for module in modules[:2]:
                setattr(module, name, answer)
        if self._count > 1:
            checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")
            for name in ("save", "async_save", "load"):
                setattr(checkpoint, name, self._unwritten(name))
        _real_meshes(device_mesh)
        spawning: Any = torch.multiprocessing
        spawning.spawn = self._spawn

    def _init_process_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def begin(
            backend: Any = None,
            init_method: Any = None,
            timeout: Any = None,
            world_size: int = -1,
            rank: int = -1,
            *_: Any,
            **__: Any,
        ) -> None:
            size = int(world_size) if world_size is not None and int(world_size) > 0 else self._count
            if size != self._count:
                self.notes[f"the program sets up {size} processes, the target has {self._count} devices"] = None
            if int(rank or 0) > 0 and int(rank) != self._rank:
                self.notes[f"the program calls itself rank {rank}; it is planned as rank {self._rank}"] = None
            self.world_size = size
            self.backend = str(backend).rpartition(":")[2] if backend else "nccl"
            _refuse_imported()
            with compat.keeping_dynamo_rules():
                original(backend="fake", store=compat.fake_store(), rank=self._rank, world_size=size)

        return begin

    def _objects(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def answered(*arguments: Any, **named: Any) -> None:
            self.notes[f"{name}: answered with the process's own objects, and not counted"] = None
            answer(*arguments, **named)

        return answered

    def _unwritten(self, name: str) -> Callable[..., Any]:
        def answered(*_: Any, **__: Any) -> Any:
            self.notes[f"torch.distributed.checkpoint.{name}: there is no data; nothing of it is counted"] = None
            written: Future[None] = Future()  # programs wait for the last one before the next
            written.set_result(None)
            return written if name == "async_save" else None

        return answered

    def _spawn(
        self, fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = ""
    ) -> None:
        """Run one of the processes that a program would start in this one: the first, if it has no pipeline."""
        self.notes[f"torch.multiprocessing.spawn of {nprocs} processes: the first of them is planned"] = None
        fn(self._rank, *args)


def _fill(objects: list[Any] | None, value: Any) -> None:
    """Each process contributes what the first one does."""
    if objects is not None:
        objects[:] = [value] * len(objects)


def _any_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    """A further group, of the same kind as the first."""

    @functools.wraps(original)
    def made(*arguments: Any, **named: Any) -> Any:
        for name in ("backend", "pg_options", "device_id", "timeout"):
            named.pop(name, None)
        return original(*arguments[: 1 if original.__name__ == "new_group" else 2], **named)

    return made


def _real_meshes(module: Any) -> None:
    """Meshes consist of real numbers on the CPU, whatever the program's tensors are."""
    kind: Any = module.DeviceMesh
    begin = kind.__init__

    @functools.wraps(begin)
    def made(self: Any, device_type: str, mesh: Any = None, *arguments: Any, **named: Any) -> None:
        with compat.without_modes():
            # its numbers are unknown: assume ranks in order, as in nearly all programs
            if isinstance(mesh, compat.FakeTensor):
                mesh = torch.arange(mesh.numel(), dtype=torch.int).view(tuple(mesh.shape))
            begin(self, on_host(device_type), mesh, *arguments, **named)

    kind.__init__ = made
    for name in ("__getitem__", "_flatten", "_unflatten", "_get_all_submeshes"):
        setattr(kind, name, _really(getattr(kind, name)))
    kind.from_group = staticmethod(_really(kind.from_group))
    kind._concatenate = staticmethod(_really(kind._concatenate))
    kind.mesh = property(_really(kind.mesh.fget))
    original = module.init_device_mesh
    whole = _really(original)

    @functools.wraps(whole)
    def made_whole(device_type: str, *arguments: Any, **named: Any) -> Any:
        named.pop("backend_override", None)
        return whole(on_host(device_type), *arguments, **named)

    for held in list(sys.modules.values()):
        names = getattr(held, "__dict__", {})
        if names.get("init_device_mesh") is original:  # FSDP2 makes a mesh with it if it gets none
            names["init_device_mesh"] = made_whole


def _really(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def done(*arguments: Any, **named: Any) -> Any:
        with compat.without_modes():
            return original(*arguments, **named)

    return done


def _refuse_imported() -> None:
    """Raise for imported parts of torch that no plan covers."""
    for module, names, why in REFUSALS:
        imported: Any = sys.modules.get(module)
        for name in names if imported is not None else ():
            if hasattr(imported, name):
                getattr(imported, name).__init__ = _refuse_call(why)


def _refuse_call(why: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(why)

    return refuse


class JobPlan:
    """The planned job. Its ``book`` watches ops after the memory ledger, which gives it the line of an op.

    ``ops()``: ops of the step that are in its op graph so far.
    """

    def __init__(
        self,
        *,
        count: int,
        local: int,
        ledger: MemoryLedger,
        ops: Callable[[], int],
        rank: int,
        pipeline: PipelineWatch,
    ) -> None:
        """``count`` devices of the target, ``local`` of them per machine; ``rank``: of this process."""
        self._count, self._ops, self._ledger, self._rank = count, ops, ledger, rank
        self.pipeline = pipeline
        self.group = FakeProcessGroup(count=count, local=local, rank=rank)
        self._groups = GroupTable()
        self._problems: dict[str, None] = {}
        self.book = CollectiveRecorder(self._now, lambda: ledger.context, self._groups, self._problem)
        self._runs: list[GraphRun] | None = None
        self._seen_runs: tuple[GraphRun, ...] = ()
        self._eager: tuple[PlannedCollective, ...] | None = None
        self._outside: tuple[PlannedCollective, ...] | None = None
        self._inside: list[GraphCollectives] = []
        self._buckets: tuple[Bucket, ...] = ()

    def install(self) -> None:
        """Change torch in this process."""
        import torch.distributed as distributed

        self.group.install()
        self._ledger.for_device = lambda: collective_origin() != "the program"  # its mesh is of the device
        if distributed.is_available():
            self.book.install()
            if self._count > 1:
                self.pipeline.install()
            install_ddp_model(
                self._keep_buckets,
                problem=self._problem,
                held=lambda tensor: self._ledger.name(tensor, "gradient"),
                recorder=self.book,
            )

    def begin(self) -> None:
        """Begin a step."""
        self._runs = []
        self.book.begin()

    def end(self, *, eager: bool, planned: bool) -> None:
        """End a step."""
        rows, runs = self.book.take(), tuple(self._runs or ())
        self._runs = None
        if eager:
            self._eager = rows
        elif planned:
            self._outside, self._seen_runs = rows, runs

    def called(self, number: int) -> None:
        """Handle a run of a planned graph."""
        if self._runs is not None:
            self._runs.append(GraphRun(graph=number, ops=self._ops()))

    def planned(
        self, number: int, scheduled: Any, place_of: Callable[[Any], Any], launches: Callable[[Any], bool]
    ) -> None:
        """Handle a planned graph; ``launches(node)``: whether a scheduled node is one of its kernels."""
        collectives = graph_collectives(scheduled, self._groups, place_of, launches)
        if collectives:
            self._inside.append(GraphCollectives(graph=number, collectives=collectives))

    def found(self) -> PlannedProcesses | None:
        """Facts on the job; ``None`` for a program of one process."""
        if not self.group.world_size:
            return None
        pipeline = self.pipeline.found()
        notes = [ONE_RANK_NOTE if pipeline is None else PIPELINE_NOTE, *self.group.notes]
        if self._buckets:
            notes.append(BUCKET_NOTE)
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
            planned_rank=self._rank,
            pipeline=pipeline,
        )

    def not_covered(self) -> tuple[str, ...]:
        """Parts of the job that the plan lacks, one sentence each."""
        return tuple(self._problems)

    def notes(self) -> tuple[str, ...]:
        """Notes on a plan without a process group."""
        return (NO_PROCESS_GROUP,) if self._count > 1 and not self.group.world_size else ()

    def _now(self) -> StepPosition:
        return StepPosition(ops=self._ops(), runs=len(self._runs or ()))

    def _keep_buckets(self, buckets: tuple[Bucket, ...]) -> None:
        self._buckets = buckets

    def _problem(self, text: str) -> None:
        self._problems[text] = None
