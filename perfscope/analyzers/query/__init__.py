"""SQL over the tables of traces and over tables derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.query.database import Database, table_names
from perfscope.analyzers.query.queries import QUERIES
from perfscope.model.hooks import names_from

__all__ = ["QUERIES", "Database", "table_names"]


if TYPE_CHECKING:
    from perfscope.analyzers.query.frames import table_of as table_of
else:
    __getattr__ = names_from(
        __name__,
        {
            "frames": "table_of",
        },
    )
