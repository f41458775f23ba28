"""Nsight Systems: a report's SQLite export (plain, gzip, xz) or parquet folder, or the report, through ``nsys``.

```
nsys profile -t cuda,nvtx,osrt -o report python train.py          writes report.nsys-rep
nsys export --type sqlite --output report.sqlite report.nsys-rep  writes report.sqlite: read here
```

``docs/nsys.md`` lists the tables that are read. Never read: tables and keys with the environment, host and user names
(``TARGET_INFO_SYSTEM_ENV``, ``META_DATA_CAPTURE`` except the settings in ``build.py``), and strings without an event.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.analyzers.readers.columns import ColumnBuffer, Columns
from perfscope.analyzers.readers.file_bytes import unpacked_path
from perfscope.analyzers.readers.nsys.build import FORMAT, build
from perfscope.analyzers.readers.nsys.database import NOTHING, NULL, TEXT_BYTES, open_database
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

SECONDS = 900
"""Time limit; an export writes some 100 MB/s, so a longer one is better exported once by hand and kept."""

_HEAD_BYTES = 256
_WRITTEN_BY = re.compile(rb"Profiler Report (\d{4}@\d+@\d+)")
_VERSION = re.compile(r"version (\d{4}(?:\.\d+)+)")
_TOO_OLD = "Version number is invalid"
_ERROR_LETTERS = 300

SUFFIX = ".parquet"

MOST_ROWS = 1 << 31
"""Maximum number of rows of one table; a parquet file of a few MB may declare any number."""

_BATCH = 1 << 16

SQLITE_MAGIC = b"SQLite format 3\x00"

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"

_REPORT_SUFFIXES = (".nsys-rep", ".qdrep")

_PARQUET, _ARROW = "StringIds.parquet", "StringIds.arrow"
"""Files that ``nsys export --type parquetdir`` and ``arrowdir`` write next to those of the other tables."""

_MARKS = (b"StringIds", b"CUPTI_ACTIVITY_KIND_", b"TARGET_INFO_SESSION_START_TIME", b"ENUM_NSYS_", b"NVTX_EVENTS")
"""Names of tables; the first tables are in the first pages of the file."""


# Conversion of a report to SQLite by the installed ``nsys``, because only NVIDIA can read the report's format.


@contextlib.contextmanager
def exported(report: Path) -> Iterator[Path]:
    """Yield the SQLite export of a report, in a temporary folder.

    ``DataError`` if ``nsys`` is missing, older, or fails.
    """
    nsys = shutil.which("nsys")
    by_hand = f"nsys export --type sqlite --output {report.stem}.sqlite {report.name}"
    if nsys is None:
        raise DataError(
            f"{report}: only `nsys` can read a report of Nsight Systems{_written_by(report)}, and it is not on PATH; "
            f"run `{by_hand}` where it is installed and analyze the .sqlite"
        )
    with tempfile.TemporaryDirectory(prefix="perfscope-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(target), str(report.absolute())]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(
                f"{report}: `nsys export` took more than {SECONDS // 60} minutes; run `{by_hand}`"
            ) from error
        except OSError as error:
            raise DataError(f"{report}: {nsys} cannot be started: {error.strerror or error}") from error
        output = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
        if _TOO_OLD in output:
            raise DataError(
                f"{report}: written{_written_by(report)}, newer than the nsys here{_own_version(nsys)}; export it with "
                f"the version that wrote it or a newer one: `{by_hand}`"
            )
        if done.returncode or not target.is_file():
            raise DataError(f"{report}: `nsys export` failed (exit {done.returncode}): {_last_line(output)}")
        yield target


def _written_by(report: Path) -> str:
    """Return `` by 2025.5.1`` from the report's first line; ``''`` for older reports, which lack it."""
    with report.open("rb") as file:
        match = _WRITTEN_BY.search(file.read(_HEAD_BYTES))
    return f" by {match[1].decode().replace('@', '.')}" if match else ""


def _own_version(nsys: str) -> str:
    try:
        output = subprocess.run([nsys, "--version"], capture_output=True, timeout=30, check=False, text=True).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(output)
    return f" ({match[1]})" if match else ""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (lines[-1] if lines else "no output")[:_ERROR_LETTERS]


# An export as a folder with a parquet file per table (``nsys export --type parquetdir``); needs pyarrow.
#
# The tables and columns equal those of SQLite. Unsigned integers are converted to signed, as in SQLite.


