"""Checkpoint policies of one function side by side: one that recomputes more and needs as much memory is dominated.

A single program cannot tell what another policy would cost. Two programs of one function can: compiled in one
process, in two runs, or dumped to files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.checkpointing.program_remat import SAME_ASSIGNED, SAME_MODELLED, recomputed_products
from perfscope.analyzers.checkpointing.rules.excess_remat.program import MAX_ROWS, MEDIUM_FLOPS_SHARE, MIN_FLOPS_SHARE
from perfscope.analyzers.hlo.buffers import peak_bytes
from perfscope.analyzers.hlo.cost.module import ModuleCost
from perfscope.analyzers.hlo.module import Shape
from perfscope.analyzers.hlo.program import costs, program_labels, programs_apart
from perfscope.model.finding import Finding, Where, fit_title
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What of a scheduled program is compared with others; it stands for the program where that is elsewhere."""

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
    peak: int
    """Bytes alive at the worst moment, arguments and results included."""

    @property
    def tolerance(self) -> float:
        """Share of the peak within which another peak, known in the same way, is no larger."""
        return SAME_ASSIGNED if self.assigned else SAME_MODELLED

    def beats(self, other: Candidate) -> bool:
        """Whether this program recomputes less and needs no more memory; peaks must be known in the same way."""
        leaner = self.assigned == other.assigned and self.peak <= (1 + other.tolerance) * other.peak
        less = other.again - self.again
        return leaner and less > 0 and less >= MIN_FLOPS_SHARE * other.flops


def candidates(trace: Trace) -> tuple[Candidate, ...]:
    """Of every scheduled program of the trace."""
    index_of = {id(module): index for index, module in enumerate(trace.hlo)}
    return tuple(
        Candidate(
            index=index_of[id(cost.module)],
            name=cost.module.name.partition("(")[0],
            signature=_signature(cost),
            again=sum(
                recomputed.flops
                for recomputed in part.fact(recomputed_products)
                if recomputed.cost is cost and not recomputed.is_cheap
            ),
            flops=cost.total.flops,
            exact=cost.total.exact,
            share=cost.recompute_share() or 0.0,
            assigned=cost.module.buffer_assignment is not None,
            peak=peak_bytes(cost.module),
        )
        for part in trace.fact(programs_apart)
        for cost in part.fact(costs)
    )


def _signature(cost: ModuleCost) -> tuple[object, ...]:
    """Programs are of one function if they have its name, arguments and results, for the same kind of device."""
    module = cost.module
    entry = module.entry_computation()
    arguments = sorted(
        (instruction.parameter_number or 0, _type(instruction.shape))
        for instruction in entry.instructions
        if instruction.opcode == "parameter"
    )
    name = module.name.partition("(")[0]
    return (name, module.platform, module.num_partitions, tuple(arguments), _type(entry.root.shape))


def _type(shape: Shape) -> str:
    return f"{shape.dtype}{shape.dims}" + "".join(map(_type, shape.parts))


def dominated_policies(traces: Sequence[Trace]) -> Iterator[Finding]:
    """One finding for each function with a program whose policy another program of it beats."""
    modules = [module for trace in traces for module in trace.hlo]
    labels = dict(zip(map(id, modules), program_labels(modules), strict=True))
    functions: dict[tuple[object, ...], dict[str, Candidate]] = defaultdict(dict)
    for trace in traces:
        for candidate in trace.fact(candidates):
            functions[candidate.signature][labels[id(trace.hlo[candidate.index])]] = candidate
    for group in functions.values():
        better = {label: _better(candidate, group) for label, candidate in group.items()}
        if any(better.values()):
            yield _finding(group, better)


def _better(policy: Candidate, group: Mapping[str, Candidate]) -> str | None:
    """The program that recomputes least of those that beat ``policy``."""
    labels = [label for label, other in group.items() if other.beats(policy)]
    return min(labels, key=lambda label: (group[label].again, group[label].peak), default=None)


def _finding(group: Mapping[str, Candidate], better: Mapping[str, str | None]) -> Finding:
    label, best = max(((label, best) for label, best in better.items() if best), key=lambda pair: group[pair[0]].share)
    policy, other = group[label], group[best]
    return Finding(
        subject="dominated checkpoint policy",
        title=fit_title(
            f"{label} recomputes {_percent(policy)} of its arithmetic, {best} {_percent(other)}", label, best
        ),
        detail=f"{label} needs {format_bytes(policy.peak)}; {best}, a program of the same function, needs "
        f"{format_bytes(other.peak)}.",
        severity="medium" if policy.share >= MEDIUM_FLOPS_SHARE else "low",
        basis="structural" if policy.assigned and other.assigned else "modelled",
        where=Where(module=policy.name),
        evidence=tuple(
            {
                "program": label,
                "recompute_share": program.share,
                "recomputed_gflops": program.again / 1e9,
                "peak_bytes": program.peak,
                "peak_known_by": "assigned" if program.assigned else "modelled",
                "beaten_by": better[label],
            }
            for label, program in sorted(group.items(), key=lambda pair: -pair[1].share)[:MAX_ROWS]
        ),
        advice=f"Use the checkpoint policy of {best}. It recomputes less, and its peak memory is the same "
        f"to {100 * policy.tolerance:.0f}% or smaller. jax.ad_checkpoint.print_saved_residuals(f, *args) shows what "
        "a policy keeps.",
    )


def _percent(policy: Candidate) -> str:
    return f"{100 * policy.share:.1f}%" + ("" if policy.exact or not policy.share else " or less")
