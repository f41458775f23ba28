"""Links from a TOML file, from nvidia-smi, and from Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.devices import parse_target
from perfscope.model.errors import DataError, PerfscopeError, UsageError
from perfscope.plugins.plan.fabric import read_fabric

MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-31\t0
GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-31\t0
GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\t32-63\t1
GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPXB\t32-63\t1
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS
"""
SLURM = """\
# a fat tree
SwitchName=leaf1 Nodes=n[1-4]
SwitchName=leaf2 Nodes=n[5-7,9]
SwitchName=spine Switches=leaf[1-2]
"""


def file(folder: Path, text: str) -> str:
    path = folder / "links"
    path.write_text(text)
    return str(path)


def test_toml_sets_nodes_links_and_oversubscription(tmp_path: Path) -> None:
    text = """
    [node]
    ranks = 4
    link = "NVLink 4"
    bandwidth_GB_per_s = 200
    source = "measured"
    [network]
    link = "RoCE 200GbE"
    cards = 2
    [fabric]
    nodes = 2
    oversubscription = 4
    """
    target, fabric = read_fabric(file(tmp_path, text), parse_target("h100x16"))
    assert target.topology == (4, 4)
    assert target.device.link_bandwidth == 200 * 10**9
    assert target.network is not None
    assert target.network.cards == 2
    near, far = fabric.seen_by(target, (0, 4)), fabric.seen_by(target, (0, 8))
    assert near.network == target.network
    assert far.network is not None
    assert far.network.card_bandwidth == target.network.card_bandwidth / 4


def test_nvidia_smi_names_the_domain_its_links_and_cards(tmp_path: Path) -> None:
    target, fabric = read_fabric(file(tmp_path, MATRIX), parse_target("h100x16"))
    assert target.topology == (4, 4)
    assert target.device.link_bandwidth == 450 * 10**9 * 12 // 18
    assert target.network is not None
    assert target.network.cards == 2
    assert "4 GPUs joined by 12 links" in fabric.words
    with pytest.raises(UsageError, match="joins GPU0 to no other of 4 GPUs"):
        read_fabric(file(tmp_path, MATRIX.replace("NV12", "SYS")), parse_target("h100x16"))


def test_slurm_names_the_nodes_of_a_leaf(tmp_path: Path) -> None:
    _, fabric = read_fabric(file(tmp_path, SLURM), parse_target("h100x64"))
    assert fabric.nodes == 4
    with pytest.raises(UsageError, match=r"has 8 nodes, and h100x128 needs 16"):
        read_fabric(file(tmp_path, SLURM), parse_target("h100x128"))
    with pytest.raises(UsageError, match="2 switches and none that joins them"):
        read_fabric(file(tmp_path, SLURM.replace("SwitchName=spine", "#")), parse_target("h100x64"))


@pytest.mark.parametrize(
    "text", ["[fabric]\nnodes = 2\noversubscription = 0.5\n", "[node]\nranks = 5\n", "x", "[fabric]\n"]
)
def test_wrong_files_are_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(PerfscopeError) as error:
        read_fabric(file(tmp_path, text), parse_target("h100x16"))
    assert "\n" not in str(error.value)


def test_tpus_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shape"):
        read_fabric(file(tmp_path, SLURM), parse_target("v5e:2x4"))
    with pytest.raises(DataError, match="no such file"):
        read_fabric(str(tmp_path / "none"), parse_target("h100x16"))
