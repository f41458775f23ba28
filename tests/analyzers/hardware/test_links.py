"""The table of links: one direction, in proportion, and the same as the tables of devices."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hardware import DEVICES
from perfscope.analyzers.hardware.links import LINKS, named_link


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_every_link_answers_to_its_name_and_has_a_source(link) -> None:
    assert named_link(link.name.lower().replace(" ", "-")) is link
    assert len(link.source) > 20


@pytest.mark.parametrize(("name", "bandwidth"), [
    ("NVLink 1", 80), ("NVLink 2", 150), ("NVLink 3", 300), ("NVLink 4", 450), ("NVLink 5", 900),
    ("Infinity Fabric CDNA 3", 448), ("Infinity Fabric CDNA 4", 537.6), ("ICI v4", 300), ("ICI v5e", 200),
    ("ICI v5p", 600), ("ICI v6e", 400), ("ICI 7x", 600),
])  # fmt: skip
def test_all_links_of_a_device(name: str, bandwidth: float) -> None:
    link = named_link(name)
    assert link is not None
    assert link.device_bandwidth == bandwidth * 10**9


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
    # a bridge between two cards has fewer links than the generation allows
    assert device.link_bandwidth == link.device_bandwidth or device.name == "H100 NVL"


def test_what_is_not_there() -> None:
    assert named_link("NVLink 99") is None
