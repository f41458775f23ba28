"""Nsight Systems: a report's SQLite export (plain, gzip, xz) or parquet folder, or the report, through ``nsys``.

```
nsys profile -t cuda,nvtx,osrt -o report python train.py          writes report.nsys-rep
nsys export --type sqlite --output report.sqlite report.nsys-rep  writes report.sqlite: read here
```

Which tables are read, and what becomes of each: ``docs/nsys.md``. Never read: tables and keys that hold the
environment, host and user names (``TARGET_INFO_SYSTEM_ENV``, ``META_DATA_CAPTURE`` but for the settings named in
``nsys_sqlite/notes.py``), and strings that no event points at.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.readers.file_bytes import unpacked_path
from perfscope.analyzers.readers.nsys.build import FORMAT, build
from perfscope.analyzers.readers.nsys.database import open_database
from perfscope.analyzers.readers.nsys.export import exported
from perfscope.analyzers.readers.nsys.folder import Folder
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

__all__ = ["FORMAT", "read", "sniff"]

SQLITE_MAGIC = b"SQLite format 3\x00"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_PARQUET, _ARROW = "StringIds.parquet", "StringIds.arrow"
"""A file that ``nsys export --type parquetdir`` and ``arrowdir`` write beside those of the other tables."""
_MARKS = (b"StringIds", b"CUPTI_ACTIVITY_KIND_", b"TARGET_INFO_SESSION_START_TIME", b"ENUM_NSYS_", b"NVTX_EVENTS")
"""Names of tables; those that are written first stand in the first pages of the file."""


def sniff(path: Path, head: bytes) -> bool:
    """True for an export by the names of its tables, and for a report."""
    if path.is_dir():
        return any((path / name).is_file() for name in (_PARQUET, _ARROW))
    if head.startswith(SQLITE_MAGIC):
        return any(mark in head for mark in _MARKS)
    return head.startswith(REPORT_MAGIC) or path.name.endswith(_REPORT_SUFFIXES)


def read(path: Path) -> list[Trace]:
    """One trace for each process with work on a device, by rank; one trace where none has.

    ``DataError``, one line: no SQLite, corrupt, nothing in it, or a report that ``nsys`` cannot export here.
    """
    shown = str(path)
    if path.is_dir():
        if not (path / _PARQUET).is_file():
            raise DataError(
                f"{shown}: a folder of arrow files is not read; export the report as SQLite: "
                "nsys export --type sqlite REPORT"
            )
        return build(Folder(path), shown)
    with path.open("rb") as file:
        begins = file.read(len(REPORT_MAGIC))
    if begins == REPORT_MAGIC or path.name.endswith(_REPORT_SUFFIXES):
        with exported(path) as export, open_database(export, shown) as database:
            return build(database, shown)
    with unpacked_path(path, ".sqlite") as plain, open_database(plain, shown) as database:
        return build(database, shown)
