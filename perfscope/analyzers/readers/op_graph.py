"""Reader of ``structure.opgraph.json`` (also gzip): the op graph that ``perfscope run`` records of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, get_args

import msgspec

from perfscope.model.documents.bounded_json import read_document
from perfscope.model.errors import DataError
from perfscope.model.op_graph import OP_GRAPH_SCHEMA, GraphOp, GraphStorage, GraphTensor, OpGraph, Phase

MAX_BYTES = 1 << 30
"""Maximum decompressed bytes. The capture stops at 200,000 ops, which take tens of MB."""
_WHAT = "an op graph of perfscope"

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Tensors(msgspec.Struct, frozen=True):
    storage: list[Count]
    shape: list[list[Count]]
    dtype: list[Count]
    device: list[Count]
    bytes: list[Count]


class _Ops(msgspec.Struct, frozen=True):
    name: list[Count]
    phase: list[Count]
    inputs: list[list[Count]]
    outputs: list[list[Count]]
    mutated: list[list[Count]]
    pointwise: list[bool]
    reduction: list[bool]
    view: list[bool]
    flops: list[Count | None]
    module: list[Count]
    file: list[Count | None]
    line: list[Count | None]
    function: list[Count | None]
    sequence: list[Count | None]
    recompute: list[bool]
    host_read: list[Count | None]
    checkpoint_file: list[Count | None] | None = None
    checkpoint_line: list[Count | None] | None = None
    checks: list[bool] | None = None


class _Storages(msgspec.Struct, frozen=True):
    bytes: list[Count]
    born: list[Count | None]
    died: list[Count | None]


class _Document(msgspec.Struct, frozen=True):
    step: Count
    device: str
    truncated: bool
    strings: list[str]
    tensors: _Tensors
    ops: _Ops
    live_out: list[Count]
    parameters: list[Count]
    storages: _Storages | None = None


def read_op_graph(path: Path) -> OpGraph:
    """Return the op graph in a file.

    ``DataError`` (one line) if it is missing, truncated, corrupt or of another format.
    """
    document = read_document(path, _Document, OP_GRAPH_SCHEMA, what=_WHAT, most_bytes=MAX_BYTES)
    try:
        return _graph(document)
    except ValueError as error:
        raise DataError(f"{path}: not {_WHAT}: {error}") from error


def _graph(document: _Document) -> OpGraph:
    texts, rows = document.strings, document.tensors
    tensors = tuple(
        GraphTensor(
            storage=storage,
            shape=tuple(shape),
            dtype=_at(texts, dtype),
            device=_at(texts, device),
            bytes=size,
        )
        for storage, shape, dtype, device, size in zip(
            rows.storage, rows.shape, rows.dtype, rows.device, rows.bytes, strict=True
        )
    )
    return OpGraph(
        step=document.step,
        device=document.device,
        ops=tuple(_ops(document.ops, texts, len(tensors))),
        tensors=tensors,
        live_out=frozenset(document.live_out),
        parameters=frozenset(document.parameters),
        storages=None if document.storages is None else _storages(document.storages, document),
        truncated=document.truncated,
    )


def _storages(rows: _Storages, document: _Document) -> tuple[GraphStorage, ...]:
    ops, count = len(document.ops.name), len(rows.bytes)
    if document.tensors.storage and max(document.tensors.storage) >= count:
        raise ValueError(f"no such storage: {max(document.tensors.storage)}")
    storages = []
    for index, (size, born, died) in enumerate(zip(rows.bytes, rows.born, rows.died, strict=True)):
        if max(born or 0, died or 0) > ops or (born is not None and died is not None and died <= born):
            raise ValueError(f"storage {index}: freed before op {died}, made by op {born}, of {ops} ops")
        storages.append(GraphStorage(bytes=size, born=born, died=died))
    return tuple(storages)


def _ops(ops: _Ops, texts: Sequence[str], tensors: int) -> Iterator[GraphOp]:
    columns = [column for name in ops.__struct_fields__ if (column := getattr(ops, name)) is not None]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("columns of different length")
    for index in range(len(ops.name)):
        phase = _at(texts, ops.phase[index])
        if phase not in get_args(Phase):
            raise ValueError(f"op {index}: no such phase: {phase[:40]!r}")
        yield GraphOp(
            index=index,
            name=_at(texts, ops.name[index]),
            phase=phase,  # type: ignore[arg-type]
            inputs=_indices(ops.inputs[index], tensors),
            outputs=_indices(ops.outputs[index], tensors),
            mutated=_indices(ops.mutated[index], tensors),
            pointwise=ops.pointwise[index],
            reduction=ops.reduction[index],
            view=ops.view[index],
            flops=ops.flops[index],
            module=_at(texts, ops.module[index]),
            file=_text(texts, ops.file[index]),
            line=ops.line[index],
            function=_text(texts, ops.function[index]),
            sequence=ops.sequence[index],
            host_read=_text(texts, ops.host_read[index]),
            recompute=ops.recompute[index],
            checkpoint=_checkpoint(ops, texts, index),
            checks=ops.checks is not None and ops.checks[index],
        )


def _checkpoint(ops: _Ops, texts: Sequence[str], index: int) -> tuple[str, int] | None:
    if ops.checkpoint_file is None or ops.checkpoint_line is None:
        return None
    file, line = _text(texts, ops.checkpoint_file[index]), ops.checkpoint_line[index]
    return None if file is None or line is None else (file, line)


def _indices(indices: Sequence[int], tensors: int) -> tuple[int, ...]:
    if indices and max(indices) >= tensors:
        raise ValueError(f"no such tensor: {max(indices)}")
    return tuple(indices)


def _at(texts: Sequence[str], code: int) -> str:
    if code >= len(texts):
        raise ValueError(f"no such string: {code}")
    return texts[code]


def _text(texts: Sequence[str], code: int | None) -> str | None:
    return None if code is None else _at(texts, code)
