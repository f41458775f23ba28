"""Texts and advice about a late rank, by cause. Without a known cause there is no fix."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from perfscope.analyzers.ranks.late_causes import Cause, Why
from perfscope.analyzers.ranks.rank_work import HostLine, RankWork, ShapedOp
from perfscope.analyzers.ranks.waits import COMPUTE, LOADER, NOTHING
from perfscope.analyzers.time import Situation, does
from perfscope.model.finding import Where
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.units import format_ns

MOST_SHAPES = 2
"""Maximum number of an op's inputs that are named; the first inputs are data and weights."""

_SORT = "Sort the samples by length, cut them into batches, and deal neighbouring batches out over the ranks."

_BALANCE: Mapping[str, str] = {
    "torch": "Give all ranks batches of one length in each step (a `batch_sampler` that sorts by length, "
    "`group_by_length=True` of Transformers). " + _SORT,
    "jax": "Give all processes batches of one length in each step. " + _SORT,
    "none": "Give all ranks batches of one length in each step. " + _SORT,
}

_EVEN = "Give it no more work than the others: even shards, experts, tables and layers."

_EXCHANGED = (
    "Balance what the exchange gives to each rank: experts by a capacity or a balancing loss, embedding tables by the "
    "rows that are looked up."
)

_SLOWER = (
    "Compare the clocks and temperature of its device with the others'{clocks}, and use another device if it is "
    "throttled."
)

_EARLIER = "Follow the wait to the group it was held up in: the rank that is last there is the cause."

_SHAPES = (
    "Record it with input shapes (`perfscope run`, or `record_shapes=True`), to see whether its inputs are larger."
)

_CORES_OF_RANKS = "Record it again with a free core for each rank, to see whether it is late there as well."


class CauseTexts(Struct, frozen=True, kw_only=True):
    """Texts of a finding about the cause."""

    short: str = ""
    """Short form for a title."""
    because: str = ""
    """Rest of a sentence; ``""`` if only the rank's previous activity is known."""
    fix: str = ""
    record: str = ""
    where: Where | None = None


def advice_for(cause: Cause, reason: str, rank: int, work: RankWork, *, hosted: bool) -> CauseTexts:
    """Return the texts for ``cause``, the reason of rank ``rank``. ``reason``: its previous activity (``Before.what``).

    ``hosted``: the collectives run on the host, so ops of the host are the compute.
    """
    if cause.why in (Why.SHAPES, Why.EXCHANGED) and cause.op is not None and cause.other is not None:
        return _of_shapes(cause, cause.op, cause.other, work.situation)
    if cause.why is Why.CORE:
        return _of_cores(cause, work)
    if cause.why is Why.LINE and cause.line is not None:
        return _of_line(cause, cause.line, reason, rank, work.situation)
    if cause.why is Why.SLOWER_DEVICE:
        return CauseTexts(
            short="its device is slower",
            because=f"its device took {cause.slower:.2f} times as long for the same kernels",
            fix=work.situation.for_device(_SLOWER),
        )
    if cause.why is Why.MORE_WORK:
        return CauseTexts(
            short="it has more work",
            because=f"its device had more work, most of it in `{_short(cause.kernel)}`",
            fix=_EVEN,
        )
    if cause.why is Why.EARLIER:
        return CauseTexts(fix=_EARLIER)
    if reason == LOADER:
        return CauseTexts(short="loading data", fix=work.situation.frame_fix(FrameKind.LOADER))
    where = None if cause.line is None else _where(cause.line)
    if reason == COMPUTE:
        return CauseTexts(record=_SHAPES, where=where)
    if reason == NOTHING or not hosted or work.cores is not None:
        return CauseTexts(record=work.situation.record_stacks(), where=where)
    return CauseTexts(record=_CORES_OF_RANKS, where=where)


def _of_shapes(cause: Cause, op: ShapedOp, other: ShapedOp, where: Situation) -> CauseTexts:
    because = f"its inputs are larger: `{op.name}` {_shapes(op)}, on rank {cause.other_rank} {_shapes(other)}"
    if op.elements < other.elements:
        because = (
            f"inputs differ: in step {op.step} `{op.name}` {_shapes(op)}, on rank {cause.other_rank} {_shapes(other)}"
        )
    if cause.core_ns:
        because += f"; {format_ns(cause.core_ns)} of it without a core"
    fix = _EXCHANGED if cause.why is Why.EXCHANGED else _BALANCE[where.framework]
    return CauseTexts(
        short="inputs differ", because=because, fix=fix, where=Where(op=op.name, file=op.file, line=op.line)
    )


def _shapes(op: ShapedOp) -> str:
    return ", ".join(str(list(shape)) for shape in op.shapes[:MOST_SHAPES])


def _of_cores(cause: Cause, work: RankWork) -> CauseTexts:
    """Return the texts about cores that the rank's own threads took (``is_scheduling`` excludes other waiting)."""
    because = f"it waited {format_ns(cause.core_ns)} longer for a core than the rank that came first"
    cores = work.cores
    if cores is None:
        return CauseTexts(short="it had no core", because=because)
    fix = f"Give each rank its share of the {cores.available:g} cores: `OMP_NUM_THREADS={cores.fair_threads}`"
    fix += ", and fewer workers of the data loader." if cores.loader_workers else "."
    return CauseTexts(short="it had no core", because=because, fix=fix)


def _of_line(cause: Cause, line: HostLine, reason: str, rank: int, situation: Situation) -> CauseTexts:
    name = f"`{line.function}`" if line.function else f"{line.file}:{line.line}"
    because = f"it {'alone was' if cause.alone else 'was longer'} in {name}, {does(line.kind)}"
    if line.kind in (FrameKind.USER, FrameKind.LIBRARY, FrameKind.UNKNOWN, FrameKind.LOADER):
        because = f"it {'alone was' if cause.alone else 'was longer'} in {name}"
    if reason == LOADER:
        fix = situation.frame_fix(FrameKind.LOADER)
        because += ", in its data loader"
        return CauseTexts(short=f"loading in {name}", because=because, fix=fix, where=_where(line))
    fix = situation.frame_fix(line.kind)
    if not fix and cause.alone:
        fix = (
            f"Share {name} out over all ranks, do it less often, or in another thread: only rank {rank} runs it there."
        )
    record = "" if fix else situation.record_stacks()
    return CauseTexts(short=f"it is in {name}", because=because, fix=fix, record=record, where=_where(line))


def _where(line: HostLine) -> Where:
    return Where(file=line.file, line=line.line)


def _short(kernel: str | None) -> str:
    return (kernel or "").split("(", 1)[0][:60]
