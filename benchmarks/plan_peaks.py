"""How well the peak of a planned PyTorch step agrees with the allocator of a step that was run.

    PERFSCOPE_PLUGINS=... python benchmarks/plan_peaks.py [--runs DIR] [--only NAME] [--write]

Each size of the workload ``perfscope.workloads.transformer`` is run under each policy on the CPU, without torch.compile
and with it (inductor's C++ kernels), under torch's profiler from the first tensor on, and planned without a device:
with inductor's Triton backend, as ``perfscope compile`` does, and with the backend that the run has. Planned peaks are
those before rounding: the CPU's allocator does not round. ``--write``: put the tables into docs/compile-torch.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks.memory_plans import POLICIES, SIZES  # noqa: E402
from perfscope.analyzers.devices.target_text import parse_target  # noqa: E402
from perfscope.analyzers.readers.load import load_one  # noqa: E402
from perfscope.model.documents.torch_plan import PlanMemory  # noqa: E402
from perfscope.model.units import format_bytes  # noqa: E402
from perfscope.plugins.ahead.command import request_of  # noqa: E402
from perfscope.plugins.ahead.common import compile as compiling  # noqa: E402
from perfscope.plugins.ahead.common.compile import compile_program  # noqa: E402

PAGE = REPOSITORY / "docs" / "compile-torch.md"
BEGIN, END = "<!-- benchmarks/plan_peaks.py writes from here -->", "<!-- to here -->"
PROGRAM = Path(__file__).with_name("plan_peaks_program.py")
STEPS = 6
"""The plan is of the second step (eager) and the fourth (compiled); inputs of all steps are made before the first."""
EAGER, COMPILED = 1, 3

CHILD = compiling.CHILD
OWN_KERNELS = """
from perfscope.plugins.ahead.common import child
from perfscope.plugins.ahead.torch import compat

def as_it_is(_):
    import torch._inductor.config
    torch._inductor.config.cpu_backend = "cpp"

compat.treat_cpu_as_device = as_it_is
child.main()
"""
"""A child that plans with inductor's C++ backend."""

HEAD = (
    "| workload | policy | eager, measured | planned | apart | compiled, measured | planned with the same kernels "
    "| apart | apart from what ops free again | with Triton's kernels | as a device rounds |"
)


def _words(size: str, policy: str) -> tuple[str, ...]:
    return (str(PROGRAM), "--steps", str(STEPS), "--policy", policy, *SIZES[size])


def measured(folder: Path, size: str, policy: str) -> dict[str, dict[str, list[int]]]:
    """Peaks of the steps of both runs."""
    file = folder / "measured.json"
    if not file.exists():
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "PLAN_PEAKS_TO": str(file)}
        command = [sys.executable, *_words(size, policy)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    found: dict[str, dict[str, list[int]]] = json.loads(file.read_text())
    return found


def planned(folder: Path, size: str, policy: str, *, own: bool) -> PlanMemory:
    """Peaks as planned; ``own``: with the kernels that the CPU runs."""
    runs = folder / ("own" if own else "triton")
    done = sorted(runs.glob("*/compile.json"))
    if not done:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "child.py").write_text(OWN_KERNELS)
        compiling.CHILD = folder / "child.py" if own else CHILD
        target = parse_target("h100", None)
        os.environ["PYTHONPATH"] = str(REPOSITORY)
        request = request_of(_words(size, policy), module=False, framework="torch", target=target)
        done = [compile_program(request, root=runs)]
    (held,) = load_one(done[0] if done[0].is_dir() else done[0].parent).torch_plans
    if held.plan.memory is None or held.plan.failure is not None:
        raise ValueError(f"{size}, {policy}: {held.plan.failure or 'no peaks'}")
    return held.plan.memory


def row(folder: Path, size: str, policy: str) -> str:
    """A row of the table."""
    place = folder / f"{size}-{policy}".replace(" ", "-").replace(",", "")
    place.mkdir(parents=True, exist_ok=True)
    ran = measured(place, size, policy)
    theirs, own = (planned(place, size, policy, own=own) for own in (False, True))
    if theirs.eager is None or theirs.planned is None or own.planned is None:
        raise ValueError(f"{size}, {policy}: a peak is missing")
    eager, compiled = ran["eager"]["all"][EAGER], ran["compiled"]["all"][COMPILED]
    between = ran["compiled"]["between"][COMPILED]
    asked, same, triton = theirs.eager.requested_bytes, own.planned.requested_bytes, theirs.planned.requested_bytes
    cells = [size, policy, format_bytes(eager), format_bytes(asked), _apart(asked, eager)]
    cells += [format_bytes(compiled), format_bytes(same), _apart(same, compiled), f"{same - between:+,} B"]
    cells += [f"{triton - same:+,} B"]
    cells += [format_bytes(theirs.planned.peak_bytes)]
    return f"| {' | '.join(cells)} |"


def _apart(planned_bytes: int, measured_bytes: int) -> str:
    return f"{planned_bytes - measured_bytes:+,} B ({planned_bytes / measured_bytes - 1:+.2%})"


def table(folder: Path, sizes: list[str]) -> Iterator[str]:
    """Lines of the table."""
    yield HEAD
    yield "| --- | --- |" + " ---: |" * (HEAD.count("|") - 3)
    for size in sizes:
        for policy in POLICIES:
            yield row(folder, size, policy)


def main() -> None:
    """Run and plan what is not there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the runs and plans")
    parser.add_argument("--only", choices=SIZES, action="append", help="a size")
    parser.add_argument("--write", action="store_true", help="put the table into docs/compile-torch.md")
    asked = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for line in table(asked.runs or Path(scratch), asked.only or list(SIZES)):
            lines.append(line)
            print(line, flush=True)
    if asked.write:
        before, begin, rest = PAGE.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{PAGE.name} has no place for the table")
        PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


if __name__ == "__main__":
    main()
