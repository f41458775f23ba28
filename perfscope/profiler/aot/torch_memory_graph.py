"""The buffers of a planned graph in the order in which inductor's wrapper allocates, reuses and frees them.

The wrapper is the code that inductor would run: its lines are read after its own planning of memory, so that a buffer
that takes over another one's memory is no new one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from perfscope.profiler.aot.torch_memory_events import NOWHERE, Block, Place

_UNREAD = ("EnterSubgraphLine", "ConditionalLine")
"""Lines behind which memory is handed out that is not followed here."""


@dataclass(slots=True, kw_only=True)
class GraphBuffers:
    """What one run of a graph allocates and frees. Blocks are those of any run: a replay keeps its own books."""

    events: list[tuple[str, Block]] = field(default_factory=list)
    """``born`` and ``died`` of its own buffers, ``let go``: an input is read no more (``Block.born`` is its place)."""
    results: tuple[Block | None, ...] = ()
    """By place of a result its buffer; ``None``: an input, or a part of one."""
    label: str = ""
    """``0/0 backward``."""
    unread: bool = False
    """It has parts that allocate and that are not in here."""


def buffers_of(graph: Any, *, label: str, places: Callable[[Iterable[Any]], Place]) -> GraphBuffers:
    """Of a ``GraphLowering`` whose code is written. ``places(origins)``: the user's line of nodes of the FX graph.

    ``AttributeError`` and the like where this torch's wrapper is another one; the caller says so.
    """
    from torch._inductor.codegen import wrapper as lines

    found = GraphBuffers(label=label)
    inputs = {name: place for place, name in enumerate(graph.graph_input_names)}
    alive: dict[str, Block] = {}

    def born(name: str) -> None:
        if name in alive or name in inputs:
            return
        size = _bytes(graph, name)
        if size is None:
            return
        op, place = _maker(graph, name, places)
        alive[name] = Block(size, op, place=place, device=True)
        found.events.append(("born", alive[name]))

    def gone(name: str) -> None:
        if name in inputs:
            found.events.append(("let go", Block(0, born=inputs[name])))
            return
        block = alive.pop(name, None)
        if block is not None and all(other is not block for other in alive.values()):
            found.events.append(("died", block))

    def takes_over(old: str, new: str, *, delete: bool) -> None:
        if old in inputs:  # its memory is written again: the input ends where the buffer begins
            gone(old)
            born(new)
            return
        if old in alive:
            alive[new] = alive[old]
            if delete:
                del alive[old]
        else:
            born(new)

    parts = _parts(graph, lines)
    for line in graph.wrapper_code.lines:
        if isinstance(line, lines.AllocateLine):
            born(line.node.get_name())
        elif isinstance(line, lines.ReuseLine):
            takes_over(line.node.get_name(), line.reused_as.get_name(), delete=line.delete_old)
        elif isinstance(line, lines.ReinterpretLine):
            takes_over(line.node.get_name(), line.reused_as.get_name(), delete=False)
        elif isinstance(line, lines.FreeIfNotReusedLine):
            if not line.is_reused:
                gone(line.node.get_name())
        elif isinstance(line, lines.FreeLine):
            gone(line.node.get_name())
        elif isinstance(line, lines.ExternKernelAllocLine):
            # the results of one call are there when it returns; their names follow behind what is freed after it
            for name in (line.node.get_name(), *parts[line.node.get_name()]):
                born(name)
        elif isinstance(line, lines.MultiOutputLine):
            born(line.result_name)
        elif type(line).__name__ in _UNREAD:
            found.unread = True
    found.results = tuple(alive.get(name) for name in graph.get_output_names())
    return found


def _parts(graph: Any, lines: Any) -> dict[str, list[str]]:
    """Of a call that gives several results: the names that its results get."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in graph.wrapper_code.lines:
        if isinstance(line, lines.MultiOutputLine):
            found[line.arg_name].append(line.result_name)
    return found


def _bytes(graph: Any, name: str) -> int | None:
    """Of a buffer that has memory of its own; ``None`` for a tuple of others, and for what writes into another."""
    from torch._inductor import ir
    from torch._inductor.utils import get_dtype_size

    buffer = graph.name_to_buffer.get(name)
    if buffer is None:
        return None
    if isinstance(buffer.get_output_spec(), (ir.MultiOutputLayout, ir.NoneLayout, ir.MutationLayoutSHOULDREMOVE)):
        return None
    count = graph.sizevars.optimization_hint(graph.get_allocation_storage_size(buffer), fallback=0)
    return int(count) * int(get_dtype_size(buffer.get_dtype()))


def _maker(graph: Any, name: str, places: Callable[[Iterable[Any]], Place]) -> tuple[str, Place]:
    """(ATen op, the user's line) of what writes a buffer first."""
    buffer = graph.name_to_buffer.get(name)
    operation = buffer.get_defining_op() if hasattr(buffer, "get_defining_op") else None
    node = operation if operation is not None else buffer
    origins = sorted(node.get_origins(), key=lambda one: one.name) if hasattr(node, "get_origins") else []
    first = next((one for one in origins if "." in str(one.target)), None)
    if first is None:
        return "", NOWHERE
    return str(first.meta.get("original_aten") or first.target), places([first, *origins])
