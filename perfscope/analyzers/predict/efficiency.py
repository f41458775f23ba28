"""The time of one kernel as a range, from curves of the share of the roofline that measured kernels reach.

The middle of a range is a kernel's fixed time plus its work at a share of the peaks::

    middle = floor + max(products / (matrix * waves * length), bytes / memory, element cycles / elements)

``waves``: share of the cores kept busy by the tiles of a product. ``length``: for attention, ``n / (n + half)`` of its
shorter sequence. ``element cycles``: for kernels that are not vectorised and move one element at a time, whatever its
size. So the reached share of the roofline grows with size, as in measurements. The ends are the middle times two
factors that contain nine in ten of the fitted kernels. There are two pairs of factors: for kernels dominated by the
fixed time, and for the others.

The curves are in ``curves.py``, written by ``python -m tools.calibration --fit`` from the files listed there.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.devices import NS, Computation, Device, Sizes, bytes_ns, flops_ns, wave_share
from perfscope.analyzers.hlo import ITEM_BITS
from perfscope.analyzers.predict.curve import PRODUCTS, Category, Curve
from perfscope.analyzers.predict.curves import CURVES
from perfscope.analyzers.predict.spans import Range, ns_range
from perfscope.model.collectives import element_size

TILE = (128, 128)
SPLIT = 256
"""Tile of a product, and length of a contraction from which it is divided among idle cores."""
VECTOR = 16
"""Bytes of a vectorised access; a product whose rows are not a multiple of it accesses elements one by one."""

_NEAREST = {
    "sm_75": "sm_70", "sm_86": "sm_80", "sm_89": "sm_80", "sm_100a": "sm_90a", "sm_103a": "sm_100a",
    "sm_120a": "sm_80", "gfx90a": "gfx942", "gfx950": "gfx942",
}  # fmt: skip


class Work(Computation, frozen=True, kw_only=True):
    """Computation of a kernel, or of the kernels of one op; a convolution has sizes as a product of its windows."""

    category: Category
    ideal_ns: float | None = None
    """Least time of its products at the peaks, if they have several dtypes."""

    @property
    def is_float32(self) -> bool:
        """Whether its products run on float32 units."""
        return bool(self.flops) and self.dtype in ("float32", "f32", "float64", "f64")


def kernel_curve(device: Device, work: Work, curves: Sequence[Curve] = CURVES) -> Curve | None:
    """The curve of the device's architecture, else of the nearest measured one, else of its vendor.

    ``None`` without a fitted curve.
    """
    plain = work.category in PRODUCTS and work.is_float32
    for devices in (device.architecture, _NEAREST.get(device.architecture or ""), device.vendor):
        for curve in curves:
            if (curve.devices, curve.category, curve.float32) == (devices, work.category, plain):
                return curve
    return None


def curve_parts(curve: Curve, device: Device, work: Work) -> tuple[float, float]:
    """(floor, time of the work) in ns. ``ValueError`` if the device has no peak for the products."""
    arithmetic = 0.0
    if work.flops:
        products = products_ns(device, work)
        length = 1.0
        if curve.half and work.sizes is not None:
            shorter = min(work.sizes.rows, work.sizes.columns)
            length = shorter / (shorter + curve.half)
        arithmetic = products / (curve.matrix * length)
    single = element_cycles_ns(device, work) / curve.elements if curve.elements else 0.0
    return float(curve.floor), max(arithmetic, bytes_ns(device, work.bytes) / curve.memory, single)


def element_cycles_ns(device: Device, work: Work) -> float:
    """Time to move the elements at one per core and cycle; 0 if they are moved as vectors, or unknown."""
    size = 4 if work.dtype == "tf32" else element_size(work.dtype) or ITEM_BITS.get(work.dtype, 0) // 8
    if not size or not device.cores or not device.clock_hz or work.category == "elementwise":
        return 0.0
    sizes = work.sizes if work.category == "product" else None
    if work.flops and (sizes is None or not any(length * size % VECTOR for length in (sizes.inner, sizes.columns))):
        return 0.0
    return work.bytes / size * NS / (device.cores * device.clock_hz)


def ideal_ns(device: Device, work: Work) -> float:
    """Least time of the products at the peak. ``ValueError`` without a peak."""
    ideal = flops_ns(device, work.flops, work.dtype, "highest") if work.ideal_ns is None else work.ideal_ns
    if ideal is None:
        raise ValueError(f"{device.name}: no peak of {work.dtype}")
    return ideal


def products_ns(device: Device, work: Work) -> float:
    """Least time of the products in whole waves of tiles. ``ValueError`` without a peak."""
    ideal = ideal_ns(device, work)
    sizes = work.sizes
    if sizes is None or not device.cores:
        return ideal
    if not work.category.startswith("attention"):
        return ideal / wave_share(sizes, tile=TILE, cores=device.cores, split=SPLIT)
    # a core computes a tile of queries of one head over all keys
    heads = Sizes(batch=sizes.batch, rows=sizes.rows, columns=min(sizes.inner, TILE[1]), inner=sizes.columns)
    return ideal / wave_share(heads, tile=TILE, cores=device.cores, split=0)


def usual_range(device: Device, work: Work, curves: Sequence[Curve] = CURVES) -> Range | None:
    """The range that contains nine in ten measured kernels; ``None`` without a curve or a peak.

    No product is faster than the peak, and data that exceeds the shared cache is not faster than memory: the range is
    limited accordingly.
    """
    curve = kernel_curve(device, work, curves)
    if curve is None:
        return None
    try:
        floor, busy = curve_parts(curve, device, work)
        least = ideal_ns(device, work) if work.flops else 0.0
    except ValueError:
        return None
    low, high = curve.small if floor >= busy else curve.large
    if work.bytes > (device.l2_bytes or 0):
        least = max(least, bytes_ns(device, work.bytes))
    fastest, slowest = (floor + busy) * low, (floor + busy) * high
    if floor + busy < least:
        fastest, slowest = least, least * high / low
    return ns_range(max(least, fastest), slowest)
