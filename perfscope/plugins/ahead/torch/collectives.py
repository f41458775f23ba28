"""Collectives from their arguments: kind, bytes moved, participating ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from perfscope.model.documents.torch_plan import (
    MAX_COLLECTIVES,
    CollectiveKind,
    CollectiveOrigin,
    PlannedCollective,
    StepPhase,
    StepPosition,
)
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.compat import is_collective, is_wait
from perfscope.plugins.ahead.torch.cuda import CLOCK
from perfscope.plugins.ahead.torch.peak import UserLine
from perfscope.profiler.torch.op_graph.recorder import tensors_in

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")

KINDS: tuple[tuple[str, CollectiveKind], ...] = (
    ("allgather", "all-gather"),
    ("allreduce", "all-reduce"),
    ("alltoall", "all-to-all"),
    ("barrier", "barrier"),
    ("broadcast", "broadcast"),
    ("gather", "gather"),
    ("irecv", "recv"),
    ("isend", "send"),
    ("monitoredbarrier", "barrier"),
    ("recv", "recv"),
    ("reducescatter", "reduce-scatter"),  # must come before "reduce"
    ("reduce", "reduce"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("sharddimalltoall", "all-to-all"),
)
"""Prefix of an op's name, without underscores -> kind. Forms of one kind (``_coalesced``, ``_into_tensor``) differ in
how tensors are passed."""

_RESULTS = ("output_tensors", "output_tensor", "outputs", "out", "output")
_OPERANDS = ("input_tensors", "input_tensor", "inputs", "input", "tensors", "tensor", "self")

WAIT = "_c10d_functional.wait_tensor"

_ORIGIN_FILES: tuple[tuple[str, CollectiveOrigin], ...] = (
    ("torch/distributed/fsdp/_fully_shard/", "fully_shard"),
    ("torch/distributed/fsdp/", "FullyShardedDataParallel"),
    ("torch/nn/parallel/distributed.py", "DistributedDataParallel"),
    ("torch/distributed/tensor/", "DTensor"),
)


def describe_collective(
    func: Any, args: Any, kwargs: Any, result: Any
) -> tuple[CollectiveKind, int, str | None, tuple[int, ...], tuple[int, int] | None]:
    """(kind, bytes, dtype, ranks, ranks of ``send`` and ``recv``). ``KeyError`` for an op that is not a collective."""
    kind = collective_kind(func)
    if kind is None:
        raise KeyError(func._schema.name)
    named = _named(func, args, kwargs)
    tensors: list[Any] = []
    if kind in ("all-gather", "gather"):  # the bytes are those of the whole array
        tensors = _first(named, _RESULTS) or list(tensors_in(result))
    elif kind != "barrier":
        tensors = _first(named, _OPERANDS)
    ranks = compat.group_ranks(named)
    size = sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else None
    return kind, size, dtype, ranks, _pair(kind, named, ranks)


def collective_kind(func: Any) -> CollectiveKind | None:
    """The kind of an op in one of the `NAMESPACES`; ``None`` for an unknown kind of exchange."""
    name = func._schema.name.partition("::")[2].replace("_", "")
    return next((kind for begin, kind in KINDS if name.startswith(begin)), None)


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)


def _first(named: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """The tensors of the first of these arguments that exists."""
    return list(tensors_in([named[name] for name in names if name in named][:1]))


def _pair(kind: CollectiveKind, named: dict[str, Any], ranks: tuple[int, ...]) -> tuple[int, int] | None:
    if kind not in ("send", "recv"):
        return None
    mine = int(torch.distributed.get_rank())
    other = int(named.get("dst", named.get("src", 0)) or 0)
    other = ranks[other] if 0 <= other < len(ranks) else mine
    return (mine, other) if kind == "send" else (other, mine)


# Records the exchanges of a planned step: bytes, ranks, source line, and what waits for them.
#
# To torch's dispatcher a collective is an op like any other, also for tensors without data and for a process group that
# exchanges nothing. Bytes are those of the tensors passed.


class GroupTable:
    """Ranks of process groups, each list once."""

    def __init__(self) -> None:
        self.lists: dict[tuple[int, ...], int] = {}

    def number(self, ranks: Sequence[int]) -> int:
        """The index of a group."""
        return self.lists.setdefault(tuple(ranks), len(self.lists))


class CollectiveRecorder:
    """The collectives of each step. ``now()``: position in the step; ``context()``: phase and line."""

    def __init__(
        self,
        now: Callable[[], StepPosition],
        context: Callable[[], tuple[StepPhase, UserLine]],
        groups: GroupTable,
        problem: Callable[[str], None],
    ) -> None:
        """``problem(text)``: called with a sentence on what could not be followed."""
        self._context, self._groups, self._problem = context, groups, problem
        self._now = now
        CLOCK.now, CLOCK.waited, CLOCK.begun = now, self.waited, lambda: len(self._rows or ())
        self._rows: list[PlannedCollective] | None = None
        self._works: dict[int, int] = {}
        self._results: dict[int, int] = {}
        self.left = 0
        self.every = 0
        """Collectives of the whole program, also outside of steps."""

    def install(self) -> None:
        """Listen for waits from now on, in addition to the ops that are `seen`."""
        compat.hook_waits(self.work_done)

    def begin(self) -> None:
        """Begin a step."""
        self._rows, self._works, self._results = [], {}, {}
        CLOCK.begin()

    def take(self) -> tuple[PlannedCollective, ...]:
        """Return the collectives of the finished step."""
        rows, self._rows = self._rows or [], None
        return tuple(rows)

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Handle an op that ran."""
        if getattr(func, "namespace", "") not in NAMESPACES:
            return
        name = func._schema.name.replace("::", ".")
        if name == WAIT:
            self._tensor_done(args[0])
            return
        if collective_kind(func) is None:
            self._problem(f"{name}: this op is unknown and not counted as a collective")
            return
        number = self.record(name, collective_origin(), *describe_collective(func, args, kwargs, result))
        if number is None:
            return
        works = [
            work
            for item in (result if isinstance(result, list | tuple) else (result,))
            if (work := compat.work_number(item)) is not None
        ]
        self._works.update(dict.fromkeys(works, number))
        if "functional" in name or name.startswith("_dtensor"):
            for tensor in tensors_in(result):
                self._results[id(tensor.untyped_storage())] = number

    def record(
        self,
        op: str,
        by: CollectiveOrigin,
        kind: CollectiveKind,
        size: int,
        dtype: str | None,
        ranks: tuple[int, ...],
        pairs: tuple[int, int] | None = None,
    ) -> int | None:
        """Record a collective that begins now; return its number, ``None`` outside of steps and beyond the limit.

        ``op``: torch's name of it; ``by``: the code that requests it; the rest as from `describe_collective`.
        """
        self.every += 1
        rows = self._rows
        if rows is None:
            return None
        if len(rows) >= MAX_COLLECTIVES:
            self.left += 1
            return None
        phase, line = self._context()
        after, others = CLOCK.seen()
        rows.append(
            PlannedCollective(
                kind=kind,
                op=op,
                bytes=size,
                dtype=dtype,
                group=self._groups.number(ranks),
                by=by,
                phase=phase,
                file=line[0],
                line=line[1],
                function=line[2],
                at=self._now(),
                after=after,
                behind=tuple(sorted(others)),
                pairs=pairs,
            )
        )
        return len(rows) - 1

    def work_done(self, number: int | None) -> None:
        """Handle ``Work.wait`` of a collective: the current stream waits for it."""
        collective = self._works.pop(number, None) if number is not None else None
        if collective is not None:
            CLOCK.current.waits_for((CLOCK.seen()[0], frozenset((collective,))))

    def _tensor_done(self, tensor: Any) -> None:
        collective = self._results.pop(id(tensor.untyped_storage()), None)
        if collective is not None:
            CLOCK.current.waits_for((CLOCK.seen()[0], frozenset((collective,))))

    def waited(self, number: int) -> None:
        """Record that the program's stream waits for the collective of that number."""
        rows = self._rows
        if rows is not None and number < len(rows) and rows[number].until is None:
            rows[number] = replace(rows[number], until=self._now())


