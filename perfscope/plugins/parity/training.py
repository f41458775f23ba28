"""Two trainings: from which step on their losses and gradient norms differ by more than runs of one side do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct, to_builtins

from perfscope.analyzers.compare import two_sided_p
from perfscope.model.documents import run_folders
from perfscope.model.errors import DataError
from perfscope.plugins.numerics import StepValues, load_numerics

TRAINING_SCHEMA = "perfscope.training/1"
HALVINGS = 4
"""Lengths of tested stretches: all steps, halves, quarters, down to sixteenths. Long stretches find small lasting
differences, short ones locate them; few are tested, because their number corrects the level."""
LEVEL = 0.05
"""Chance of reporting a difference between equal sides, over all stretches and both values."""

Verdict = Literal["same", "parts", "within noise", "cannot tell"]
METRICS: tuple[tuple[str, Callable[[StepValues], float | None]], ...] = (
    ("loss", lambda step: step.loss),
    ("gradient norm", lambda step: step.gradient_norm),
)


class Block(Struct, frozen=True, kw_only=True):
    """A stretch of steps, ``end`` excluded: means over its steps and the runs of a side."""

    first: int
    end: int
    a: float
    b: float
    noise: float | None
    """Standard deviation between runs of one side; ``None`` with one run per side."""
    p: float | None
    """p value of the difference, corrected for the number of tests."""


class Metric(Struct, frozen=True, kw_only=True):
    """A value of both sides."""

    name: str
    verdict: Verdict
    steps: int
    """Steps in which all runs have a finite value; only these are compared."""
    first_different: int | None
    """The first step in which runs of both sides are not bit-identical."""
    parts_at: Block | None
    """Among the stretches that differ by more than noise the one that ends first."""
    blocks: tuple[Block, ...]
    """The shortest stretches, in order."""


class Training(Struct, frozen=True, kw_only=True):
    """The compared sides."""

    schema: str = TRAINING_SCHEMA
    a: str
    b: str
    runs_a: int
    runs_b: int
    metrics: tuple[Metric, ...]

    @property
    def parts(self) -> bool:
        """Whether a value differs by more than noise."""
        return any(metric.verdict == "parts" for metric in self.metrics)

    @property
    def open(self) -> bool:
        """Whether a difference cannot be separated from noise."""
        return any(metric.verdict == "cannot tell" for metric in self.metrics)

    def dump(self) -> bytes:
        """Return JSON text."""
        return json.dumps(to_builtins(self), indent=2, allow_nan=False).encode() + b"\n"


def compare_trainings(a: Path, b: Path) -> Training:
    """Compare two sides, each a run recorded with ``--numerics`` or a folder of such runs.

    ``DataError`` without any, or if no step has a loss or gradient norm in all of them.
    """
    sides = _runs(a), _runs(b)
    metrics = [metric for name, value in METRICS if (metric := _metric(name, value, *sides)) is not None]
    if not metrics:
        raise DataError(f"{a}, {b}: no step has a finite loss or gradient norm in all runs of both")
    return Training(a=str(a), b=str(b), runs_a=len(sides[0]), runs_b=len(sides[1]), metrics=tuple(metrics))


Run = dict[int, StepValues]


def _runs(folder: Path) -> list[Run]:
    """The steps of each run; with several ranks those of the first."""
    folders = [folder] if run_folders.is_run(folder) else sorted(run_folders.directories(folder))
    runs = []
    for path in folders:
        artifacts = [
            capture.artifact
            for process in run_folders.read(path).processes
            for capture in process.captures
            if capture.tool in ("torch_numerics", "jax_numerics") and capture.artifact is not None
        ]
        if artifacts:
            runs.append({step.step: step for step in load_numerics(path / artifacts[0]).steps})
    if not runs:
        raise DataError(
            f"{folder}: it has neither fingerprints nor numerics: record both runs with perfscope run --fingerprint "
            "... to compare them op by op, or with --numerics to compare their losses"
        )
    return runs


def _metric(name: str, value: Callable[[StepValues], float | None], a: list[Run], b: list[Run]) -> Metric | None:
    every = [*a, *b]
    numbers = sorted(set.intersection(*(set(run) for run in every)))
    numbers = [number for number in numbers if all(value(run[number]) is not None for run in every)]
    if not numbers:
        return None
    table = np.array([[value(run[number]) for number in numbers] for run in every], np.float64)
    different = [set(column[: len(a)]) != set(column[len(a) :]) for column in table.T]
    first = next((number for number, differs in zip(numbers, different, strict=True) if differs), None)
    levels = [count for count in (2**level for level in range(HALVINGS + 1)) if count <= len(numbers)]
    stretches = [part for count in levels for part in np.array_split(np.arange(len(numbers)), count)]
    tests = len(stretches) * len(METRICS)
    blocks = [
        _block([numbers[index] for index in part], table[: len(a), part], table[len(a) :, part], tests)
        for part in stretches
    ]
    parting = [block for block in blocks if block.p is not None and block.p < LEVEL]
    parts_at = min(parting, key=lambda block: (block.end, -block.first), default=None)
    return Metric(
        name=name,
        verdict=_verdict(blocks, parts_at, first),
        steps=len(numbers),
        first_different=first,
        parts_at=parts_at,
        blocks=tuple(blocks[-levels[-1] :]),
    )


def _verdict(blocks: Sequence[Block], parts_at: Block | None, first: int | None) -> Verdict:
    if first is None:
        return "same"
    if parts_at is not None:
        return "parts"
    return "cannot tell" if blocks[0].noise is None else "within noise"


def _block(steps: list[int], a: np.ndarray, b: np.ndarray, tests: int) -> Block:
    """Means of both sides; t test with the spread of runs pooled over both, corrected by Bonferroni."""
    means = a.mean(axis=1), b.mean(axis=1)
    freedom = len(a) + len(b) - 2
    noise = p = None
    if freedom > 0:
        noise = math.sqrt(sum(float(((side - side.mean()) ** 2).sum()) for side in means) / freedom)
        difference = abs(float(means[0].mean() - means[1].mean()))
        scale = noise * math.sqrt(1 / len(a) + 1 / len(b))
        p = (
            1.0
            if difference == 0
            else 0.0
            if scale == 0
            else min(1.0, tests * two_sided_p(difference / scale, freedom))
        )
    return Block(
        first=steps[0], end=steps[-1] + 1, a=float(means[0].mean()), b=float(means[1].mean()), noise=noise, p=p
    )
