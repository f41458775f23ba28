"""Events of the device memory in a planned step: storages begin and end, planned graphs run.

Imports no framework, so that the peak of a step can be computed without one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from perfscope.model.documents.torch_plan import MAX_HOLDERS, MemoryHolder, MemoryOwner, StepMemory, StepPhase
from perfscope.model.memory import ALLOCATION_ROUNDING

UserLine = tuple[str | None, int | None, str | None]
"""The user's (file, line, function)."""
NO_LINE: UserLine = (None, None, None)


class Block(Struct, eq=False):
    """A storage, or a buffer inside a planned graph."""

    bytes: int
    op: str = ""
    phase: StepPhase = "other"
    place: UserLine = NO_LINE
    born: int = -1
    """Number of its op."""
    died: int | None = None
    """Number of the op before which it was freed."""
    node: int = -1
    """Autograd's number of the backward node that made it."""
    device: bool = False
    """Made on or moved to the device explicitly by the program."""
    touched: int = -1
    """Number of the last op that used it."""
    category: MemoryOwner | None = None
    """Category if the program states it: ``parameter``, ``gradient``, ``optimizer_state``."""


class GraphCall(Struct, eq=False, kw_only=True):
    """A run of a planned graph: its own buffers exist only during the run."""

    number: int
    inputs: tuple[Block | None, ...]
    given_up: frozenset[int]
    """Inputs (by index) without other owners: the graph frees them after their last use."""
    outputs: tuple[Block | None, ...]
    phase: StepPhase


Event = tuple[str, Block] | tuple[str, GraphCall]
"""``born``, ``died`` or ``graph``."""


# The buffers of a planned graph in the order in which inductor's wrapper allocates, reuses and frees them. The wrapper
# is the code that inductor would run, after its memory planning: a buffer that takes over the memory of another is not
# a new one.


class GraphBuffers(Struct, kw_only=True):
    """Allocations and frees of one run of a graph. Blocks are shared by all runs: a replay keeps its own records."""

    events: list[tuple[str, Block]] = field(default_factory=list)
    """``born`` and ``died`` of the graph's buffers; ``let go``: last read of an input (``Block.born`` is its index)."""
    results: tuple[Block | None, ...] = ()
    """Index of a result -> its buffer; ``None``: an input, or a part of one."""
    label: str = ""
    """``0/0 backward``."""
    unread: bool = False
    """It contains parts whose allocations are not included."""


class _BufferEvents:
    """Follows the memory of a graph through the lines of its wrapper."""

    def __init__(self, inputs: Sequence[str], made: Callable[[str], Block | None]) -> None:
        """``made(name)``: the block of a buffer, ``None`` if it has no own memory."""
        self._inputs = {name: index for index, name in enumerate(inputs)}
        self._made = made
        self.alive: dict[str, Block] = {}
        self.events: list[tuple[str, Block]] = []
        self.unread = False

    def take(self, what: str, name: str, other: str) -> None:
        """Handle one line (`compat.memory_lines`)."""
        if what == "allocate":
            self._allocate(name)
        elif what == "free":
            self._free(name)
        elif what == "unread":
            self.unread = True
        elif name in self._inputs:  # its memory is written again: the input ends where the buffer begins
            self._free(name)
            self._allocate(other)
        elif name in self.alive:
            self.alive[other] = self.alive[name]
            if what == "reuse":
                del self.alive[name]
        else:
            self._allocate(other)

    def _allocate(self, name: str) -> None:
        if name in self.alive or name in self._inputs:
            return
        block = self._made(name)
        if block is not None:
            self.alive[name] = block
            self.events.append(("born", block))

    def _free(self, name: str) -> None:
        if name in self._inputs:
            self.events.append(("let go", Block(0, born=self._inputs[name])))
            return
        block = self.alive.pop(name, None)
        if block is not None and all(other is not block for other in self.alive.values()):
            self.events.append(("died", block))


