"""Topology files: what they say, what is refused in one line, and what nvlink_stall makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.hardware.topology import Topology, read_topology
from perfscope.analyzers.trace import Trace
from tests.analyzers.rules.test_nvlink_stall import job, outcome_of

LINKS = 'link = "NVLink 9"\nbandwidth_GB_per_s = 45\nsource = "a data sheet"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "links.toml"
    path.write_text(text)
    return path


def judged(traces: list[Trace], topology: Topology) -> Outcome:
    for trace in traces:
        trace.topology = topology
    return outcome_of(traces)


def test_a_file_is_read(tmp_path: Path) -> None:
    assert read_topology(written(tmp_path, "[node]\nranks = 16\n")) == Topology(ranks=16)
    whole = Topology(ranks=4, link="NVLink 9", link_bandwidth=45e9, source="a data sheet")
    assert read_topology(written(tmp_path, "[node]\nranks = 4\n" + LINKS)) == whole


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no [node]"),
        ("[node]\n", "node.ranks is not a number of ranks"),
        ("[node]\nranks = true\n", "node.ranks is not a number of ranks"),
        ("[node]\nranks = 8\nspeed = 1\n", "node.speed: no such key; known: node.ranks, node.link"),
        ("[rack]\nranks = 8\n", "rack: no such key; known: node"),
        ('[node]\nranks = 8\nlink = "x"\n', "node.bandwidth_GB_per_s is missing: it belongs to node.link"),
        ("[node]\nranks = 8\n" + LINKS.replace("45", "-1"), "node.bandwidth_GB_per_s is no bandwidth"),
        ("[node]\nranks = 8\n" + LINKS.replace('"NVLink 9"', "9"), "node.link is no text"),
        ("[node", "no TOML: "),
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
    assert "span nodes" in (outcome_of(job(10_000, first=4)).reason or "")
    assert judged(job(10_000, first=4), Topology(ranks=16)).status == "flagged"
    assert "span nodes" in (judged(job(10_000), Topology(ranks=4)).reason or "")


def test_links_are_as_the_file_says() -> None:
    slow = Topology(ranks=8, link="NVLink 9", link_bandwidth=45e9, source="a data sheet")
    assert judged(job(10_000), slow).status == "clean"
    (finding,) = judged(job(25_000), slow).findings
    assert "of the 45 GB/s of NVLink 9" in finding.title
    assert judged(job(25_000, device="NVIDIA L4"), slow).status == "flagged"


@pytest.mark.corpus
def test_sets_of_files_are_judged_by_it(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(file) for file in sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*"))]
    arguments = ["analyze", *files, "--rule", "nvlink_stall", "--jobs", "1", "--format", "json"]
    assert run(arguments) == 0
    assert "groups span nodes" not in capsys.readouterr().out
    assert run([*arguments, "--topology", str(written(tmp_path, "[node]\nranks = 4\n"))]) == 0
    assert "groups span nodes" in capsys.readouterr().out
