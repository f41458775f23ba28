"""nvlink_stall: far below the links, at them, late ranks, contention, latency, protocols, undecidable cases."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices.topology import Network, Topology
from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.ranks.links import (
    Placement,
    across,
    link_counters,
    placement,
    within,
)
from perfscope.model.trace import RECORDED, Trace
from tests.build import TraceBuilder
from tests.ranks.build import collective, named
from tests.rules import compared_by

USER = "GPU 0: NVLink TX Requests User Data [Throughput %]"
PROTOCOL = "GPU 0: NVLink TX Requests Protocol Data [Throughput %]"
RECEIVED = "GPU 0: NVLink RX Responses User Data [Throughput %]"


def built() -> TraceBuilder:
    """A communication kernel from 1,000 to 2,000 us."""
    build = TraceBuilder()
    build.device(0)
    build.kernel("ncclDevKernel_AllReduce_RING_LL", 1_000, 2_000, communication=True)
    return build


def sampled(build: TraceBuilder, name: str, values: list[float], *, first: float = 100, every: float = 100) -> None:
    for index, value in enumerate(values):
        build.row("counters", time_ns=round((first + every * index) * 1000), name=build.code(name), value=value)


def test_parts_of_a_direction_are_added_and_the_fuller_direction_counts() -> None:
    build = built()
    sampled(build, USER, [40.0] * 25)
    sampled(build, PROTOCOL, [5.0] * 25)
    sampled(build, RECEIVED, [20.0] * 25)
    trace = build.build()
    samples = link_counters(trace)[0]
    assert samples.values.tolist() == pytest.approx([0.45] * 10)
    assert (samples.starts_ns[0], samples.ends_ns[-1]) == (1_000_000, 2_000_000)


def test_an_old_export_has_one_counter_a_direction() -> None:
    build = built()
    sampled(build, "GPU 0: NVLink TX Throughput", [30.0] * 25)
    assert link_counters(build.build())[0].values.tolist() == pytest.approx([0.3] * 10)


@pytest.mark.parametrize("name", [
    "GPU 0: NVLink TX Requests User Data [bytes]", "machine GPU 0: NVLink TX Requests User Data [Throughput %]",
    "GPU 1: NVLink TX Requests User Data [Throughput %]", "GPU 0: SMs Active [Throughput %]",
])  # fmt: skip
def test_other_units_devices_and_metrics_say_nothing_of_its_links(name: str) -> None:
    build = built()
    sampled(build, name, [30.0] * 25)
    assert not link_counters(build.build()).get(0)


def test_links_that_read_full_all_along_are_down() -> None:
    build = built()
    sampled(build, USER, [100.0] * 25)
    assert not link_counters(build.build())


LINK = ("NVLink 4", 450e9)
HDR = Network(link="InfiniBand HDR", cards=8, card_bandwidth=25e9, source="x")
NDR = Network(link="InfiniBand NDR", cards=8, card_bandwidth=50e9, source="x")
TWO_NODE_PLACEMENT = Placement(nodes=2, ranks=8, of=8)
MESSAGE = 1_600_000_000


def test_ranks_lie_in_blocks_of_eight_or_as_the_user_says() -> None:
    assert placement(range(8), None) == Placement(nodes=1, ranks=8, of=8)
    assert placement(range(16), None) == Placement(nodes=2, ranks=8, of=8)
    assert placement((0, 8, 16), None) == Placement(nodes=3, ranks=1, of=8)
    assert placement(range(4, 11), None) is None  # four and three
    named = Topology(ranks=2, members=((0, 2), (1, 3)))
    assert placement((0, 1), named) == Placement(nodes=2, ranks=1, of=2)
    assert placement((0, 2), named) == Placement(nodes=1, ranks=2, of=2)
    assert placement((0, 4), named) is None  # the location of rank 4 is unknown


def test_within_a_node_by_the_factors_of_nccl_tests() -> None:
    found = within("all_reduce", "RING", MESSAGE, 8, LINK)
    assert found is not None
    assert found.sent_bytes == MESSAGE * 14 / 8
    assert found.ns == pytest.approx(MESSAGE * 14 / 8 / 450, rel=1e-9)
    nvls = within("all_reduce", "NVLS", MESSAGE, 8, LINK)
    assert nvls is not None
    assert nvls.sent_bytes == MESSAGE * 9 / 8
    assert within("barrier", None, MESSAGE, 8, LINK) is None


@pytest.mark.parametrize(("operation", "algorithm", "sent"), [
    ("all_reduce", "RING", 2 * 15 / 16),  # a ring passes each node once
    ("all_reduce", None, 2 * 15 / 16),
    ("all_reduce", "TREE", 2 * 1 / 2),  # a node is one of two
    ("all_reduce", "NVLS_TREE", 2 * 1 / 2),
    ("all_reduce", "COLLNET_DIRECT", 1),
    ("all_gather", "RING", 15 / 16),
    ("reduce_scatter", "RING", 15 / 16),
    ("broadcast", "RING", 1),
    ("all_to_all", None, 8 * 1 / 2),  # half of the buffers of eight ranks
])  # fmt: skip
def test_between_nodes_by_algorithm(operation: str, algorithm: str | None, sent: float) -> None:
    found = across(operation, algorithm, MESSAGE, TWO_NODE_PLACEMENT, LINK, HDR)
    assert found is not None
    assert found.network
    assert found.bandwidth == 200e9
    assert found.sent_bytes == pytest.approx(MESSAGE * sent)


def test_the_slower_stage_counts() -> None:
    wide = Network(link="own", cards=8, card_bandwidth=200e9, source="x")
    found = across("all_reduce", "TREE", MESSAGE, TWO_NODE_PLACEMENT, LINK, wide)
    assert found is not None
    assert (found.link, found.network, found.sent_bytes) == ("NVLink 4", False, MESSAGE * 14 / 8)


def test_one_rank_a_node_needs_no_links_inside() -> None:
    alone = Placement(nodes=4, ranks=1, of=8)
    found = across("all_reduce", "RING", MESSAGE, alone, None, NDR)
    assert found is not None
    assert (found.bandwidth, found.sent_bytes) == (50e9, MESSAGE * 6 / 4)
    assert across("all_reduce", "RING", MESSAGE, TWO_NODE_PLACEMENT, None, NDR) is None
    assert across("send_recv", None, MESSAGE, alone, LINK, NDR) is None
    assert across("barrier", None, MESSAGE, alone, LINK, NDR) is None


H100 = "NVIDIA H100 80GB HBM3"
SIMPLE = "ncclDevKernel_AllReduce_Sum_bf16_RING_SIMPLE(x)"
LL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
NVLS = "ncclDevKernel_AllReduce_Sum_bf16_NVLS_SIMPLE(x)"
ELEMENTS = 128_571_429
"""bfloat16: all-reduced by 8, a device sends 450 MB, one millisecond of NVLink 4."""


outcome_of = compared_by("nvlink_stall")


def job_with_core(
    core: float,
    *,
    late: float = 0.0,
    device: str = H100,
    kernel: str = SIMPLE,
    size: int = 8,
    first: int = 0,
    elements: int = ELEMENTS,
    beside: float = 0.0,
    sharing: float = 0.0,
    span: float = 50_000.0,
    topology: Topology | None = None,
) -> list[Trace]:
    """Ranks whose large all-reduce takes ``core`` us; one small one of 20 us before it, rank 1 ``late`` to both."""
    members = range(first, first + size)
    traces = []
    for rank in members:
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.device(0, device)
        build.step(0, 0, span)
        lag = late if rank == first + 1 else 0.0
        collective(build, 100 + lag, 100 + late + 20, elements=256, kernel=kernel, ranks=members, sequence=0)
        begin, end = 1_000 + late + lag, 1_000 + 2 * late + core
        collective(build, begin, end, elements=elements, kernel=kernel, ranks=members, sequence=1)
        if beside:
            build.kernel("gemm", begin, begin + beside * core)
        if sharing:
            collective(build, begin, begin + sharing * core, operation="all_gather", elements=-1, ranks=members,
                       stream=30, group="1", sequence=1)  # fmt: skip
        traces.append(replace(named(build.build(), world=first + size), topology=topology))
    return traces


def test_a_collective_at_a_tenth_of_its_links_is_found() -> None:
    (finding,) = outcome_of(job_with_core(10_000)).findings
    assert finding.subject == "collectives far below their links"
    assert "1 all_reduce reach 45.0 of 450 GB/s" in finding.title
    assert "NVLink 4" in finding.detail
    assert "takes 10.0 ms after the last rank came, where 1.02 ms are ideal" in finding.detail
    assert (finding.basis, finding.severity) == ("modelled", "high")
    assert finding.cost_ns == pytest.approx(10_000_000 - 1_020_000, abs=10)
    assert finding.ranks == tuple(range(8))


@pytest.mark.parametrize(("core", "kernel", "status"), [
    (1_980, SIMPLE, "clean"), (2_100, SIMPLE, "flagged"), (3_900, LL, "clean"), (4_200, LL, "flagged"),
])  # fmt: skip
def test_the_limit_is_twice_the_ideal_and_four_times_with_ll(core: float, kernel: str, status: str) -> None:
    assert outcome_of(job_with_core(core, kernel=kernel)).status == status


@pytest.mark.parametrize(("fullest", "status"), [(ELEMENTS, "flagged"), (4 * ELEMENTS, "clean")])
def test_an_uneven_all_to_all_is_held_to_the_bytes_of_its_fullest_rank(fullest: int, status: str) -> None:
    traces = []
    for rank in range(8):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.device(0, H100)
        build.step(0, 0, 20_000)
        received = fullest if rank == 3 else (8 * ELEMENTS - fullest) // 7
        collective(build, 1_000, 2_500, operation="all_to_allv", kernel="ncclDevKernel_SendRecv(ncclDevComm*)",
                   elements=ELEMENTS, received=received, ranks=range(8))  # fmt: skip
        traces.append(named(build.build(), world=8))
    assert outcome_of(traces).status == status


def test_waiting_for_a_late_rank_is_no_stall() -> None:
    assert outcome_of(job_with_core(1_100, late=15_000)).status == "clean"


def test_what_runs_beside_it_may_explain_it() -> None:
    assert outcome_of(job_with_core(10_000, beside=0.19)).status == "flagged"
    assert outcome_of(job_with_core(10_000, beside=0.21)).status == "clean"
    assert outcome_of(job_with_core(10_000, sharing=0.19)).status == "flagged"
    assert outcome_of(job_with_core(10_000, sharing=0.21)).status == "clean"
    assert (
        outcome_of(job_with_core(10_000, sharing=0.15, beside=0.15)).status == "flagged"
    )  # side by side with each other


def test_latency_is_no_stall() -> None:
    # 18 MB sent in 40 us of link time, twice the latency: small ones are slow whatever the links
    assert outcome_of(job_with_core(5_000, elements=ELEMENTS // 25)).status == "clean"


def test_nvls_is_held_to_what_it_sends() -> None:
    # 257 MB x (1 + 1/8) take 0.64 ms, not the 1 ms of a ring: 1.5 ms are too long for it and not for a ring
    assert outcome_of(job_with_core(1_500, kernel=NVLS, span=20_000)).status == "flagged"
    assert outcome_of(job_with_core(1_500, span=20_000)).status == "clean"


def test_little_of_the_steps_is_clean() -> None:
    assert outcome_of(job_with_core(3_000, span=98_900)).status == "flagged"  # 1.98 ms of 98.9 ms
    assert outcome_of(job_with_core(3_000, span=99_200)).status == "clean"


def test_where_it_cannot_be_told_it_abstains() -> None:
    traces = job_with_core(10_000)
    assert "a single rank" in (outcome_of(traces[:1]).reason or "")
    assert "ranks of the groups are missing" in (outcome_of(traces[:7]).reason or "")
    assert "groups span nodes with different numbers of ranks" in (
        outcome_of(job_with_core(10_000, first=4, size=7)).reason or ""
    )
    assert "the network between them is not recorded" in (outcome_of(job_with_core(10_000, first=4)).reason or "")
    assert "links between these devices are unknown" in (
        outcome_of(job_with_core(10_000, device="NVIDIA L4")).reason or ""
    )
    assert "sizes of the collectives are not recorded" in (outcome_of(sizeless()).reason or "")
    assert outcome_of([TraceBuilder().build()]).reason == f"not recorded: {RECORDED['collectives']}"


def sizeless() -> list[Trace]:
    builds = [TraceBuilder(rank=rank) for rank in range(2)]
    for build in builds:
        build.device(0, H100)
        collective(build, 0, 100, elements=-1, ranks=range(2), sequence=1)
    return [build.build() for build in builds]


def test_slim_traces_say_the_same() -> None:
    traces = job_with_core(10_000)
    assert outcome_of([reduce_trace(trace) for trace in traces]).findings == outcome_of(traces).findings


TWO_NODES = Topology(ranks=8, network=NDR)


def test_over_nodes_it_is_held_to_the_network() -> None:
    # a ring of 16 sends 482 MB out of a node: 1.2 ms of 400 GB/s
    assert outcome_of(job_with_core(2_300, size=16, topology=TWO_NODES)).status == "clean"
    (finding,) = outcome_of(job_with_core(10_000, size=16, topology=TWO_NODES)).findings
    assert finding.subject == "collectives far below their network"
    assert "reach 48.2 of 400 GB/s" in finding.title
    assert "the network cards (InfiniBand NDR)" in finding.detail
    assert "where 1.23 ms are ideal" in finding.detail
    assert "ibstat" in finding.advice


def test_over_nodes_the_network_must_be_known() -> None:
    outcome = outcome_of(job_with_core(10_000, size=16))
    assert outcome.status == "abstained"
    assert "the network between them is not recorded: specify it (--topology FILE with [network]" in (
        outcome.reason or ""
    )