class Folder:
    """The tables of a folder, with the methods of ``Database``. ``DataError``, one line, for any fault."""

    def __init__(self, folder: Path) -> None:
        """``DataError`` if pyarrow is not installed."""
        try:
            self._parquet: Any = importlib.import_module("pyarrow.parquet")
            self._arrow: Any = importlib.import_module("pyarrow")
        except ImportError as error:
            raise DataError(
                f"{folder}: a folder of parquet files needs pyarrow (pip install pyarrow); or export the report as "
                "SQLite: nsys export --type sqlite REPORT"
            ) from error
        self._folder = folder
        self._files = {path.name.removesuffix(SUFFIX): path for path in sorted(folder.glob(f"*{SUFFIX}"))}

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of its tables."""
        return frozenset(self._files)

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of a table's columns; empty without such a table."""
        if table not in self._files:
            return frozenset()
        return frozenset(self._guarded(table, lambda: self._parquet.read_schema(self._files[table]).names))

    def integers(self, table: str, *names: str) -> Columns:
        """Return integers like ``Database.integers``."""
        return self.mixed(table, names)[0]

    def mixed(
        self,
        table: str,
        names: tuple[str, ...],
        *others: str,
        keep: Mapping[str, Callable[[object], object]] = NOTHING,
    ) -> tuple[Columns, list[list[object]]]:
        """Return columns like ``Database.mixed``."""
        held = self.columns(table)
        present = [name for name in names if name in held]
        grown = ColumnBuffer()
        values: list[list[object]] = [[] for _ in others]
        if present:
            for batch in self._batches(table, [*present, *(name for name in others if name in held)]):
                grown.append({name: self._integer(table, batch.column(name)) for name in present})
                for index, name in enumerate(others):
                    result = batch.column(name).to_pylist() if name in held else [None] * batch.num_rows
                    kept = keep.get(name)
                    cut = [one[:TEXT_BYTES] if isinstance(one, str | bytes) else one for one in result]
                    values[index].extend(cut if kept is None else map(kept, cut))
        taken = grown.take() if len(grown) else {}
        size = len(next(iter(taken.values()), ()))
        return {name: taken.get(name, np.full(size, NULL)) for name in names}, values

    def texts(self, ids: set[int]) -> dict[int, str]:
        """Return texts like ``Database.texts``; strings of other ids are dropped batch by batch."""
        result: dict[int, str] = {}
        if not ids or not {"id", "value"} <= self.columns("StringIds"):
            return result
        wanted = np.array(sorted(ids), np.int64)
        for batch in self._batches("StringIds", ["id", "value"]):
            numbers = self._integer("StringIds", batch.column("id"))
            mine = np.flatnonzero(np.isin(numbers, wanted))
            texts = batch.column("value").take(self._arrow.array(mine)).to_pylist()
            result.update(
                {
                    number: text[:TEXT_BYTES]
                    for number, text in zip(numbers[mine].tolist(), texts, strict=True)
                    if isinstance(text, str)
                }
            )
        return result

    def settings(self, table: str, keys: tuple[str, ...]) -> dict[str, str]:
        """Return settings like ``Database.settings``; values of other keys are not read."""
        if not {"name", "value"} <= self.columns(table):
            return {}
        result: dict[str, str] = {}
        for batch in self._batches(table, ["name", "value"]):
            for row, name in enumerate(batch.column("name").to_pylist()):
                if name in keys:
                    result[name] = str(batch.column("value")[row].as_py())[:100]
        return result

    def _batches(self, table: str, columns: list[str]) -> Iterator[Any]:
        opened = self._guarded(table, lambda: self._parquet.ParquetFile(self._files[table]))
        try:
            if opened.metadata.num_rows > MOST_ROWS:
                raise DataError(f"{self._files[table]}: claims {opened.metadata.num_rows:,} rows: refused")
            pieces = opened.iter_batches(batch_size=_BATCH, columns=columns)
            while (batch := self._guarded(table, lambda: next(pieces, None))) is not None:
                yield batch
        finally:
            opened.close()

    def _integer(self, table: str, column: Any) -> Any:
        """Return a column as int64, ``NULL`` without a value; large unsigned numbers as two's complement."""

        def converted() -> Any:
            known = column.cast(self._arrow.int64(), safe=False)
            return known.fill_null(NULL).to_numpy(zero_copy_only=False).astype(np.int64)

        return self._guarded(table, converted)

    def _guarded(self, table: str, work: Callable[[], Any]) -> Any:
        """Return ``work()``; any error of pyarrow about the file becomes one line."""
        try:
            return work()
        except (OSError, ValueError, TypeError, KeyError, NotImplementedError, self._arrow.ArrowException) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self._files[table]}: cannot be read as parquet: {reason}") from error


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is an export, by its table names, or a report."""
    if path.is_dir():
        return any((path / name).is_file() for name in (_PARQUET, _ARROW))
    if head.startswith(SQLITE_MAGIC):
        return any(mark in head for mark in _MARKS)
    return head.startswith(REPORT_MAGIC) or path.name.endswith(_REPORT_SUFFIXES)


def read(path: Path) -> list[Trace]:
    """Return one trace per process with device work, by rank; one trace if there is no such process.

    ``DataError``, one line, for a file that is not SQLite, corrupt, empty, or a report that ``nsys`` cannot export
    here.
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


__all__ = ["FORMAT", "read", "sniff"]
