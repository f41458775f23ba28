"""A bounded list of records that is written as JSON lines, one record per line after a header line."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from perfscope.model.files import json_bytes, write_atomically
from perfscope.profiler.jax import compat
from perfscope.profiler.source_files import SourceFiles


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

    def forget_steps(self) -> None:
        """Forget the numbers of steps so far, because they were another source's: the records have no known step."""
        with self._lock:
            for record in self._records:
                record.pop("step", None)
            self._written = -1

    def save(self, path: Path, **facts: Any) -> None:
        """Write everything to ``path``; it appears there whole. Nothing is done if nothing came since."""
        with self._lock:
            if len(self._records) + self.dropped == self._written:
                return
            self._written = len(self._records) + self.dropped
            head = {"schema": self._schema, "records": len(self._records), "dropped": self.dropped, **facts}
            content = b"".join(json_bytes(line) + b"\n" for line in (head, *self._records))
        write_atomically(path, content, durable=False)


class Site(NamedTuple):
    """The user's line that called something."""

    file: str
    line: int
    function: str
    library: str | None = None
    """``equinox/_jit.py:271``: the innermost line of an installed package that the user's line calls it through."""


class CallSites(SourceFiles):
    """Finds the user's line: the innermost frame that is not of jax, numpy, the standard library or perfscope.

    A line of another installed package is taken only if no line of the program itself is around it.
    """

    def __init__(self, working_folder: Path) -> None:
        """``working_folder``: that of the beginning."""
        numpy = getattr(sys.modules.get("numpy"), "__file__", None)
        super().__init__(working_folder, (*compat.package_folders(), *([Path(numpy).parent] if numpy else [])))

    def here(self, frame: FrameType | None) -> Site | None:
        """The user's frame at or outside of ``frame``; ``None`` without one."""
        installed: Site | None = None
        while frame is not None:
            path = frame.f_code.co_filename
            if self.is_user(path):
                site = Site(self.name(path), frame.f_lineno, frame.f_code.co_qualname)
                if not self.is_installed(path):
                    return site if installed is None else site._replace(library=f"{installed.file}:{installed.line}")
                installed = installed or site
            frame = frame.f_back
        return installed
