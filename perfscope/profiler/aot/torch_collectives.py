"""Sees the exchanges that a planned step asks for: what they move, among whom, from which line, and who waits for them.

A collective is an op like any other to torch's dispatcher, also over tensors without data and over a process group
that exchanges nothing. Bytes are those of the tensors it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import ref

import torch

from perfscope.profiler.aot.torch_each_op import EachOp
from perfscope.profiler.aot.torch_exchange import KINDS, NAMESPACES, exchange_of, written_by
from perfscope.profiler.aot.torch_memory_events import Place
from perfscope.profiler.aot.torch_memory_file import StepPhase
from perfscope.profiler.aot.torch_processes_file import (
    MAX_COLLECTIVES,
    AskedBy,
    Moment,
    PlannedCollective,
)
from perfscope.profiler.aot.torch_streams import Clock
from perfscope.profiler.captures.op_graph import insert_lowest
from perfscope.profiler.captures.op_graph_mode import tensors_in

WAIT = "_c10d_functional.wait_tensor"

_BY: tuple[tuple[str, AskedBy], ...] = (
    ("torch/distributed/fsdp/_fully_shard/", "fully_shard"),
    ("torch/distributed/fsdp/", "FullyShardedDataParallel"),
    ("torch/nn/parallel/distributed.py", "DistributedDataParallel"),
    ("perfscope/profiler/aot/torch_fake_reducer.py", "DistributedDataParallel"),
    ("torch/distributed/tensor/", "DTensor"),
)


class Groups:
    """Ranks of process groups, each list of them once."""

    def __init__(self) -> None:
        self.lists: dict[tuple[int, ...], int] = {}

    def number(self, ranks: Sequence[int]) -> int:
        """The index of a group."""
        return self.lists.setdefault(tuple(ranks), len(self.lists))


class CollectiveBook:
    """The collectives of one step after the other. ``now()``: where the step is; ``context()``: phase and line."""

    def __init__(
        self,
        now: Callable[[], Moment],
        context: Callable[[], tuple[StepPhase, Place]],
        groups: Groups,
        problem: Callable[[str], None],
    ) -> None:
        """``problem(text)``: is told in words what of the program could not be followed."""
        self._context, self._groups, self._problem = context, groups, problem
        self.clock = Clock(now, self.waited)
        self._rows: list[PlannedCollective] | None = None
        self._works: dict[int, int] = {}
        self._results: dict[int, int] = {}
        self._last: tuple[int | None, list[ref[Any]]] = (None, [])
        """Of the collective that was asked for last: the number of its work, the tensors that its future holds."""
        self._asleep = 0
        self.left = 0
        self.every = 0
        """Seen in the whole program, also outside of steps."""

    def install(self) -> None:
        """Look at every op from now on; enter the fake world first."""
        from torch._C._distributed_c10d import FakeWork, Work

        book = self
        kinds: tuple[Any, ...] = (FakeWork, Work)
        for kind in kinds:
            original = kind.wait

            def wait(work: Any, *arguments: Any, _original: Any = original, **named: Any) -> Any:
                book.work_done(getattr(work, "seq_id", None))
                return _original(work, *arguments, **named)

            kind.wait = torch.compiler.disable(wait)
        insert_lowest(EachOp(self))

    def begin(self) -> None:
        """A step begins."""
        self._rows, self._works, self._results = [], {}, {}
        self.clock.begin()

    def asked(self) -> int:
        """How many the step has asked for so far."""
        return len(self._rows or ())

    def take(self) -> tuple[PlannedCollective, ...]:
        """The collectives of the step, which is over."""
        rows, self._rows = self._rows or [], None
        return tuple(rows)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """What is dispatched inside is no op of the program's own."""
        self._asleep += 1
        try:
            yield
        finally:
            self._asleep -= 1

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An op was run."""
        if self._asleep or getattr(func, "namespace", "") not in NAMESPACES:
            return
        name = func._schema.name.replace("::", ".")
        if name == WAIT:
            self._tensor_done(args[0])
            return
        short = name.partition(".")[2]
        if short not in KINDS:
            if short not in ("_allgather_base", "batch_p2p_ops"):
                self._problem(f"{name}: what this op exchanges is not known; it counts as no collective")
            else:
                self._problem(f"{name}: exchanges in a batch are not counted")
            return
        self.every += 1
        works = [one for item in _listed(result) if (one := _work(item)) is not None]
        self._last = (works[0] if works else None, [ref(one) for one in written_by(func, args, kwargs)])
        rows = self._rows
        if rows is None:
            return
        if len(rows) >= MAX_COLLECTIVES:
            self.left += 1
            return
        exchange = exchange_of(func, args, kwargs, result)
        phase, place = self._context()
        after, behind = self.clock.seen()
        number = len(rows)
        rows.append(
            PlannedCollective(
                kind=exchange.kind,
                op=name,
                bytes=exchange.bytes,
                dtype=exchange.dtype,
                group=self._groups.number(exchange.ranks),
                by=asked_by(),
                phase=phase,
                file=place[0],
                line=place[1],
                function=place[2],
                at=self.clock.now(),
                after=after,
                behind=tuple(sorted(behind)),
                pairs=exchange.pairs,
            )
        )
        self._works.update(dict.fromkeys(works, number))
        if "functional" in name or name.startswith("_dtensor"):
            for tensor in tensors_in(result):
                self._results[id(tensor.untyped_storage())] = number

    def work_done(self, number: int | None) -> None:
        """``Work.wait`` of a collective: the stream that is the current one waits for it."""
        at = self._works.pop(number, None) if number is not None else None
        if at is not None:
            self.clock.current.waits_for((self.clock.seen()[0], frozenset((at,))))

    def _tensor_done(self, tensor: Any) -> None:
        found = self._results.pop(id(tensor.untyped_storage()), None)
        if found is not None:
            self.clock.current.waits_for((self.clock.seen()[0], frozenset((found,))))

    def given(self, work: Any) -> list[Any]:
        """The tensors that the collective of a work was given, as far as they are alive."""
        number, tensors = self._last
        if number is None or number != getattr(work, "seq_id", None):
            return []
        return [one for held in tensors if (one := held()) is not None]

    def waited(self, number: int) -> None:
        """From now on the program's own stream waits for the collective of that number."""
        rows = self._rows
        if rows is not None and number < len(rows) and rows[number].until is None:
            rows[number] = replace(rows[number], until=self.clock.now())


def asked_by() -> AskedBy:
    """Whose code asks: the innermost frame that is of one of torch's ways to parallelize."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        for part, name in _BY:
            if part in path:
                return name
        frame = frame.f_back
    return "the program"


def _listed(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (list, tuple)) else (result,)


def _work(one: Any) -> int | None:
    """The number of the work that an op gives back, where it is one."""
    if isinstance(one, torch.Tensor) or not hasattr(one, "_type"):
        return None
    from torch._C._distributed_c10d import FakeWork

    kind: Any = FakeWork
    try:
        return int(kind.unbox(one).seq_id)
    except (RuntimeError, TypeError, AttributeError):
        return None
