"""Starts the ranks of `program.py`, kills rank 1 once, and starts all again after the kill and after the hang.

Each attempt has a rendezvous file of its own. `whole_job.py` starts it under ``perfscope run --ledger``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WORLD = 2
KILL_AT = 0.3
"""Share of the duration after which rank 1 gets SIGKILL."""


def start(folder: Path, attempt: int, begin: float, seconds: float) -> list[subprocess.Popen[bytes]]:
    """Processes of an attempt."""
    program = Path(__file__).with_name("program.py")
    rendezvous = folder / f"rendezvous-{os.getpid()}-{attempt}"
    rendezvous.unlink(missing_ok=True)
    shared = ["--attempt", attempt, "--begin", begin, "--seconds", seconds, "--folder", folder, "--world", WORLD]
    return [
        subprocess.Popen(
            [
                sys.executable,
                program,
                *map(str, shared),
                *("--rank", str(rank), "--rendezvous", str(rendezvous)),
            ],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)},
        )
        for rank in range(WORLD)
    ]


def run(folder: Path, seconds: float, patience: float) -> int:
    """Run the job to its end; the exit code of its last attempt. ``patience``: seconds a hang may last."""
    begin, attempt, killed = time.time(), 0, False
    ranks = start(folder, attempt, begin, seconds)
    log = folder / "log-0.txt"
    while True:
        time.sleep(0.5)
        codes = [rank.poll() for rank in ranks]
        if codes == [0] * WORLD:
            return 0
        share = (time.time() - begin) / seconds
        if not killed and share > KILL_AT:
            killed = True
            os.kill(ranks[1].pid, signal.SIGKILL)
        silent = log.exists() and time.time() - log.stat().st_mtime > patience
        if not (any(codes) or silent):
            continue
        until = time.time() + 10
        while not silent and time.time() < until and any(rank.poll() is None for rank in ranks):
            time.sleep(0.2)
        for rank in ranks:
            rank.kill()
            rank.wait()
        attempt += 1
        if attempt > 3:
            return 1
        log.touch()
        ranks = start(folder, attempt, begin, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--patience", type=float, default=200, help="seconds after which a hang is ended")
    options = parser.parse_args()
    sys.exit(run(options.folder, options.seconds, options.patience))
