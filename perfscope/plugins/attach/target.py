"""A process by its number: whether it can be looked into, what it runs, and the run folder it writes to."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.model.capture import VARIABLE
from perfscope.model.documents import run_folders
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize, scrub_command

PROC = Path("/proc")
MOST_BYTES = 1 << 20
"""Most bytes that are read of a file in /proc."""


class Target(Struct, frozen=True, kw_only=True):
    """A Python process."""

    pid: int
    command: str
    """Its program and arguments, without secrets; empty where the system does not show them."""
    executable: str
    run: Path | None
    """The run folder that it records into now."""


def find(pid: int) -> Target:
    """Find a process by its number; ``DataError`` if it does not run, is another user's, or not Python."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise DataError(f"{pid}: no process has this number") from None
    except PermissionError:
        raise DataError(f"{pid}: the process belongs to another user: run perfscope as that user, or as root") from None
    if pid == os.getpid():
        raise DataError(f"{pid}: this is perfscope itself")
    if not PROC.is_dir():  # macOS, Windows: the ways to read stacks have their own checks
        return Target(pid=pid, command="", executable="", run=None)
    folder = PROC / str(pid)
    words = _read(folder / "cmdline").split(b"\0")[:-1]
    if not words:
        raise DataError(f"{pid}: the process has ended, or belongs to the kernel")
    executable = _link(folder / "exe")
    if not _is_python(folder, executable):
        name = sanitize(os.fsdecode(words[0]).rpartition("/")[2])
        raise DataError(f"{pid}: {name} is not a Python program")
    command = scrub_command([os.fsdecode(word) for word in words])
    return Target(pid=pid, command=" ".join(map(sanitize, command)), executable=executable, run=_run_of(pid, folder))


def _is_python(folder: Path, executable: str) -> bool:
    """Whether the program is an interpreter, or has loaded its library."""
    if executable.rpartition("/")[2].startswith(("python", "pypy")):
        return True
    return b"libpython" in _read(folder / "maps")


def _run_of(pid: int, folder: Path) -> Path | None:
    """The run folder: named in the environment that ``perfscope run`` gave the process, or in its working folder."""
    for pair in _read(folder / "environ").split(b"\0"):
        if pair.startswith(VARIABLE.encode() + b"="):
            with suppress(ValueError, KeyError, TypeError):
                message: dict[str, Any] = json.loads(pair.partition(b"=")[2])
                run = Path(message["directory"])
                return run if run_folders.is_running(run) else None
    root = Path(_link(folder / "cwd")) / RUNS_FOLDER
    for run in run_folders.directories(root)[:MOST_RUNS]:
        processes, _ = run_folders.read_processes(run)
        if any(process.pid == pid for process in processes):
            return run if run_folders.is_running(run) else None
    return None


MOST_RUNS = 20
"""Newest runs in which a process is searched."""


def _read(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(MOST_BYTES)
    return b""


def _link(path: Path) -> str:
    with suppress(OSError):
        return str(path.readlink())
    return ""


def same_python(target: Target) -> bool:
    """Whether the process runs this version of Python, as ``sys.remote_exec`` requires."""
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Path(target.executable).name.startswith(own)
