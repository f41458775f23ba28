"""``make test-gpu``: what only a machine with a GPU can tell, in less than eight minutes and without a network.

    python -m tests.gpu OUT                on a machine with an NVIDIA GPU, PyTorch and JAX
    python -m tests.gpu OUT --rehearse     every step on the CPU, at tiny sizes

1. self-test: known work under capture (``perfscope doctor --self-test``)
2. capture: the tests of capture
3. recordings: the workloads under capture (``fixtures/record_gpu.py``), kept in OUT
4. times: for each recording the modelled time of a step, as compiled for this device, against the measured one
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.conftest import REPOSITORY

SECONDS = 460.0
RECORDING_S = 150.0
COMPILE_S = 60.0
"""Seconds for one program; the others follow as long as there is time."""
REHEARSED = ("jax-attention-blocked",)
"""Recording of a rehearsal: one program is enough to take every step."""
REHEARSAL_TARGET = "h100"
TESTS = ("tests/torch_capture", "tests/jax_capture", "tests/commands/test_self_test.py")


def main(argv: Sequence[str] | None = None) -> int:
    """Take all steps; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for recordings and compiled programs")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU at tiny sizes")
    asked = parser.parse_args(argv)
    out, end = asked.out.absolute(), time.monotonic() + SECONDS
    out.mkdir(parents=True, exist_ok=True)
    target = REHEARSAL_TARGET if asked.rehearse else device_name()
    if target is None:
        say("no NVIDIA GPU is here: --rehearse takes every step on the CPU")
        return 1
    only = [word for name in REHEARSED if asked.rehearse for word in ("--only", name)]
    record = ["fixtures/record_gpu.py", str(out / "recordings"), "--seconds", str(RECORDING_S), *only]
    steps = {
        "self-test": ["-m", "perfscope", "doctor", "--self-test"],
        "capture": ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS],
        "recordings": [*record, *(["--dry-run"] if asked.rehearse else [])],
    }
    failed = [name for name, command in steps.items() if not step(name, command, end - time.monotonic())]
    if asked.rehearse:
        say(f"a rehearsal: modelled times are of {target}, measured ones of a CPU at tiny sizes")
    if not compare_times(out, target, end):
        failed.append("times")
    say(f"failed: {', '.join(failed)}" if failed else "all steps passed")
    return int(bool(failed))


def device_name() -> str | None:
    """The first GPU as the driver names it; ``None`` without one."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None


def step(name: str, command: Sequence[str], seconds: float) -> bool:
    """Run one step with its output shown; whether it passed."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=REPOSITORY, env=_environment(), timeout=max(1.0, seconds), check=False
        )
    except subprocess.TimeoutExpired:
        say(f"{name}: not done in time")
        return False
    say(f"{name}: exit code {done.returncode}, {time.monotonic() - began:.0f} s")
    return done.returncode == 0


def compare_times(out: Path, target: str, end: float) -> bool:
    """One line a recording: modelled range, measured median, and their ratio. False if none could be compared."""
    compared = 0
    for folder in sorted(path.parent for path in (out / "recordings").glob("*/run.json")):
        seconds = min(COMPILE_S, end - time.monotonic())
        measured = measured_ns(folder)
        if seconds <= 1.0 or measured is None:
            say(f"times: {folder.name}: left out, {'no step was timed' if measured is None else 'no time is left'}")
            continue
        modelled = modelled_ns(folder, out / f"{folder.name}.json", target, seconds)
        if modelled is None:
            say(f"times: {folder.name}: left out, it was not compiled for {target}")
            continue
        low, high = (ns / 1e6 for ns in modelled)
        ms, compared = measured / 1e6, compared + 1
        nearest = min(max(ms, low), high)
        where = "inside" if nearest == ms else f"{ms / nearest:.2f} times the nearer end"
        say(f"times: {folder.name}: modelled {low:.2f} to {high:.2f} ms for {target}, measured {ms:.2f} ms, {where}")
    return compared > 0


def measured_ns(folder: Path) -> float | None:
    """The median of a recording's steps without a profiler."""
    (process,) = json.loads((folder / "run.json").read_text())["processes"]
    times = process["untraced_step_ns"]
    return median(times) if times else None


def modelled_ns(folder: Path, report: Path, target: str, seconds: float) -> tuple[int, int] | None:
    """(low, high) of a step of the recorded program, compiled for the target at the sizes of a GPU."""
    words = json.loads((folder / "run.json").read_text())["command"]
    program = words[words.index("-m") :]
    program[program.index("--size") + 1] = "gpu"
    own = ["compile", "--target", target, "--quiet", "--output", str(report.parent / "compiled"), "--json", str(report)]
    try:
        command = [sys.executable, "-m", "perfscope", *own, *program]
        subprocess.run(command, env=_environment(), capture_output=True, timeout=seconds, check=False)
        document: dict[str, Any] = json.loads(report.read_text())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    compiled = "--compile" in program or any(word.startswith("--compile-") for word in program)
    ranges = [one["step_ns"] for one in document["estimate"]["programs"]]
    for plan in (document["plans"] or {"plans": ()})["plans"]:
        part = plan.get("compiled" if compiled else "eager")
        ranges += [part["step_ns"]] if part else []
    return (ranges[0]["low"], ranges[0]["high"]) if ranges and ranges[0] else None


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def say(line: str) -> None:
    """One line of progress, at once."""
    print(line, flush=True)


if __name__ == "__main__":
    missing = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]
    if missing:
        say(f"not installed here, and left out: {', '.join(missing)}")
    sys.exit(main())
