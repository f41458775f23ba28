"""The child that reads a local run store: how metrics went from commit to commit.

``python -m perfscope.dashboards.web.server.prepare_history STORE FOLDER``: what the page shows goes to
``FOLDER/history.json``, how far it is to ``FOLDER/state.json``. The store is only read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfscope.analyzers.compare.statistics.series import history
from perfscope.dashboards.run_store import RunStore
from perfscope.dashboards.web.server.child import Child, run_alone
from perfscope.dashboards.web.views.history import view_of
from perfscope.model.commits import ancestry, commits_between, current_commit
from perfscope.model.documents.stored_run import StoredRun
from perfscope.model.errors import DataError

MOST_RUNS = 400
"""The newest ones: two years of working days. A picture of more shows no more."""


class Remembering(Child):
    """Of the newest runs of a store."""

    def run(self) -> None:
        """Read, order, write. ``DataError``: it is damaged, or of another version than this perfscope writes."""
        self.tell("working", "reading")
        store = RunStore(Path(self.path))
        version = store.version()
        if version.is_older:
            raise DataError(f"{self.path}: of an older perfscope: perfscope history brings it up to date")
        runs = store.runs(last=MOST_RUNS) if version.schema else ()
        self.tell("working", "writing")
        if current_commit() is None:  # the server was not started in a repository: maybe the store lies in one
            os.chdir(Path(self.path).parent)
        tip, order = _order(runs)
        view = view_of(history(runs, order=order), count_between=commits_between)
        self.write("history", {"view": view | {"ordered": _said(tip, current_commit(), order, runs)}})
        self.tell("ready", "")


def _order(runs: Sequence[StoredRun]) -> tuple[str | None, dict[str, int]]:
    """The commit whose history orders the runs, and that order: HEAD's, unless that of the newest run knows more."""
    late_first = sorted(runs, key=lambda run: run.created_utc, reverse=True)
    newest = next((run.commit for run in late_first if run.commit), None)
    made = {run.commit for run in runs if run.commit}
    tips = [(tip, ancestry(tip)) for tip in dict.fromkeys((current_commit(), newest)) if tip is not None]
    return max(tips, key=lambda pair: len(made & pair[1].keys()), default=(None, {}))


def _said(tip: str | None, head: str | None, order: Mapping[str, int], runs: Sequence[StoredRun]) -> str:
    """By what the runs are ordered, in words."""
    made = {run.commit for run in runs if run.commit}
    if tip is None or not made & order.keys():
        return "Runs in the order of time: git knows none of their commits here."
    whose = "what is checked out" if tip == head else "the newest run"
    others = len(made - order.keys())
    left = f"; {others:,} commits are not among them: their series are in the order of time" if others else ""
    return f"Commits in the order of git, up to {whose} ({tip[:10]}){left}."


def main(arguments: Sequence[str]) -> int:
    """Read ``STORE`` into ``FOLDER``; 0 if it is done, or another child is at it."""
    return run_alone(Remembering(arguments[0], Path(arguments[1])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
