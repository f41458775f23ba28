"""What capture costs a program: each pass against the untraced steps of the same process, and the whole run.

    python benchmarks/capture_overhead.py [--rounds 3] [--level default]

One row a workload. ``untraced``: median of the steps without a profiler. ``timing`` and ``detail``:
median of their steps over it. ``seconds``: the whole program, plain and captured. Medians over rounds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perfscope.model.documents import run_folders

PROGRAMS = (
    ("attention", "naive"),
    ("attention", "sdpa"),
    ("moe", "loop"),
    ("ssm", "scan"),
)
STEPS = 40


def seconds(command: list[str], folder: Path) -> float:
    """Wall time of a command that must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - begin


def step_durations_ns(path: Path) -> list[float]:
    """Durations of the steps in a trace of ours."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    return [
        event["dur"] * 1e3
        for event in content["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("perfscope.step#")
    ]


def measure(workload: str, variant: str, level: str, folder: Path) -> dict[str, float]:
    """One round: the program plain, then captured."""
    program = ["-m", f"perfscope.workloads.{workload}", "--variant", variant, "--steps", str(STEPS)]
    plain = seconds([sys.executable, *program], folder)
    run = [sys.executable, "-m", "perfscope", "run", "-q", "--no-report", "--level", level]
    captured = seconds([*run, *program], folder)
    directory = folder / "perfscope-runs" / "latest"
    manifest = run_folders.read(directory)
    untraced = statistics.median(manifest.processes[0].untraced_step_ns)
    row = {"untraced_ms": untraced / 1e6, "plain_s": plain, "captured_s": captured}
    for artifact in manifest.artifacts(directory):
        if artifact.pass_name in ("timing", "detail"):
            row[artifact.pass_name] = statistics.median(step_durations_ns(artifact.path)) / untraced
        row[f"{artifact.pass_name}_kb"] = artifact.path.stat().st_size / 1e3
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", default="default")
    asked = parser.parse_args()
    for workload, variant in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            rounds = [measure(workload, variant, asked.level, Path(folder)) for _ in range(asked.rounds)]
        keys = sorted({key for row in rounds for key in row})
        medians = {key: statistics.median(row[key] for row in rounds if key in row) for key in keys}
        shown = "  ".join(f"{key} {value:.2f}" for key, value in medians.items())
        print(f"{workload} {variant}: {shown}", flush=True)


if __name__ == "__main__":
    main()
