"""Collectives take far longer than their links need, though no rank comes late and nothing else runs at the same time.

Example:
    Before::

        os.environ["NCCL_ALGO"] = "Ring"
        dist.init_process_group("nccl")

    After::

        dist.init_process_group("nccl")         # NCCL chooses; compare with all_reduce_perf of nccl-tests

Why it costs:
    A collective that moves a gigabyte at a tenth of the links' bandwidth takes ten times as long, on all ranks.
    Possible causes are links that fell back to fewer lanes, traffic over PCIe or the host instead of NVLink, a protocol
    or too few channels chosen for other sizes, unused network cards, and errors that cause retransmission.

How it is found:
    From traces of all ranks of a group. The core of a collective is its shortest duration over the ranks: the last rank
    to come waited for no other, so waiting for a late rank (`straggler`) is excluded. The ideal is the latency (the
    shortest core of the smallest collectives in these traces) plus the bytes a device has to send, by the factors of
    nccl-tests, over the peak of its links (`perfscope/analyzers/hardware`, one direction). A collective is judged if
    bytes, not latency, dominate its ideal, and if less than a fifth of it overlaps computing or another communication
    (`link_contention`) on the rank that came last, because overlapping work takes links, memory bandwidth and SMs. It
    stalls if it takes more than twice the ideal; with protocol LL, which sends a flag with every word and reaches at
    most half the peak, more than four times. NVLS is compared with the bytes it sends, (1 + 1/n) of the message, and
    an uneven all-to-all with those of the rank that receives most.

    Ranks are assumed to be in nodes of eight (0-7, 8-15, ...), because hosts are not read from traces. `--topology`
    overrides this, and may name other links and the network between nodes. With a network, groups that span nodes are
    compared with the slower of two stages: sending by a node over the network cards of its ranks in the group, and
    sending by a device inside the node (`perfscope/analyzers/ranks/links.py`). Without a network they are not judged.

    The cost is modelled, and an upper bound: the core beyond the ideal, as far as it is exposed. The rule abstains for
    a single rank, because wait and stall then look alike, and for devices with unknown links.

Fix:
    Compare with nccl-tests on the same machine (`all_reduce_perf -b 64M -e 1G -f 2 -g 8`). If it is slow there too:
    `nvidia-smi nvlink -s` (lanes and speed), `nvidia-smi nvlink -e` (errors), `nvidia-smi topo -m`; in containers,
    shared memory and `NCCL_P2P_DISABLE` (`NCCL_DEBUG=INFO` shows the transport of each pair). If it is fast there:
    remove settings that fix the choice (`NCCL_ALGO`, `NCCL_PROTO`, `NCCL_MAX_NCHANNELS`, `NCCL_MAX_CTAS`), and send
    larger messages. Between nodes: `NCCL_IB_HCA` (which cards), GPUDirect RDMA (`GDRDMA` in the log of
    `NCCL_DEBUG=INFO`), the ports' speed (`ibstat`), and on EC2 the EFA plugin (`NET/OFI` in the same log). If the links
    are full: fewer bytes (a smaller dtype, sharding that sends less), or fewer streams at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from perfscope.analyzers.ranks.job import only_compared
from perfscope.analyzers.ranks.links import Call, of_job, stalled
from perfscope.analyzers.ranks.matching import shorter_transfers
from perfscope.analyzers.ranks.rank_work import rank_work
from perfscope.analyzers.ranks.sets import comparable, matched_records, nothing_alone
from perfscope.analyzers.spans import spans_of_ranks
from perfscope.analyzers.time import timed_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Where
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns

STALLED = 2.0
"""Ratio to the ideal time from which a collective stalls. Applications reach about 80 % of raw NVLink (nccl#1054), that
is a ratio of 1.25.
"""
STALLED_LL = 4.0
"""The same for protocol LL, which has 4 bytes of data in every 8."""

COST_SHARE = 0.02
"""Smallest saving as a share of the steps. The ideal is modelled, so it must exceed the usual 1 % variation between
launches.
"""


NVLINK_ADVICE = (
    "Run {tests_of_collectives} of that size on the same machine. Slow there too: {links}, NCCL_DEBUG=INFO (which "
    "transport). Fast there: unset NCCL_ALGO, NCCL_PROTO and NCCL_MAX_NCHANNELS, and send larger messages. For nodes "
    "with other than eight devices use --topology."
)
NETWORK_ADVICE = (
    "Run {tests_of_collectives} of that size on the same nodes. Slow there too: NCCL_DEBUG=INFO (which cards, GDRDMA "
    "or not, NET/IB or NET/Socket), ibstat (speed of the ports), NCCL_IB_HCA. Fast there: unset NCCL_ALGO, NCCL_PROTO "
    "and NCCL_MAX_NCHANNELS, and send larger messages."
)


examined = nothing_alone
compared = matched_records
check = only_compared


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Yield a finding for each operation and group of a job whose collectives stall."""
    sets = comparable(traces)
    reasons = []
    for ranks in sets:
        calls, why = of_job(ranks)
        if calls is None:
            reasons.append(why)
            continue
        whole = ranks.job.whole_ns
        yield from _findings(list(stalled(calls, STALLED, STALLED_LL)), whole)
    if sets and len(reasons) == len(sets):
        raise AbstainError(reasons[0])


def _findings(stalls: Sequence[Call], whole: int) -> Iterable[Finding]:
    by_kind: dict[tuple[object, ...], list[Call]] = defaultdict(list)
    for stall in stalls:
        by_kind[stall.operation, stall.group, stall.ideal.network].append(stall)
    for kind in by_kind.values():
        cost = sum(call.cost_ns for call in kind)
        if cost >= COST_SHARE * whole > 0:
            yield _finding(sorted(kind, key=lambda call: -call.cost_ns), cost, whole)


def _finding(stalls: Sequence[Call], cost: int, whole: int) -> Finding:
    worst = stalls[0]
    ideal, trace = worst.ideal, worst.trace
    reached = float(np.median([stall.ideal.sent_bytes / max(1, stall.took_ns) * 1e9 for stall in stalls]))
    name = trace.text(int(trace.rows["kernels"]["name"][worst.side.kernel])).split("(", 1)[0]
    return Finding(
        subject=f"collectives far below their {'network' if ideal.network else 'links'}",
        title=f"{len(stalls):,} {worst.operation} reach {reached / 1e9:.1f} of {ideal.bandwidth / 1e9:.0f} GB/s",
        detail=f"Median, of {ideal.link} in a group of {len(worst.group)}: one of {format_bytes(worst.message_bytes)} "
        f"takes {format_ns(worst.took_ns)} after the last rank came, where {format_ns(worst.ideal_ns)} are ideal.",
        **timed_cost(trace, cost, whole, "modelled"),
        where=Where(op=worst.operation, kernel=name),
        ranks=tuple(sorted(worst.group)),
        evidence=tuple(
            {
                "number": stall.number,
                "message_bytes": stall.message_bytes,
                "core_ns": stall.took_ns,
                "ideal_ns": round(stall.ideal_ns),
                "sent_bytes_per_s": round(stall.ideal.sent_bytes / max(1, stall.took_ns) * 1e9),
                "longest_wait_ns": stall.waited_ns,
                "exposed_ns": stall.exposed_ns,
                "saves_ns": stall.cost_ns,
                "algorithm": " ".join(filter(None, (stall.algorithm, stall.protocol))) or None,
            }
            for stall in stalls[:MOST_ROWS]
        ),
        spans=spans_of_ranks((stall.rank, stall.side.start_ns, stall.side.end_ns) for stall in stalls),
        advice=trace.fact(rank_work).situation.for_device(NETWORK_ADVICE if ideal.network else NVLINK_ADVICE),
        removes=shorter_transfers(
            (stall.collective, min(1.0, stall.ideal_ns / max(1, stall.took_ns))) for stall in stalls
        ),
    )
