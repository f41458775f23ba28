"""How well the peak of a planned PyTorch step agrees with the allocator of a step that was run.

    PERFSCOPE_PLUGINS=... python benchmarks/plan_peaks.py [--runs DIR] [--only NAME] [--write]

Each size of the workload ``perfscope.workloads.transformer`` is recorded by ``perfscope run`` under each policy on the
CPU, and planned by ``perfscope compile`` without a device. The peak of the allocator's events in the recording is laid
beside the planned one of the eager step, before rounding: the CPU's allocator does not round. ``--write``: put the
table into docs/compile-torch.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks.memory_plans import POLICIES, SIZES  # noqa: E402
from perfscope.analyzers.advice.step_model_torch import torch_step_model  # noqa: E402
from perfscope.analyzers.load import load_one  # noqa: E402
from perfscope.analyzers.units import format_bytes  # noqa: E402

PAGE = REPOSITORY / "docs" / "compile-torch.md"
BEGIN, END = "<!-- benchmarks/plan_peaks.py writes from here -->", "<!-- to here -->"


def _start(folder: Path, verb: tuple[str, ...], size: str, policy: str) -> Path:
    runs = folder / f"{verb[0]}-{size}-{policy}".replace(" ", "-").replace(",", "")
    if not (runs / "latest").exists():
        command = [sys.executable, "-m", "perfscope", *verb, "--quiet", "--output", str(runs), "-m"]
        command += ["perfscope.workloads.transformer", "--policy", policy, *SIZES[size]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return runs


def rows(folder: Path, size: str) -> Iterator[str]:
    """Rows of the table: a policy each."""
    for policy in POLICIES:
        ran = load_one(_start(folder, ("run",), size, policy)).fact(torch_step_model).measured_peak_bytes
        (held,) = load_one(_start(folder, ("compile", "--target", "h100"), size, policy)).torch_plans
        memory = held.plan.memory
        if ran is None or memory is None or memory.eager is None or memory.planned is None:
            raise ValueError(f"{size}, {policy}: a peak is missing")
        asked = memory.eager.requested_bytes
        cells = [size, policy, format_bytes(ran), format_bytes(asked), f"{asked - ran:+,}", f"{asked / ran - 1:+.2%}"]
        cells += [format_bytes(memory.eager.peak_bytes), format_bytes(memory.planned.peak_bytes)]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Record what is not there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the recordings")
    parser.add_argument("--only", choices=SIZES, action="append", help="a size")
    parser.add_argument("--write", action="store_true", help="put the table into docs/compile-torch.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lines = [
            "| workload | policy | measured | planned, eager | bytes apart | error | as a device rounds | compiled |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for size in asked.only or SIZES:
            for row in rows(asked.runs or Path(scratch), size):
                lines.append(row)
                print(row, flush=True)
    if asked.write:
        before, begin, rest = PAGE.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{PAGE.name} has no place for the table")
        PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


if __name__ == "__main__":
    main()
