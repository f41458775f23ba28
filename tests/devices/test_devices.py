"""The device tables: names as reported by drivers, and consistent ratios of numbers."""

from __future__ import annotations

import pytest

from perfscope.analyzers.devices import DEVICES, close_names, device_of_chip, find_device, named_device, of_architecture
from perfscope.analyzers.devices.topology import LINKS, named_link

BY_NAME = {device.name: device for device in DEVICES}


@pytest.mark.parametrize("name", ["TPU v4", "TPU v5e", "TPU v5p"])
def test_the_clock_of_a_tpu_is_the_one_that_its_units_need_for_the_peak(name):
    device = BY_NAME[name]
    units = 4 * 128 * 128
    assert 2 * device.cores * units * device.clock_hz == pytest.approx(device.peak_flops["bfloat16"], rel=0.005)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_a_row_of_the_table_is_whole_and_answers_to_its_name(device):
    assert device.cores
    assert device.chip_source
    assert device.memory_bytes is not None or device.name.startswith("V100 ")  # sold with 16 and with 32 GB
    assert (device.architecture is None) == (device.vendor in ("Google", "AWS"))
    assert (device.link is None) == (device.link_bandwidth is None)
    if device.link_bandwidth is not None:
        assert device.link_bandwidth * 3 < device.memory_bandwidth  # links to others are not a second memory
    assert device.network is None or named_link(device.network.link) is not None
    assert named_device(device.name) is device
    assert named_device(device.name.lower().replace(" ", "-")) is device


def test_memory_is_what_products_are_named_after():
    for name, device in BY_NAME.items():
        for gigabytes in (40, 80):
            if name.endswith(f"{gigabytes}GB"):
                assert device.memory_bytes == pytest.approx(gigabytes * 2**30, rel=0.09), name
    assert BY_NAME["H200"].memory_bytes == pytest.approx(141e9, rel=0.08)
    assert BY_NAME["MI300X"].memory_bytes == 192 * 2**30


@pytest.mark.parametrize("device", [one for one in DEVICES if one.node is not None], ids=lambda device: device.name)
def test_ports_of_a_node_add_up_to_what_the_device_sends(device):
    assert device.link is not None
    generation = {"ICI": "ICI " + device.name.removeprefix("TPU").split(" (")[0].strip()}.get(device.link, device.link)
    link = named_link(generation)
    if link is None or device.name in ("H100 NVL", "H200 NVL", "TPU7x (one of two)"):
        return  # bridges have links of another width; half a chip has half its links
    assert device.node.ports * link.bandwidth == pytest.approx(device.link_bandwidth)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H800 PCIe", "H800 PCIe"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Workstation"),
        ("trn2", "Trainium2"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PG509-200", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-DGXS-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI250X / MI250", "MI250X (one GCD)"),
        ("AMD Instinct MI210", "MI210"),
        ("AMD Instinct MI355X", "MI355X"),
        ("TPU v4", "TPU v4"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v5e", "TPU v5e"),
        ("TPU v5", "TPU v5p"),
        ("TPU v5p", "TPU v5p"),
        ("TPU v6 lite", "TPU v6e"),
        ("TPU v6e", "TPU v6e"),
        ("TPU7x", "TPU7x (one of two)"),
    ],
)
def test_the_driver_name_finds_its_device(reported: str, name: str):
    found = find_device(reported)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "reported",
    [
        "AMD Radeon Graphics",
        "ARTEMIS",
        "NVIDIA GeForce GTX 1080",
        "",
        "B2000",
        "TPU v4 lite",
        "TPU v3",
        "NVIDIA H20-3e",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ],
)
def test_an_unknown_device_has_no_peaks(reported: str):
    assert find_device(reported) is None


@pytest.mark.parametrize("device", [one for one in DEVICES if one.vendor != "Google"], ids=lambda device: device.name)
def test_peaks_are_dense_and_in_proportion(device):
    flops = device.peak_flops
    assert flops["float16"] > flops["float32"]
    if "tf32" in flops and device.vendor != "AWS":
        assert flops["float16"] / flops["tf32"] == pytest.approx(2, rel=0.03)
    if "fp8" in flops:
        assert flops["fp8"] / flops["float16"] == pytest.approx(2, rel=0.03)
    if "bfloat16" in flops:
        assert flops["bfloat16"] == flops["float16"]
    # bytes moved while one 16-bit FLOP is done: every product has between 30 and 650 FLOPs a byte
    assert 30 < flops["float16"] / device.memory_bandwidth < 650
    assert device.source


def test_the_closest_precision_comes_first():
    by_name = {device.name: device for device in DEVICES}
    assert by_name["H100 SXM"].matrix_dtypes == ("tf32", "bfloat16", "float16")
    assert by_name["V100 SXM2"].matrix_dtypes == ("float16",)
    assert by_name["RTX 3090"].matrix_dtypes == ("bfloat16", "float16")
    assert by_name["MI355X"].matrix_dtypes == ("bfloat16", "float16")


def test_known_numbers():
    by_name = {device.name: device for device in DEVICES}
    assert by_name["A100 SXM 80GB"].peak_flops["bfloat16"] == 312 * 10**12
    assert by_name["MI300X"].memory_bandwidth == 5300 * 10**9
    assert by_name["B200"].memory_bandwidth == 7700 * 10**9  # HGX; DGX prints 8 TB/s


