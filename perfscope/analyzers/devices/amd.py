"""AMD devices. ``float32`` is the matrix rate; MI250 and MI250X are two devices to a program: halved.

Looked up when entered: Infinity Fabric of CDNA 2 (ROCm documentation) and CDNA 3; the MI355X's and MI350X's products
with 16 bits (2.5 and 2.3 PFLOP/s) and 8 TB/s; the MI300X's 1.3 PFLOP/s and 5.3 TB/s; the GCD's 1.6 TB/s. Rates of other
dtypes follow from those by the vendor's proportions; MI300A and MI210 are from memory.
"""

from __future__ import annotations

from perfscope.analyzers.devices.chips import AMD_CHIPS, architecture_of
from perfscope.analyzers.devices.device import GIGA, Device, peaks
from perfscope.analyzers.devices.node import NETWORKS, NODES

_MI300X = peaks(float32=163.4, tf32=653.7, bfloat16=1307.4, float16=1307.4, fp8=2614.9)


_INFINITY_FABRIC = {
    "MI355X": 537.6, "MI350X": 537.6, "MI325X": 448, "MI300X": 448, "MI300A": 384,
}  # fmt: skip
"""GB/s in one direction over all links to other devices of the node: seven of 76.8 (CDNA 4) or 64 (CDNA 3), of
which the data sheets print both directions a link (153.6, 128); MI300A has six of 64 in a node of four. Between GCDs
of MI250X lie one, two or four links of 50, by where they sit: no number fits all of them, so none is stated."""


def _device(name: str, match: str, flops: dict[str, int], gigabytes_per_second: float) -> Device:
    link = _INFINITY_FABRIC.get(name)
    chip = AMD_CHIPS[name]
    return Device(
        name=name,
        vendor="AMD",
        match=match,
        peak_flops=flops,
        memory_bandwidth=round(gigabytes_per_second * GIGA),
        source=f"AMD Instinct {name.split(' (')[0]} data sheet"
        + (" (not looked up)" if name in ("MI300A", "MI210") else ""),
        link=None if link is None else "Infinity Fabric",
        link_bandwidth=None if link is None else round(link * GIGA),
        memory_bytes=chip.memory_bytes,
        cores=chip.cores,
        clock_hz=chip.clock_hz,
        l2_bytes=chip.l2_bytes,
        architecture=architecture_of(name),
        chip_source=chip.source,
        node=NODES.get(name),
        network=NETWORKS.get(name),
    )


AMD: tuple[Device, ...] = (
    _device("MI355X", r"\bMI355X\b", peaks(float32=157.3, bfloat16=2516.6, float16=2516.6, fp8=5033.2), 8000),
    _device("MI350X", r"\bMI350X\b", peaks(float32=144.2, bfloat16=2306.9, float16=2306.9, fp8=4613.7), 8000),
    _device("MI325X", r"\bMI325X\b", _MI300X, 6000),
    _device("MI300X", r"\bMI300X\b", _MI300X, 5300),
    _device("MI300A", r"\bMI300A\b", peaks(float32=122.6, tf32=490.3, bfloat16=980.6, float16=980.6, fp8=1961.2), 5300),
    _device("MI250X (one GCD)", r"\bMI250X?\b", peaks(float32=47.85, bfloat16=191.5, float16=191.5), 1638.4),
    _device("MI210", r"\bMI210\b", peaks(float32=45.3, bfloat16=181, float16=181), 1638.4),
)
"""``MI250X / MI250`` is what the driver calls both; the larger one's peaks are taken."""
