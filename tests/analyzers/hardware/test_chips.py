"""Memory, cores, clocks and nodes of the devices: each line is held to what its vendor prints of the peak."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hardware import DEVICES
from perfscope.analyzers.hardware.chips import AMD_CHIPS, NVIDIA_CHIPS
from perfscope.analyzers.hardware.links import named_link
from perfscope.analyzers.hardware.node import NETWORKS, NODES
from perfscope.profiler.aot.target_config import GENERATIONS

BY_NAME = {device.name: device for device in DEVICES}
GPUS = [device for device in DEVICES if device.vendor != "Google"]


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.name)
def test_cores_times_clock_times_lanes_is_the_rate_that_the_vendor_prints(device):
    lanes = GENERATIONS[device.architecture].lanes
    assert 2 * device.cores * device.clock_hz * lanes == pytest.approx(device.peak_flops["float32"], rel=0.01)


@pytest.mark.parametrize("name", ["TPU v4", "TPU v5e", "TPU v5p"])
def test_the_clock_of_a_tpu_is_the_one_that_its_units_need_for_the_peak(name):
    device = BY_NAME[name]
    units = 4 * 128 * 128
    assert 2 * device.cores * units * device.clock_hz == pytest.approx(device.peak_flops["bfloat16"], rel=0.005)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_device_has_cores_and_a_source(device):
    assert device.cores
    assert device.chip_source
    assert device.memory_bytes is not None or device.name.startswith("V100 ")  # sold with 16 and with 32 GB
    assert (device.architecture is None) == (device.vendor == "Google")


def test_memory_is_what_products_are_named_after():
    for name, device in BY_NAME.items():
        for gigabytes in (40, 80):
            if name.endswith(f"{gigabytes}GB"):
                assert device.memory_bytes == pytest.approx(gigabytes * 2**30, rel=0.09), name
    assert BY_NAME["H200"].memory_bytes == pytest.approx(141e9, rel=0.08)
    assert BY_NAME["MI300X"].memory_bytes == 192 * 2**30


def test_side_tables_hold_products_of_the_main_table_only():
    assert {*NVIDIA_CHIPS, *AMD_CHIPS} == {device.name for device in GPUS}
    assert set(NODES) < set(BY_NAME)
    assert set(NETWORKS) < set(BY_NAME)


@pytest.mark.parametrize("device", [one for one in DEVICES if one.node is not None], ids=lambda device: device.name)
def test_ports_of_a_node_add_up_to_what_the_device_sends(device):
    assert device.link is not None
    generation = {"ICI": "ICI " + device.name.removeprefix("TPU").split(" (")[0].strip()}.get(device.link, device.link)
    link = named_link(generation)
    if link is None or device.name in ("H100 NVL", "H200 NVL", "TPU7x (one of two)"):
        return  # bridges have links of another width; half a chip has half its links
    assert device.node.ports * link.bandwidth == pytest.approx(device.link_bandwidth)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=lambda network: network.source)
def test_usual_networks_are_in_the_table_of_links(network):
    assert named_link(network.link) is not None
