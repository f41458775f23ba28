"""Fits the curves of ``perfscope/analyzers/predict/curves.py`` to recordings, and writes that file.

A descent over a grid, the same for every category: the middle that is nearest to the measured times (least mean of
absolute logarithms), then ends between which nine in ten lie. A curve is asked for other programs, so each program on
each device counts alike for the middle, in it each shape alike, with its median.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.devices.roofline import bytes_ns
from perfscope.analyzers.predict.curve import PRODUCTS, Curve
from perfscope.analyzers.predict.efficiency import element_cycles_ns, products_ns
from tools.calibration.measured import Call, Recording, shape_of

Floats = npt.NDArray[np.float64]

_SHARES = (0.02, 0.03, 0.04, 0.06, 0.08, *np.round(np.arange(0.1, 1.0, 0.05), 2).tolist())
GRID: dict[str, Floats] = {
    "floor": np.array([*range(1000, 10_000, 250), *range(10_000, 60_001, 2000)], float),
    "matrix": np.array(_SHARES),
    "memory": np.array([*_SHARES, 1.0, 1.2, 1.4]),
    "elements": np.array(
        [*np.arange(0.3, 1.0, 0.1).round(1), *np.arange(1.0, 2.0, 0.2).round(1), 2, 2.5, 3, 4, 5, 6, 8, 12, 16, np.inf]
    ),
    "half": np.array([0.0, 128, 256, 512, 1024, 2048]),
}
STARTS = (0.1, 0.4, 0.8)
"""Shares of the peaks from which the descent begins; the nearest end counts."""
COVERED = 0.9
MOST_OF_A_SHAPE = 32
"""Calls of one shape that count for the ends."""
NARROWEST = 1.6
"""High end over low end, at the least: what other programs reach differs by more than the shapes of one."""
FEWEST = 4
"""Shapes that ends of their own need, for small and for large kernels; and a curve of an architecture, not a vendor."""
FEWEST_PROGRAMS = 2
"""That a curve of an architecture needs: of one, the program cannot be told from the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    program: tuple[str, str]
    """And the device that it ran on."""
    products: float
    length: int
    memory: float
    elements: float
    times: Floats


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Those of one curve."""

    rows: Sequence[_Shape]

    def column(self, name: str) -> Floats:
        """One number of each."""
        return np.array([getattr(row, name) for row in self.rows], float)

    @property
    def weights(self) -> Floats:
        """Add up to one, those of a program on a device to as much as those of another."""
        counts = Counter(row.program for row in self.rows)
        return np.array([1 / counts[row.program] / len(counts) for row in self.rows])

    def work(self, at: Mapping[str, Floats | float]) -> Floats:
        """Time beside the floor; by value of ``at`` where one is a column of them."""
        lengths = self.column("length")
        slower = (lengths + at["half"]) / np.maximum(lengths, 1) if lengths.any() else 1.0
        parts = (
            self.column("products") / at["matrix"] * slower,
            self.column("memory") / at["memory"],
            self.column("elements") / at["elements"],
        )
        result: Floats = np.maximum.reduce(np.broadcast_arrays(*parts))
        return result


def fitted(recordings: Sequence[Recording]) -> tuple[Curve, ...]:
    """By architecture where it has enough shapes and programs, and by vendor over all of its devices."""
    groups: dict[tuple[str, str, bool], list[tuple[str, Call]]] = defaultdict(list)
    for recording in recordings:
        for call in recording.calls:
            if call.alone:
                plain = call.work.category in PRODUCTS and call.work.is_float32
                for devices in (call.device.architecture, call.device.vendor):
                    groups[str(devices), call.work.category, plain].append((recording.program, call))
    curves: list[Curve] = []
    shortest: dict[str, int] = {}
    # elementwise kernels first: what they take beside their work any kernel of the device takes
    for (devices, category, plain), calls in sorted(groups.items(), key=lambda item: item[0][1] != "elementwise"):
        shapes = _shapes(calls)
        programs = {shape.program[0] for shape in shapes.rows}
        enough = len(shapes.rows) >= FEWEST and len(programs) >= FEWEST_PROGRAMS
        if shapes.rows and (enough or devices in ("NVIDIA", "AMD")):
            curve = _curve(devices, calls[0][1], shapes, float32=plain, shortest=shortest.get(devices, 0))
            curves.append(curve)
            if category == "elementwise":
                shortest[devices] = curve.floor
    return tuple(sorted(curves, key=lambda curve: (curve.devices, curve.category, curve.float32)))


def _shapes(calls: Sequence[tuple[str, Call]]) -> _Shapes:
    alike: dict[tuple[object, ...], list[Call]] = defaultdict(list)
    for program, call in calls:
        alike[program, *shape_of(call)].append(call)
    shapes = []
    for (program, *_), same in alike.items():
        call = same[0]
        try:
            arithmetic = products_ns(call.device, call.work) if call.work.flops else 0.0
        except ValueError:
            continue
        sizes = call.work.sizes if call.work.category.startswith("attention") else None
        shapes.append(
            _Shape(
                program=(str(program), call.device.name),
                products=arithmetic,
                length=0 if sizes is None else min(sizes.rows, sizes.columns),
                memory=bytes_ns(call.device, call.work.bytes),
                elements=element_cycles_ns(call.device, call.work),
                times=np.array([one.time_ns for one in same], float),
            )
        )
    return _Shapes(shapes)


def _curve(devices: str, like: Call, shapes: _Shapes, *, float32: bool, shortest: int) -> Curve:
    at = min((_descent(shapes, share, shortest) for share in STARTS), key=lambda found: found[0])[1]
    small, large = _ends(shapes, at["floor"], shapes.work(at))
    return Curve(
        devices=devices, category=like.work.category, float32=float32, floor=round(at["floor"]), matrix=at["matrix"],
        memory=at["memory"], elements=0.0 if np.isinf(at["elements"]) else at["elements"], half=round(at["half"]),
        small=small, large=large, shapes=len(shapes.rows), kernels=sum(len(row.times) for row in shapes.rows),
    )  # fmt: skip


def _descent(shapes: _Shapes, share: float, shortest: int) -> tuple[float, dict[str, float]]:
    """(mean absolute logarithm, curve) where no single number of the curve brings it nearer."""
    medians = np.log([float(np.median(row.times)) for row in shapes.rows])
    weights = shapes.weights
    at = {"floor": max(3000.0, shortest), "matrix": 1.0, "memory": share, "elements": np.inf, "half": 0.0}
    free = ["floor", "memory"]
    if shapes.column("elements").any():
        free.append("elements")
    if shapes.column("products").any():
        free.append("matrix")
        at["matrix"] = share
    if shapes.column("length").any():  # attention: what it multiplies, at a share that grows with its length
        free = ["floor", "matrix", "half"]
        at["memory"] = 0.8
    grid = {**GRID, "floor": GRID["floor"][GRID["floor"] >= shortest]}
    best, before = np.inf, np.inf
    while True:
        for name in free:
            tried: dict[str, Floats | float] = {**at, name: grid[name][:, None]}
            misses = np.abs(medians - np.log(tried["floor"] + shapes.work(tried))) @ weights
            row = int(misses.argmin())
            if misses[row] < best - 1e-9:
                best, at[name] = float(misses[row]), float(grid[name][row])
        if best > before - 1e-9:
            return best, at
        before = best


def _ends(shapes: _Shapes, floor: float, busy: Floats) -> tuple[tuple[float, float], tuple[float, float]]:
    ratios: dict[bool, list[float]] = {True: [], False: []}
    counts = {True: 0, False: 0}
    for shape, work in zip(shapes.rows, busy, strict=True):
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
        f"matrix={one.matrix}, memory={one.memory},\n"
        f"          elements={one.elements}, half={one.half}, small={one.small}, large={one.large}, "
        f"shapes={one.shapes}, kernels={one.kernels}),\n"
        for one in curves
    ).replace("'", '"')
    listed = "\n".join(f"* {file}" for file in files)
    return (
        f'"""Curves of kernel times, fitted on {date} by ``python -m tools.calibration --fit``.'
        f"\n\nTo these recordings of others:\n\n{listed}\n\n"
        "Never changed by hand: a test holds the table to what the fit gives.\n"
        '"""\n\nfrom __future__ import annotations\n\n'
        "from perfscope.analyzers.predict.curve import Curve\n\n"
        f"CURVES: tuple[Curve, ...] = (\n{rows})  # fmt: skip\n"
    )
