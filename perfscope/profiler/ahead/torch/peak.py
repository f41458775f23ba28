"""What happens to the device memory of a planned step: storages come and go, planned graphs run.

Holds no framework, so the peak of a step can be counted where there is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfscope.model.documents.torch_plan import MAX_HOLDERS, MemoryHolder, MemoryOwner, StepMemory, StepPhase
from perfscope.model.memory import ALLOCATION_ROUNDING

UserLine = tuple[str | None, int | None, str | None]
"""(file, line, function) of the user's."""
NO_LINE: UserLine = (None, None, None)


@dataclass(slots=True, eq=False)
class Block:
    """One storage, or one buffer inside of a planned graph."""

    bytes: int
    op: str = ""
    phase: StepPhase = "other"
    place: UserLine = NO_LINE
    born: int = -1
    """Number of the op that made it."""
    died: int | None = None
    """Number of the op before which it was freed."""
    node: int = -1
    """Autograd's number of the node that made it in a backward."""
    device: bool = False
    """Made or moved to the device by the program's own words."""
    touched: int = -1
    """Number of the last op that had it."""
    category: MemoryOwner | None = None
    """Where the program itself says: ``parameter``, ``gradient``, ``optimizer_state``."""


@dataclass(slots=True, eq=False, kw_only=True)
class GraphCall:
    """A run of a planned graph: its own buffers come and go between what is there before and after."""

    number: int
    inputs: tuple[Block | None, ...]
    given_up: frozenset[int]
    """Inputs (by their place) that nobody else holds: the graph frees them after their last use."""
    outputs: tuple[Block | None, ...]
    phase: StepPhase


Event = tuple[str, Block] | tuple[str, GraphCall]
"""``born``, ``died`` or ``graph``."""


# The buffers of a planned graph in the order in which inductor's wrapper allocates, reuses and frees them. The wrapper
# is the code that inductor would run, after its own planning of memory: a buffer that takes over the memory of another
# is no new one.


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


class _BufferEvents:
    """Follows the memory of a graph through the lines of its wrapper."""

    def __init__(self, inputs: Sequence[str], made: Callable[[str], Block | None]) -> None:
        """``made(name)``: the block of a buffer, ``None`` where it has no memory of its own."""
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
    """Of a ``GraphLowering`` whose code is written.

    ``lines``: what its wrapper does with memory; ``size(graph, name)``: bytes of a buffer; ``places(origins)``: the
    user's line of nodes of the FX graph. ``AttributeError`` and the like where this torch's wrapper is another one.
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
    """(ATen op, the user's line) of what writes a buffer first."""
    buffer = graph.name_to_buffer.get(name)
    operation = buffer.get_defining_op() if hasattr(buffer, "get_defining_op") else None
    node = operation if operation is not None else buffer
    origins = sorted(node.get_origins(), key=lambda origin: origin.name) if hasattr(node, "get_origins") else []
    first = next((origin for origin in origins if "." in str(origin.target)), None)
    if first is None:
        return "", NO_LINE
    return str(first.meta.get("original_aten") or first.target), places([first, *origins])


# From the events of a step to its peak: how much, at which moment, who holds it.


def rounded_size(size: int) -> int:
    """Bytes that an allocator of device memory hands out for so many; none for none."""
    return -(-size // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStep:
    """A step as the ledger saw it."""

    held: Sequence[Block]
    """There when it began."""
    events: Sequence[Event]
    joins: Sequence[tuple[Block, Block]]
    backward_began: Sequence[int]
    graphs: Sequence[GraphBuffers | None]
    """By number; ``None``: not known."""
    all_on_device: bool
    """The program never names a device, so all of it is taken to be there."""
    first_op: int

    def on_device(self, block: Block) -> bool:
        """Whether a block counts: what the program moved there counts in steps that use it."""
        return self.all_on_device or block.category is not None or (block.device and self.lasting(block))

    def lasting(self, block: Block) -> bool:
        """False for what an earlier step moved to the device and this one never looks at."""
        return block.touched >= self.first_op or block.phase != "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A block of the device comes or goes."""

    born: bool
    block: Block
    graph: GraphCall | None = None
    """The graph whose buffer it is."""


def step_memory(step: LedgerStep) -> StepMemory:
    """The peak of a step; of several moments that are alike the first."""
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
    """The events with sums of gradients where the engine makes them: in place, unless something else holds a part."""
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
    """What comes and goes on the device in a step, the buffers of its graphs among it."""
    for what, item in _with_gradient_sums(step):
        if isinstance(item, GraphCall):
            yield from _changes_inside(step, item)
        elif step.on_device(item):
            yield _Change(born=what == "born", block=item)


def _changes_inside(step: LedgerStep, call: GraphCall) -> Iterator[_Change]:
    """Of a run of a graph. At its end all is as before: the step's own events follow, results and inputs that end."""
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
    for change in sorted(changed.values(), key=lambda change: not change.born):  # buffers go before inputs return
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
    """What a block is for: as the program says, else by the phases it lives in."""
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
