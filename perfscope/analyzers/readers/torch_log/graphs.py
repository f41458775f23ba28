"""The graphs of torch.compile at each stage, as the log prints them: dynamo, AOT autograd, before and after passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.torch_log import graph_text
from perfscope.analyzers.readers.torch_log.records import CorruptRecordError, Reader
from perfscope.model.compile_log import GraphNode

MAX_GRAPH_LOG_BYTES = 2 << 30

KINDS = {
    "dynamo_output_graph": "FX graph (dynamo)",
    "aot_joint_graph": "joint graph (AOT autograd)",
    "aot_forward_graph": "forward graph (AOT autograd)",
    "aot_backward_graph": "backward graph (AOT autograd)",
    "aot_inference_graph": "inference graph (AOT autograd)",
    "inductor_post_grad_graph": "after inductor's passes",
    "after_post_grad_graph": "after inductor's passes",
    "inductor_output_code": "output code",
}
"""Kind of a record or name of an artifact -> stage."""

_MODULE = re.compile(r"^(\s*)class (\w+)\(", re.MULTILINE)
_ANNOTATED = re.compile(r"\b([A-Za-z_]\w*)\s*:\s*\"([^\"]{1,4096})\"")
_FILE = re.compile(r"\"filename\": ?\"([^\"]{1,4096})\"")


class LoggedGraph(Struct, frozen=True, kw_only=True):
    """A printed graph."""

    stage: str
    compile_id: str
    is_backward: bool
    modules: tuple[tuple[str, tuple[GraphNode, ...]], ...]
    """Graph and its subgraphs (``wrap_body_0``), with their nodes."""
    inputs: tuple[GraphNode, ...]
    types: dict[str, str]
    """Name -> type with sizes, strides and device: ``bf16[4, 8][8, 1]cpu``."""
    text: str
    """Output code; empty for graphs."""
    file: str = ""
    """Path of the output code when it was written."""


def logged_graphs(path: Path) -> Iterator[LoggedGraph]:
    """Yield the graphs of a log in its order; damaged records are left out. ``DataError`` if it is unreadable."""
    with open_bytes(path, MAX_GRAPH_LOG_BYTES) as data:
        for record in Reader(data):
            stage = KINDS.get(record.name or record.kind)
            if stage is None or record.empty:
                continue
            try:
                text = record.payload().decode("utf-8", "replace")
            except CorruptRecordError:
                continue
            found = printed_graph(stage, record.compile_id or "", text)
            file = _FILE.search(bytes(record.body).decode("utf-8", "replace"))
            yield found if file is None else replace(found, file=file[1])


def printed_graph(stage: str, compile_id: str, text: str) -> LoggedGraph:
    """The graph of a printed module, or output code."""
    if stage == KINDS["inductor_output_code"]:
        backward = "_backward']" in text[:4096]
        return LoggedGraph(
            stage=stage, compile_id=compile_id, is_backward=backward, modules=(), inputs=(), types={}, text=text
        )
    begins = [match.start() for match in _MODULE.finditer(text)] or [0]
    parts = [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]
    parsed = [(match[2] if (match := _MODULE.match(part)) else "", graph_text.parse(part)) for part in parts]
    return LoggedGraph(
        stage=stage,
        compile_id=compile_id,
        is_backward=graph_text.is_backward(parsed[0][1]),
        modules=tuple((name, graph.nodes) for name, graph in parsed),
        inputs=tuple(node for _, graph in parsed for node in graph.inputs),
        types=dict(_ANNOTATED.findall(text)),
        text="",
    )