def buffers_of(
    graph: Any,
    lines: Iterable[tuple[str, str, str]],
    *,
    label: str,
    size: Callable[[Any, str], int | None],
    places: Callable[[Iterable[Any]], UserLine],
) -> GraphBuffers:
    """The buffers of a ``GraphLowering`` whose code is written.

    ``lines``: memory operations of its wrapper; ``size(graph, name)``: bytes of a buffer; ``places(origins)``: the
    user's line of FX graph nodes. Raises ``AttributeError`` and similar for an unsupported wrapper.
    """

    def made(name: str) -> Block | None:
        count = size(graph, name)
        if count is None:
            return None
        op, line = _first_writer(graph, name, places)
        return Block(count, op, place=line, device=True)

    buffers = _BufferEvents(graph.graph_input_names, made)
    for line in lines:
        buffers.take(*line)
    return GraphBuffers(
        label=label,
        events=buffers.events,
        unread=buffers.unread,
        results=tuple(buffers.alive.get(name) for name in graph.get_output_names()),
    )


def _first_writer(graph: Any, name: str, places: Callable[[Iterable[Any]], UserLine]) -> tuple[str, UserLine]:
    """(ATen op, user's line) of the first writer of a buffer."""
    buffer = graph.name_to_buffer.get(name)
    operation = buffer.get_defining_op() if hasattr(buffer, "get_defining_op") else None
    node = operation if operation is not None else buffer
    origins = sorted(node.get_origins(), key=lambda origin: origin.name) if hasattr(node, "get_origins") else []
    first = next((origin for origin in origins if "." in str(origin.target)), None)
    if first is None:
        return "", NO_LINE
    return str(first.meta.get("original_aten") or first.target), places([first, *origins])


# From the events of a step to its peak: size, position and owners.


