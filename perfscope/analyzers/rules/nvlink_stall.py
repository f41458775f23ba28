"""Collectives take far longer than their links need for them, though no rank comes late and nothing runs beside them.

Why it costs:
    A collective that moves a gigabyte at a tenth of what the links between the devices carry takes ten times as long,
    and all ranks with it. Links that fell back to fewer lanes, traffic over PCIe or the host instead of NVLink, a
    protocol or too few channels chosen for other sizes, or errors that are sent again, all look like this.

How it is found:
    From traces of all ranks of a group. The core of a collective is its shortest duration over the ranks: whoever
    came last waited for nobody, so waiting for a late rank (`straggler`) is not in it. The ideal is the latency (the
    shortest core of the smallest collectives in these traces) plus the bytes a device has to send, by the factors of
    nccl-tests, over the peak of its links (`perfscope/analyzers/hardware`, one direction). A collective is judged
    where bytes, not latency, make up its ideal, where its group fits in one node (its ranks lie in one block of
    eight: hosts are not read from traces; `--topology` says otherwise, and may name other links), and where less than
    a fifth of it lies beside computing on the rank that came last: what runs beside it takes memory bandwidth and SMs
    from it. It stalls if it takes more than twice the ideal; with protocol LL, which sends a flag with every word and
    reaches half the peak at best, more than four times. NVLS is held to the bytes it sends, (1 + 1/n) of the message.

    The cost is modelled, and an upper bound: the core beyond the ideal, as far as it is exposed. From one rank alone
    wait and stall cannot be told apart: there the rule abstains, as it does for groups that span nodes (links of the
    network are not recorded) and for devices whose links are not known.

Fix:
    Compare with nccl-tests on the same machine (`all_reduce_perf -b 64M -e 1G -f 2 -g 8`). If it is slow there too:
    `nvidia-smi nvlink -s` (lanes and speed), `nvidia-smi nvlink -e` (errors), `nvidia-smi topo -m`; in containers,
    shared memory and `NCCL_P2P_DISABLE` (`NCCL_DEBUG=INFO` says which transport each pair uses). If it is fast there:
    remove what pins the choice (`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_MAX_NCHANNELS`, `NCCL_MAX_CTAS`), and send larger
    messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.exposure import exposed_communication
from perfscope.analyzers.facts.intervals import covered
from perfscope.analyzers.facts.step_windows import per_step, whole_ns
from perfscope.analyzers.finding import AbstainError, Cell, Finding, Where, severity_of
from perfscope.analyzers.ranks.before import compute_intervals
from perfscope.analyzers.ranks.job import has_ranks
from perfscope.analyzers.ranks.matching import Matched
from perfscope.analyzers.ranks.operation import bus_factor
from perfscope.analyzers.ranks.sets import RankSet, comparable
from perfscope.analyzers.ranks.table import device_of
from perfscope.analyzers.trace import MISSING, RECORDED, Trace
from perfscope.analyzers.units import format_bytes, format_ns, format_share

NEEDS = ()

STALLED = 2.0
"""Times the ideal. Applications reach about 80% of raw NVLink (nccl#1054), so 1.25 is as good as it gets."""
STALLED_LL = 4.0
"""The same for protocol LL, whose every 8 bytes hold 4 of data."""

BY_BYTES = 4.0
"""Times the latency that the bytes take: below it the latency and its spread decide, not the links."""

BESIDE = 0.2
"""Of a collective, beside computing: above it contention may explain it."""

NODE = 8
"""Devices of a node that NVLink or Infinity Fabric joins; larger domains (NVL72) are judged within eight."""

COST_SHARE = 0.02
"""Of the steps. The ideal is modelled: ask for more than the usual 1% spread between launches."""

ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stall:
    collective: Matched
    ideal_ns: float
    sent_bytes: float
    exposed_ns: int
    """Of the rank that came last."""

    @property
    def cost_ns(self) -> int:
        return int(min(max(0.0, self.collective.core_ns - self.ideal_ns), self.exposed_ns))


def check(trace: Trace) -> Iterable[Finding]:
    """Nothing: from one rank alone wait and stall cannot be told apart."""
    if not has_ranks(trace):
        raise AbstainError(f"not recorded: {RECORDED['collectives']}")
    return ()


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield a finding for each operation and group of a job whose collectives stall."""
    try:
        sets = comparable(traces)
    except AbstainError as cause:
        raise AbstainError(f"wait or stall, it cannot be told: {cause}") from cause
    reasons = []
    for ranks in sets:
        judged, why = _judged(ranks)
        if judged is None:
            reasons.append(why)
            continue
        whole = max(whole_ns(member.trace) for member in ranks.job.members)
        by_kind: dict[tuple[object, ...], list[_Stall]] = defaultdict(list)
        for one in judged:
            by_kind[one.collective.operation, one.collective.group].append(one)
        for stalls in by_kind.values():
            cost = sum(one.cost_ns for one in stalls)
            if cost >= COST_SHARE * whole > 0:
                yield _finding(ranks, sorted(stalls, key=lambda one: -one.cost_ns), cost, whole)
    if sets and len(reasons) == len(sets):
        raise AbstainError(reasons[0])


def _judged(ranks: RankSet) -> tuple[list[_Stall] | None, str]:
    """The collectives that stall; None and why if none could be judged."""
    link = _link(ranks.job.members[0].trace)
    if link is None:
        return None, "the links between these devices are not known: what a collective could take is not either"
    sized = [one for one in ranks.matching.matched if one.message_bytes and bus_factor(one.operation, one.size)]
    if not sized:
        return None, "the sizes of the collectives are not recorded: record shapes (record_shapes=True)"
    within = [one for one in sized if _in_one_node(one, ranks) and one.complete]
    if not within:
        return None, "groups span nodes or miss ranks: the links of a network are not recorded"
    smallest = min(one.message_bytes or 0 for one in sized)
    latency = min(one.core_ns for one in sized if one.message_bytes == smallest)
    held = [(one, *_ideal(one, link[1], latency)) for one in within]
    by_bytes = [(one, ideal, sent) for one, ideal, sent in held if ideal - latency >= BY_BYTES * latency]
    if not by_bytes and all(one.message_bytes == smallest for one in within):
        # one size only: it cannot show its own latency, so its bytes are held to the links alone
        by_bytes = [(one, ideal - latency, sent) for one, ideal, sent in held]
    found = []
    traces = {member.rank: member.trace for member in ranks.job.members}
    for one, ideal, sent in by_bytes:
        side = one.sides[one.last]
        if side.kernel == MISSING or one.core_ns <= _limit(one) * ideal:
            continue
        trace = traces[one.last]
        beside = int(covered(trace.fact(compute_intervals), [side.start_ns], [side.end_ns])[0])
        if beside < BESIDE * side.duration_ns:
            exposed = int(trace.fact(exposed_communication)[side.kernel])
            found.append(_Stall(collective=one, ideal_ns=ideal, sent_bytes=sent, exposed_ns=exposed))
    return found, ""


def _in_one_node(one: Matched, ranks: RankSet) -> bool:
    """Ranks of a group lie in one node if they are in one block of it; their hosts are not read."""
    known = one.named or not ranks.job.missing
    topology = ranks.job.members[0].trace.topology
    node = NODE if topology is None else topology.ranks
    return known and one.group[0] // node == one.group[-1] // node


def _link(trace: Trace) -> tuple[str, float] | None:
    """(name, bytes/s that a device sends) of the links in a node: as the user says, else by the hardware tables."""
    topology = trace.topology
    if topology is not None and topology.link is not None and topology.link_bandwidth is not None:
        return topology.link, topology.link_bandwidth
    device = device_of(trace)
    if device is None or device.link_bandwidth is None:
        return None
    return device.link or "its links", device.link_bandwidth


def _ideal(one: Matched, bandwidth: float, latency_ns: int) -> tuple[float, float]:
    """(ns with the latency, bytes a device sends) of a collective over the links of a device."""
    size = one.message_bytes or 0
    factor = bus_factor(one.operation, one.size) or 0.0
    if (_algorithm(one) or "").startswith("NVLS"):
        factor = min(factor, 1 + 1 / one.size)
    sent = size * factor
    return latency_ns + sent / bandwidth * 1e9, sent


def _limit(one: Matched) -> float:
    return STALLED_LL if any(side.protocol == "LL" for side in one.sides.values()) else STALLED


def _algorithm(one: Matched) -> str | None:
    return next((side.algorithm for side in one.sides.values() if side.algorithm), None)


def _finding(ranks: RankSet, stalls: Sequence[_Stall], cost: int, whole: int) -> Finding:
    worst = stalls[0].collective
    trace = next(member.trace for member in ranks.job.members if member.rank == worst.last)
    link, peak = _link(ranks.job.members[0].trace) or ("their links", 0.0)
    reached = float(np.median([one.sent_bytes / one.collective.core_ns * 1e9 for one in stalls]))
    name = trace.text(int(trace.rows["kernels"]["name"][worst.sides[worst.last].kernel])).split("(", 1)[0]
    return Finding(
        subject="collectives far below their links",
        title=f"{len(stalls):,} {worst.operation} in a group of {worst.size} reach {reached / 1e9:.1f} GB/s of the "
        f"{peak / 1e9:.0f} GB/s of {link} (median): one of "
        f"{format_bytes(worst.message_bytes or 0)} takes {format_ns(worst.core_ns)} after the last rank came, where "
        f"{format_ns(stalls[0].ideal_ns)} are ideal; up to {format_ns(cost)} ({format_share(cost, whole)})",
        severity=severity_of(cost, whole),
        basis="modelled",
        cost_ns=cost,
        cost_ns_per_step=per_step(trace, cost),
        where=Where(op=worst.operation, kernel=name),
        ranks=tuple(sorted(worst.sides)),
        evidence=tuple(_row(one) for one in stalls[:ROWS]),
        advice="Run nccl-tests of that size on the same machine. Slow there too: nvidia-smi nvlink -s, nvidia-smi "
        "nvlink -e, nvidia-smi topo -m, NCCL_DEBUG=INFO (which transport). Fast there: unset NCCL_ALGO, NCCL_PROTO and "
        "NCCL_MAX_NCHANNELS, and send larger messages. Nodes of other than eight devices: say so (--topology).",
    )


def _row(one: _Stall) -> dict[str, Cell]:
    found = one.collective
    return {
        "operation": found.operation,
        "number": found.index,
        "group_ranks": found.size,
        "message_bytes": found.message_bytes,
        "core_ns": found.core_ns,
        "ideal_ns": round(one.ideal_ns),
        "sent_bytes_per_s": round(one.sent_bytes / max(1, found.core_ns) * 1e9),
        "longest_wait_ns": max(found.wait_ns(rank) for rank in found.sides),
        "exposed_ns": one.exposed_ns,
        "saves_ns": one.cost_ns,
        "algorithm": _algorithm(found),
        "protocol": next((side.protocol for side in found.sides.values() if side.protocol), None),
    }
