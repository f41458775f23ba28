"""How near predicted peaks of checkpoint policies came to programs that XLA compiled with the policy, by kind.

The numbers are those of the tables in docs/memory.md, which ``benchmarks/memory_plans_jax.py`` prints: programs that
the rules were made on, and programs that nobody had looked at before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.checkpointing.step_model import Policy, Region
from perfscope.analyzers.hlo.module import HloModule
from perfscope.model.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Errors of the predictions of one kind: predicted over compiled, less 1."""

    kind: str
    """In words."""
    programs: int
    close: int
    """Those within 5%."""
    low: float
    high: float

    def between(self, predicted: int) -> tuple[int, int]:
        """What the compiled program would need, going by the worst of these errors. Bytes."""
        return round(predicted / (1 + self.high)), round(predicted / (1 + self.low))

    def sentence(self, predicted: Mapping[str, int]) -> str:
        """What to expect; ``predicted``: peaks in bytes, by policy in words."""
        told = ", ".join(
            f"{policy} {format_bytes(low)} to {format_bytes(high)}"
            for policy, size in predicted.items()
            for low, high in (self.between(size),)
        )
        return (
            f"the peak of another policy is predicted from this program: of {self.programs} such predictions "
            f"({self.kind}) {self.close} were within 5% of what XLA compiled with the policy, the worst "
            f"{self.low:+.0%} and {self.high:+.0%} off; going by the worst, {told} (docs/memory.md)"
        )


LOOP_LESS = Bound(kind="less kept for the layers of a loop", programs=65, close=57, low=-0.118, high=0.24)
LOOP_ALL = Bound(kind="everything kept for the layers of a loop", programs=74, close=63, low=-0.267, high=0.13)
SINGLE_LESS = Bound(kind="less kept for layers with a scope each", programs=32, close=27, low=-0.04, high=0.335)
SINGLE_ALL = Bound(kind="everything kept for layers with a scope each", programs=31, close=19, low=-0.149, high=0.261)

_WORDS: dict[Policy, str] = {
    "keep": "keeping everything",
    "selective": "checkpointing selectively",
    "full": "checkpointing",
}
NOT_PREDICTED = "the program is too large for its checkpoint policies to be predicted, or cannot be ordered"
NO_NAMES = (
    "policies that go by name (save_only_these_names) are not predicted: checkpoint_name leaves nothing in a compiled "
    "program"
)
NOT_SELECTIVELY = (
    "checkpointing selectively is not predicted: a loop within the layers has products with weights, which that policy "
    "keeps a turn at a time"
)
SEVERAL = (
    "a policy for some of the layers is predicted for the first ones; for others, and where two policies are mixed, "
    "what each layer adds there is summed up"
)
SEVERAL_AGAIN = "plans that keep everything for some of the layers are taken to lie between none and all of them"
FROM_KEPT = (
    "layers are checkpointed today: what keeping everything takes is predicted from what their forward computes and "
    "their backward computes again; other policies than keeping everything are not predicted from such a program"
)
SIMPLY = (
    "layers are checkpointed today, and the program without that cannot be ordered: what keeping everything takes is "
    "what their backward reads of the values it makes again, in half of 94 predictions more than 5% off, up to 119% "
    "too high"
)
OVERLAPPED = (
    "collectives of the program run beside its kernels: XLA orders it once more for that, by how long it thinks each "
    "takes, here as on an H100; 21 of 25 predictions of such programs were within 5%, the worst 9% too low "
    "(docs/memory.md)"
)
EXACT = (
    "compiling a policy gives its exact number: perfscope compile --target NAME --sweep checkpoint=none,dots,full "
    "PROGRAM (docs/compile-sweeps.md)"
)
_COLLECTIVES = ("all-", "collective-", "reduce-scatter", "ragged-all-")
NEAR = 0.05
"""Errors of the worst prediction of a kind up to which nothing is said of compiling."""


def bound_of(*, single: bool, checkpointed: bool) -> Bound:
    """That of a program: whether each layer has a scope, and whether it is checkpointed today."""
    if single:
        return SINGLE_ALL if checkpointed else SINGLE_LESS
    return LOOP_ALL if checkpointed else LOOP_LESS


def overlaps(module: HloModule) -> bool:
    """Whether collectives of a program begin and end apart, so that kernels run between. Linear in its instructions."""
    return any(
        one.opcode.endswith("-start") and one.opcode.startswith(_COLLECTIVES)
        for computation in module.computations.values()
        for one in computation.instructions
    )


def notes_on(
    regions: Sequence[Region], today: int, *, single: bool, simply: bool = False, overlapped: bool = False
) -> tuple[str, ...]:
    """How far to trust what is predicted for these layers; ``today``: the peak in bytes.

    ``simply``: of layers that are checkpointed, the program without that could not be ordered. ``overlapped``: as
    ``overlaps`` says.
    """
    checkpointed = any(region.checkpointed for region in regions)
    peaks: dict[str, int] = {}
    for policy, words in _WORDS.items():
        changes = [dict(region.changes).get(policy) for region in regions]
        if all(region.today != policy for region in regions) and None not in changes:
            peaks[words] = today + sum(size for one in changes if one is not None for _, _, size in one.spans)
    bound = bound_of(single=single, checkpointed=checkpointed)
    notes = [NOT_PREDICTED if not peaks else SIMPLY if simply else bound.sentence(peaks), NO_NAMES]
    if checkpointed and not simply:
        notes.append(FROM_KEPT)
    elif not checkpointed and peaks and _WORDS["selective"] not in peaks:
        notes.append(NOT_SELECTIVELY)
    if len(regions) > 1 and peaks and single:
        notes.append(SEVERAL_AGAIN if checkpointed else SEVERAL)
    if overlapped and peaks:
        notes.append(OVERLAPPED)
    if simply or not peaks or max(-bound.low, bound.high) > NEAR:
        notes.append(EXACT)
    return tuple(notes)
