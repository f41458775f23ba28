"""Starts the children that read open items, reports their progress, and keeps their output on disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perfscope.dashboards.web.server.shelf import LOCK_FILE, STATE_FILE
from perfscope.dashboards.web.server.works import Work
from perfscope.model.errors import DataError
from perfscope.model.files import write_atomically

LOG_FILE = "log.txt"

AT_ONCE = 2
"""Children that read at the same time: each may need the memory of a whole trace."""
MOST_KEPT_BYTES = 8 << 30
MOST_STATE_BYTES = 64 << 10
GRACE_S = 2.0
LIVE_S = 5.0
"""Least seconds between two readings of a running run ..."""
LIVE_PAUSES = 9
"""... and least multiple of the duration of the last reading, because the measured program needs the processors."""

LEAST_PRIORITY = 19


def _made_by() -> str:
    """8 hexadecimal digits that change with any file of the package, so that output of other versions is not used."""
    package = Path(__file__).parents[2]
    files = sorted(
        (str(file.relative_to(package)), file.stat().st_size, file.stat().st_mtime_ns) for file in package.rglob("*.py")
    )
    return hashlib.sha256(repr(files).encode()).hexdigest()[:8]


MADE_BY = _made_by()


Stage = Literal["waiting", "working", "ready", "failed", "cancelled", "gone"]


class State(Struct, frozen=True, kw_only=True):
    """Progress of an item. ``folder`` holds data that can be shown, possibly of an older version."""

    stage: Stage
    words: str
    """Current activity, or reason of a failure, in words."""
    seconds: float
    folder: Path | None
    stale: bool = False
    """``folder`` is about older files; the current ones are being read, or are gone."""


def default_cache() -> Path:
    """Default folder for what was read."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "perfscope", "serve")


