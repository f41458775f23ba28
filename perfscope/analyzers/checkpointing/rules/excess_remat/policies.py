"""Checkpoint policies of one function side by side: one that recomputes more and needs as much memory is dominated.

A single program cannot tell what another policy would cost. Two programs of one function can: compiled in one
process, in two runs, or dumped to files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.checkpointing.program_remat import recomputed_products
from perfscope.analyzers.hlo.buffers import peak_bytes
from perfscope.analyzers.hlo.cost.module import ModuleCost
from perfscope.analyzers.hlo.module import Shape
from perfscope.analyzers.hlo.program import costs, program_labels, programs_apart
from perfscope.model.finding import Finding, Where
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes

MIN_FLOPS_SHARE = 0.05
"""Of a program's arithmetic, by which another must recompute less: as for one program alone."""

MEDIUM_FLOPS_SHARE = 0.1
"""No time is known, so nothing is called high."""

SAME_ASSIGNED = 0.01
"""Peaks that XLA assigned count as equal up to this: they differ by alignment and by where buffers found room."""

SAME_MODELLED = 0.05
"""Peaks of a model are no better than this, though what it misses it misses in both programs."""

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What of a scheduled program is held against others; it stands for the program where that is elsewhere."""

    index: int
    """In ``Trace.hlo``."""
    name: str
    signature: tuple[object, ...]
    """Equal for programs of one function."""
    again: int
    """FLOPs of recomputed matrix products that are not cheap, in one run."""
    flops: float
    """Of one run."""
    exact: bool
    """False: a loop of unknown length was counted once."""
    share: float
    """Of the program's arithmetic that is recomputation of any kind."""
    assigned: bool
    """Whether XLA itself said the peak; else it is modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One program of a function."""

    label: str
    program: Candidate
    peak: int
    """Bytes alive at the worst moment, arguments and results included."""

    @property
    def tolerance(self) -> float:
        """Share of the peak within which another peak, known in the same way, is no larger."""
        return SAME_ASSIGNED if self.program.assigned else SAME_MODELLED


def candidates(trace: Trace) -> tuple[Candidate, ...]:
    """Of every scheduled program of the trace."""
    index_of = {id(module): index for index, module in enumerate(trace.hlo)}
    found = []
    for part in trace.fact(programs_apart):
        for cost in part.fact(costs):
            products = (one for one in part.fact(recomputed_products) if one.cost is cost and not one.is_cheap)
            candidate = Candidate(
                index=index_of[id(cost.module)],
                name=cost.module.name.partition("(")[0],
                signature=_signature(cost),
                again=sum(one.flops for one in products),
                flops=cost.total.flops,
                exact=cost.total.exact,
                share=cost.recompute_share() or 0.0,
                assigned=cost.module.buffer_assignment is not None,
            )
            found.append(candidate)
    return tuple(found)


def peaks(trace: Trace) -> Mapping[int, int]:
    """Peak bytes of every scheduled program, by index in ``Trace.hlo``."""
    return {one.index: peak_bytes(trace.hlo[one.index]) for one in trace.fact(candidates)}


def dominated_policies(traces: Sequence[Trace]) -> Iterator[Finding]:
    """One finding for each function with a program whose policy another program of it beats."""
    for group in _functions(traces):
        better = [_better(policy, group) for policy in group]
        beaten = [index for index, best in enumerate(better) if best is not None]
        if beaten:
            yield _finding(group, better, max(beaten, key=lambda index: group[index].program.share))


def _functions(traces: Sequence[Trace]) -> list[list[Policy]]:
    """Programs of functions that have several, one of which at least recomputes products."""
    modules = [module for trace in traces for module in trace.hlo]
    labels = dict(zip(map(id, modules), program_labels(modules), strict=True))
    alike: dict[tuple[object, ...], dict[int, tuple[Trace, Candidate]]] = defaultdict(dict)
    for trace in traces:
        for one in trace.fact(candidates):
            alike[one.signature][id(trace.hlo[one.index])] = (trace, one)
    return [
        [
            Policy(label=labels[key], program=one, peak=trace.fact(peaks)[one.index])
            for key, (trace, one) in group.items()
        ]
        for group in alike.values()
        if len(group) > 1 and any(one.again for _, one in group.values())
    ]


def _signature(cost: ModuleCost) -> tuple[object, ...]:
    """Programs are of one function if they have its name, arguments and results, for the same kind of device."""
    module = cost.module
    entry = module.entry_computation()
    arguments = sorted(
        (one.parameter_number or 0, _type(one.shape)) for one in entry.instructions if one.opcode == "parameter"
    )
    name = module.name.partition("(")[0]
    return (name, module.platform, module.num_partitions, tuple(arguments), _type(entry.root.shape))


def _type(shape: Shape) -> str:
    return f"{shape.dtype}{shape.dims}" + "".join(map(_type, shape.parts))


def _better(policy: Policy, group: Sequence[Policy]) -> Policy | None:
    """The one that recomputes least of those that beat ``policy``: less recomputed and no more memory.

    Peaks are compared only where they are known in the same way.
    """
    mine = policy.program
    found = [
        other
        for other in group
        if other.program.assigned == mine.assigned
        and other.peak <= (1 + policy.tolerance) * policy.peak
        and mine.again - other.program.again >= MIN_FLOPS_SHARE * mine.flops
    ]
    return min(found, key=lambda other: (other.program.again, other.peak), default=None)


def _finding(group: Sequence[Policy], better: Sequence[Policy | None], worst: int) -> Finding:
    policy, best = group[worst], better[worst]
    assert best is not None
    rows = sorted(zip(group, better, strict=True), key=lambda pair: -pair[0].program.share)
    return Finding(
        subject="dominated checkpoint policy",
        title=f"{policy.label} recomputes {_percent(policy)} of its arithmetic and needs {format_bytes(policy.peak)}; "
        f"{best.label}, a program of the same function, recomputes {_percent(best)} and needs "
        f"{format_bytes(best.peak)}",
        severity="medium" if policy.program.share >= MEDIUM_FLOPS_SHARE else "low",
        basis="structural" if policy.program.assigned and best.program.assigned else "modelled",
        where=Where(module=policy.program.name),
        evidence=tuple(
            {
                "program": one.label,
                "recompute_share": one.program.share,
                "recomputed_gflops": one.program.again / 1e9,
                "peak_bytes": one.peak,
                "peak_known_by": "assigned" if one.program.assigned else "modelled",
                "beaten_by": None if found is None else found.label,
            }
            for one, found in rows[:MAX_ROWS]
        ),
        advice=f"Use the checkpoint policy of {best.label}: it recomputes less, and its peak memory is the same "
        f"to {100 * policy.tolerance:.0f}% or smaller. jax.ad_checkpoint.print_saved_residuals(f, *args) shows what "
        "a policy keeps.",
    )


def _percent(policy: Policy) -> str:
    return f"{100 * policy.program.share:.1f}%" + (
        "" if policy.program.exact or not policy.program.share else " or less"
    )
