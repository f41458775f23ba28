"""Why a rank is late to collectives: its steps are compared with those of the rank that arrived first.

Causes are tested in this order: its ops have larger inputs; it waited for a core; it ran a line that the other rank did
not run, or that took far longer; the same kernels or ops took longer; it ran more kernels or ops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from perfscope.analyzers.ranks.rank_work import HostLine, RankWork, ShapedOp, rank_work
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.analyzers.ranks.waits import COMPUTE, EARLIER, HOST, LOADER, NOTHING, Late, Straggling
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.trace import MISSING

LARGER = 1.1
"""Ratio of input elements between two ranks from which inputs count as larger; smaller ratios are padding to a block.
"""
MOST = 0.5
"""Share of the lateness from which something counts as its cause."""
SAME_WORK = 0.9
"""Share of the compute in kernels with equal calls and grids on both ranks from which their work counts as equal."""

_COMPUTES = (
    FrameKind.AUTOGRAD, FrameKind.EAGER_OP, FrameKind.DISPATCH, FrameKind.OPTIMIZER, FrameKind.COMPILED_CALL,
    FrameKind.COLLECTIVE, FrameKind.DEVICE_WAIT, FrameKind.OP,
)  # fmt: skip
"""Kinds of lines that compute on all ranks: if one takes longer on one rank, shapes or cores are the cause, not the
line.
"""


class Why(IntEnum):
    """Cause of a rank's lateness."""

    UNKNOWN = 0
    SHAPES = 1
    """The inputs of its ops are larger."""
    CORE = 2
    """It waited for a core."""
    LINE = 3
    """A line of the program took longer than on the other rank, or only this rank ran it."""
    SLOWER_DEVICE = 4
    """Its device took longer for equal kernels."""
    MORE_WORK = 5
    """It ran more kernels, or with larger grids."""
    EARLIER = 6
    """It was in a collective of another group."""
    EXCHANGED = 7
    """The inputs of its ops are larger after an exchange: experts, tables."""


class Cause(Struct, frozen=True, kw_only=True):
    """Cause of a rank's lateness with its evidence."""

    why: Why
    op: ShapedOp | None = None
    """For ``SHAPES``: the rank's largest op whose shapes differ."""
    other: ShapedOp | None = None
    """The same op on the other rank."""
    other_rank: int | None = None
    line: HostLine | None = None
    """For ``LINE``: the line."""
    line_ns: int = 0
    """Time of the line minus that on the other rank, summed over the late arrivals."""
    alone: bool = False
    """For ``LINE``: whether the other rank did not run it."""
    core_ns: int = 0
    """Time that the rank waited for a core before it arrived, minus that of the other rank, summed."""
    slower: float = 0.0
    """For ``SLOWER_DEVICE``: its time divided by the other's."""
    kernel: str | None = None
    """For ``SLOWER_DEVICE`` and ``MORE_WORK``: the kernel with the largest difference."""


def cause_of(ranks: RankSet, straggling: Straggling, reason: str, *, in_turn: bool) -> Cause:
    """Return the main cause of a rank's lateness. ``reason``: its previous activity (``Before.what``).

    ``in_turn``: other ranks are late as well, so in other steps any of them may have the larger inputs.
    """
    arrivals = [late for late in straggling.arrivals if late.before.what == reason]
    if reason == EARLIER:
        several = len({matched.group for matched in ranks.matching.matched}) > 1
        return Cause(why=Why.EARLIER if several else Why.UNKNOWN)  # this does not make a rank late to its group
    first = Counter({rank: 0 for rank in ranks.job.traces if rank != straggling.rank})
    for late in arrivals:
        if late.first is not None:
            first[late.first[0]] += late.lateness_ns
    other = first.most_common(1)[0][0]
    own, theirs = (ranks.job.traces[rank].fact(rank_work) for rank in (straggling.rank, other))
    hosted = all(late.side.kernel == MISSING for late in arrivals)
    own_ways = [late for late in arrivals if _explains(late)]
    lateness = sum(late.lateness_ns for late in own_ways)
    core = max(0, sum(_core_ns(ranks, late) for late in own_ways))
    if reason == COMPUTE or (hosted and reason == HOST):
        pair = _larger(own, theirs, either=in_turn)
        if pair is not None:
            why = Why.EXCHANGED if _exchanges(ranks) else Why.SHAPES
            return Cause(why=why, op=pair[0], other=pair[1], other_rank=other, core_ns=core)
    if reason != COMPUTE and core >= MOST * lateness > 0:
        return Cause(why=Why.CORE, core_ns=core)
    if reason in (LOADER, HOST, NOTHING):
        line = _line(ranks, own_ways, lateness)
        if line is not None:
            return line
    if reason == COMPUTE:
        return _by_kernels(own, theirs, sum(late.lateness_ns for late in arrivals))
    return Cause(why=Why.UNKNOWN)


_WAITS = (FrameKind.SLEEP, FrameKind.LOCK, FrameKind.QUEUE, FrameKind.LOADER)
"""Kinds of lines that take as long without a core."""


def is_scheduling(ranks: RankSet, straggling: Straggling, cause: Cause, reason: str) -> bool:
    """Whether the scheduler may have decided which rank comes late to collectives on the host.

    It may if the late rank was without a core for half of its lateness, however long the others were. Inputs, a line
    that only one rank runs and waits for a loader are evidence on any machine, and so are more threads than the
    program needs.
    """
    work = ranks.job.traces[straggling.rank].fact(rank_work)
    if cause.why is Why.CORE:
        return work.cores is None or not work.cores.needless_threads
    of_all = cause.line is not None and not cause.alone and cause.line.kind not in _WAITS
    if reason == LOADER or not (cause.why is Why.UNKNOWN or (cause.why is Why.LINE and of_all)):
        return False
    late = [late for late in straggling.arrivals if late.before.what == reason and _explains(late)]
    waited = sum(work.core_ns(arrival.window) for arrival in late if arrival.window is not None)
    return waited >= MOST * sum(arrival.lateness_ns for arrival in late) > 0