class Workshop:
    """Prepared items below a private folder (0700). Several servers may share it."""

    def __init__(self, root: Path, *, at_once: int = AT_ONCE) -> None:
        """``DataError`` if the folder cannot be created."""
        root = root.absolute()  # children have another current folder
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise DataError(f"{root}: cannot be made: {error.strerror or error}") from error
        self._root = root
        self._at_once = at_once
        self._guard = threading.Lock()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._cancelled: set[str] = set()
        self._last: dict[str, str] = {}
        """Item -> the newest folder that was ready."""

    def state(self, item: Work, *, start: bool = True) -> State:
        """State of the item; ``start``: begin to read it if nothing reads it yet or its files have changed."""
        print_ = item.fingerprint()
        shown = self._shown(item.key)
        if print_ is None:
            return State(stage="gone", words=f"{item.path}: no longer there", seconds=0.0, folder=shown, stale=True)
        folder = self._root / f"{item.key}-{print_}-{MADE_BY}"
        result = _read_state(folder)
        if result.get("state") == "ready":
            if self._last.get(item.key) != folder.name:
                self._last[item.key] = folder.name
                self._forget_older(item.key, folder)
            return State(stage="ready", words="", seconds=0.0, folder=folder)
        seconds = max(0.0, time.time() - float(result.get("began_unix_s") or time.time()))
        if result.get("state") == "failed":
            return State(stage="failed", words=str(result.get("stage")), seconds=seconds, folder=shown, stale=True)
        if folder.name in self._cancelled:
            return State(stage="cancelled", words="the reading was cancelled", seconds=0.0, folder=shown, stale=True)
        if _is_held(folder / LOCK_FILE):
            partial = shown if shown is not None else folder
            return State(
                stage="working",
                words=str(result.get("stage", "reading")),
                seconds=seconds,
                folder=partial,
                stale=shown is not None,
            )
        if result and folder.name not in self._children:  # unlocked but unfinished: a server that ended left it
            shutil.rmtree(folder, ignore_errors=True)
        if not start:
            return State(stage="waiting", words="", seconds=0.0, folder=shown, stale=shown is not None)
        return self._begin(item, folder, shown)

    def again(self, item: Work) -> None:
        """Forget a failure or cancellation, so that the next request reads the item again."""
        print_ = item.fingerprint()
        if print_ is None:
            return
        folder = self._root / f"{item.key}-{print_}-{MADE_BY}"
        self._cancelled.discard(folder.name)
        if _read_state(folder).get("state") != "ready" and not _is_held(folder / LOCK_FILE):
            shutil.rmtree(folder, ignore_errors=True)

    def cancel(self, item: Work) -> bool:
        """End the child that reads the item, also that of another server; return whether there was one."""
        with self._guard:
            mine = {name for name in self._children if name.startswith(f"{item.key}-")}
            for name in mine:
                _end(self._children.pop(name))
            others = {path.name for path in self._root.glob(f"{item.key}-*") if _is_held(path / LOCK_FILE)} - mine
            for name in others:
                pid = _read_state(self._root / name).get("pid")
                if isinstance(pid, int) and pid > 1:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGTERM)  # a child leads its own process group
            for name in mine | others:
                self._cancelled.add(name)
                shutil.rmtree(self._root / name, ignore_errors=True)
        return bool(mine | others)

    def close(self) -> None:
        """End all children."""
        with self._guard:
            for child in self._children.values():
                _end(child)
            self._children.clear()

    def _begin(self, item: Work, folder: Path, shown: Path | None) -> State:
        stale = shown is not None
        with self._guard:
            self._reap()
            if folder.name in self._children:
                return State(stage="working", words="reading", seconds=0.0, folder=shown, stale=stale)
            if len(self._children) >= self._at_once:
                return State(
                    stage="waiting", words="others are being read first", seconds=0.0, folder=shown, stale=stale
                )
            if item.running() and shown is not None and time.time() - shown.stat().st_mtime < _pause(shown):
                return State(stage="ready", words="", seconds=0.0, folder=shown, stale=True)
            self._make_room()
            folder.mkdir(mode=0o700, exist_ok=True)
            line = [sys.executable, "-m", "perfscope.dashboards.web.server.child", *item.command(), str(folder)]
            with (folder / LOG_FILE).open("wb") as log:
                self._children[folder.name] = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            if item.running():  # measured programs have priority
                os.setpriority(os.PRIO_PROCESS, self._children[folder.name].pid, LEAST_PRIORITY)
        return State(stage="working", words="reading", seconds=0.0, folder=shown, stale=stale)

    def _reap(self) -> None:
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is None:
                continue
            del self._children[name]
            state = _read_state(self._root / name).get("state")
            if state not in ("ready", "failed") and code:
                how = f"killed by signal {-code} (out of memory?)" if code < 0 else f"ended with code {code}"
                held = {"state": "failed", "stage": f"its reader was {how}" if code < 0 else f"its reader {how}"}
                with contextlib.suppress(OSError):
                    write_atomically(self._root / name / STATE_FILE, json.dumps(held).encode(), durable=False)

    def _shown(self, key: str) -> Path | None:
        """The newest complete folder of an item."""
        known = self._last.get(key)
        if known is not None and _read_state(self._root / known).get("state") == "ready":
            return self._root / known
        held = [
            path
            for path in self._root.glob(f"{key}-*-{MADE_BY}")
            if self._is_of(path, key) and _read_state(path).get("state") == "ready"
        ]
        return max(held, key=lambda path: path.stat().st_mtime, default=None)

    def _forget_older(self, key: str, kept: Path) -> None:
        """Keep the newest two folders of an item that changes repeatedly, such as a run in progress."""
        older = sorted(
            (path for path in self._root.glob(f"{key}-*-{MADE_BY}") if path != kept and self._is_of(path, key)),
            key=lambda path: path.stat().st_mtime,
        )
        for path in older[:-1]:
            if _read_state(path).get("state") == "ready" and not _is_held(path / LOCK_FILE):
                shutil.rmtree(path, ignore_errors=True)

    def _is_of(self, path: Path, key: str) -> bool:
        """Whether a folder belongs to this key, and not to a longer one with the same beginning."""
        return path.name[: -18 - len(MADE_BY)] == key

    def _make_room(self) -> None:
        """Remove the least recently shown folders until the rest fits."""
        held = [path for path in self._root.iterdir() if path.is_dir() and path.name not in self._children]
        sizes = {path: _size(path) for path in held}
        total = sum(sizes.values())
        for path in sorted(held, key=lambda item: item.stat().st_mtime):
            if total <= MOST_KEPT_BYTES:
                return
            if path.name not in self._last.values() and not _is_held(path / LOCK_FILE):
                shutil.rmtree(path, ignore_errors=True)
                total -= sizes[path]


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        content = (folder / STATE_FILE).read_bytes()[:MOST_STATE_BYTES]
        return msgspec.json.decode(content, type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}


def _pause(shown: Path) -> float:
    """Seconds from one reading of a running run to the next; ``shown``: folder of the last reading."""
    ended = shown.stat().st_mtime
    return max(LIVE_S, LIVE_PAUSES * (ended - float(_read_state(shown).get("began_unix_s") or ended)))


def _is_held(path: Path) -> bool:
    try:
        with path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
            return
    child.wait()


def _size(folder: Path) -> int:
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(top, name).stat().st_size
    return total
