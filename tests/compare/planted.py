"""Runs of the workloads with a defect and without it: each program is recorded once for all tests of a session."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

STEPS = ("--size", "tiny", "--steps", "14")
NESTED = "checkpoint-nested"

TORCH: dict[str, Sequence[str]] = {
    "sdpa": (),
    "sdpa-again": (),
    "naive": ("--variant", "naive"),
    "item": ("--defect", "item"),
    "adam-loop": ("--defect", "adam-loop"),
    "checkpoint": ("--defect", "checkpoint"),
    "reentrant": ("--defect", "checkpoint-reentrant"),
    "nested": ("--defect", NESTED),
    "order": ("--kernel-defect", "order"),
    "order-twin": ("--kernel-twin", "order"),
    "layout": ("--kernel-defect", "layout", "--seq", "128"),
    "layout-twin": ("--kernel-twin", "layout", "--seq", "128"),
    "opaque": ("--compile-defect", "opaque", "--layers", "1"),
    "opaque-twin": ("--compile-twin", "opaque", "--layers", "1"),
    "float-arg": ("--compile-defect", "float-arg", "--compile-backend", "eager"),
    "float-arg-twin": ("--compile-twin", "float-arg", "--compile-backend", "eager"),
}
"""Arguments of ``workloads.attention``, whose variant is ``sdpa`` unless said otherwise."""

JAX: dict[str, Sequence[str]] = {
    "jax": (),
    "jax-again": (),
    "jax-float": ("--defect", "float"),
    "jax-checkpoint": ("--defect", "checkpoint"),
    "jax-nested": ("--defect", NESTED),
    "jax-order": ("--kernel-defect", "order"),
    "jax-order-twin": ("--kernel-twin", "order"),
    "jax-eager-update": ("--defect", "eager-update"),
    "jax-retrace": ("--defect", "retrace", "--steps", "9"),
}
"""Options of ``workloads.jax.attention``, whose variant is ``naive``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A defect, its baseline, and the expected first statement."""

    base: str
    head: str
    metric: str
    """An exact metric that is worse, as its name begins."""
    line: str | tuple[str, ...]
    """Part of the source line in first place; of several lines of one piece of code any."""
    twin: str | None = None
    """Part of the line that does the same without the defect, where that is another: what the reverse's head runs."""
    trades: bool = False
    """It saves something too (memory, launches), so that the reverse is worse in that."""

    def __str__(self) -> str:
        return self.head

    def is_twin(self, line: str) -> bool:
        """Whether a source line does the same without the defect."""
        return self.twin is not None and self.twin in line

    def is_at(self, line: str) -> bool:
        """Whether a source line is the one that must be in first place."""
        wanted = (self.line,) if isinstance(self.line, str) else self.line
        return any(one in line for one in wanted)


def recorded(root: Path, name: str) -> Path:
    """The run of a program, recorded below ``root`` unless it is there; safe for several processes."""
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = root / name / "latest"
        if not run.exists():
            _record(root / name, name)
        return run


def _record(folder: Path, name: str) -> None:
    module, variant = ("attention", "sdpa") if name in TORCH else ("jax.attention", "naive")
    _run(folder, folder.parent, name, (module, "--variant", variant, *STEPS, *(TORCH | JAX)[name]))


def _run(folder: Path, root: Path, name: str, program: Sequence[str]) -> None:
    command = [sys.executable, "-m", "perfscope", "run", "-q", "--no-report", "-o", str(folder), "--name", name, "-m"]
    # A graph from inductor's cache keeps the lines of when it was compiled: a cache of this session's own.
    cache = str(root / "inductor")
    place = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache}
    words = [*command, f"perfscope.workloads.{program[0]}", *program[1:]]
    subprocess.run(words, check=True, cwd=root, env=place, capture_output=True, timeout=500)


TURNS = "base head head base " * 3
LAYOUT = {"base": "--kernel-twin", "head": "--kernel-defect"}
WIDE = ("--variant", "parallel", "--dim", "64", "--heads", "1", "--batch", "8", "--seq", "512")


def recorded_in_turns(root: Path) -> tuple[Path, Path]:
    """Two sets of six launches: a kernel that reads its table in long strides, and one that does not."""
    for at, arm in enumerate(TURNS.split()):
        _run(root / arm, root, f"launch-{at}", ("ssm", *WIDE, *STEPS, LAYOUT[arm], "layout"))
    return root / "base", root / "head"


def source_line(place: str) -> str:
    """The text of ``file:line`` in the repository."""
    file, _, line = place.rpartition(":")
    return (REPOSITORY / file).read_text().splitlines()[int(line) - 1]
