"""Live bytes of a compiled step with less kept for its layers, estimated from the program without asking the compiler.

Three changes to the live bytes of the program as it is compiled: what the forward keeps today goes, what the policy
keeps instead stays from the forward to the backward, and in the backward the values of one layer at a time are there
again. XLA schedules and fuses the changed program again, which is not modelled: the constants below
have the errors that were measured for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.checkpointing.jax_layers.layers import Kept, Layers
from perfscope.analyzers.checkpointing.step_model import Policy
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.model.memory import MemoryTimeline
from perfscope.model.units import format_bytes

# How far estimated peaks of checkpoint policies were from programs that XLA compiled with the policy, by kind.
#
# The numbers are those of the table in docs/memory.md, which ``benchmarks/memory_plans_jax.py`` prints.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Errors of the estimates of one kind: estimated over compiled, less 1; no error lies within every bound."""

    kind: str
    """In words."""
    programs: int
    """Estimates that were compared with a compiled program."""
    low: float
    high: float

    @property
    def margin(self) -> float:
        """Share of an estimate by which the compiled program needs more, at worst."""
        return max(0.0, 1 / (1 + self.low) - 1)

    def between(self, estimated: int) -> tuple[int, int]:
        """What the compiled program would need, going by the worst of these errors. Bytes."""
        return round(estimated / (1 + self.high)), round(estimated / (1 + self.low))

    def sentence(self, estimated: Mapping[str, int]) -> str:
        """What to expect; ``estimated``: peaks in bytes, by policy in words."""
        ranges = ", ".join(
            f"{policy} {format_bytes(low)} to {format_bytes(high)}"
            for policy, size in estimated.items()
            for low, high in (self.between(size),)
        )
        return (
            f"the peak of another policy is estimated from this program: {self.programs} such estimates ({self.kind}) "
            f"were between {self.low:+.0%} and {self.high:+.0%} of what XLA compiled with the policy; that makes "
            f"{ranges} (docs/memory.md)"
        )


LOOP_LESS = Bound(kind="less kept for the layers of a loop", programs=52, low=-0.128, high=0.385)
LOOP_ALL = Bound(kind="everything kept for the layers of a loop", programs=54, low=-0.144, high=0.73)
SINGLE_LESS = Bound(kind="less kept for layers with a scope each", programs=33, low=-0.058, high=0.767)
SINGLE_ALL = Bound(kind="everything kept for layers with a scope each", programs=35, low=-0.247, high=0.243)

WORDS: dict[Policy, str] = {
    "keep": "keeping everything",
    "selective": "checkpointing selectively",
    "full": "checkpointing",
}
NOT_ESTIMATED = "no other checkpoint policy of the program can be estimated"
NO_NAMES = (
    "policies that go by name (save_only_these_names) are not estimated: checkpoint_name leaves nothing in a compiled "
    "program"
)
NOT_SELECTIVELY = (
    "checkpointing selectively is not estimated: a loop within the layers has products with weights, which that policy "
    "keeps a turn at a time"
)
FROM_KEPT = (
    "layers are checkpointed today: what keeping everything takes is estimated from what their backward reads of the "
    "values it makes again; other policies than keeping everything are not estimated from such a program"
)
EXACT = (
    "compiling a policy gives its exact number: perfscope compile --target NAME --sweep checkpoint=none,dots,full "
    "PROGRAM (docs/compile-sweeps.md)"
)

COMPILED = (
    "the peak of each policy for all layers is that of the program compiled with it; what a policy for some of the "
    "layers needs is taken to lie evenly between"
)


def exact_notes(notes: tuple[str, ...], *, complete: bool) -> tuple[str, ...]:
    """Notes of estimates (`notes_on`) once policies were compiled; ``complete``: all that were estimated."""
    kept = notes[1:] if complete else notes
    return (COMPILED, *(note for note in kept if note != EXACT))


def bound_of(*, single: bool, checkpointed: bool) -> Bound:
    """That of a program: whether each layer has a scope, and whether it is checkpointed today."""
    if single:
        return SINGLE_ALL if checkpointed else SINGLE_LESS
    return LOOP_ALL if checkpointed else LOOP_LESS


def notes_on(peaks: Mapping[Policy, int], bound: Bound, *, checkpointed: bool) -> tuple[str, ...]:
    """How far to trust what is estimated, first of all the peaks.

    ``peaks``: bytes of each policy other than today's, for all layers.
    """
    words = {WORDS[policy]: size for policy, size in peaks.items()}
    notes = [bound.sentence(words) if words else NOT_ESTIMATED, NO_NAMES]
    if checkpointed:
        notes.append(FROM_KEPT)
    elif words and "selective" not in peaks:
        notes.append(NOT_SELECTIVELY)
    return (*notes, EXACT)


Span = tuple[int, int, int]
"""From a position of the schedule up to another, that many bytes more (or fewer)."""


def estimated_spans(
    flow: Flow, layers: Layers, kept: Collection[int], schedule: Schedule, timeline: MemoryTimeline
) -> tuple[Span, ...]:
    """What handing only ``kept`` to the backward changes, of layers that keep everything now.

    What they keep today goes, what they keep instead stays from the forward to the backward, and while the backward of
    a layer runs that layer's values are there again. ``timeline``: of the same program.
    """
    spans = list(_gone_alone(layers, schedule, timeline) if layers.scope else _gone_stacks(layers, schedule))
    first = layers.forward[layers.scope != ()]
    spans += [
        (first, layers.backward[1], layers.count * flow.values[number].instruction.shape.bytes) for number in kept
    ]
    spans += [
        (layers.backward[0], kept_value.reads[1] + 1, kept_value.bytes // layers.count) for kept_value in layers.kept
    ]
    return tuple(span for span in spans if span[1] > span[0] and span[2])


def _gone_stacks(layers: Layers, schedule: Schedule) -> Iterator[Span]:
    """The stacks of a loop over layers."""
    for kept in layers.kept:
        yield min((*_positions(kept, schedule), layers.forward[0])), layers.backward[1], -kept.bytes


def _gone_alone(layers: Layers, schedule: Schedule, timeline: MemoryTimeline) -> Iterator[Span]:
    """The blocks that hold what a single layer keeps, from the position after the one that makes them."""
    start, end, size = (timeline.blocks[name] for name in ("start", "end", "bytes"))
    free = end > layers.backward[0]
    for kept in layers.kept:
        rows = np.flatnonzero(free & (size == kept.bytes) & np.isin(start, _positions(kept, schedule)))
        if len(rows):
            free[rows[0]] = False
            yield int(start[rows[0]]) + 1, int(end[rows[0]]), -kept.bytes


def _positions(kept: Kept, schedule: Schedule) -> list[int]:
    names = (maker.partition("{")[0] for maker in kept.makers)
    return [schedule.positions[name] for name in names if name in schedule.positions]
