"""The child that reads a local run store: how metrics went from commit to commit.

``python -m perfscope.dashboards.server.prepare_history STORE FOLDER``: what the page shows goes to
``FOLDER/history.json``, how far it is to ``FOLDER/state.json``. The store is only read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from perfscope.analyzers.compare.series import history
from perfscope.dashboards.server.child import Child, run_alone
from perfscope.dashboards.views.history import view_of
from perfscope.profiler.commits import ancestry, count_between, here
from perfscope.profiler.errors import DataError
from perfscope.profiler.run_store import schema
from perfscope.profiler.run_store.runs import RunStore

MOST_RUNS = 400
"""The newest ones: two years of working days. A picture of more shows no more."""


class Remembering(Child):
    """Of the newest runs of a store."""

    def run(self) -> None:
        """Read, order, write. ``DataError``: it is damaged, or of another version than this perfscope writes."""
        self.tell("working", "reading")
        store = RunStore(Path(self.path))
        with store.database.session(write=False) as session:
            version = schema.version_of(store.database, session)
        schema.check(store.database, version)
        if 0 < version.schema < schema.LATEST:
            raise DataError(f"{self.path}: of an older perfscope: perfscope history brings it up to date")
        runs = store.runs(last=MOST_RUNS) if version.schema else ()
        self.tell("working", "writing")
        found = history(runs, order=ancestry(here()))
        self.write("history", {"view": view_of(found, count_between=count_between)})
        self.tell("ready", "")


def main(arguments: Sequence[str]) -> int:
    """Read ``STORE`` into ``FOLDER``; 0 if it is done, or another child is at it."""
    return run_alone(Remembering(arguments[0], Path(arguments[1])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
