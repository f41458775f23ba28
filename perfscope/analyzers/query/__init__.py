"""SQL over the tables of traces and over tables derived from them."""

from __future__ import annotations

from perfscope.analyzers.query.database import Database, table_names
from perfscope.analyzers.query.queries import QUERIES, Query

__all__ = ["QUERIES", "Database", "Query", "table_names"]
