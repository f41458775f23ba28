"""A whole training job with everything that happens in a day, and whether its ledger shows it: 30 minutes, or less.

Two gloo ranks (`program.py`) with evaluations, checkpoints in the loop and asynchronous ones, one ``kill -9`` with a
resume, a call that becomes slow on one rank, and a hang. Each check is printed with the numbers that it is about; the
exit code is the number of failed ones.

    python benchmarks/job/whole_job.py FOLDER --minutes 30
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from perfscope.plugins.job.account import JobAccount, job_account

HERE = Path(__file__).resolve().parent
SHORT_MINUTES = 15


def run(folder: Path, minutes: float) -> Path:
    """Run the job below ``folder``; the run folder."""
    work = folder / "work"
    work.mkdir(parents=True)
    patience = 200 if minutes >= SHORT_MINUTES else 30
    job = [sys.executable, str(HERE / "launch.py"), "work", "--seconds", str(60 * minutes), "--patience", str(patience)]
    command = [sys.executable, "-m", "perfscope", "run", "--ledger", "--watch", "--no-report", "-q", "--", *job]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "perfscope-runs" / "latest"


def line_of(text: str) -> str:
    """The line of the program with a text, as reports name it."""
    lines = (HERE / "program.py").read_text().splitlines()
    return f"program.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def checks(account: JobAccount) -> Iterator[tuple[bool, str]]:
    """(Whether it holds, what is checked with its numbers)."""
    causes = {cause.cause: cause.ns / 1e9 for cause in account.causes}
    total = sum(cause.ns for cause in account.causes)
    yield account.total_ns == total, f"causes sum to the time of the ranks: {total} ns and {account.total_ns} ns"
    begins = {rank.rank: min(a.begin_ns for a in account.attempts if a.rank == rank.rank) for rank in account.ranks}
    ends = {rank.rank: max(a.end_ns for a in account.attempts if a.rank == rank.rank) for rank in account.ranks}
    wall = sum(ends[rank] - begins[rank] for rank in begins)
    yield wall == total, f"that is their wall clock: {wall} ns"
    for kind in ("save", "restore", "evaluation"):
        lines = {event.line for event in account.events if event.kind == kind}
        named = all("program.py:" in line for line in lines)
        yield bool(lines) and named, f"each {kind} has its line: {', '.join(sorted(lines))}"
    killed = [attempt for attempt in account.attempts if not attempt.ended]
    yield len(killed) >= 1, f"{len(killed)} processes were killed, {causes.get('lost work', 0):.1f} s of work is lost"
    gaps = causes.get("between attempts", 0.0)
    yield gaps < 60 * len(killed), f"{gaps:.1f} s are between attempts"
    slow = [change for change in account.changes if change.change > 0 and line_of("time.sleep(0.3)") in change.line]
    shown = [f"rank {change.rank}: {change.change:+.0%} at {change.line}, waits: {change.waits}" for change in slow]
    yield [change.rank for change in slow] == [1], f"the slow call is named on rank 1 alone: {'; '.join(shown)}"
    hangs = [f"{hang.missing} missing in {hang.collective}, known by the {hang.known}" for hang in account.hangs]
    yield any(hang.missing == (1,) for hang in account.hangs), f"the hang: {'; '.join(hangs)}"
    at = [stall.line for hang in account.hangs for stall in hang.ranks if stall.rank == 1]
    yield any(line_of("with lock:") in line for line in at), f"its line: {', '.join(at)}"
    saves = [f"{save.saves} saves at {save.line}, {save.slowed} slowed steps: {save.why}" for save in account.saves]
    yield bool(saves), f"asynchronous saves: {'; '.join(saves)}"


def main() -> int:
    """Run the job, or take a run that is there, and print the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder, or the folder of a run with --only-check")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only-check", action="store_true")
    options = parser.parse_args()
    folder = options.folder if options.only_check else run(options.folder.resolve(), options.minutes)
    failed = 0
    for holds, text in checks(job_account([folder])):
        failed += not holds
        print(f"{'ok' if holds else 'NO':4}{text}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
