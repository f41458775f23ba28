"""Stacks of all threads of another process: by py-spy, by ``sys.remote_exec``, or by the ledger in the process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import NAME_LIMIT, sanitize
from perfscope.plugins.attach.target import Target, same_python
from perfscope.plugins.job import ask_stacks

WAIT_S = 5.0
"""Longest wait for an answer of the process: it answers between two of its instructions, or once per second."""
SPY_S = 30.0
"""Longest run of py-spy, which reads the symbols of the interpreter first."""
MOST_FRAMES = 200
WAITS = "waits"
"""State of a thread that does not run."""

Frame = tuple[str, int, str]
"""File, line, function; innermost first."""


class ThreadStack(Struct, frozen=True, kw_only=True):
    """The stack of one thread."""

    name: str
    state: str
    """``runs``, ``waits``, ``has the interpreter's lock``; empty if it is not known."""
    frames: tuple[Frame, ...]


class Refused(Exception):  # noqa: N818 (a reason, not an error: the next way is tried)
    """Why a way does not show the stacks; its text is one line."""


def thread_stacks(target: Target) -> tuple[list[ThreadStack], str]:
    """(Stacks, how they were read). ``DataError`` with the reason of each way if none works."""
    refused = []
    ways: dict[str, Callable[[Target], list[ThreadStack]]] = {
        "py-spy": _by_spy,
        "sys.remote_exec": _by_remote_exec,
        "its ledger": _by_ledger,
    }
    for name, way in ways.items():
        try:
            return way(target), name
        except Refused as reason:
            refused.append(str(reason))
    raise DataError(f"{target.pid}: {'; '.join(filter(None, refused))}")


def _by_spy(target: Target) -> list[ThreadStack]:
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        raise Refused("its stacks need py-spy: pip install py-spy")
    command = [program, "dump", "--json", "--full-filenames", "--pid", str(target.pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SPY_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"py-spy does not answer: {type(error).__name__}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace")
        if "ermission" in said or "not permitted" in said:
            raise Refused(
                "the system refuses to look into it (ptrace): run as root, in a container with --cap-add SYS_PTRACE, "
                "or set kernel.yama.ptrace_scope to 0"
            )
        lines = [line.strip() for line in said.splitlines() if line.strip()]  # the reason, its causes, a backtrace
        reason = lines[0].removeprefix("Error: ") if lines else "no reason given"
        raise Refused(f"py-spy: {sanitize(reason)[:200]}")
    try:
        return [_of_spy(thread) for thread in json.loads(done.stdout)]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("py-spy: unknown output; perfscope reads that of version 0.4") from error


def _of_spy(thread: dict[str, Any]) -> ThreadStack:
    state = "has the interpreter's lock" if thread["owns_gil"] else "runs" if thread["active"] else WAITS
    frames = [(frame["filename"], int(frame["line"]), frame["name"]) for frame in thread["frames"]]
    return _stack(thread["thread_name"] or f"thread {thread['thread_id']}", state, frames)


def _by_remote_exec(target: Target) -> list[ThreadStack]:
    remote_exec: Any = getattr(sys, "remote_exec", None)
    if remote_exec is None:
        raise Refused("" if sys.version_info < (3, 14) else "this Python was built without sys.remote_exec")
    if not same_python(target):
        raise Refused(f"sys.remote_exec needs the same version of Python: the process runs {target.executable}")
    with tempfile.TemporaryDirectory(prefix="perfscope-attach-") as folder:
        answer, script = Path(folder) / "stacks.json", Path(folder) / "script.py"
        script.write_text(remote_script(answer))
        try:
            remote_exec(target.pid, str(script))
        except (OSError, RuntimeError) as error:
            raise Refused(f"sys.remote_exec: {error}") from error
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            if answer.exists():
                return [_stack(name, "", frames) for name, frames in json.loads(answer.read_bytes())]
            time.sleep(0.02)
    raise Refused("it does not reach its next instruction: its main thread waits in a call")


def remote_script(answer: Path) -> str:
    """The script that the process runs: it writes the stacks of its threads to ``answer``. Standard library only."""
    return f"""
def _perfscope_stacks(answer):
    import json, os, sys, threading, traceback
    names = {{thread.ident: thread.name for thread in threading.enumerate()}}
    stacks = []
    for ident, frame in sys._current_frames().items():
        rows = [(row.filename, row.lineno or 0, row.name) for row in traceback.extract_stack(frame)]
        rows = [row for row in reversed(rows) if row[2] != "_perfscope_stacks"]
        stacks.append((names.get(ident, "thread %d" % ident), rows))
    with open(answer + ".part", "w") as stream:
        json.dump(stacks, stream)
    os.replace(answer + ".part", answer)

try:
    _perfscope_stacks({str(answer)!r})
finally:
    del _perfscope_stacks
"""


def _by_ledger(target: Target) -> list[ThreadStack]:
    if target.run is None:
        raise Refused("")
    answered = ask_stacks(target.run, target.pid, WAIT_S)
    if answered is None:
        raise Refused("")
    return [_stack(name, "", frames) for name, frames in answered]


def _stack(name: str, state: str, frames: list[Any]) -> ThreadStack:
    try:
        whole = msgspec.convert(frames[:MOST_FRAMES], tuple[Frame, ...], strict=False)
    except msgspec.ValidationError as error:
        raise Refused("the answer of the process is not understood") from error
    shown = tuple((sanitize(file, NAME_LIMIT), line, sanitize(call, NAME_LIMIT)) for file, line, call in whole)
    return ThreadStack(name=sanitize(str(name), NAME_LIMIT), state=state, frames=shown)
