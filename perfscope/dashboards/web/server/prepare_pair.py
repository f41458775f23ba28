"""The child that compares two things, or reads a comparison that was made before.

``python -m perfscope.dashboards.web.server.prepare_pair BASE HEAD FOLDER`` (or ``DOCUMENT FOLDER``): what the page
shows goes to ``FOLDER/compare.json``, how far it is to ``FOLDER/state.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.readers.load import load_path
from perfscope.dashboards.report.compare import json
from perfscope.dashboards.web.server.child import Child, run_alone
from perfscope.dashboards.web.views.compare import view_of
from perfscope.model.documents import comparison as compare_document
from perfscope.model.documents.comparison import Document


class Comparing(Child):
    """Of two paths the comparison is made, as ``perfscope compare`` makes it; of one it is read."""

    def __init__(self, paths: Sequence[str], folder: Path) -> None:
        """``folder`` is there."""
        super().__init__(" and ".join(paths), folder)
        self._paths = paths

    def run(self) -> None:
        """Read, compare, write. ``PerfscopeError``: a side cannot be read, or they are no two of one kind."""
        document = self._made() if len(self._paths) == 2 else compare_document.read(self._paths[0])
        self.tell("working", "writing")
        self.write("compare", {"view": view_of(document)})
        self.tell("ready", "")

    def _made(self) -> Document:
        loaded = []
        for name, path in zip(("base", "head"), self._paths, strict=True):
            self.tell("working", f"reading {name}")
            loaded.append(load_path(path).traces)
            self.traces += len(loaded[-1])
        self.tell("working", "comparing")
        return compare_document.of(json.document(compare(*loaded)))


def main(arguments: Sequence[str]) -> int:
    """Compare all paths but the last into the last; 0 if it is done, or another child is at it."""
    *paths, folder = arguments
    return run_alone(Comparing(paths, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
