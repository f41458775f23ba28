"""Pipelines of a job: ranks that send to and receive from each other, and what each stage waits for its neighbours.

A receive (or a send whose other side is not there yet) is a kernel that waits on the device. Where both sides of a
message are known (``matching.pair``), the shorter one is the transfer, the rest of the other is waiting for that rank.
Otherwise the shortest kernel of its operation and size in the pipeline is the transfer. What a stage's kernels take
beyond that, as far as the device computes nothing meanwhile, is waiting. No common clock is needed for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.ranks.job import Local, Member
from perfscope.analyzers.ranks.matching import Group, waits_by_kernel
from perfscope.analyzers.ranks.sets import RankSet, named_axis
from perfscope.analyzers.time import device_times, exposed_communication, step_windows
from perfscope.model.collectives import POINT_TO_POINT
from perfscope.model.trace import MISSING

Kind = tuple[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One rank of a pipeline; times are summed over its trace."""

    rank: int
    sends: int
    """Sends of the largest size: smaller ones tell shapes. 0 where kernels do not tell sends from receives."""
    kernels: int
    steps: int
    """0 where none is known."""
    compute_ns: int
    exposed_ns: int
    """In sends and receives while the device computed nothing."""
    wait_ns: int
    """``exposed_ns`` without the transfers themselves."""
    mostly_for: int | None
    """The rank that most of ``wait_ns`` was for; None where no other side of its messages is known."""
    idle_ns: int
    """The device did nothing at all: its host may be why, so it is not in ``wait_ns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Ranks that are joined by sends and receives."""

    ranks: Group
    named: bool
    """The program calls it a pipeline."""
    stages: tuple[Stage, ...]
    """Those recorded, by rank."""
    on_host: bool
    """Some of its sends and receives ran on the host (gloo): what was waited there is not known."""

    @property
    def complete(self) -> bool:
        """All its ranks are recorded."""
        return len(self.stages) == len(self.ranks)

    @property
    def ring(self) -> bool:
        """Every one of three or more ranks sends as much as the others: there is no first and no last stage."""
        return len(self.ranks) > 2 and len({(stage.sends, stage.kernels) for stage in self.stages}) == 1

    @property
    def microbatches(self) -> int | None:
        """Of a step, where the sends tell: the first and the last stage send one each, those between them two.

        None where steps are not known, or the counts are not those of such a schedule (interleaved stages).
        """
        each = set()
        for stage in self.stages:
            if not self.complete or not stage.steps or not stage.sends or stage.sends % stage.steps:
                return None
            each.add(stage.steps)
        counts = sorted(stage.sends // stage.steps for stage in self.stages)
        fits = len(each) == 1 and counts[0] == counts[1] and all(count == 2 * counts[0] for count in counts[2:])
        return counts[0] if fits else None


def bubble_share(stages: int, microbatches: int) -> float:
    """Share of a step that each stage idles: (p - 1) / (m + p - 1), of GPipe and of 1F1B without interleaving.

    Huang et al. 2019 (GPipe); Narayanan et al. 2021 (Megatron-LM, section 2.2), which states it over the ideal time.
    """
    return (stages - 1) / (microbatches + stages - 1)


def pipelines_of(ranks: RankSet) -> tuple[Pipeline, ...]:
    """The pipelines of a job: groups with sends and receives, joined where they share a rank."""
    sending: dict[Group, set[str]] = defaultdict(set)
    for member in ranks.job.members:
        for local in member.collectives:
            if local.ranks is not None and len(local.ranks) > 1 and between_two(local):
                sending[local.ranks].update(() if local.description is None else (local.description,))
    pipelined: list[set[int]] = []
    for group in sorted(sending):
        joined = [connected for connected in pipelined if connected.intersection(group)]
        pipelined = [connected for connected in pipelined if connected not in joined] + [set(group).union(*joined)]
    pipelines = []
    for members in pipelined:
        axes = [named_axis(sorted(called)) for group, called in sending.items() if members >= set(group)]
        named = any(axis is not None and axis[0] == "PP" for axis in axes)
        pipelines.append(_pipeline(tuple(sorted(members)), ranks, named=named))
    return tuple(pipelines)


def between_two(local: Local) -> bool:
    """Whether it is a send or a receive. A kernel of sends and receives of a larger group may be an all-to-all."""
    if local.operation in POINT_TO_POINT:
        return True
    return local.operation in ("send_recv", "coalesced") and local.ranks is not None and len(local.ranks) == 2


def _pipeline(members: Group, ranks: RankSet, *, named: bool) -> Pipeline:
    waits = waits_by_kernel(ranks.pairing)
    recorded = [member for member in ranks.job.members if member.rank in members]
    messages = {
        member.rank: [
            collective
            for collective in member.collectives
            if between_two(collective) and set(collective.ranks or ()) <= set(members)
        ]
        for member in recorded
    }
    kernels = {rank: [local for local in found if local.kernel != MISSING] for rank, found in messages.items()}
    launched = [local for locals_ in kernels.values() for local in locals_]
    largest = max((local.elements or 0 for local in launched), default=0)
    shortest: dict[Kind, int] = {}
    for local in launched:
        kind = local.operation, local.elements
        shortest[kind] = min(shortest.get(kind, local.duration_ns), local.duration_ns)
    return Pipeline(
        ranks=members,
        named=named,
        on_host=kernels != messages,
        stages=tuple(_stage(member, kernels[member.rank], shortest, largest, waits) for member in recorded),
    )


def _stage(
    member: Member,
    kernels: Sequence[Local],
    shortest: Mapping[Kind, int],
    largest: int,
    waits: Mapping[tuple[int, int], tuple[int, int]],
) -> Stage:
    trace = member.trace
    exposed = trace.fact(exposed_communication)
    waited: Counter[int | None] = Counter()
    for kernel in kernels:
        beyond = kernel.duration_ns - shortest[kernel.operation, kernel.elements]
        wait_ns, other = waits.get((member.rank, kernel.kernel), (beyond, None))
        waited[other] += min(int(exposed[kernel.kernel]), wait_ns)
    by_rank = {other: ns for other, ns in waited.items() if other is not None and ns > 0}
    devices = trace.fact(device_times)
    return Stage(
        rank=member.rank,
        sends=sum(kernel.operation == "send" and (kernel.elements or 0) == largest for kernel in kernels),
        kernels=len(kernels),
        steps=trace.fact(step_windows).count,
        compute_ns=sum(device.compute_ns for device in devices),
        exposed_ns=sum(int(exposed[kernel.kernel]) for kernel in kernels),
        wait_ns=waited.total(),
        mostly_for=max(sorted(by_rank), key=lambda other: by_rank[other], default=None),
        idle_ns=sum(device.idle_ns for device in devices),
    )
