"""Refusals of inductor's scheduler as `perfscope run` logs them (``compile/fusion.jsonl``). Read as a part of a run.

```
{"schema": "perfscope.fusion/1", "torch": "2.13.0"}
{"kind": "graph", "compile_id": "0/0", "direction": "forward", "nodes": 10, "kernels": 5, "refusals": 2, ...}
{"kind": "refusal", "compile_id": "0/0", "direction": "forward", "first": "op7_op8", "second": "op9", ...}
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.model.compile_log import FUSION_SCHEMA, CompiledKernel, Direction, FusionRefusal
from perfscope.model.errors import DataError

MAX_BYTES = 256 << 20
"""Of a file: eight times what is written at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionLog:
    """What the file holds. ``damaged``: lines that cannot be read, the last one of a killed program among them."""

    refusals: tuple[FusionRefusal, ...]
    left_out: int
    """Refusals that there was no room for."""
    damaged: int


class _Line(msgspec.Struct):
    """A line; of other kinds than these two nothing is read."""

    kind: str
    compile_id: str | None = None
    direction: Direction | None = None
    first: str = ""
    second: str = ""
    reason: str = ""
    first_nodes: tuple[str, ...] = ()
    second_nodes: tuple[str, ...] = ()
    shared_bytes: int | None = None
    common_read_bytes: int | None = None
    times: int = 1
    left_out: int = 0


def read_fusion(path: Path) -> FusionLog:
    """The refusals in ``path``; ``DataError`` if it cannot be read or is of another schema."""
    with open_bytes(path, MAX_BYTES) as data:
        head, *lines = bytes(data).splitlines() or [b"{}"]
    try:
        schema = msgspec.json.decode(head, type=dict).get("schema")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a log of fusion ({error})") from error
    if schema != FUSION_SCHEMA:
        raise DataError(f"{path}: its schema is {schema!r}; this perfscope reads {FUSION_SCHEMA!r}")
    decoder = msgspec.json.Decoder(_Line)
    refusals, left_out, damaged = [], 0, 0
    for line in lines:
        try:
            entry = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += 1
            continue
        if entry.kind == "graph":
            left_out += max(entry.left_out, 0)
        elif entry.kind == "refusal":
            refusals.append(_refusal(entry))
    return FusionLog(refusals=tuple(refusals), left_out=left_out, damaged=damaged)


def _refusal(entry: _Line) -> FusionRefusal:
    return FusionRefusal(
        compile_id=entry.compile_id,
        direction=entry.direction,
        first=entry.first,
        second=entry.second,
        reason=entry.reason,
        first_nodes=entry.first_nodes,
        second_nodes=entry.second_nodes,
        shared_bytes=entry.shared_bytes,
        common_read_bytes=entry.common_read_bytes,
        times=entry.times,
    )


def with_kernels(refusals: Iterable[FusionRefusal], kernels: Sequence[CompiledKernel]) -> tuple[FusionRefusal, ...]:
    """The refusals with the names of the kernels that their two sides became, as far as the log tells."""
    by_graph: dict[tuple[str | None, Direction | None], list[CompiledKernel]] = defaultdict(list)
    for kernel in kernels:
        by_graph[kernel.compile_id, kernel.direction].append(kernel)
    return tuple(
        replace(
            refusal,
            first_kernel=_kernel_of(refusal.first_nodes, by_graph[refusal.compile_id, refusal.direction]),
            second_kernel=_kernel_of(refusal.second_nodes, by_graph[refusal.compile_id, refusal.direction]),
        )
        for refusal in refusals
    )


def _kernel_of(nodes: Sequence[str], kernels: Iterable[CompiledKernel]) -> str | None:
    """The kernel that computes most of just these nodes; ``None`` if there is none, or several do alike.

    Inductor computes a cheap node again in each kernel that needs it, so that to share one is not enough: what
    counts is the common part of both sets (their intersection over their union).
    """
    wanted = set(nodes)
    best, names = 0.0, set()
    for kernel in kernels:
        computed = set(kernel.nodes)
        alike = len(computed & wanted) / max(len(computed | wanted), 1)
        if alike > best:
            best, names = alike, {kernel.name}
        elif alike == best:
            names.add(kernel.name)
    return names.pop() if best and len(names) == 1 else None
