"""Targets as people type them, and as artifacts carry them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices.target import described_target
from perfscope.analyzers.devices.target_text import CHIPS, NAMES, parse_target, read_bytes_text
from perfscope.model.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("typed", "device", "topology", "count", "told"),
    [
        ("h100", "H100 SXM", (1, 1), 1, "1x1x1"),
        ("H100x8", "H100 SXM", (1, 8), 8, "1x1x8"),
        (" h100 x 16 ", "H100 SXM", (2, 8), 16, "2x1x8"),
        ("h100x2x4", "H100 SXM", (2, 4), 8, "2x1x4"),
        ("8xH100", "H100 SXM", (1, 8), 8, "1x1x8"),
        ("H100 PCIe x8", "H100 PCIe", (1, 8), 8, "1x1x8"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", (1, 1), 1, "1x1x1"),
        ("h200", "H200", (1, 1), 1, "1x1x1"),
        ("b200x8", "B200", (1, 8), 8, "1x1x8"),
        ("gb200x72", "GB200", (1, 72), 72, "1x18x4"),
        ("gb200x144", "GB200", (2, 72), 144, "2x18x4"),
        ("gb300x72", "GB300", (1, 72), 72, "1x18x4"),
        ("h20x8", "H20", (1, 8), 8, "1x1x8"),
        ("rtx-pro-6000", "RTX PRO 6000 Workstation", (1, 1), 1, "1x1x1"),
        ("trn2x16", "Trainium2", (1, 16), 16, "1x1x16"),
        ("v7:2x2x1", "TPU7x (one of two)", (2, 2, 1), 8, "2x2x1"),
        ("a100", "A100 SXM 80GB", (1, 1), 1, "1x1x1"),
        ("A100-40GB", "A100 40GB", (1, 1), 1, "1x1x1"),
        ("A100-SXM4-80GB", "A100 SXM 80GB", (1, 1), 1, "1x1x1"),
        ("l4", "L4", (1, 1), 1, "1x1x1"),
        ("rtx4090", "RTX 4090", (1, 1), 1, "1x1x1"),
        ("rtx4090x2", "RTX 4090", (1, 2), 2, "1x1x2"),
        ("mi300x", "MI300X", (1, 1), 1, "1x1x1"),
        ("mi300xx8", "MI300X", (1, 8), 8, "1x1x8"),
        ("mi300x8", "MI300X", (1, 8), 8, "1x1x8"),
        ("v5e", "TPU v5e", (1, 1), 1, "1x1"),
        ("v5e:2x4", "TPU v5e", (2, 4), 8, "2x4"),
        ("V5E : 8", "TPU v5e", (2, 4), 8, "2x4"),
        ("v5litepod-16", "TPU v5e", (4, 4), 16, "4x4"),
        ("TPU v5p:2x2x1", "TPU v5p", (2, 2, 1), 4, "2x2x1"),
        ("v5p-8", "TPU v5p", (2, 2, 1), 4, "2x2x1"),
        ("v5p:8", "TPU v5p", (2, 2, 2), 8, "2x2x2"),
        ("v6e:4x4", "TPU v6e", (4, 4), 16, "4x4"),
        ("v4", "TPU v4", (1, 1, 1), 1, "1x1x1"),
        ("tpu7x:2x2x1", "TPU7x (one of two)", (2, 2, 1), 8, "2x2x1"),
    ],
)
def test_what_people_type(typed: str, device: str, topology: tuple[int, ...], count: int, told: str) -> None:
    found = parse_target(typed)
    assert (found.device.name, found.topology, found.count, found.compiler_topology) == (device, topology, count, told)
    assert found.platform == ("tpu" if found.generation is not None else "gpu")
    assert found.memory_bytes == found.device.memory_bytes


def test_every_name_is_a_target_alone_and_with_four_devices() -> None:
    for name in (*NAMES, *CHIPS):
        assert (parse_target(name).chips, parse_target(f"{name}:4").chips) == (1, 4), name


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "give the name of a device"),
        ("h1000", "did you mean h100"),
        ("mi30", "did you mean mi300"),
        ("v5", "did you mean v5e"),
        ("banana", "known: h100"),
        ("x8", "unknown device"),
        ("h100x0", "0 devices"),
        ("h100x12", "do not fill nodes of 8; write nodes x devices, e.g. h100x2x8"),
        ("h100x16x16", "nodes of 8"),
        ("h100x99999999", "unknown device"),
        ("h100x8x8x8x8", "unknown device"),
        ("v5e:3", "no slice has 3 chips"),
        ("v5e:1x2", "its first two sides must be even"),
        ("v5e:2x2x2", "torus of 2 axes"),
        ("v5e:0x4", "at least 1"),
        ("v5e:32x32", "at most 256"),
        ("v5p-3", "counts TensorCores"),
        ("h" * 500, "give the name of a device"),
        ("h100\nx8\x1b[31m", "give the name of a device"),
    ],
)
def test_what_is_no_target(typed: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(typed)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_nobody_said_is_told() -> None:
    assert parse_target("h200x8").assumptions == ()
    (edition,) = parse_target("h100").assumptions
    assert edition == "h100 is taken for H100 SXM"
    *_, network = parse_target("h200x16").assumptions
    assert network.startswith("nodes are joined by 8 cards of InfiniBand NDR (400 Gb/s) each, as usual for H200")
    assert "does not close to a ring along its axes of 4 chips" in parse_target("v5e:2x4").assumptions[-1]
    assert parse_target("v5e:16x16").assumptions == ("64 hosts of 4 chips: the program is that many processes",)
    assert "collectives are not timed" in parse_target("l4x4").assumptions[0]
    joined = parse_target("a100-40gb x8")
    assert joined.device.link == "NVLink 3"
    assert "SXM module" in joined.assumptions[0]


def test_memory_of_ones_own() -> None:
    found = parse_target("h100", memory="40 GiB")
    assert found.memory_bytes == 40 << 30
    assert found.assumptions[-1] == "each device has 40 GiB of memory (--memory)"
    for text, size in (("1.5GB", 1_500_000_000), ("80G", 80 << 30), ("512m", 512 << 20), ("1048576", 1 << 20)):
        assert read_bytes_text(text, "--memory") == size
    for wrong in ("40", "GiB", "-1GiB", "1e9 GiB", "0GiB", "40 giraffes", "9" * 400 + "GiB", "5000TiB", "nan GiB"):
        with pytest.raises(UsageError, match="--memory"):
            read_bytes_text(wrong, "--memory")


@pytest.mark.parametrize(
    ("typed", "host", "hosts"),
    [
        ("v5e", (1, 1, 1), 1),
        ("v5e:2x2", (2, 2, 1), 1),
        ("v5e:2x4", (2, 4, 1), 1),
        ("v6e-8", (2, 4, 1), 1),
        ("v5e:2x4@2hosts", (2, 2, 1), 2),
        ("v5e : 2x4 @ 2", (2, 2, 1), 2),
        ("v5e:4x4", (2, 2, 1), 4),
        ("v5e:4x4@2", (2, 4, 1), 2),
        ("v5p:2x2x2", (2, 2, 1), 2),
        ("tpu7x:4", (2, 2, 1), 1),
    ],
)
def test_a_slice_is_of_the_hosts_that_are_usual_or_said(typed: str, host: tuple[int, ...], hosts: int) -> None:
    found = parse_target(typed)
    assert (found.host_shape, found.hosts) == (host, hosts)
    told = any("host" in sentence for sentence in found.assumptions)
    assert told == (found.chips > 1 and "@" not in typed)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("v5e:2x4@3", "2x4 has 1 or 2 hosts, not 3"),
        ("v5p:2x2x2@1", "2x2x2 has 2 hosts, not 1"),
        ("v5e@2", "1x1 has 1 hosts, not 2"),
        ("v5e:2x4@", "a number of hosts"),
        ("v5e:2x4@0", "not 0"),
        ("v5e:2x4@two", "a number of hosts"),
        ("h100x8@2", "only TPU slices"),
    ],
)
def test_hosts_that_there_are_not_are_refused(typed: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_target(typed)


def test_a_target_of_an_older_artifact_has_hosts_that_nobody_knows() -> None:
    told = json.loads(json.dumps(parse_target("v5e:2x4").description()))
    del told["host_shape"]
    assert described_target(told).hosts is None
    with pytest.raises(DataError, match="topology and host_shape do not agree"):
        described_target({**told, "host_shape": [3, 1, 1]})


@pytest.mark.parametrize("typed", ["h100x16", "v5e:2x4", "v5e:2x4@2", "gb200x72", "mi300x", "tpu7x:4"])
def test_a_description_makes_the_same_target(typed: str) -> None:
    target = parse_target(typed)
    told = json.loads(json.dumps(target.description()))
    assert described_target(told) == target


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["device"].update(memory_bandwidth=0),
        lambda told: told["device"].update(memory_bandwidth=1 << 70),
        lambda told: told["device"].update(peak_flops={"bfloat16": -1}),
        lambda told: told["device"].pop("name"),
        lambda told: told.update(device=None),
        lambda told: told.update(topology=[3, 5]),
        lambda told: told.update(topology=[]),
        lambda told: told.update(count="8"),
        lambda told: told.update(platform="cpu"),
    ],
)
def test_a_description_that_makes_no_sense_is_one_line(change) -> None:
    told = json.loads(json.dumps(parse_target("h100x8").description()))
    change(told)
    with pytest.raises(DataError, match=r"^description of the target: "):
        described_target(told)
    with pytest.raises(DataError):
        described_target([told])


def test_a_strangers_pattern_is_not_run() -> None:
    target = parse_target("h100")
    told = json.loads(json.dumps(target.description()))
    told["device"]["match"] = "(a+)+$"
    assert described_target(told) == target
    told["device"]["name"] = "H100 (ours)"
    assert described_target(told).device == replace(target.device, name="H100 (ours)", match=r"^H100\ \(ours\)$")


def test_how_it_is_shown() -> None:
    assert parse_target("h100").shown == "H100 SXM"
    assert parse_target("h100x16").shown == "16 H100 SXM in 2 nodes"
    assert parse_target("v5e:8").shown == "8 TPU v5e (2x4)"
    assert parse_target("h100x16").layout == "2x8"
    assert parse_target("gb200x144").node_devices == 72


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
    assert not [one for one in found.assumptions if "as usual" in one or "not specified" in one]
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
    assert "with memory_bandwidth_GB_per_s, cores, clock_GHz, l2" in found.assumptions[0]


def test_a_slice_and_a_node_larger_than_usual(tmp_path: Path) -> None:
    assert _target(tmp_path, 'device = "v5e"\nslice = "4x8"\n').topology == (4, 8)
    assert _target(tmp_path, 'device = "v5e"\nslice = "4x8"\nhosts = 4\n').host_shape == (2, 4, 1)
    wide = _target(tmp_path, 'device = "h100"\ndevices = 16\n')
    assert (wide.topology, wide.compiler_topology) == ((1, 16), "1x1x16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "device must be one line of text"),
        ('device = "h100', "invalid TOML"),
        ('device = "h100x8"', "without a number"),
        ('device = "h1000"', "did you mean h100"),
        ('device = "h100"\nspeed = 9', "speed: unknown key; known: device, name"),
        ('device = "h100"\ncores = 100', "source is missing: where is cores from?"),
        ('device = "h100"\ncores = -1\nsource = "x"', "cores must be a whole number"),
        ('device = "h100"\nclock_GHz = nan\nsource = "x"', "clock_GHz must be a positive number below 1e9"),
        ('device = "h100"\nclock_GHz = true\nsource = "x"', "clock_GHz must be a positive number below 1e9"),
        ('device = "h100"\nl2 = "50"\nsource = "x"', "l2 50: must be from 1 MiB"),
        ('device = "h100"\nmemory = 40', "memory must be one line of text"),
        ('device = "h100"\nslice = "2x4"', "GPUs are given by nodes and devices"),
        ('device = "v5e"\nnodes = 2', "TPUs are given by slice"),
        ('device = "h100"\nhosts = 2', "GPUs are given by nodes and devices"),
        ('device = "v5e"\nslice = "2x4"\nhosts = 5', "2x4 has 1 or 2 hosts"),
        ('device = "v5e"\nslice = "3x3"', "its first two sides must be even"),
        ('device = "h100"\nnodes = 0', "nodes must be a whole number"),
        ('device = "h100"\nnodes = 65536\ndevices = 65536', "devices; must be 1 to"),
        ('device = "h100"\nsource = "x"\n[peak_TFLOP_per_s]\nbf16 = 1', "peak_TFLOP_per_s.bf16: unknown key"),
        ('device = "h100"\n[network]\nlink = "string and cans"\ncards = 1', "unknown link string and cans"),
        ('device = "h100"\nname = "a\\u001b[31m"', "name must be one line of text"),
        ("# " + "x" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        _target(tmp_path, text)
    message = str(caught.value)
    assert said in message
    assert message.startswith("--target ")
    assert "\n" not in message


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="cannot be read: no such file"):
        parse_target("nowhere.toml")