def rounded_size(size: int) -> int:
    """Bytes that a device allocator hands out for a request; 0 for 0."""
    return -(-size // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING


class LedgerStep(Struct, frozen=True, kw_only=True):
    """A step as recorded by the ledger."""

    held: Sequence[Block]
    """Blocks at its begin."""
    events: Sequence[Event]
    joins: Sequence[tuple[Block, Block]]
    backward_began: Sequence[int]
    graphs: Sequence[GraphBuffers | None]
    """By number; ``None``: unknown."""
    all_on_device: bool
    """The program never names a device, so everything is assumed to be there."""
    first_op: int

    def on_device(self, block: Block) -> bool:
        """Whether a block counts: tensors moved to the device count in steps that use them."""
        return self.all_on_device or block.category is not None or (block.device and self.lasting(block))

    def lasting(self, block: Block) -> bool:
        """False for a block that an earlier step moved to the device and this one never uses."""
        return block.touched >= self.first_op or block.phase != "other"


class _Change(Struct, frozen=True, kw_only=True):
    """A block of the device begins or ends."""

    born: bool
    block: Block
    graph: GraphCall | None = None
    """The graph of the buffer."""


def step_memory(step: LedgerStep) -> StepMemory:
    """The peak of a step; of several equal moments the first."""
    changes = list(_changes(step))
    total = start = sum(rounded_size(block.bytes) for block in step.held if step.on_device(block))
    peak, last = total, -1
    for number, change in enumerate(changes):
        total += rounded_size(change.block.bytes) * (1 if change.born else -1)
        if total > peak:
            peak, last = total, number
    alive: dict[int, tuple[Block, GraphCall | None]] = {
        id(block): (block, None) for block in step.held if step.on_device(block)
    }
    for change in changes[: last + 1]:
        if change.born:
            alive[id(change.block)] = (change.block, change.graph)
        else:
            alive.pop(id(change.block), None)
    holders = _holders(step, alive.values())
    highest = changes[last] if last >= 0 else None
    call = None if highest is None else highest.graph
    inner = None if call is None else step.graphs[call.number]
    block = None if highest is None else highest.block
    kept, left = holders[:MAX_HOLDERS], holders[MAX_HOLDERS:]
    return StepMemory(
        peak_bytes=peak,
        requested_bytes=sum(block.bytes for block, _ in alive.values()),
        start_bytes=start,
        given_bytes=_given(step),
        phase=call.phase if call is not None else "other" if block is None else block.phase,
        op=None if block is None else block.op or None,
        file=None if block is None else block.place[0],
        line=None if block is None else block.place[1],
        graph=None if inner is None else inner.label,
        holders=tuple(kept),
        left_bytes=sum(holder.bytes for holder in left),
        left_blocks=sum(holder.blocks for holder in left),
    )


def _given(step: LedgerStep) -> int:
    born = [block for what, block in step.events if what == "born" and isinstance(block, Block)]
    begins = min((block.born for block in born if block.phase == "forward"), default=0)
    blocks = [*step.held, *(block for block in born if block.phase == "other" and block.born < begins)]
    return sum(
        block.bytes
        for block in blocks
        if step.on_device(block)
        and (block.category == "parameter" or (block.category is None and block.touched >= step.first_op))
    )


def _with_gradient_sums(step: LedgerStep) -> list[Event]:
    """The events with gradient sums as the engine makes them: in place, unless a part has another owner."""
    late = {id(first): total for total, first in step.joins if first.died is not None and first.died == total.born + 1}
    waiting = {id(total) for total in late.values()}
    events: list[Event] = []
    for what, item in step.events:
        if what == "born" and id(item) in waiting:
            continue
        events.append((what, item))  # type: ignore[arg-type]
        if what == "died" and id(item) in late:
            events.append(("born", late[id(item)]))
    return events


def _changes(step: LedgerStep) -> Iterator[_Change]:
    """Blocks that begin and end on the device in a step, including buffers of its graphs."""
    for what, item in _with_gradient_sums(step):
        if isinstance(item, GraphCall):
            yield from _changes_inside(step, item)
        elif step.on_device(item):
            yield _Change(born=what == "born", block=item)


def _changes_inside(step: LedgerStep, call: GraphCall) -> Iterator[_Change]:
    """Changes within a run of a graph, after which its buffers are gone; events on results and inputs follow."""
    graph = step.graphs[call.number] if 0 <= call.number < len(step.graphs) else None
    if graph is None:
        return
    results = {
        id(buffer): outside
        for buffer, outside in zip(graph.results, call.outputs, strict=False)
        if buffer is not None and outside is not None and outside not in call.inputs
    }
    changed: dict[int, _Change] = {}
    for kind, buffer in graph.events:
        block = results.get(id(buffer), buffer)
        change = _Change(born=kind == "born", block=block, graph=call)
        if kind == "let go":
            given = call.inputs[buffer.born] if buffer.born < len(call.inputs) else None
            if given is None or buffer.born not in call.given_up or not step.on_device(given):
                continue
            change = _Change(born=False, block=given, graph=call)
        yield change
        if changed.pop(id(change.block), None) is None:
            changed[id(change.block)] = change
    for change in sorted(changed.values(), key=lambda change: not change.born):  # buffers end before inputs return
        yield _Change(born=not change.born, block=change.block)


def _holders(step: LedgerStep, alive: Iterable[tuple[Block, GraphCall | None]]) -> list[MemoryHolder]:
    groups: dict[tuple[MemoryOwner, str | None, int | None, str | None], list[Block]] = defaultdict(list)
    for block, graph in alive:
        category = _category(step, block, inside=graph is not None)
        line = block.place if category not in ("parameter", "optimizer_state", "gradient") else (None, None, None)
        groups[category, *line].append(block)
    holders = [
        MemoryHolder(
            category=category, bytes=sum(rounded_size(block.bytes) for block in blocks), blocks=len(blocks), file=file,
            line=line, function=function, op=max(blocks, key=lambda block: block.bytes).op or None,
        )
        for (category, file, line, function), blocks in groups.items()
    ]  # fmt: skip
    return sorted(holders, key=lambda holder: (-holder.bytes, holder.category, holder.file or "", holder.line or 0))


def _category(step: LedgerStep, block: Block, *, inside: bool) -> MemoryOwner:
    """The category of a block: as the program states, else by the phases of its lifetime."""
    if block.category is not None:
        return block.category
    if inside and block.born < 0:
        return "temporary"
    if block.born < step.first_op:
        return "input" if block.phase == "other" else "unknown"
    if block.phase == "forward":
        began = next((began_at for began_at in step.backward_began if began_at > block.born), None)
        return "activation" if began is not None and (block.died is None or block.died > began) else "temporary"
    return "input" if block.phase == "other" else "temporary"
