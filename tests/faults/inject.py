"""Breaks a process at the n-th write below a folder.

Writes are Python's audit events (a file opened for writing, renamed, removed, a folder made), and those that a scenario
reports to ``Fault.write``. Every write is tested in a separate process, forked from one that has done nothing yet.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfscope.__main__ import run
from perfscope.analyzers.readers import cache
from perfscope.analyzers.readers.load import load_all

CHANGING = {"os.rename": 0, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0, "os.symlink": 1, "os.truncate": 0}
"""Audit event -> which of its arguments is the path."""
NOT_REACHED = 77
PROGRAM_CODE = 7
MOST_WRITES = 400


WATCHES: list[Callable[[Fault], None]] = []
"""Called when a fault is armed: they report writes that are no audit events."""


class Fault:
    """Armed in one process: breaks its ``number``-th write below ``folder``."""

    def __init__(self, kind: str, number: int, folder: Path) -> None:
        self._kind, self._left, self._folder, self._pid = kind, number, str(folder), os.getpid()
        self.reached = False

    def arm(self) -> None:
        """From now on, until the process ends."""
        sys.addaudithook(self._audit)
        for watch in WATCHES:
            watch(self)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            path, writes = (arguments[CHANGING[event]], True) if event in CHANGING else ("", False)
        if writes and isinstance(path, str | os.PathLike) and str(Path(path).absolute()).startswith(self._folder):
            self.write(OSError(getattr(errno, self._kind, 0), os.strerror(getattr(errno, self._kind, 0))))

    def write(self, error: Exception) -> None:
        """Count a write; it raises ``error``, or kills the process, if it is the one to break."""
        if os.getpid() != self._pid:
            return
        self._left -= 1
        if self._left == 0:
            self.reached = True
            if self._kind == "KILL":
                os.kill(self._pid, signal.SIGKILL)
            raise error


# Actions, and conditions that must hold afterwards. All run in the folder of the test.


def analyze_with_cache() -> int:
    """Twice, as a user would: what the cache keeps is written, then read."""
    for _ in range(2):
        (trace,) = load_all("trace.json")
        assert len(trace.rows["kernels"]) == EVENTS, len(trace.rows["kernels"])
        assert int((trace.rows["kernels"]["end_ns"] - trace.rows["kernels"]["start_ns"]).sum()) == EVENTS * 1_000
    return 0


def cache_is_clean() -> None:
    """The trace reads the same again."""
    assert analyze_with_cache() == 0
    shutil.rmtree("cache", ignore_errors=True)


def run_program() -> int:
    """A program without torch that marks its steps; its code is the answer if it was started at all."""
    Path("started").unlink(missing_ok=True)
    code = run(["run", "-q", "train.py"])
    assert code == (PROGRAM_CODE if Path("started").exists() else 125), code
    return 0


def runs_are_clean() -> None:
    """The earlier run is as it was, whatever is left of the broken one can be listed, and the next run works."""
    assert run(["analyze", "-q", "perfscope-runs/earlier"]) == 0
    assert run(["runs"]) == 0
    Path("started").unlink(missing_ok=True)
    assert run(["run", "-q", "train.py"]) == PROGRAM_CODE


EVENTS = 500
SCENARIOS: dict[str, tuple[str, Callable[[], int], Callable[[], None]]] = {
    "cache": ("cache", analyze_with_cache, cache_is_clean),
    "run": ("perfscope-runs", run_program, runs_are_clean),
}
"""Name -> folder whose writes break, what is done, and the check."""


def _forked(work: Callable[[], int]) -> int:
    """The exit code of a fork that does ``work``, 128 and the signal if it was killed; its output is in ``log``."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            with Path("log").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            code = work()
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def broken(name: str, kind: str, number: int) -> int:
    """The exit code of the work of a scenario whose ``number``-th write breaks; ``NOT_REACHED`` if it has fewer."""
    folder, work, _ = SCENARIOS[name]

    def faulty() -> int:
        fault = Fault(kind, number, Path(folder).absolute())
        fault.arm()
        code = work()
        sys.stdout.flush()
        return code if fault.reached else NOT_REACHED

    return _forked(faulty)


def main(name: str, kind: str, every: int) -> None:
    """Break each write in turn (or each ``every``-th), and check after each. ``AssertionError`` where it fails."""
    cache.SMALLEST = 0
    _, _, check = SCENARIOS[name]
    for number in range(1, MOST_WRITES, every):
        code = broken(name, kind, number)
        if code == NOT_REACHED:
            print(f"{number - 1} writes")
            return
        allowed = (128 + signal.SIGKILL,) if kind == "KILL" else (0, 4)
        assert code in allowed, f"write {number}: exit code {code}: {Path('log').read_text()[-2_000:]}"
        after = _forked(lambda: check() or 0)
        assert after == 0, f"after write {number}: {Path('log').read_text()[-2_000:]}"
    raise AssertionError("there is no end of writes")


if __name__ == "__main__":
    os.chdir(sys.argv[4])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