def collective_origin() -> CollectiveOrigin:
    """The requesting code: the innermost frame in one of torch's parallelism modules."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        for part, name in _ORIGIN_FILES:
            if part in path:
                return name
        frame = frame.f_back
    return "the program"


# Collectives inside a planned graph: functional ones, which inductor calls unchanged and waits for.


def graph_collectives(
    scheduled: Any,
    groups: GroupTable,
    place_of: Callable[[Iterable[Any]], Any],
    launches: Callable[[Any], bool],
) -> tuple[PlannedCollective, ...]:
    """The collectives of a scheduled graph in inductor's order; positions count its kernels.

    ``place_of(nodes)``: the user's line of FX graph nodes. ``launches(node)``: whether a node is a kernel.
    """
    collectives: list[PlannedCollective] = []
    made: dict[Any, int] = {}
    kernels = 0
    for kernel in scheduled.scheduler.nodes:
        for node in kernel.get_nodes():
            if is_wait(node):
                for origin in _origins(node):
                    number = made.get(_waited_for(origin))
                    if number is not None and collectives[number].until is None:
                        collectives[number] = replace(collectives[number], until=StepPosition(ops=kernels))
            elif is_collective(node):
                for origin in _origins(node):
                    if origin not in made and collective_kind(origin.target) is not None:
                        made[origin] = len(collectives)
                        collectives.append(
                            _planned_collective(origin, scheduled.backward, groups, place_of, StepPosition(ops=kernels))
                        )
        kernels += launches(kernel)
    return tuple(collectives)


def _planned_collective(
    origin: Any, backward: bool, groups: GroupTable, place_of: Callable[[Iterable[Any]], Any], at: StepPosition
) -> PlannedCollective:
    kind, size, dtype, ranks, pairs = describe_collective(
        origin.target,
        torch.fx.map_arg(tuple(origin.args), _node_value),
        torch.fx.map_arg(dict(origin.kwargs), _node_value),
        _node_value(origin),
    )
    line = place_of([origin])
    stack = str(origin.meta.get("stack_trace") or "")
    return PlannedCollective(
        kind=kind,
        op=origin.target._schema.name.replace("::", "."),
        bytes=size,
        dtype=dtype,
        group=groups.number(ranks),
        by="DTensor" if "torch/distributed/tensor/" in stack.replace("\\", "/") else "the program",
        phase="backward" if backward else "forward",
        file=None if line is None else line.file,
        line=None if line is None else line.line,
        function=None if line is None else line.function,
        at=at,
        after=at,
        pairs=pairs,
    )


def _origins(node: Any) -> list[Any]:
    return sorted(
        (origin for origin in node.node.get_origins() if getattr(origin.target, "namespace", "") in NAMESPACES),
        key=lambda origin: str(origin.name),
    )


def _waited_for(origin: Any) -> Any:
    """The FX node of the collective that a wait belongs to."""
    if str(origin.target._schema.name).replace("::", ".") != WAIT:
        return None
    node = origin.args[0]
    while isinstance(node, torch.fx.Node) and getattr(node.target, "namespace", "") not in NAMESPACES and node.args:
        node = node.args[0]
    return node


def _node_value(node: Any) -> Any:
    return node.meta.get("val")
