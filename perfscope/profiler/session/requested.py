"""A recording of the next steps, requested by ``perfscope attach`` in a program that calls ``perfscope.step()``.

The request is a file in a folder of the user, which `annotate.step` looks for once per second while nothing records.
The program answers with the run folder, records the steps as ``perfscope.profile`` does, and goes on without a session.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfscope.model.errors import DataError, NotStartedError
from perfscope.model.files import write_atomically
from perfscope.profiler.session import annotate

POLL_S = 0.1
MOST_STEPS = 100
FIRST_STEP = 2
"""Number of the first recorded step: the first one is not seen from its begin, and the second settles."""
RUNS = Path("perfscope-runs")


def request(pid: int, steps: int, wait_s: float) -> Path | None:
    """Ask a process for ``steps`` steps; the run folder it answers with, ``None`` without an answer in time.

    ``DataError`` with the reason why the process cannot record them.
    """
    asked = Path(annotate.request_path(pid))
    answer = asked.with_suffix(".answer")
    try:
        asked.parent.mkdir(mode=0o700, exist_ok=True)
        answer.unlink(missing_ok=True)
        write_atomically(asked, str(steps).encode(), durable=False)
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if answer.is_file():
                said: dict[str, Any] = json.loads(answer.read_bytes())
                if "run" not in said:
                    raise DataError(f"{pid}: {str(said.get('why'))[:300]}")
                return Path(str(said["run"]))
            time.sleep(POLL_S)
    except (OSError, ValueError) as error:
        raise DataError(f"{asked}: {error}") from error
    finally:
        for file in (asked, answer):
            with suppress(OSError):
                file.unlink(missing_ok=True)
    return None


def record_on_request() -> None:
    """Take the request that was found, at this step boundary."""
    RequestedRecording().begin()


class RequestedRecording:
    """One recording, from its request to its end. Nothing here may reach the program."""

    def __init__(self) -> None:
        """Nothing is recorded yet."""
        self._profile: Any = None

    def begin(self) -> None:
        """Take the request, and begin at this step boundary."""
        asked = Path(annotate.request_path(os.getpid()))
        try:
            mine = asked.parent.stat().st_uid == asked.stat().st_uid == os.getuid()
            steps = min(MOST_STEPS, max(1, int(asked.read_bytes()[:8]))) if mine else 0
            asked.unlink()
        except (OSError, ValueError):
            return
        if not steps:
            return
        from perfscope.profiler.launch.inside import Profile

        profile = Profile(None, "light", RUNS, quiet=True, steps=(FIRST_STEP, FIRST_STEP + steps))
        said: dict[str, str] = {}
        try:
            profile.begin()
        except (NotStartedError, DataError, OSError) as error:
            said = {"why": f"nothing is recorded: {error}"}
        if profile.directory is not None and not said:
            said = {"run": str(profile.directory.resolve())}
            self._profile = profile
            annotate.at_each_step(self.step_ended)
        with suppress(OSError):
            write_atomically(asked.with_suffix(".answer"), json.dumps(said).encode(), durable=False)

    def step_ended(self) -> None:
        """End the session once all steps are recorded."""
        from perfscope.profiler.session import session

        if session.has_passes():
            return
        annotate.at_each_step(None)
        self._profile.__exit__(None, None, None)
