"""Accuracy of the predicted memory under another checkpointing policy, against steps that were run with it.

    python benchmarks/memory_plans.py [--runs DIR] [--write]

Each size of the workload ``perfscope.workloads.transformer`` is recorded by ``perfscope run`` under each policy, on the
CPU. From each recording the peak and the recomputation of every policy are predicted and compared with the measurements
under that policy: the peak of the allocator's events in the detail pass, and the spans of the ops that ran again in the
timing pass. ``--runs``: keep the recordings there, and use existing ones. ``--write``: put the table into
docs/memory.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from perfscope.analyzers.ops.recompute import recompute_regions  # noqa: E402
from perfscope.analyzers.readers.load import load_one  # noqa: E402
from perfscope.analyzers.time.steps import step_windows  # noqa: E402
from perfscope.model.units import format_bytes, format_ns  # noqa: E402
from perfscope.plugins.memory_advice.simulate import Simulator  # noqa: E402
from perfscope.plugins.memory_advice.step_model import Policy, StepModel  # noqa: E402
from perfscope.plugins.memory_advice.step_model_torch import torch_step_model  # noqa: E402

PAGE = REPOSITORY / "docs" / "memory.md"
BEGIN, END = "<!-- benchmarks/memory_plans.py writes from here -->", "<!-- to here -->"

POLICIES: Mapping[str, Policy] = {"none": "keep", "full": "full", "selective": "selective"}
SIZES: Mapping[str, tuple[str, ...]] = {
    "2 layers of 64": ("--size", "tiny"),
    "2 layers of 128": ("--size", "cpu"),
    "8 layers of 128": ("--size", "cpu", "--layers", "8"),
    "4 layers of 256, attention in memory": (
        "--size", "cpu", "--layers", "4", "--dim", "256", "--batch", "4", "--variant", "naive",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recording:
    """One run: the model of its step, and what was measured."""

    model: StepModel
    recompute_ns: int
    """Measured, of one step."""

    @property
    def peak_bytes(self) -> int:
        """Measured."""
        if self.model.measured_peak_bytes is None:
            raise ValueError("the run has no allocator events")
        return self.model.measured_peak_bytes

    @property
    def held_bytes(self) -> int:
        """Held all of the step."""
        return self.model.parameter_bytes + self.model.optimizer_bytes + self.model.other_bytes


def record(folder: Path, size: str, policy: str) -> Recording:
    """The run of a size under a policy, recorded unless it is there."""
    runs = folder / f"{size}-{policy}".replace(" ", "-").replace(",", "")
    if not (runs / "latest").exists():
        command = [sys.executable, "-m", "perfscope", "run", "--quiet", "--output", str(runs), "-m"]
        command += ["perfscope.workloads.transformer", "--policy", policy, *SIZES[size]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    trace = load_one(runs)
    model, windows = trace.fact(torch_step_model), trace.fact(step_windows)
    again = sum(region.time.exposed_ns for region in trace.fact(recompute_regions)) / windows.count
    # As a share of the traced step, which profiling makes longer: predictions are of steps without it.
    traced = float((windows.ends - windows.starts).mean())
    return Recording(model, round(again * min(1.0, (model.step_ns or traced) / traced)))


def rows(size: str, found: Mapping[str, Recording]) -> Iterator[str]:
    """Rows of the table: a policy each, with what each recording predicts of it."""
    for policy, name in POLICIES.items():
        measured = found[policy]
        errors, times = [], []
        for recording in found.values():
            told = Simulator(recording.model).run([name] * len(recording.model.regions))
            whole = told.peak_bytes / measured.peak_bytes - 1
            made = (told.peak_bytes - told.held_bytes) / (measured.peak_bytes - measured.held_bytes) - 1
            errors.append(f"{whole:+.2%} ({made:+.2%})")
            times.append(format_ns(told.recompute_ns) if told.recompute_ns else "0")
        cells = [size, policy, format_bytes(measured.peak_bytes), *errors]
        cells += ["0" if name == "keep" else format_ns(measured.recompute_ns), " / ".join(times)]
        yield f"| {' | '.join(cells)} |"


def table(folder: Path) -> str:
    """The whole table in Markdown."""
    lines = [
        "| workload | policy | peak measured | error from `none` | from `full` | from `selective` "
        "| recompute measured | predicted from each |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in SIZES:
        lines += rows(size, {policy: record(folder, size, policy) for policy in POLICIES})
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the table between the marks of the page."""
    page = PAGE.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no place for the table")
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    """Record what is not there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the recordings")
    parser.add_argument("--write", action="store_true", help="put the table into docs/memory.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text = table(asked.runs or Path(scratch))
    print(text)
    if asked.write:
        write(text)


if __name__ == "__main__":
    main()
