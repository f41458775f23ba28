"""Asks the ledger of a process that runs for the stacks of its threads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from perfscope.plugins.job.recorder import FOLDER, STACKS_ANSWER, STACKS_REQUEST, SUFFIX

POLL_S = 0.05


def ask_stacks(run: Path, pid: int, wait_s: float) -> list[tuple[str, list[Any]]] | None:
    """(Thread, its (file, line, function), innermost first), answered within a second; ``None`` without an answer.

    A process without a ledger in the run is not asked.
    """
    if not any((run / FOLDER).glob(f"*-{pid}-*{SUFFIX}")):
        return None
    request, answer = (run / FOLDER / name.format(pid=pid) for name in (STACKS_REQUEST, STACKS_ANSWER))
    try:
        answer.unlink(missing_ok=True)
        request.touch()
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if answer.is_file():
                found = json.loads(answer.read_bytes())
                answer.unlink(missing_ok=True)
                return [(str(name), list(frames)) for name, frames in found]
            time.sleep(POLL_S)
        request.unlink(missing_ok=True)
    except (OSError, ValueError, TypeError):
        return None
    return None