def _explains(late: Late) -> bool:
    """Whether the stretch is long enough to be the reason: for collectives begun together, only the first one's is."""
    return late.window is not None and late.window[1] - late.window[0] >= MOST * late.lateness_ns


def _core_ns(ranks: RankSet, late: Late) -> int:
    """Return the wait for a core before the late arrival, minus that of the rank that arrived first, ns."""
    if late.window is None or late.first is None:
        return 0
    rank, window = late.first
    own, theirs = ranks.job.traces[late.rank].fact(rank_work), ranks.job.traces[rank].fact(rank_work)
    return own.core_ns(late.window) - theirs.core_ns(window)


def _exchanges(ranks: RankSet) -> bool:
    return any(matched.operation.startswith("all_to_all") for matched in ranks.matching.matched)


def _larger(own: RankWork, theirs: RankWork, *, either: bool) -> tuple[ShapedOp, ShapedOp] | None:
    """Return the costliest op with larger inputs than on the other rank in the same step, and the other rank's.

    Else None.

    Ops with different inputs must account for most of the time of ops. ``either``: whichever rank has the larger
    inputs.
    """
    common = {op.step for op in own.ops} & {op.step for op in theirs.ops}
    mine, others = (_by_name(work.ops, common) for work in (own, theirs))
    names = mine.keys() & others.keys()
    weights = {name: max(own.op_ns.get(name, 0), theirs.op_ns.get(name, 0)) for name in names}
    differ = []
    for name in names:
        ours, those = (sum(op.elements for op in ops) for ops in (mine[name], others[name]))
        if not ours or not those:
            continue
        if ours >= LARGER * those or (either and those >= LARGER * ours):
            differ.append(name)
    if not differ or sum(weights[name] for name in differ) < MOST * sum(weights.values()):
        return None
    best = max(sorted(differ), key=lambda name: (weights[name], mine[name][0].elements))
    return _pair(mine[best], others[best])


def _by_name(ops: Sequence[ShapedOp], steps: set[int]) -> dict[str, list[ShapedOp]]:
    result: dict[str, list[ShapedOp]] = defaultdict(list)
    for op in ops:
        if op.step in steps:
            result[op.name].append(op)
    return result


def _pair(mine: list[ShapedOp], others: list[ShapedOp]) -> tuple[ShapedOp, ShapedOp]:
    """Return the largest op for which the other rank has one at the same line and step but with other shapes."""
    for op in mine:
        same = [each for each in others if (each.step, each.file, each.line) == (op.step, op.file, op.line)]
        alike = [each for each in same if len(each.shapes) == len(op.shapes) and each.shapes != op.shapes]
        if alike and op.shapes not in {each.shapes for each in same}:
            return op, alike[0]
    return mine[0], others[0]


def _line(ranks: RankSet, arrivals: Sequence[Late], lateness: int) -> Cause | None:
    """Return the line that explains most of the lateness: the rank spent longer at it than the first rank to arrive."""
    own: Counter[HostLine] = Counter()
    theirs: Counter[HostLine] = Counter()
    for late in arrivals:
        if late.window is None or late.first is None:
            continue
        rank, window = late.first
        own.update(ranks.job.traces[late.rank].fact(rank_work).lines.times(late.window))
        theirs.update(ranks.job.traces[rank].fact(rank_work).lines.times(window))
    more = {line: ns - theirs[line] for line, ns in own.items() if line.file is not None}
    best = max(more, key=lambda line: more[line], default=None)
    if best is None or more[best] < MOST * lateness:
        return None
    alone = theirs[best] < (1 - SAME_WORK) * own[best]
    why = Why.LINE if alone or best.kind not in _COMPUTES else Why.UNKNOWN
    return Cause(why=why, line=best, line_ns=more[best], alone=alone)


def _by_kernels(own: RankWork, theirs: RankWork, lateness: int) -> Cause:
    """Return whether the device took longer for equal kernels, or ran more kernels."""
    common = {step for step, _, _ in own.kernels} & {step for step, _, _ in theirs.kernels}
    mine = {key: time for key, time in own.kernels.items() if key[0] in common}
    others = {key: time for key, time in theirs.kernels.items() if key[0] in common}
    whole = sum(time.ns for time in mine.values())
    if not whole or any(blocks == MISSING for _, _, blocks in mine):
        return Cause(why=Why.UNKNOWN)
    same = [key for key, time in mine.items() if key in others and others[key].calls == time.calls]
    ours, those = sum(mine[key].ns for key in same), sum(others[key].ns for key in same)
    more: Counter[str] = Counter()
    for (step, name, blocks), time in mine.items():
        before = others.get((step, name, blocks))
        more[name] += time.ns - (before.ns if before is not None else 0)
    kernel = more.most_common(1)[0][0]
    if ours >= SAME_WORK * whole and those:
        if ours - those < MOST * lateness:
            return Cause(why=Why.UNKNOWN)
        return Cause(why=Why.SLOWER_DEVICE, slower=ours / those, kernel=kernel)
    return Cause(why=Why.MORE_WORK, kernel=kernel)
