"""Targets of one's own, in a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.profiler.errors import AskedWronglyError


def _target(folder: Path, text: str):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return parse_target(str(path))


def test_a_cluster_of_known_devices(tmp_path: Path) -> None:
    found = _target(
        tmp_path, 'device = "h100"\nnodes = 4\ndevices = 8\n[network]\nlink = "InfiniBand XDR"\ncards = 4\n'
    )
    assert (found.device.name, found.topology, found.count, found.platform) == ("H100 SXM", (4, 8), 32, "gpu")
    assert found.network is not None
    assert (found.network.cards, found.network.card_bandwidth) == (4, 100e9)
    assert not [one for one in found.assumptions if "as usual" in one or "nobody said" in one]
    assert found.asked == "mine.toml"


def test_a_device_that_no_table_has(tmp_path: Path) -> None:
    found = _target(
        tmp_path,
        'device = "l4"\nname = "L4 of node 7"\ndevices = 4\nmemory = "20GiB"\nmemory_bandwidth_GB_per_s = 280\n'
        'cores = 50\nclock_GHz = 1.7\nl2 = "40MiB"\nsource = "measured"\n[peak_TFLOP_per_s]\nbfloat16 = 90\n'
        '[link]\nname = "PCIe 4 x16"\nbandwidth_GB_per_s = 20\n',
    )
    device = found.device
    assert (device.name, device.memory_bandwidth, device.cores, device.clock_hz) == (
        "L4 of node 7",
        280 * 10**9,
        50,
        1.7e9,
    )
    assert device.peak_flops["bfloat16"] == 90 * 10**12
    assert device.peak_flops["float32"] == 30.3e12
    assert (found.memory_bytes, device.l2_bytes) == (20 << 30, 40 << 20)
    assert (device.link, device.link_bandwidth) == ("PCIe 4 x16", 20 * 10**9)
    assert device.node is not None
    assert device.node.devices == 4
    assert device.source.startswith("measured; the rest: ")
    assert "with numbers of the file (memory_bandwidth_GB_per_s, cores, clock_GHz, l2" in found.assumptions[0]


def test_a_slice_and_a_node_larger_than_usual(tmp_path: Path) -> None:
    assert _target(tmp_path, 'device = "v5e"\nslice = "4x8"\n').topology == (4, 8)
    assert _target(tmp_path, 'device = "v5e"\nslice = "4x8"\nhosts = 4\n').host_shape == (2, 4, 1)
    wide = _target(tmp_path, 'device = "h100"\ndevices = 16\n')
    assert (wide.topology, wide.compiler_topology) == ((1, 16), "1x1x16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "device is no text"),
        ('device = "h100', "no TOML"),
        ('device = "h100x8"', "without a number"),
        ('device = "h1000"', "did you mean h100"),
        ('device = "h100"\nspeed = 9', "speed: no such key; known: device, name"),
        ('device = "h100"\ncores = 100', "source is missing: where is cores from?"),
        ('device = "h100"\ncores = -1\nsource = "x"', "cores is no number"),
        ('device = "h100"\nclock_GHz = nan\nsource = "x"', "clock_GHz is no rate"),
        ('device = "h100"\nclock_GHz = true\nsource = "x"', "clock_GHz is no rate"),
        ('device = "h100"\nl2 = "50"\nsource = "x"', "l2 50: no size"),
        ('device = "h100"\nmemory = 40', "memory is no text"),
        ('device = "h100"\nslice = "2x4"', "GPUs are told by nodes and devices"),
        ('device = "v5e"\nnodes = 2', "TPUs are told by slice"),
        ('device = "h100"\nhosts = 2', "GPUs are told by nodes and devices"),
        ('device = "v5e"\nslice = "2x4"\nhosts = 5', "2x4 is of 1 or 2 hosts"),
        ('device = "v5e"\nslice = "3x3"', "its first two sides are even"),
        ('device = "h100"\nnodes = 0', "nodes is no number"),
        ('device = "h100"\nnodes = 65536\ndevices = 65536', "devices; it may be 1 to"),
        ('device = "h100"\nsource = "x"\n[peak_TFLOP_per_s]\nbf16 = 1', "peak_TFLOP_per_s.bf16: no such key"),
        ('device = "h100"\n[network]\nlink = "string and cans"\ncards = 1', "not in the table of links"),
        ('device = "h100"\nname = "a\\u001b[31m"', "name is no text of a line"),
        ("# " + "x" * 70_000, "larger than 64 KiB"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(AskedWronglyError) as caught:
        _target(tmp_path, text)
    message = str(caught.value)
    assert said in message
    assert message.startswith("--target ")
    assert "\n" not in message


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(AskedWronglyError, match="cannot be read: no such file"):
        parse_target("nowhere.toml")
