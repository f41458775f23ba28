"""Process groups of a job and the mesh axis each looks like: data, tensor, pipeline or expert parallel.

A guess from what the program calls a group, what it does and how its members are spaced, and it says why. The usual
order of ranks (Megatron, DeviceMesh) puts tensor parallelism innermost, so neighbours, data parallelism further out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfscope.analyzers.ranks.job import Job
from perfscope.analyzers.ranks.matching import Group, Matched
from perfscope.model.collectives import POINT_TO_POINT

_NAMES = {
    "DP": re.compile(r"(?:^|[^a-z])(?:dp|ddp|fsdp|hsdp)(?:[^a-z]|$)|data_?parallel|replicate|shard", re.IGNORECASE),
    "TP": re.compile(r"(?:^|[^a-z])tp(?:[^a-z]|$)|tensor_(?:model_)?(?:and_\w+_)?parallel", re.IGNORECASE),
    "PP": re.compile(r"(?:^|[^a-z])pp(?:[^a-z]|$)|pipeline", re.IGNORECASE),
    "EP": re.compile(r"(?:^|[^a-z])ep(?:[^a-z]|$)|expert", re.IGNORECASE),
}
"""Words of an axis in the names that DeviceMesh (``mesh_dp``) and Megatron (``TENSOR_MODEL_PARALLEL_GROUP``) give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """A set of ranks that communicate."""

    ranks: Group
    recorded: bool
    """The profiler recorded the members; otherwise they were inferred from streams."""
    description: str | None
    """What the program calls it, where recorded."""
    stride: int | None
    """Distance between neighbours, where it is the same throughout."""
    operations: dict[str, int]
    """Collectives by operation, over all recorded ranks."""
    axis: str | None
    """``DP``, ``TP``, ``PP``, ``EP``; None where nothing speaks for one of them."""
    why: str
    """What the axis was guessed from."""


def groups_of(job: Job, matched: Sequence[Matched]) -> tuple[RankGroup, ...]:
    """The groups of a job by their ranks."""
    operations: dict[Group, Counter[str]] = defaultdict(Counter)
    tensors: dict[Group, Counter[str]] = defaultdict(Counter)
    recorded: dict[Group, bool] = {}
    called: dict[Group, dict[str, None]] = defaultdict(dict)
    for one in matched:
        operations[one.group][one.operation] += 1
        recorded[one.group] = one.named
        for side in one.sides.values():
            if side.dims is not None:
                tensors[one.group]["flat" if side.dims == 1 else "shaped"] += 1
    for member in job.members:
        for local in member.collectives:
            if local.ranks is not None and local.description is not None:
                called[local.ranks].setdefault(local.description)
            if local.ranks is not None and local.operation in POINT_TO_POINT:
                operations[local.ranks][local.operation] += 1
                recorded[local.ranks] = True
    return tuple(
        _group(ranks, operations[ranks], tensors[ranks], job, tuple(called[ranks]), recorded=recorded[ranks])
        for ranks in sorted(operations)
    )


def _group(
    ranks: Group, operations: Counter[str], tensors: Counter[str], job: Job, called: Sequence[str], *, recorded: bool
) -> RankGroup:
    distances = {after - before for before, after in pairwise(ranks)}
    stride = distances.pop() if len(distances) == 1 else None
    world = len(ranks) == (job.world_size or len(job.members))
    axis, why = named_axis(called) or _axis(operations, tensors, stride, world=world)
    return RankGroup(
        ranks=ranks,
        recorded=recorded,
        description=", ".join(called) or None,
        stride=stride,
        operations=dict(operations.most_common()),
        axis=axis,
        why=why,
    )


def named_axis(called: Sequence[str]) -> tuple[str, str] | None:
    """The one axis that the program's own names speak of; nothing where they speak of several (``tp_dp``) or none."""
    found = {axis for name in called for axis, words in _NAMES.items() if words.search(name)}
    return (found.pop(), f"the program calls it {', '.join(called)}") if len(found) == 1 else None


def _axis(
    operations: Counter[str], tensors: Counter[str], stride: int | None, *, world: bool
) -> tuple[str | None, str]:
    """The axis that speaks for itself first: who only sends, who exchanges, what is reduced."""
    total = operations.total()
    if sum(operations[name] for name in POINT_TO_POINT) * 2 > total:
        return "PP", "most of its traffic is between two ranks"
    if operations["all_to_all"] * 2 > total:
        return "EP", "most of it is all-to-all"
    reduces = operations["all_reduce"] + operations["reduce_scatter"] + operations["all_gather"]
    if not reduces:
        return None, "no collective tells"
    if tensors["shaped"] * 2 > tensors.total() > 0:
        return "TP", "it reduces tensors of several dimensions (activations), not flat buckets"
    if tensors["flat"] * 2 > tensors.total() > 0:
        return "DP", "it reduces flat buckets (gradients, parameters)"
    if world:
        return "DP", "it spans the world, and shapes are not recorded"
    if stride is not None and stride > 1:
        return "DP", f"its members are {stride} ranks apart, and shapes are not recorded"
    return None, "neighbours that reduce: tensor or data parallel, shapes are not recorded"
