"""Fits the curves of ``perfscope/analyzers/predict/curves.py`` to the fitted files, and writes that file.

A search over a grid, the same for every category: the middle that is nearest to the measured times of all shapes
(least mean of absolute logarithms; a shape counts once, with its median), then ends between which nine in ten lie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.devices.roofline import bytes_ns
from perfscope.analyzers.predict.curve import PRODUCTS, Curve
from perfscope.analyzers.predict.efficiency import products_ns
from tests.calibration.measured import Call, Recording, shape_of

FLOORS = (*range(1000, 10_000, 250), *range(10_000, 60_001, 1000))
SHARES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, *np.round(np.arange(0.1, 1.06, 0.05), 2).tolist(), 1.2, 1.4)
HALVES = (0, 256, 512, 1024, 2048)
COVERED = 0.9
MOST_OF_A_SHAPE = 32
"""Calls of one shape that count for the ends."""
NARROWEST = 1.6
"""High end over low end, at the least: what other programs reach differs by more than the shapes of one."""
FEWEST = 4
"""Shapes that ends of their own need, for small and for large kernels; and a curve of an architecture, not a vendor."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    products: float
    length: int
    memory: float
    times: Floats

    @property
    def median(self) -> float:
        return float(np.median(self.times))


def fitted(recordings: Sequence[Recording]) -> tuple[Curve, ...]:
    """By architecture where it has enough shapes, and by vendor over all of its devices."""
    groups: dict[tuple[str, str, bool], list[Call]] = defaultdict(list)
    for call in (call for recording in recordings for call in recording.calls if call.alone):
        plain = call.work.category in PRODUCTS and call.work.is_float32
        for devices in (call.device.architecture, call.device.vendor):
            groups[str(devices), call.work.category, plain].append(call)
    curves: list[Curve] = []
    shortest: dict[str, int] = {}
    # elementwise kernels first: what they take beside their work any kernel of the device takes
    for (devices, category, plain), calls in sorted(groups.items(), key=lambda item: item[0][1] != "elementwise"):
        shapes = _shapes(calls)
        if shapes and (devices in ("NVIDIA", "AMD") or len(shapes) >= FEWEST):
            curve = _curve(devices, calls[0], shapes, float32=plain, shortest=shortest.get(devices, 0))
            curves.append(curve)
            if category == "elementwise":
                shortest[devices] = curve.floor
    return tuple(sorted(curves, key=lambda curve: (curve.devices, curve.category, curve.float32)))


def _shapes(calls: Sequence[Call]) -> list[_Shape]:
    times: dict[tuple[object, ...], list[Call]] = defaultdict(list)
    for call in calls:
        times[shape_of(call)].append(call)
    shapes = []
    for same in times.values():
        call = same[0]
        try:
            arithmetic = products_ns(call.device, call.work) if call.work.flops else 0.0
        except ValueError:
            continue
        sizes = call.work.sizes if call.work.category.startswith("attention") else None
        shapes.append(
            _Shape(
                products=arithmetic,
                length=0 if sizes is None else min(sizes.rows, sizes.columns),
                memory=bytes_ns(call.device, call.work.bytes),
                times=np.array([one.time_ns for one in same], float),
            )
        )
    return shapes


def _curve(devices: str, like: Call, shapes: list[_Shape], *, float32: bool, shortest: int) -> Curve:
    medians = np.array([shape.median for shape in shapes])
    memory, products, lengths = (
        np.array([getattr(shape, name) for shape in shapes], float) for name in ("memory", "products", "length")
    )
    has_products, has_lengths = bool(products.any()), bool(lengths.any())
    floors = np.array([floor for floor in FLOORS if shortest <= floor <= max(shortest, medians.min() * 2)], float)[
        :, None
    ]
    best: tuple[float, float, float, float, int] = (np.inf, 0.0, 1.0, 1.0, 0)
    for half, matrix, share in product(
        HALVES if has_lengths else (0,),
        [one for one in SHARES if one < 1] if has_products else (1.0,),
        SHARES if not has_lengths else (0.8,),
    ):
        arithmetic = products / (matrix * (lengths / (lengths + half) if half else 1.0))
        middle = floors + np.maximum(arithmetic, memory / share)
        misses = np.abs(np.log(medians / middle)).mean(axis=1)
        row = int(misses.argmin())
        if misses[row] < best[0] - 1e-9:
            best = (float(misses[row]), float(floors[row, 0]), matrix, share, half)
    _, floor, matrix, share, half = best
    busy = np.maximum(products / (matrix * (lengths / (lengths + half) if half else 1.0)), memory / share)
    small, large = _ends(shapes, floor, busy)
    return Curve(
        devices=devices, category=like.work.category, float32=float32, floor=round(floor), matrix=matrix, memory=share,
        half=half, small=small, large=large, shapes=len(shapes), kernels=sum(len(shape.times) for shape in shapes),
    )  # fmt: skip


def _ends(shapes: list[_Shape], floor: float, busy: Floats) -> tuple[tuple[float, float], tuple[float, float]]:
    ratios: dict[bool, list[float]] = {True: [], False: []}
    counts = {True: 0, False: 0}
    for shape, work in zip(shapes, busy, strict=True):
        ordered = np.sort(shape.times)
        chosen = ordered[np.linspace(0, len(ordered) - 1, min(MOST_OF_A_SHAPE, len(ordered))).round().astype(int)]
        ratios[bool(floor >= work)] += (chosen / (floor + work)).tolist()
        counts[bool(floor >= work)] += 1
    every = [*ratios[True], *ratios[False]]
    small, large = (_narrowest(ratios[part] if counts[part] >= FEWEST else every) for part in (True, False))
    return small, large


def _narrowest(ratios: Sequence[float]) -> tuple[float, float]:
    """The two factors, nearest to one another, that hold nine in ten, no nearer than ``NARROWEST``."""
    logs = np.sort(np.log(ratios))
    inside = min(len(logs), int(np.ceil(COVERED * len(logs))))
    widths = logs[inside - 1 :] - logs[: len(logs) - inside + 1]
    first = int(widths.argmin())
    low, high = float(logs[first]), float(logs[first + inside - 1])
    short = max(0.0, np.log(NARROWEST) - (high - low)) / 2
    return round(float(np.exp(low - short)), 3), round(float(np.exp(high + short)), 3)


def source(curves: Sequence[Curve], files: Sequence[str], date: str) -> str:
    """The text of ``curves.py``."""
    rows = "".join(
        f"    Curve(devices={one.devices!r}, category={one.category!r}, float32={one.float32}, floor={one.floor}, "
        f"matrix={one.matrix}, memory={one.memory}, half={one.half},\n"
        f"          small={one.small}, large={one.large}, shapes={one.shapes}, kernels={one.kernels}),\n"
        for one in curves
    ).replace("'", '"')
    listed = "\n".join(f"* {file}" for file in files)
    return (
        f'"""Curves of kernel times, fitted on {date} by ``python -m tests.calibration --fit``.'
        f"\n\nTo these recordings of others:\n\n{listed}\n\n"
        "Never changed by hand: a test holds the table to what the fit gives.\n"
        '"""\n\nfrom __future__ import annotations\n\n'
        "from perfscope.analyzers.predict.curve import Curve\n\n"
        f"CURVES: tuple[Curve, ...] = (\n{rows})  # fmt: skip\n"
    )
