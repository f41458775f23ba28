"""The least time of a collective: within a node, over nodes by algorithm, all-to-all, and what is not known."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hardware.topology import Network, Topology
from perfscope.analyzers.ranks.ideal import Placement, across, placement, within

LINK = ("NVLink 4", 450e9)
HDR = Network(link="InfiniBand HDR", cards=8, card_bandwidth=25e9, source="x")
NDR = Network(link="InfiniBand NDR", cards=8, card_bandwidth=50e9, source="x")
TWO = Placement(nodes=2, ranks=8, of=8)
MESSAGE = 1_600_000_000


def test_ranks_lie_in_blocks_of_eight_or_as_the_user_says() -> None:
    assert placement(range(8), None) == Placement(nodes=1, ranks=8, of=8)
    assert placement(range(16), None) == Placement(nodes=2, ranks=8, of=8)
    assert placement((0, 8, 16), None) == Placement(nodes=3, ranks=1, of=8)
    assert placement(range(4, 11), None) is None  # four and three
    named = Topology(ranks=2, members=((0, 2), (1, 3)))
    assert placement((0, 1), named) == Placement(nodes=2, ranks=1, of=2)
    assert placement((0, 2), named) == Placement(nodes=1, ranks=2, of=2)
    assert placement((0, 4), named) is None  # nobody says where rank 4 is


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
    found = across(operation, algorithm, MESSAGE, TWO, LINK, HDR)
    assert found is not None
    assert found.network
    assert found.bandwidth == 200e9
    assert found.sent_bytes == pytest.approx(MESSAGE * sent)


def test_the_slower_stage_counts() -> None:
    wide = Network(link="own", cards=8, card_bandwidth=200e9, source="x")
    found = across("all_reduce", "TREE", MESSAGE, TWO, LINK, wide)
    assert found is not None
    assert (found.link, found.network, found.sent_bytes) == ("NVLink 4", False, MESSAGE * 14 / 8)


def test_one_rank_a_node_needs_no_links_inside() -> None:
    alone = Placement(nodes=4, ranks=1, of=8)
    found = across("all_reduce", "RING", MESSAGE, alone, None, NDR)
    assert found is not None
    assert (found.bandwidth, found.sent_bytes) == (50e9, MESSAGE * 6 / 4)
    assert across("all_reduce", "RING", MESSAGE, TWO, None, NDR) is None
    assert across("send_recv", None, MESSAGE, alone, LINK, NDR) is None
    assert across("barrier", None, MESSAGE, alone, LINK, NDR) is None
