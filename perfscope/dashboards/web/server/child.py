"""What all children of the server do: tell how far they are, write what is shown, and fail in one line."""

from __future__ import annotations

import fcntl
import json
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import msgspec

from perfscope.model.errors import PerfscopeError
from perfscope.model.files import write_atomically

STATE_FILE = "state.json"
LOCK_FILE = "lock"
"""Held by the child for as long as it lives: how the server tells one that works from one that died."""


class Child(ABC):
    """One preparation. ``path`` is named where it fails; ``folder`` is there, and nothing is written yet."""

    def __init__(self, path: str, folder: Path) -> None:
        """Begin to count the time."""
        self.path = path
        self.folder = folder
        self.traces = 0
        """Read so far."""
        self._began = time.time()

    @abstractmethod
    def run(self) -> None:
        """Do it and tell ``ready``; `PerfscopeError`: why not."""

    def tell(self, state: str, stage: str) -> None:
        """How far it is, for the server."""
        held = {"state": state, "stage": stage, "began_unix_s": self._began, "traces": self.traces, "pid": os.getpid()}
        write_atomically(self.folder / STATE_FILE, json.dumps(held).encode(), durable=False)

    def write(self, name: str, held: dict[str, Any]) -> None:
        """The data of a page."""
        write_atomically(self.folder / f"{name}.json", msgspec.json.encode(held), durable=False)


def run_alone(child: Child) -> int:
    """Run it to its end, with the lock of its folder; the exit code. 0 also where another child is at it."""
    with (child.folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        try:
            child.run()
        except PerfscopeError as error:
            child.tell("failed", str(error))
            return error.exit_code
        except MemoryError:
            child.tell("failed", f"{child.path}: does not fit into the memory of this machine")
            return 1
    return 0
