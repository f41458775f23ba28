"""What a list of runs says of each: its manifest in a few words, and nothing of its environment."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.profiler.aot.compiled_file import Compiled
    from perfscope.profiler.run import Run
    from perfscope.profiler.store import Listed


def row_of(listed: Listed) -> dict[str, Any]:
    """What a list says of one run, as JSON; of one that cannot be read its ``problem``. Times in ns."""
    if listed.compiled is not None:
        return _compiled_row(listed.directory.name, listed.compiled)
    if listed.run is None:
        return {"id": listed.directory.name, "state": "unreadable", "problem": listed.problem}
    run = listed.run
    return {
        "id": listed.directory.name,
        "name": run.name,
        "created_utc": run.created_utc,
        "state": run.state,
        "exit_code": run.exit_code,
        "ranks": len(run.processes),
        "steps": max((process.steps_seen for process in run.processes), default=0),
        "step_ns": step_ns_of(run),
        "captures": sorted(
            {capture.pass_name for process in run.processes for capture in process.captures if capture.artifact}
        ),
        "command": list(run.command),
        "notes": list(run.notes),
    }


def _compiled_row(name: str, compiled: Compiled) -> dict[str, Any]:
    """What was compiled, in the words of runs: nothing ran, so that there are neither ranks nor steps."""
    return {
        "id": name,
        "name": compiled.name,
        "created_utc": compiled.created_utc,
        "state": "compiled" if compiled.framework == "jax" else "planned",
        "complete": compiled.complete,
        "target": compiled.target.asked,
        "programs": [program.name for program in compiled.programs],
        "command": list(compiled.command),
        "notes": list(compiled.notes),
    }


def step_ns_of(run: Run) -> int | None:
    """Of the first rank, without a profiler, in ns: the mean with the devices waited for, else the host's median.

    ``None`` where no step was timed.
    """
    for process in run.processes:
        if process.window_ns is not None and process.window_steps > 0:
            return round(process.window_ns / process.window_steps)
        if process.untraced_step_ns:
            return round(statistics.median(process.untraced_step_ns))
    return None
