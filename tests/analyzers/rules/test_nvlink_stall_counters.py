"""nvlink_stall with what was recorded of the links, for all ranks and for one alone, and over nodes with a network."""

from __future__ import annotations

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.hardware.topology import Network, Topology
from perfscope.analyzers.scale.slim import slim
from perfscope.analyzers.trace import Trace
from tests.analyzers.ranks.build import collective, named
from tests.build import TraceBuilder

H100 = "NVIDIA H100 80GB HBM3"
SIMPLE = "ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE(x)"
ELEMENTS = 128_571_429
"""bfloat16: all-reduced by 8, a device sends 450 MB, one millisecond of NVLink 4."""
BEGIN = 1_000.0
TX = "GPU 0: NVLink TX Requests User Data [Throughput %]"
CARD = "NIC {}: IB: Bytes sent [bytes/ms]"
NDR = Network(link="InfiniBand NDR", cards=8, card_bandwidth=50e9, source="x")


def outcome_of(traces: list[Trace]) -> Outcome:
    return analyze(traces, ["nvlink_stall"])["nvlink_stall"]


def job(
    took: float,
    *,
    busy: list[tuple[float, float, float]] | None = None,
    size: int = 8,
    topology: Topology | None = None,
    sent: float | None = None,
    on: int = 0,
    every: float = 100.0,
) -> list[Trace]:
    """Ranks whose large all-reduce takes ``took`` us, one small one of 20 us before it.

    ``busy``: (from, to, percent) of rank ``on``'s links, us from its begin; the rest of the time 1%. ``sent``: bytes/s
    of each of its eight network cards.
    """
    traces = []
    for rank in range(size):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.device(0, H100)
        build.step(0, 0, 50_000)
        collective(build, 100, 120, elements=256, kernel=SIMPLE, ranks=range(size), sequence=0)
        collective(build, BEGIN, BEGIN + took, elements=ELEMENTS, kernel=SIMPLE, ranks=range(size), sequence=1)
        for place in range(int(50_000 / every)) if rank == on and (busy is not None or sent is not None) else ():
            middle = (place - 0.5) * every - BEGIN
            share = next((percent for start, end, percent in busy or () if start <= middle < end), 1.0)
            moment = round(place * every * 1000)
            build.row("counters", time_ns=moment, name=build.code(TX), value=share)
            for card in range(8) if sent is not None else ():
                build.row("counters", time_ns=moment, name=build.code(CARD.format(card)), value=sent / 1e3)
        trace = named(build.build(), world=size)
        trace.topology = topology
        traces.append(trace)
    return traces


@pytest.mark.parametrize(("busy", "links", "says", "advice"), [
    ([(0, 10_000, 90.0)], "saturated", "NVLinks are full meanwhile (90% of their peak): they are the limit",
     "The links were full"),
    ([(0, 2_000, 50.0)], "idle", "NVLinks are idle for 80% of it (11% of their peak): they are not the limit",
     "The links were idle"),
    ([(0, 10_000, 20.0)], "partly", "NVLinks are at 20% of their peak meanwhile", "Run nccl-tests"),
])  # fmt: skip
def test_the_finding_says_how_full_the_links_were(
    busy: list[tuple[float, float, float]], links: str, says: str, advice: str
) -> None:
    (finding,) = outcome_of(job(10_000, busy=busy)).findings
    assert finding.title.endswith(says)
    assert finding.advice.startswith(advice)
    row = finding.evidence[0]
    assert row["links"] == links
    assert row["links_peak_share"] == busy[0][2] / 100


def test_without_counters_it_says_so() -> None:
    (finding,) = outcome_of(job(10_000)).findings
    assert finding.evidence[0]["links"] == "not recorded"
    assert "links_mean_share" not in finding.evidence[0]
    assert finding.advice.startswith("Whether the links were full or idle meanwhile was not recorded")


def test_the_counters_of_any_rank_of_the_group_do() -> None:
    (finding,) = outcome_of(job(10_000, busy=[(0, 10_000, 90.0)], on=5)).findings
    assert finding.evidence[0]["links"] == "saturated"


def test_counters_that_are_too_coarse_are_not_used() -> None:
    (finding,) = outcome_of(job(10_000, busy=[(0, 10_000, 90.0)], every=5_000)).findings
    assert finding.evidence[0]["links"] == "not recorded"


def test_slim_traces_say_the_same() -> None:
    traces = job(10_000, busy=[(0, 10_000, 90.0)])
    assert outcome_of([slim(trace) for trace in traces]).findings == outcome_of(traces).findings


def test_one_rank_alone_that_waited_is_clean() -> None:
    # eight of ten milliseconds nothing moves, then the links are as full as they get
    traces = job(10_000, busy=[(8_700, 10_000, 80.0)])
    assert outcome_of(traces[:1]).status == "clean"


def test_waiting_in_the_middle_is_waiting_too() -> None:
    traces = job(10_000, busy=[(0, 200, 60.0), (8_900, 10_000, 80.0)])
    assert outcome_of(traces[:1]).status == "clean"


def test_one_rank_alone_whose_links_are_busy_all_along_stalls() -> None:
    (finding,) = outcome_of(job(10_000, busy=[(1_000, 10_000, 12.0)])[:1]).findings
    assert "takes 9.00 ms without the time its links were idle, where 1.02 ms are ideal" in finding.title
    assert finding.evidence[0]["longest_wait_ns"] == 1_000_000
    assert finding.cost_ns == pytest.approx(9_000_000 - 1_020_000, abs=10)


def test_links_that_never_carry_it_are_no_waiting() -> None:
    (finding,) = outcome_of(job(10_000, busy=[])[:1]).findings
    assert "takes 10.0 ms" in finding.title
    assert "NVLinks are idle for 100% of it" in finding.title


def test_one_rank_alone_whose_bytes_would_not_show_abstains() -> None:
    # one millisecond of the links in 40 ms is less than what counts as idle
    outcome = outcome_of(job(40_000, busy=[])[:1])
    assert outcome.status == "abstained"
    assert "too coarse or say nothing" in (outcome.reason or "")
    coarse = outcome_of(job(10_000, busy=[(0, 10_000, 90.0)], every=5_000)[:1])
    assert coarse.status == "abstained"


TWO = Topology(ranks=8, network=NDR)


def test_over_nodes_it_is_held_to_the_network() -> None:
    # a ring of 16 sends 482 MB out of a node: 1.2 ms of 400 GB/s
    assert outcome_of(job(2_300, size=16, topology=TWO)).status == "clean"
    (finding,) = outcome_of(job(10_000, size=16, topology=TWO)).findings
    assert finding.subject == "collectives far below their network"
    assert "reach 48.2 GB/s of the 400 GB/s of the network cards (InfiniBand NDR) (median)" in finding.title
    assert "where 1.23 ms are ideal" in finding.title
    assert "ibstat" in finding.advice


def test_over_nodes_the_network_must_be_known() -> None:
    outcome = outcome_of(job(10_000, size=16))
    assert outcome.status == "abstained"
    assert "what joins the nodes is not recorded: name it (--topology FILE with [network]" in (outcome.reason or "")


def test_cards_of_the_network_may_be_full_or_idle() -> None:
    (full,) = outcome_of(job(10_000, size=16, topology=TWO, sent=45e9)).findings
    assert full.title.endswith("network cards are full meanwhile (90% of their peak): they are the limit")
    (idle,) = outcome_of(job(10_000, size=16, topology=TWO, sent=1e9)).findings
    assert idle.title.endswith("network cards are idle for 100% of it (2% of their peak): they are not the limit")
