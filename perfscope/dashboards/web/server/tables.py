"""Tables of a page as CSV, safe to open with a spreadsheet."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from perfscope.dashboards.web.server.kept import read_view
from perfscope.model.errors import DataError

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def csv_of(folder: Path, view: str, table: str) -> bytes:
    """A table of a view, all its rows, numbers as they are (ns, bytes). ``DataError`` where there is none."""
    held = read_view(folder, view)
    found = None if held is None else held.get("view", {}).get("tables", {}).get(table)
    if found is None:
        raise DataError(f"{view}/{table}: no such table")
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([cell(column["key"]) for column in found["columns"]])
    writer.writerows([cell(value) for value in row] for row in found["rows"])
    return out.getvalue().encode("utf-8", "replace")


def cell(value: Any) -> Any:
    """A text that looks like a formula is marked as text, as spreadsheets do; numbers stay numbers."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return "" if value is None else value
