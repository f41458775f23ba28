"""A bounded list of records that is written as JSON lines, one record per line after a header line."""

from __future__ import annotations

import json
import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from perfscope.model.documents.run_folders import write_atomically
from perfscope.profiler.jax import compat


class RecordLog:
    """Records of one kind. Adding is safe on any thread; beyond ``most`` they are counted, not kept."""

    def __init__(self, schema: str, most: int) -> None:
        """``schema``: name and version of the format, in the first line."""
        self._schema = schema
        self._most = most
        self._records: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._written = -1
        self.dropped = 0
        """Records that there was no room for."""

    def __len__(self) -> int:
        return len(self._records)

    @property
    def full(self) -> bool:
        """Whether the next record will be dropped."""
        return len(self._records) >= self._most

    def add(self, **record: Any) -> None:
        """Keep a record; facts that are ``None`` are left out."""
        with self._lock:
            if self.full:
                self.dropped += 1
            else:
                self._records.append({key: value for key, value in record.items() if value is not None})

    def save(self, path: Path, **facts: Any) -> None:
        """Write everything to ``path``; it appears there whole. Nothing is done if nothing came since."""
        with self._lock:
            if len(self._records) + self.dropped == self._written:
                return
            self._written = len(self._records) + self.dropped
            head = {"schema": self._schema, "records": len(self._records), "dropped": self.dropped, **facts}
            text = "".join(json.dumps(line) + "\n" for line in (head, *self._records))
        write_atomically(path, text.encode(), durable=False)


# Whose line a call into jax came from: the innermost frame that is not of jax, numpy, stdlib or perfscope.


OURS = Path(__file__).resolve().parents[2]


class CallSites:
    """Finds the user's line, and names files from the working folder or the import path."""

    def __init__(self, working_folder: Path) -> None:
        """``working_folder``: that of the beginning; a program that moves later does not rename its files."""
        paths = sysconfig.get_paths()
        numpy = getattr(sys.modules.get("numpy"), "__file__", None)
        self._packages = (f"{paths['purelib']}/", f"{paths['platlib']}/")
        self._hidden = (*compat.package_folders(), *([f"{Path(numpy).parent}/"] if numpy else []), f"{OURS}/")
        self._workloads = f"{OURS}/workloads/"
        self._stdlib = (f"{paths['stdlib']}/", f"{paths['platstdlib']}/")
        below = sorted({f"{Path(path).resolve()}/" for path in (*sys.path, *self._packages) if path}, key=len)
        self._roots = (f"{working_folder}/", *reversed(below))
        self._names: dict[str, str] = {}

    def here(self, frame: FrameType | None) -> tuple[str, int, str] | None:
        """File, line and function of the user's frame at or outside of ``frame``; ``None`` if there is none."""
        while frame is not None:
            path = frame.f_code.co_filename
            if not self._is_hidden(path):
                return self.name(path), frame.f_lineno, frame.f_code.co_qualname
            frame = frame.f_back
        return None

    def name(self, path: str) -> str:
        """The file as the user would name it."""
        name = self._names.get(path)
        if name is None:
            name = path
            if not path.startswith("<"):
                absolute = str(Path(path).absolute())
                root = next((root for root in self._roots if absolute.startswith(root)), "")
                name = absolute[len(root) :]
            self._names[path] = name
        return name

    def _is_hidden(self, path: str) -> bool:
        if path.startswith("<"):
            return not path.startswith("<ipython")
        if path.startswith(self._workloads):
            return False
        return path.startswith(self._hidden) or (path.startswith(self._stdlib) and not path.startswith(self._packages))
