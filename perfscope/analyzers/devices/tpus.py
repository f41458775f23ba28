"""Google TPUs by device of a program: a chip from v4 to v6e (its cores work as one), half a chip of TPU7x."""

from __future__ import annotations

from msgspec import Struct

from perfscope.analyzers.devices.device import GIGA, Device, Node, UsualNetwork, peaks

_GIB = 1 << 30
_PAGE = "Google Cloud documentation, {}, key specifications"

_NETWORKS = {
    "TPU v5p": UsualNetwork(link="RoCE 200GbE", cards=1, source=_PAGE.format("TPU v5p") + ": 50 Gb/s a chip, 4 a host"),
}
"""Data centre network between slices, by host; the documentation of the other chips does not state it per chip."""


class _Chip(Struct, frozen=True, kw_only=True):
    """A TPU device as a program sees it, and its pod."""

    gibibytes: float
    cores: int
    gigahertz: float | None
    axes: int
    pod: int
    host: int


_CHIPS = {
    "TPU v4": _Chip(gibibytes=30.75, cores=2, gigahertz=1.05, axes=3, pod=4096, host=4),
    "TPU v5e": _Chip(gibibytes=15.75, cores=1, gigahertz=1.5, axes=2, pod=256, host=8),
    "TPU v5p": _Chip(gibibytes=95.74, cores=2, gigahertz=1.75, axes=3, pod=8960, host=4),
    "TPU v6e": _Chip(gibibytes=31.25, cores=1, gigahertz=None, axes=2, pod=256, host=8),
    "TPU7x (one of two)": _Chip(gibibytes=94.75, cores=1, gigahertz=None, axes=3, pod=2 * 9216, host=8),
}
"""Memory is the amount that libtpu 0.0.42.1 reports as available when it rejects a program that is too large; the
documentation states 32, 16, 95, 32 and (two devices) 192. Clocks are not stated; they follow from the peaks and the
multiply units of a core (four of 128 x 128), and are omitted if the two do not fit.
"""


def _device(
    name: str, match: str, flops: dict[str, int], *, gigabytes_per_second: int, ici_gigabytes_per_second: int
) -> Device:
    chip = _CHIPS[name]
    return Device(
        name=name,
        vendor="Google",
        match=match,
        peak_flops=flops,
        memory_bandwidth=gigabytes_per_second * GIGA,
        source=_PAGE.format(name),
        link="ICI",
        link_bandwidth=ici_gigabytes_per_second * GIGA,
        memory_bytes=round(chip.gibibytes * _GIB),
        cores=chip.cores,
        clock_hz=None if chip.gigahertz is None else round(chip.gigahertz * GIGA),
        chip_source=_PAGE.format(name) + "; memory: what libtpu 0.0.42.1 plans for; clock: follows from the peak",
        node=Node(joined="torus", devices=chip.pod, host_devices=chip.host, ports=2 * chip.axes, axes=chip.axes,
                  source=_PAGE.format(name)),
        network=_NETWORKS.get(name),
    )  # fmt: skip


GOOGLE: tuple[Device, ...] = (
    _device("TPU7x (one of two)", r"\bTPU ?v?7x\b", peaks(bfloat16=1153.5, fp8=2307),
            gigabytes_per_second=3690, ici_gigabytes_per_second=300),
    _device("TPU v6e", r"\bTPU v6( lite|e)\b", peaks(bfloat16=918, fp8=918, int8=1836),
            gigabytes_per_second=1638, ici_gigabytes_per_second=400),
    _device("TPU v5p", r"\bTPU v5(p\b|$)", peaks(bfloat16=459, fp8=459),
            gigabytes_per_second=2765, ici_gigabytes_per_second=600),
    _device("TPU v5e", r"\bTPU v5( lite|e)\b", peaks(bfloat16=197, int8=393),
            gigabytes_per_second=819, ici_gigabytes_per_second=200),
    _device("TPU v4", r"\bTPU v4$", peaks(bfloat16=275, int8=275),
            gigabytes_per_second=1200, ici_gigabytes_per_second=300),
)  # fmt: skip
"""All verified (the TPU7x page also has the values of v5p and v6e), except int8 of v6e, v5e and v4. Links: half of the
bidirectional bandwidth per chip; those of v4 are in its paper (Jouppi et al., ISCA 2023: six of 50 GB/s each way). A
TPU7x chip (2,307 TFLOP/s of bfloat16, 7,380 GB/s, 1,200 GB/s of ICI both ways) is two devices with half of that each.
Editions of the documentation differ on v5e's memory (819 GB/s, 800 GiB/s). JAX reports v5e as ``TPU v5 lite``, v6e as
``TPU v6 lite``, v5p as ``TPU v5`` and 7x as ``TPU7x``. There is no float16 unit.
"""
