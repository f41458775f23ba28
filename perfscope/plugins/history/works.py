"""The history in a local run store, as a work of the dashboard's server."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.dashboards.web.server.shelf import Shelf, key_of
from perfscope.dashboards.web.server.works import APART, file_fingerprint
from perfscope.model.commits import ancestry, commits_between, current_commit
from perfscope.model.documents import run_folders
from perfscope.model.errors import DataError
from perfscope.plugins.history.store import RunStore
from perfscope.plugins.history.store.database import STORE_FILE

if TYPE_CHECKING:
    from perfscope.dashboards.web.server.child import Child
    from perfscope.plugins.history.stored_run import StoredRun

KIND = "history"
HEAD_S = 2.0
"""Seconds for which git's answer is reused."""
MOST_RUNS = 400
"""Most runs of a history, newest first: two years of working days. A picture of more would show no more detail."""


class Kept(Struct, frozen=True, kw_only=True):
    """The history in a local run store."""

    path: Path

    @property
    def key(self) -> str:
        """``~history~NAME``."""
        return f"{APART}{KIND}{APART}{key_of(self.path.parent)}"

    def fingerprint(self) -> str | None:
        """Fingerprint of the file and of its latest entry, and of the commit checked out, which orders the runs."""
        text = file_fingerprint(self.path)
        if text is None:
            return None
        late = file_fingerprint(self.path.with_name(f"{self.path.name}-wal"))
        held = text, late, _head(int(time.monotonic() / HEAD_S))
        return hashlib.sha256(repr(held).encode()).hexdigest()[:16]

    def running(self) -> bool:
        """False: entries do not change."""
        return False

    def command(self) -> tuple[str, ...]:
        """As `Work.command`."""
        return KIND, str(self.path)


def works(shelf: Shelf) -> tuple[Kept, ...]:
    """Local run stores next to the runs of each folder that the server was started with."""
    files = dict.fromkeys(
        folder / STORE_FILE for path in shelf.places for folder in _run_folders(path) if (folder / STORE_FILE).is_file()
    )
    return tuple(Kept(path=file) for file in files)


def _run_folders(path: Path) -> tuple[Path, ...]:
    """Folders of runs: the path itself, or the folder of a single run."""
    return (path, path.parent) if path.is_dir() and run_folders.is_run(path) else (path,)


@lru_cache(maxsize=2)
def _head(now: int) -> str | None:
    """The commit checked out in the working directory; git is run again every `HEAD_S` seconds."""
    return current_commit()


def prepare(child: Child, arguments: Sequence[str]) -> None:
    """``STORE``: write the metrics of its newest runs from commit to commit. The store is only read."""
    from perfscope.plugins.history.series import history
    from perfscope.plugins.history.view import view_of

    child.report("working", "reading")
    store = RunStore(Path(child.path))
    version = store.version()
    if version.is_older:
        raise DataError(f"{child.path}: of an older perfscope: perfscope history brings it up to date")
    runs = store.runs(last=MOST_RUNS) if version.schema else ()
    child.report("working", "writing")
    if current_commit() is None:  # the server was not started in a repository, but the store may be in one
        os.chdir(Path(child.path).parent)
    order, words = _order(runs)
    view = view_of(history(runs, order=order), count_between=commits_between)
    child.write("history", {"view": view | {"ordered": words}})


def _order(runs: Sequence[StoredRun]) -> tuple[dict[str, int], str]:
    """The order of commits and its description: HEAD's history, or the newest run's if that covers more runs."""
    head = current_commit()
    made = {run.commit for run in runs if run.commit}
    late_first = sorted(runs, key=lambda run: run.created_utc, reverse=True)
    newest = next((run.commit for run in late_first if run.commit), None)
    tips = [(tip, ancestry(tip)) for tip in dict.fromkeys((head, newest)) if tip is not None]
    tip, order = max(tips, key=lambda pair: len(made & pair[1].keys()), default=("", {}))
    if not made & order.keys():
        return order, "Runs in the order of time: the local git repository has none of their commits."
    whose = "what is checked out" if tip == head else "the newest run"
    others = len(made - order.keys())
    left = f"; {others:,} commits are not among them: their series are in the order of time" if others else ""
    return order, f"Commits in the order of git, up to {whose} ({tip[:10]}){left}."
