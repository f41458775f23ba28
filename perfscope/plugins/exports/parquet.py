"""Parquet: one file per table, with every row and column unchanged.

``kernels.parquet`` and the other tables; ``sources.parquet`` lists where each trace came from. Rows of several traces
follow each other, with ``trace`` (a number) and ``rank`` as first columns. Text is a dictionary column, a missing value
is null, and a column that points at rows of another table counts from 0 within its trace. Unit, meaning and target of
each column are in the metadata of its field (``unit``, ``doc``, ``refers``). Result tables
(`model/results.py`) that have rows are files, too.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct

from perfscope.analyzers.results import labelled_rows, labels_of, result_table, table_names
from perfscope.model.errors import DataError, UsageError
from perfscope.model.results import ResultTable
from perfscope.model.trace import TABLES, Trace
from perfscope.model.trace.columns import MISSING, Column, Table
from perfscope.model.untrusted_text import clean
from perfscope.plugins.exports.export import Subject
from perfscope.plugins.exports.files import whole_folder
from perfscope.plugins.exports.perfetto import recorded_apart

SUFFIX = "-parquet"
FOLDER = True

_ROW_GROUP = 1 << 20
"""Rows held in memory as Arrow at once."""


def write(subject: Subject, target: Path) -> list[str]:
    """Write the folder ``target``. ``DataError``: no table has a row; ``UsageError``: pyarrow is absent."""
    try:
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError("--to parquet needs pyarrow: pip install pyarrow") from error
    filled = [name for name in TABLES if any(len(trace.rows[name]) for trace in subject.traces)]
    if not filled:
        raise DataError(f"{subject.traces[0].source.path}: no table has a row: there is nothing to export")
    with whole_folder(target) as folder:
        for name in filled:
            table = TABLES[name]
            schema = _schema(pa, table)
            with pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd") as writer:
                for index, trace in enumerate(subject.traces):
                    for low in range(0, len(trace.rows[name]), _ROW_GROUP):
                        writer.write_table(_rows(pa, schema, table, trace, index, low))
        for name in table_names():
            rows = _result(pa, subject, result_table(name))
            if len(rows):
                pq.write_table(rows, folder / f"{name}.parquet", compression="zstd")
        pq.write_table(_sources(pa, subject), folder / "sources.parquet")
    apart = recorded_apart(subject)
    return [f"not exported, because they are not tables: {', '.join(apart)}"] if apart else []


def _result(pa: Any, subject: Subject, table: ResultTable[Any]) -> Any:
    """All rows of a result table."""
    fields = [pa.field(_LABELS.get(name, name), _arrow_type(pa, kind)) for name, kind, _ in labels_of(table)]
    for column in table.columns:
        metadata = {"unit": column.unit, "doc": column.doc}
        fields.append(pa.field(column.name, _arrow_type(pa, column.type), metadata=metadata))
    rows = [
        {_LABELS.get(name, name): _cleaned(value) for name, value in row.items()}
        for row in labelled_rows(table, subject.traces)
    ]
    schema = pa.schema(fields, metadata={"table": table.name, "doc": table.doc, "format": "perfscope.tables/1"})
    return pa.Table.from_pylist(rows, schema=schema)


_LABELS = {"source": "trace"}
"""Columns with another name in these files than in SQL."""


def _arrow_type(pa: Any, kind: Any) -> Any:
    """The Arrow type of a declared type; a record is a struct, ``X | None`` the type of ``X``."""
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if kind in plain:
        return plain[kind]
    if isinstance(kind, type) and issubclass(kind, Struct):
        return pa.struct([(name, _arrow_type(pa, of)) for name, of in get_type_hints(kind).items()])
    inner = [argument for argument in get_args(kind) if argument not in (NoneType, Ellipsis)]
    if get_origin(kind) is tuple:
        return pa.list_(_arrow_type(pa, inner[0]))
    if get_origin(kind) is dict:
        return pa.map_(_arrow_type(pa, inner[0]), _arrow_type(pa, inner[1]))
    return _arrow_type(pa, inner[0])


def _cleaned(value: Any) -> Any:
    """Texts as other texts of a trace in these files."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {name: _cleaned(item) for name, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _schema(pa: Any, table: Table) -> Any:
    fields = [pa.field("trace", pa.int32(), nullable=False), pa.field("rank", pa.int32())]
    for column in table.columns:
        metadata = {"unit": column.unit, "doc": column.doc} | ({"refers": column.refers} if column.refers else {})
        kind = pa.dictionary(pa.int32(), pa.string()) if column.text else pa.from_numpy_dtype(np.dtype(column.dtype))
        fields.append(pa.field(column.name, kind, nullable=column.nullable, metadata=metadata))
    return pa.schema(fields, metadata={"table": table.name, "doc": table.doc, "format": "perfscope.tables/1"})


def _rows(pa: Any, schema: Any, table: Table, trace: Trace, index: int, low: int) -> Any:
    part = slice(low, low + _ROW_GROUP)
    size = len(trace.rows[table.name][table.columns[0].name][part])
    arrays = [pa.array(np.full(size, index, np.int32)), pa.array([trace.source.rank] * size, pa.int32())]
    arrays += [_array(pa, column, trace, trace.rows[table.name][column.name][part]) for column in table.columns]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(pa: Any, column: Column, trace: Trace, values: Any) -> Any:
    if column.text:
        used, inverse = np.unique(values, return_inverse=True)
        texts = ["" if code == MISSING else clean(trace.strings[code]) for code in used.tolist()]
        return pa.DictionaryArray.from_arrays(
            pa.array(inverse.astype(np.int32), mask=values == MISSING), pa.array(texts, pa.string())
        )
    if column.nullable:
        return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else values == MISSING)
    return pa.array(values)


def _sources(pa: Any, subject: Subject) -> Any:
    rows = [
        {
            "trace": index,
            "rank": trace.source.rank,
            "world_size": trace.source.world_size,
            "file": clean(Path(trace.source.path).name),
            "format": trace.source.format,
            "events_read": trace.source.events_read,
            "events_unplaced": trace.source.events_unplaced,
            "unplaced": json.dumps(dict(trace.source.unplaced)),
            "recorded": sorted(trace.recorded),
            "events_only": trace.source.events_only,
            "notes": [clean(note) for note in trace.source.notes],
        }
        for index, trace in enumerate(subject.traces)
    ]
    schema = pa.schema(
        [
            ("trace", pa.int32()), ("rank", pa.int32()), ("world_size", pa.int32()), ("file", pa.string()),
            ("format", pa.string()), ("events_read", pa.int64()), ("events_unplaced", pa.int64()),
            ("unplaced", pa.string()), ("recorded", pa.list_(pa.string())), ("events_only", pa.bool_()),
            ("notes", pa.list_(pa.string())),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)
