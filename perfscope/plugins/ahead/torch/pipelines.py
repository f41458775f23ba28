"""Pipelines of ``torch.distributed.pipelining``: the stages of this process, and objects from those of other ranks.

Stages tell one another shapes and dtypes as Python objects before their first micro-batch. Every rank of the pipeline
is planned in a separate process, and these objects are files of a folder that the processes share. Tensors are not
exchanged: what arrives has the announced shape.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.model.documents.torch_plan import PlannedPipeline
from perfscope.plugins.ahead.torch import compat

POLL_S = 0.02
"""Seconds between two looks for an object."""


class PipelineWatch:
    """``rank`` of this process; ``folder``: where the objects are; ``found(ranks)``: called with the first stage."""

    def __init__(self, rank: int, folder: Path, found: Callable[[tuple[int, ...]], None]) -> None:
        self._rank, self._folder, self._found = rank, folder, found
        self._numbers: dict[tuple[int, int], int] = {}
        self._stages: list[int] = []
        self._of = 0
        self._ranks: tuple[int, ...] = ()
        self._schedule, self._micro_batches = "", 0

    def install(self) -> None:
        """Listen to torch's pipelines from now on."""
        stage: Any = importlib.import_module("torch.distributed.pipelining.stage")
        schedules: Any = importlib.import_module("torch.distributed.pipelining.schedules")
        distributed: Any = importlib.import_module("torch.distributed")
        _after(stage._PipelineStageBase, self._stage_made)
        _after(schedules._PipelineSchedule, self._schedule_made)
        modes = compat.pipeline_inference_modes()
        if modes is not None and hasattr(schedules._PipelineSchedule, "_warmup_p2p"):

            def infer_shapes(_: Any, stages: Any, *__: Any, **___: Any) -> None:
                for one in stages:  # a vote of all ranks, which needs values: shapes are inferred whatever they know
                    one._inference_mode = modes.DYNAMIC

            schedules._PipelineSchedule._warmup_p2p = infer_shapes
        for name in ("send_object_list", "recv_object_list"):
            original = getattr(distributed, name)
            answer = functools.wraps(original)(functools.partial(getattr(self, f"_{name}"), original))
            for module in (distributed, importlib.import_module("torch.distributed.distributed_c10d")):
                setattr(module, name, answer)

    def found(self) -> PlannedPipeline | None:
        """The stages of this rank; ``None`` without a pipeline."""
        if not self._stages:
            return None
        return PlannedPipeline(
            ranks=self._ranks,
            stages=tuple(self._stages),
            of=self._of,
            schedule=self._schedule,
            micro_batches=self._micro_batches,
        )

    def _stage_made(self, stage: Any) -> None:
        from torch.distributed import distributed_c10d as c10d

        self._of = int(stage.num_stages)
        self._stages.append(int(stage.stage_index))
        if not self._ranks:
            group = stage.group or c10d._get_default_group()
            self._ranks = tuple(int(rank) for rank in c10d.get_process_group_ranks(group))
            self._found(self._ranks)

    def _schedule_made(self, schedule: Any) -> None:
        self._schedule = type(schedule).__name__
        self._micro_batches = int(getattr(schedule, "_n_microbatches", 0))

    def _send_object_list(
        self, original: Any, object_list: Any, dst: int | None = None, group: Any = None, *rest: Any, **named: Any
    ) -> None:
        peer = _peer(dst, group, named.get("group_dst"))
        if peer not in self._ranks:
            original(object_list, dst, group, *rest, **named)
            return
        path = self._file(self._rank, peer)
        hidden = path.with_suffix(".part")
        hidden.write_bytes(pickle.dumps(list(object_list)))
        hidden.rename(path)

    def _recv_object_list(
        self, original: Any, object_list: Any, src: int | None = None, group: Any = None, *rest: Any, **named: Any
    ) -> int:
        peer = _peer(src, group, named.get("group_src"))
        if peer not in self._ranks:
            return int(original(object_list, src, group, *rest, **named))
        path = self._file(peer, self._rank)
        while not path.exists():  # the parent ends all ranks if one of them fails
            time.sleep(POLL_S)
        object_list[:] = pickle.loads(path.read_bytes())  # noqa: S301  (the program itself wrote it a moment ago)
        return peer

    def _file(self, sender: int, receiver: int) -> Path:
        number = self._numbers[sender, receiver] = self._numbers.get((sender, receiver), -1) + 1
        return self._folder / f"{sender}-{receiver}-{number}"


def _peer(rank: int | None, group: Any, group_rank: int | None) -> int:
    from torch.distributed import distributed_c10d as c10d

    if rank is not None:
        return int(rank)
    return int(c10d.get_global_rank(group or c10d._get_default_group(), int(group_rank or 0)))


def _after(kind: Any, listener: Callable[[Any], None]) -> None:
    """Call ``listener`` with each object of a class once it is complete."""
    original = kind.__init__

    @functools.wraps(original)
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        listener(self)

    kind.__init__ = made
