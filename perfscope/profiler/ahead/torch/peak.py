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
    category: str | None = None
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
        op, place = _first_writer(graph, name, places)
        return Block(count, op, place=place, device=True)

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
    origins = sorted(node.get_origins(), key=lambda one: one.name) if hasattr(node, "get_origins") else []
    first = next((one for one in origins if "." in str(one.target)), None)
    if first is None:
        return "", NO_LINE
    return str(first.meta.get("original_aten") or first.target), places([first, *origins])


# From the events of a step to its peak: how much, at which moment, who holds it.


SIZE_MISMATCH = 0.001
"""Of the results of a graph: less is how sums are laid out, and no value that is missed."""


def rounded_size(size: int) -> int:
    """Bytes that an allocator of device memory hands out for so many; none for none."""
    return -(-size // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING


@dataclass(slots=True, kw_only=True)
class _Moment:
    """After which event of the step, and of the graph it is in, most is held."""

    bytes: int
    at: int
    inside: int
    block: Block | None
    """That made it so."""


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


def step_memory(step: LedgerStep) -> StepMemory:
    """The peak of a step; of several moments that are alike the first."""
    events = _with_gradient_sums(step)
    peak = _peak(step, events, rounded_size)
    asked = _peak(step, events, lambda size: size)
    alive = _live_blocks(step, events, peak)
    holders = _holders(step, alive)
    at = events[peak.at] if 0 <= peak.at < len(events) else None
    call = at[1] if at is not None and isinstance(at[1], GraphCall) else None
    inner = None if call is None else step.graphs[call.number]
    block = peak.block
    kept, left = holders[:MAX_HOLDERS], holders[MAX_HOLDERS:]
    return StepMemory(
        peak_bytes=peak.bytes,
        requested_bytes=asked.bytes,
        start_bytes=sum(rounded_size(one.bytes) for one in step.held if step.on_device(one)),
        given_bytes=_given(step),
        phase=call.phase if call is not None else "other" if block is None else block.phase,
        op=None if block is None else block.op or None,
        file=None if block is None else block.place[0],
        line=None if block is None else block.place[1],
        graph=None if inner is None else inner.label,
        holders=tuple(kept),
        left_bytes=sum(one.bytes for one in left),
        left_blocks=sum(one.blocks for one in left),
    )


def _given(step: LedgerStep) -> int:
    born = [one for what, one in step.events if what == "born" and isinstance(one, Block)]
    begins = min((one.born for one in born if one.phase == "forward"), default=0)
    held = [*step.held, *(one for one in born if one.phase == "other" and one.born < begins)]
    return sum(
        one.bytes
        for one in held
        if step.on_device(one)
        and (one.category == "parameter" or (one.category is None and one.touched >= step.first_op))
    )


def size_mismatches(step: LedgerStep) -> Iterator[str]:
    """Graphs whose buffers, as inductor's wrapper leaves them, are not as large as what they gave back."""
    for _, one in step.events:
        graph = step.graphs[one.number] if isinstance(one, GraphCall) and 0 <= one.number < len(step.graphs) else None
        if graph is None or not isinstance(one, GraphCall):
            continue
        inside = sum(block.bytes for block in {id(mine): mine for mine in graph.results if mine is not None}.values())
        new = {id(block): block for block in one.outputs if block is not None and block not in one.inputs}
        outside = sum(block.bytes for block in new.values())
        if abs(inside - outside) > SIZE_MISMATCH * outside:
            yield (
                f"graph {graph.label}: the buffers that it gives back are {inside:,} bytes, its results {outside:,}: "
                "what it holds inside may be off by that"
            )


def _with_gradient_sums(step: LedgerStep) -> list[Event]:
    """The events with sums of gradients where the engine makes them: in place, unless something else holds a part."""
    late = {id(first): total for total, first in step.joins if first.died is not None and first.died == total.born + 1}
    waiting = {id(total) for total in late.values()}
    found: list[Event] = []
    for what, one in step.events:
        if what == "born" and id(one) in waiting:
            continue
        found.append((what, one))  # type: ignore[arg-type]
        if what == "died" and id(one) in late:
            found.append(("born", late[id(one)]))
    return found


def _peak(step: LedgerStep, events: Sequence[Event], size: Callable[[int], int]) -> _Moment:
    total = sum(size(one.bytes) for one in step.held if step.on_device(one))
    most = _Moment(bytes=total, at=-1, inside=-1, block=None)
    for at, (what, one) in enumerate(events):
        if isinstance(one, GraphCall):
            held = total
            for inside, (kind, block, change) in enumerate(_inside(step, one, size)):
                held += change
                if held > most.bytes:
                    most = _Moment(bytes=held, at=at, inside=inside, block=block if kind == "born" else None)
        elif step.on_device(one):
            total += size(one.bytes) if what == "born" else -size(one.bytes)
            if total > most.bytes:
                most = _Moment(bytes=total, at=at, inside=-1, block=one)
    return most


def _inside(step: LedgerStep, call: GraphCall, size: Callable[[int], int]) -> Iterator[tuple[str, Block, int]]:
    """(kind, block, change of bytes) of a run of a graph."""
    graph = step.graphs[call.number] if 0 <= call.number < len(step.graphs) else None
    for kind, block in () if graph is None else graph.events:
        if kind == "let go":
            given = call.inputs[block.born] if block.born < len(call.inputs) else None
            if given is not None and block.born in call.given_up and step.on_device(given):
                yield "died", given, -size(given.bytes)
        else:
            yield kind, block, size(block.bytes) if kind == "born" else -size(block.bytes)


def _live_blocks(step: LedgerStep, events: Sequence[Event], peak: _Moment) -> list[tuple[Block, StepPhase | None]]:
    """What lies in memory at a moment; of buffers of a graph also in which phase it runs."""
    alive: dict[int, tuple[Block, StepPhase | None]] = {
        id(one): (one, None) for one in step.held if step.on_device(one)
    }
    for at, (what, one) in enumerate(events[: peak.at + 1]):
        if isinstance(one, GraphCall):
            if at < peak.at:
                continue
            for kind, block, _ in list(_inside(step, one, rounded_size))[: peak.inside + 1]:
                if kind == "born":
                    alive[id(block)] = (_outside(step, one, block) or block, one.phase)
                else:
                    alive.pop(id(block), None)
        elif what == "born":
            if step.on_device(one):
                alive[id(one)] = (one, None)
        else:
            alive.pop(id(one), None)
    return list(alive.values())


def _outside(step: LedgerStep, call: GraphCall, block: Block) -> Block | None:
    """The block of the step that a buffer of a graph is after its run."""
    graph = step.graphs[call.number]
    for place, mine in enumerate(() if graph is None else graph.results):
        if mine is block and place < len(call.outputs) and call.outputs[place] not in call.inputs:
            return call.outputs[place]
    return None


def _holders(step: LedgerStep, alive: Iterable[tuple[Block, StepPhase | None]]) -> list[MemoryHolder]:
    groups: dict[tuple[MemoryOwner, str | None, int | None, str | None], list[Block]] = defaultdict(list)
    for block, phase in alive:
        category = _category(step, block, phase)
        place = block.place if category not in ("parameter", "optimizer_state", "gradient") else (None, None, None)
        groups[category, *place].append(block)
    found = [
        MemoryHolder(
            category=category, bytes=sum(rounded_size(one.bytes) for one in blocks), blocks=len(blocks), file=file,
            line=line, function=function, op=max(blocks, key=lambda one: one.bytes).op or None,
        )
        for (category, file, line, function), blocks in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.bytes, one.category, one.file or "", one.line or 0))


def _category(step: LedgerStep, block: Block, inside: StepPhase | None) -> MemoryOwner:
    """What a block is for: as the program says, else by the phases it lives in."""
    if block.category == "parameter":
        return "parameter"
    if block.category == "gradient":
        return "gradient"
    if block.category == "optimizer_state":
        return "optimizer_state"
    if inside is not None and block.born < 0:
        return "temporary"
    if block.born < step.first_op:
        return "input" if block.phase == "other" else "unknown"
    if block.phase == "forward":
        began = next((one for one in step.backward_began if one > block.born), None)
        return "activation" if began is not None and (block.died is None or block.died > began) else "temporary"
    return "input" if block.phase == "other" else "temporary"
