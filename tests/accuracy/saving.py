"""The cost of a defect: steps of the program and of its twin, in alternating launches without a profiler."""

from __future__ import annotations

import math
import os
import random
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perfscope.analyzers.compare.statistics.estimators import location, quantile
from perfscope.analyzers.compare.statistics.warm_up import steady_part
from perfscope.model.documents.ab import Arm
from perfscope.profiler.ab.launch import ArmFolder, launch_once
from perfscope.profiler.launch.program import Target
from tests.accuracy.cases import Program
from tests.accuracy.judge import environment_of

STEPS = 44
"""Steps of a measured launch: JAX is timed in windows of eight steps."""
ESTIMATOR = "p25"
"""Stands for a launch: on a machine that others use the median repeats worse."""
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Saving of the twin's step in ns: mean of the pairs and its interval of level 0.95 (Student's t)."""

    pairs: int
    defect_ns: int
    """Median over the launches."""
    twin_ns: int
    saving_ns: int
    low_ns: int
    high_ns: int


def measured_saving(defect: Program, twin: Program, folder: Path, pairs: int) -> Saving | None:
    """Launches both ``pairs`` times in turns, in random order; ``None`` where a launch fails or never settles."""
    order, times = random.Random(0), []
    folder.mkdir(parents=True, exist_ok=True)
    for pair in range(pairs):
        arms: list[tuple[Arm, Program]] = [("base", twin), ("head", defect)]
        order.shuffle(arms)
        of_pair: dict[Arm, float] = {}
        for slot, (arm, program) in enumerate(arms):
            level = _step_ns(program, arm, pair, slot, folder)
            if level is None:
                return None
            of_pair[arm] = level
        times.append(of_pair)
    differences = [of_pair["head"] - of_pair["base"] for of_pair in times]
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    half = quantile(1 - (1 - LEVEL) / 2, pairs - 1) * spread / math.sqrt(pairs)
    return Saving(
        pairs=pairs,
        defect_ns=round(statistics.median(of_pair["head"] for of_pair in times)),
        twin_ns=round(statistics.median(of_pair["base"] for of_pair in times)),
        saving_ns=round(mean),
        low_ns=round(mean - half),
        high_ns=round(mean + half),
    )


def _step_ns(program: Program, arm: Arm, pair: int, slot: int, folder: Path) -> float | None:
    arguments = list(program.arguments)
    arguments[arguments.index("--steps") + 1] = str(STEPS)
    with _environment(environment_of(program)):
        launch = launch_once(
            Target(arguments=(program.module, *arguments), module=True),
            ArmFolder(root=folder, folder=folder),
            arm=arm,
            phase="measure",
            pair=pair,
            slot=slot,
            log=folder / "launch.log",
        )
    if launch.problem is not None:
        return None
    times = launch.times_ns()
    part = steady_part(times)
    return location(times[part.dropped :], ESTIMATOR)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
