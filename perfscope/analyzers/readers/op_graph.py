"""Reader of ``structure.opgraph.json`` (also gzip): the op graph that ``perfscope run`` records of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from perfscope.model.documents.bounded_json import read_document
from perfscope.model.errors import DataError
from perfscope.model.op_graph import OP_GRAPH_SCHEMA, GraphOp, GraphStorage, GraphTensor, OpGraph, TokenBatch

MAX_BYTES = 1 << 30
"""Maximum decompressed bytes. The capture stops at 200,000 ops, which take tens of MB."""
_WHAT = "an op graph of perfscope"

Count = Annotated[int, msgspec.Meta(ge=0)]


Cell = Count | bool | list[Count] | None
Table = dict[str, list[Cell]]
"""Columns of a table of the file by name."""

_TEXTS = frozenset({
    "name", "phase", "module", "file", "function", "host_read", "checkpoint_file", "loop_file", "dtype", "device",
    "declared_dtype",
})  # fmt: skip
"""Columns of texts, which are numbers of ``strings`` in the file."""

Record = TypeVar("Record", GraphOp, GraphTensor, GraphStorage, TokenBatch)


class _Document(msgspec.Struct, frozen=True):
    step: Count
    device: str
    truncated: bool
    strings: list[str]
    tensors: Table
    ops: Table
    live_out: list[Count]
    parameters: list[Count]
    storages: Table | None = None
    libraries: list[str] = []
    batches: Table = {}


def read_op_graph(path: Path) -> OpGraph:
    """Return the op graph in a file.

    ``DataError`` (one line) if it is missing, truncated, corrupt or of another format.
    """
    document = read_document(path, _Document, OP_GRAPH_SCHEMA, what=_WHAT, most_bytes=MAX_BYTES)
    try:
        return _graph(document)
    except (ValueError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: not {_WHAT}: {error}") from error


def _graph(document: _Document) -> OpGraph:
    texts = document.strings
    ops = tuple(_rows(document.ops, GraphOp, texts))
    tensors = tuple(_rows(document.tensors, GraphTensor, texts))
    for op in ops:
        used = max((*op.inputs, *op.outputs, *op.mutated), default=-1)
        if used >= len(tensors):
            raise ValueError(f"no such tensor: {used}")
    batches = tuple(_rows(document.batches, TokenBatch, texts))
    for batch in batches:
        if batch.op >= len(ops) or not batch.filled <= batch.rows * batch.length or batch.longest > batch.length:
            raise ValueError(f"no such batch of tokens: {batch}")
    storages = None if document.storages is None else tuple(_rows(document.storages, GraphStorage, texts))
    if storages is not None:
        _check_storages(storages, tensors, len(ops))
    return OpGraph(
        step=document.step,
        device=document.device,
        ops=ops,
        tensors=tensors,
        live_out=frozenset(document.live_out),
        parameters=frozenset(document.parameters),
        storages=storages,
        truncated=document.truncated,
        libraries=frozenset(document.libraries),
        batches=batches,
    )


def _check_storages(storages: Sequence[GraphStorage], tensors: Sequence[GraphTensor], ops: int) -> None:
    last = max((tensor.storage for tensor in tensors), default=-1)
    if last >= len(storages):
        raise ValueError(f"no such storage: {last}")
    for index, storage in enumerate(storages):
        born, died = storage.born, storage.died
        if max(born or 0, died or 0) > ops or (born is not None and died is not None and died <= born):
            raise ValueError(f"storage {index}: freed before op {died}, made by op {born}, of {ops} ops")


def _rows(table: Table, record: type[Record], texts: Sequence[str]) -> Iterator[Record]:
    """Yield the records of a table. ``ValueError`` and ``ValidationError``: they do not fit the declared fields."""
    declared = [field.name for field in fields(record) if field.name in table]
    columns = [[_text(texts, code) for code in table[name]] if name in _TEXTS else table[name] for name in declared]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("columns of different length")
    for index, row in enumerate(zip(*columns, strict=True)):
        yield msgspec.convert({"index": index, **dict(zip(declared, row, strict=True))}, record)


def _text(texts: Sequence[str], code: Cell) -> str | None:
    if code is None:
        return None
    if not isinstance(code, int) or code >= len(texts):
        raise ValueError(f"no such string: {code}")
    return texts[code]
