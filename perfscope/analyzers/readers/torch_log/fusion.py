"""Refusals of inductor's scheduler as `perfscope run` logs them (``compile/fusion.jsonl``). Read as part of a run.

```
{"schema": "perfscope.fusion/1", "torch": "2.13.0"}
{"kind": "graph", "compile_id": "0/0", "direction": "forward", "nodes": 10, "kernels": 5, "refusals": 2, ...}
{"kind": "refusal", "compile_id": "0/0", "direction": "forward", "first": "op7_op8", "second": "op9", ...}
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.compile_log import CompiledKernel, Direction, FusionRefusal
from perfscope.model.documents.bounded_json import read_lines
from perfscope.model.documents.run import FUSION_SCHEMA

MAX_BYTES = 256 << 20
"""Maximum bytes of a file: eight times the largest that is written."""


class FusionLog(Struct, frozen=True, kw_only=True):
    """Content of the file. ``damaged``: unreadable lines, including the last line of a killed program."""

    refusals: tuple[FusionRefusal, ...]
    left_out: int
    """Refusals beyond the limit of the file."""
    damaged: int


class _Graph(msgspec.Struct):
    left_out: int = 0


class _Kind(msgspec.Struct):
    kind: str


def read_fusion(path: Path) -> FusionLog:
    """Return the refusals in ``path``; ``DataError`` if it is unreadable or of another schema."""
    refusals, left_out, damaged = [], 0, 0
    for line in read_lines(path, FUSION_SCHEMA, what="a log of fusion", most_bytes=MAX_BYTES)[1:]:
        try:
            kind = msgspec.json.decode(line, type=_Kind).kind
            if kind == "graph":
                left_out += max(msgspec.json.decode(line, type=_Graph).left_out, 0)
            elif kind == "refusal":
                refusals.append(msgspec.json.decode(line, type=FusionRefusal))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += 1
    return FusionLog(refusals=tuple(refusals), left_out=left_out, damaged=damaged)


def with_kernels(refusals: Iterable[FusionRefusal], kernels: Sequence[CompiledKernel]) -> tuple[FusionRefusal, ...]:
    """Return the refusals with the names of the kernels of their two sides, as far as the log has them."""
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
    """Return the kernel that computes most of exactly these nodes; ``None`` without one, or a tie.

    Inductor computes a cheap node again in each kernel that needs it, so sharing one node is not enough. The measure is
    the intersection of both sets over their union.
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
