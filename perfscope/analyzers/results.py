"""The result tables: a module of the table's name in the ``results`` or ``tables`` folder of a capability.

Tables in ``results`` are part of every analysis; those in ``tables`` are larger, or a section has their rows, and only
SQL, Parquet and the pages of their capability read them. A module has ``RESULT``, a `ResultTable`. Plug-ins declare
theirs (``tables``), which are part of the analysis. SQL, Parquet, reports, JSON and the dashboard ask this module for
tables; none of them lists one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from perfscope.analyzers.sections import guarded
from perfscope.model.plugins import load, named
from perfscope.model.results import ResultRows, ResultTable, Scope
from perfscope.model.trace import Trace

RESULTS: dict[str, str] = {
    "cores": "perfscope.analyzers.time:core_summary",
    "critical_paths": "perfscope.analyzers.critical_path:path_summary",
    "generations": "perfscope.analyzers.time.model_calls:generation",
    "hardware_counters": "perfscope.analyzers.ops.hardware_counters:counted_work",
    "hosts": "perfscope.analyzers.time.host_account:host_account",
}
"""Results of the core that are one record per recording, by key of the JSON report -> function of a trace. Plug-ins
declare theirs (``results``)."""

MOST_ROWS = 1_000
"""Rows of a table and trace in an analysis: it is read by people, and SQL has all rows."""


@cache
def result_modules(*kinds: str) -> Mapping[str, str]:
    """Module of each table of perfscope by its name; nothing is imported. ``kinds``: folders, by default both."""
    here = Path(__file__).parent
    folders = [info.name for info in pkgutil.iter_modules([str(here)]) if info.ispkg]
    return {
        found.name: f"{__package__}.{folder}.{kind}.{found.name}"
        for folder in folders
        for kind in kinds or ("results", "tables")
        for found in pkgutil.iter_modules([str(here / folder / kind)])
    }


def result_homes() -> Mapping[str, str]:
    """Function of a trace by name of each result that is one record per recording, sorted by name."""
    return dict(sorted({**named("results"), **RESULTS}.items()))


def results_of(trace: Trace, problems: list[str]) -> dict[str, Any]:
    """The record of each result, or ``None``; a result of a plug-in that fails is named in ``problems``."""
    results: dict[str, Any] = {name: trace.fact(load(home)) for name, home in RESULTS.items()}
    for name, home in named("results").items():
        with guarded(f"result {name}", trace.source.path, problems):
            results.setdefault(name, trace.fact(load(home)))
    return results


@cache
def _own(name: str) -> ResultTable[Any] | None:
    path = result_modules().get(name)
    table: ResultTable[Any] | None = None if path is None else importlib.import_module(path).RESULT
    return table


def table_names() -> tuple[str, ...]:
    """Names of all result tables, sorted; nothing is imported."""
    return tuple(sorted({*result_modules(), *named("tables")}))


def result_table(name: str) -> ResultTable[Any]:
    """The result table of that name, the core's before those of plug-ins; ``KeyError`` without one."""
    table: ResultTable[Any] = _own(name) or load(named("tables")[name])
    return table


def rows_of(trace: Trace, problems: list[str]) -> dict[str, ResultRows]:
    """The first rows of each table of an analysis that has some; a table that fails is named in ``problems``."""
    kept = {}
    for name in sorted({*result_modules("results"), *named("tables")}):
        with guarded(f"result {name}", trace.source.path, problems):
            table = result_table(name)
            rows = iter(table.rows(trace))
            first = tuple({"rank": trace.source.rank, **table.record(row)} for row in islice(rows, MOST_ROWS))
            if first:
                kept[name] = ResultRows(rows=first, left=sum(1 for _ in rows))
    return kept


def labelled_rows(table: ResultTable[Any], traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """All rows as plain values: the columns of `labels_of`, then the declared ones."""
    if table.scope == "trace":
        for source, trace in enumerate(traces):
            for row in table.rows(trace):
                yield {"source": source, "rank": trace.source.rank, **table.record(row)}
    elif table.scope == "job":
        for job, members, row in table.rows(traces):
            yield {"job": job, "members_are": members, **table.record(row)}
    else:
        yield from map(table.record, table.rows(traces))


_LABELS: Mapping[Scope, tuple[tuple[str, type, str], ...]] = {
    "trace": (("source", int, "number of the trace"), ("rank", int, "rank, where known")),
    "job": (
        ("job", int, "number of the job"),
        ("members_are", str, "ranks, or devices of one recording of an XLA program"),
    ),
    "all": (),
}


def labels_of(table: ResultTable[Any]) -> tuple[tuple[str, type, str], ...]:
    """Name, type and meaning of the columns in front of the declared ones."""
    return _LABELS[table.scope]


def merged_rows(parts: Sequence[Mapping[str, ResultRows]]) -> dict[str, ResultRows]:
    """The rows of several traces, in their order."""
    kept: dict[str, list[Mapping[str, Any]]] = {}
    left: Counter[str] = Counter()
    for source, part in enumerate(parts):
        for name, held in part.items():
            kept.setdefault(name, []).extend({"source": source, **row} for row in held.rows)
            left[name] += held.left
    return {name: ResultRows(rows=tuple(kept[name]), left=left[name]) for name in sorted(kept)}