@pytest.mark.parametrize("device", [one for one in DEVICES if one.vendor == "Google"], ids=lambda device: device.name)
def test_a_tpu_multiplies_bfloat16_and_nothing_faster_than_twice_that(device):
    flops = device.peak_flops
    assert device.matrix_dtypes == ()
    assert "float32" not in flops
    assert "float16" not in flops
    assert all(1 <= peak / flops["bfloat16"] <= 2 for peak in flops.values())
    assert 150 < flops["bfloat16"] / device.memory_bandwidth < 650
    assert device.source


def test_links_are_counted_in_one_direction():
    by_name = {device.name: device for device in DEVICES}
    assert by_name["H800 SXM"].link_bandwidth == 200 * 10**9  # 400 GB/s in both
    assert by_name["H100 SXM"].link_bandwidth == 450 * 10**9  # NVLink 4: 900 GB/s in both
    assert by_name["A100 SXM 80GB"].link_bandwidth == 300 * 10**9
    assert by_name["MI300X"].link_bandwidth == 7 * 64 * 10**9
    assert by_name["TPU v5p"].link_bandwidth == 600 * 10**9
    assert by_name["TPU7x (one of two)"].link_bandwidth == 300 * 10**9
    assert by_name["T4"].link is None
    assert sum(device.link is not None for device in DEVICES) == 23


@pytest.mark.parametrize(
    ("typed", "name"), [("h100 sxm", "H100 SXM"), ("H100", "H100 SXM"), ("tpu-v5p", "TPU v5p"), ("mi300x", "MI300X")]
)
def test_devices_as_people_type_them(typed: str, name: str) -> None:
    found = named_device(typed)
    assert found is not None
    assert found.name == name


def test_close_names_of_what_is_not_there() -> None:
    assert named_device("A100") is None
    assert close_names("A100")[:3] == ("A100 SXM 80GB", "A100 PCIe 80GB", "A100 40GB")
    assert "MI300X" in close_names("MI300")
    assert close_names("abacus") == ()


def test_every_link_answers_to_its_name_and_has_a_source() -> None:
    assert [named_link(link.name.lower().replace(" ", "-")) for link in LINKS] == list(LINKS)
    assert [link.name for link in LINKS if len(link.source) <= 20] == []


@pytest.mark.parametrize(("name", "bandwidth"), [
    ("NVLink 1", 80), ("NVLink 2", 150), ("NVLink 3", 300), ("NVLink 4", 450), ("NVLink 5", 900),
    ("Infinity Fabric CDNA 3", 448), ("Infinity Fabric CDNA 4", 537.6), ("ICI v4", 300), ("ICI v5e", 200),
    ("ICI v5p", 600), ("ICI v6e", 400), ("ICI 7x", 600),
])  # fmt: skip
def test_all_links_of_a_device(name: str, bandwidth: float) -> None:
    link = named_link(name)
    assert link is not None
    assert link.links is not None
    assert link.bandwidth * link.links == bandwidth * 10**9


@pytest.mark.parametrize(("family", "names"), [
    ("InfiniBand", ("EDR", "HDR", "NDR", "XDR")), ("RoCE", ("100GbE", "200GbE", "400GbE", "800GbE")),
])  # fmt: skip
def test_generations_double(family: str, names: tuple[str, ...]) -> None:
    found = [named_link(f"{family} {name}") for name in names]
    assert [link.bandwidth / 12.5e9 for link in found if link is not None] == [1, 2, 4, 8]


def test_pcie_doubles_less_what_it_is_coded_with() -> None:
    found = [named_link(f"PCIe {generation} x16") for generation in (3, 4, 5, 6)]
    for generation, link in enumerate(found):
        assert link is not None
        assert link.bandwidth / (16e9 * 2**generation) == pytest.approx(0.97, abs=0.03)


@pytest.mark.parametrize("device", [one for one in DEVICES if one.vendor == "NVIDIA" and one.link],
                         ids=lambda device: device.name)  # fmt: skip
def test_devices_have_the_links_of_their_generation(device) -> None:
    link = named_link(device.link)
    assert link is not None
    assert link.links is not None
    # a bridge between two cards has fewer links than the generation allows, as has H800
    assert device.link_bandwidth == link.bandwidth * link.links or device.name in ("H100 NVL", "H800 SXM")


def test_what_is_not_there() -> None:
    assert named_link("NVLink 99") is None


def test_a_chip_without_a_name_is_known_by_its_properties() -> None:
    def named(*chip: object, **more: int) -> str | None:
        device = device_of_chip(*chip, **more)  # type: ignore[arg-type]
        return None if device is None else device.name

    assert named("AMD", (9, 4), 304, memory_bytes=206_141_652_992) == "MI300X"
    assert named("AMD", (9, 4), 304, memory_bytes=256 << 30) == "MI325X"
    assert named("AMD", (9, 4), 228) == "MI300A"
    assert named("AMD", (9, 5), 256, clock_hz=2_400_000_000) == "MI355X"
    assert named("AMD", (9, 5), 256, clock_hz=2_200_000_000) == "MI350X"
    assert named("AMD", (9, 5), 256) is None
    assert named("AMD", (9, 0), 104) is None  # MI210, or half of an MI250
    assert named("NVIDIA", (7, 0), 80, clock_hz=1_530_000_000) == "V100 SXM2"
    assert named("Nvidia", (9, 0), 132, memory_bytes=84_942_979_072, clock_hz=1_980_000_000) == "H100 SXM"
    assert named("Intel", (9, 4), 304) is None


def test_every_device_is_found_by_its_own_name() -> None:
    for device in DEVICES:
        assert find_device(device.name) is device


def test_products_of_an_architecture() -> None:
    assert [device.name for device in of_architecture("gfx950")] == ["MI355X", "MI350X"]
    assert find_device("H100 SXM") in of_architecture("sm_90")
    assert of_architecture("") == ()
