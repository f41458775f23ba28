"""Topology files: what they say, what is refused in one line, and what nvlink_stall makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.__main__ import run
from perfscope.analyzers.devices.topology import Network, Topology, read_topology
from perfscope.model.finding import Outcome
from perfscope.model.trace import Trace
from tests.ranks.test_nvlink_stall import job_with_core, outcome_of

NODE = "[node]\nranks = 8\n"
LINKS = 'link = "NVLink 9"\nbandwidth_GB_per_s = 45\nsource = "a data sheet"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "links.toml"
    path.write_text(text)
    return path


def judged(traces: list[Trace], topology: Topology) -> Outcome:
    return outcome_of([replace(trace, topology=topology) for trace in traces])


def test_a_file_is_read(tmp_path: Path) -> None:
    assert read_topology(written(tmp_path, "[node]\nranks = 16\n")) == Topology(ranks=16)
    whole = Topology(ranks=4, link="NVLink 9", link_bandwidth=45e9, source="a data sheet")
    assert read_topology(written(tmp_path, "[node]\nranks = 4\n" + LINKS)) == whole


def test_nodes_may_be_named_and_a_network_joins_them(tmp_path: Path) -> None:
    text = '[node]\nmembers = [[0, 2], [3, 1]]\n[network]\nlink = "infiniband ndr"\ncards = 8\nrails = 4\n'
    found = read_topology(written(tmp_path, text))
    assert (found.ranks, found.members) == (2, ((0, 2), (1, 3)))
    assert [found.node_of(rank) for rank in range(5)] == [0, 1, 0, 1, None]
    network = found.network
    assert network is not None
    assert (network.link, network.cards, network.card_bandwidth, network.rails) == ("InfiniBand NDR", 8, 50e9, 4)
    assert "InfiniBand Trade Association" in network.source
    own = read_topology(written(tmp_path, NODE + '[network]\nlink = "own"\ncards = 2\n' + LINKS.split("\n", 1)[1]))
    assert own.network == Network(link="own", cards=2, card_bandwidth=45e9, source="a data sheet")


def test_a_rank_sends_over_the_cards_next_to_it() -> None:
    efa = Network(link="EFA P5", cards=32, card_bandwidth=12.5e9, source="x")
    assert efa.bandwidth(8, 8) == 400e9  # 3,200 Gb/s of a node
    assert efa.bandwidth(1, 8) == 50e9
    few = Network(link="InfiniBand HDR", cards=2, card_bandwidth=25e9, source="x")
    assert few.bandwidth(1, 8) == 25e9  # one card at least
    rails = Network(link="InfiniBand NDR", cards=8, card_bandwidth=50e9, source="x", rails=4)
    assert (rails.bandwidth(1, 8), rails.bandwidth(8, 8)) == (100e9, 400e9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no [node]"),
        ("[node]\n", "node.ranks must be a whole number from 1"),
        ("[node]\nranks = true\n", "node.ranks must be a whole number from 1"),
        ("[node]\nranks = 8\nspeed = 1\n", "node.speed: unknown key; known: node.ranks, node.members, node.link"),
        ("[rack]\nranks = 8\n", "rack: unknown key; known: node"),
        ('[node]\nranks = 8\nlink = "x"\n', "node.bandwidth_GB_per_s is missing: node.link requires it"),
        ("[node]\nranks = 8\n" + LINKS.replace("45", "-1"), "node.bandwidth_GB_per_s must be a positive"),
        ("[node]\nranks = 8\n" + LINKS.replace('"NVLink 9"', "9"), "node.link must be one line of text"),
        ("[node", "invalid TOML: "),
        ("[node]\nranks = 8\nmembers = [[0]]\n", "node.ranks and node.members exclude"),
        ("[node]\nmembers = [[0], []]\n", "node.members must be a list of the ranks of each node"),
        ("[node]\nmembers = [[0, 1], [1]]\n", "node.members names rank 1 twice"),
        (NODE + "network = 1\n", "node.network: unknown key"),
        (NODE + "[network]\ncards = 8\n", "network.link must be one line of text"),
        (NODE + '[network]\nlink = "InfiniBand NDR"\n', "network.cards must be a whole number from 1"),
        (NODE + '[network]\nlink = "InfiniBand NDR"\ncards = 8\nrails = 3\n', "network.cards must be a multiple of"),
        (NODE + '[network]\nlink = "carrier"\ncards = 8\n', "network.link: unknown link carrier ("),
        (
            NODE + '[network]\nlink = "x"\ncards = 1\nbandwidth_GB_per_s = 1\n',
            "network.source must be one line of text",
        ),
        ("network = 1\n" + NODE, "network must be a table"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str) -> None:
    path = written(tmp_path, text)
    assert run(["analyze", str(tmp_path), "--topology", str(path)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"perfscope: --topology {path}: {why}")
    assert error.count("\n") == 1


def test_nodes_are_as_the_file_says() -> None:
    assert "span nodes" in (outcome_of(job_with_core(10_000, first=4)).reason or "")
    assert judged(job_with_core(10_000, first=4), Topology(ranks=16)).status == "flagged"
    assert "span nodes" in (judged(job_with_core(10_000), Topology(ranks=4)).reason or "")


def test_links_are_as_the_file_says() -> None:
    slow = Topology(ranks=8, link="NVLink 9", link_bandwidth=45e9, source="a data sheet")
    assert judged(job_with_core(10_000), slow).status == "clean"
    (finding,) = judged(job_with_core(25_000), slow).findings
    assert "NVLink 9" in finding.detail
    assert judged(job_with_core(25_000, device="NVIDIA L4"), slow).status == "flagged"


@pytest.mark.corpus
def test_sets_of_files_are_judged_by_it(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(file) for file in sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*"))]
    arguments = ["analyze", *files, "--rule", "nvlink_stall", "--jobs", "1", "--format", "json"]
    assert run(arguments) == 0
    assert "groups span nodes" not in capsys.readouterr().out
    assert run([*arguments, "--topology", str(written(tmp_path, "[node]\nranks = 4\n"))]) == 0
    assert "groups span nodes" in capsys.readouterr().out
