"""From the events of a step to its peak: how much, at which moment, who holds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscope.profiler.allocator import ROUNDED_TO
from perfscope.profiler.aot.torch_memory_events import Block, Event, GraphCall
from perfscope.profiler.aot.torch_memory_file import (
    MAX_HOLDERS,
    MemoryHolder,
    MemoryOwner,
    StepMemory,
    StepPhase,
)
from perfscope.profiler.aot.torch_memory_graph import GraphBuffers

DISAGREES = 0.001
"""Of the results of a graph: less is how sums are laid out, and no value that is missed."""


def rounded(size: int) -> int:
    """Bytes that an allocator of device memory hands out for so many; none for none."""
    return -(-size // ROUNDED_TO) * ROUNDED_TO


@dataclass(slots=True, kw_only=True)
class _Moment:
    """After which event of the step, and of the graph it is in, most is held."""

    bytes: int
    at: int
    inside: int
    block: Block | None
    """That made it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
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


def step_memory(step: Step) -> StepMemory:
    """The peak of a step; of several moments that are alike the first."""
    events = _joined(step)
    peak = _peak(step, events, rounded)
    asked = _peak(step, events, lambda size: size)
    alive = _alive(step, events, peak)
    holders = _holders(step, alive)
    at = events[peak.at] if 0 <= peak.at < len(events) else None
    call = at[1] if at is not None and isinstance(at[1], GraphCall) else None
    inner = None if call is None else step.graphs[call.number]
    block = peak.block
    kept, left = holders[:MAX_HOLDERS], holders[MAX_HOLDERS:]
    return StepMemory(
        peak_bytes=peak.bytes,
        requested_bytes=asked.bytes,
        start_bytes=sum(rounded(one.bytes) for one in step.held if step.on_device(one)),
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


def _given(step: Step) -> int:
    born = [one for what, one in step.events if what == "born" and isinstance(one, Block)]
    begins = min((one.born for one in born if one.phase == "forward"), default=0)
    held = [*step.held, *(one for one in born if one.phase == "other" and one.born < begins)]
    return sum(
        one.bytes
        for one in held
        if step.on_device(one)
        and (one.category == "parameter" or (one.category is None and one.touched >= step.first_op))
    )


def disagreements(step: Step) -> Iterator[str]:
    """Graphs whose buffers, as inductor's wrapper leaves them, are not as large as what they gave back."""
    for _, one in step.events:
        graph = step.graphs[one.number] if isinstance(one, GraphCall) and 0 <= one.number < len(step.graphs) else None
        if graph is None or not isinstance(one, GraphCall):
            continue
        inside = sum(block.bytes for block in {id(mine): mine for mine in graph.results if mine is not None}.values())
        new = {id(block): block for block in one.outputs if block is not None and block not in one.inputs}
        outside = sum(block.bytes for block in new.values())
        if abs(inside - outside) > DISAGREES * outside:
            yield (
                f"graph {graph.label}: the buffers that it gives back are {inside:,} bytes, its results {outside:,}: "
                "what it holds inside may be off by that"
            )


def _joined(step: Step) -> list[Event]:
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


def _peak(step: Step, events: Sequence[Event], size: Callable[[int], int]) -> _Moment:
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


def _inside(step: Step, call: GraphCall, size: Callable[[int], int]) -> Iterator[tuple[str, Block, int]]:
    """(kind, block, change of bytes) of a run of a graph."""
    graph = step.graphs[call.number] if 0 <= call.number < len(step.graphs) else None
    for kind, block in () if graph is None else graph.events:
        if kind == "let go":
            given = call.inputs[block.born] if block.born < len(call.inputs) else None
            if given is not None and block.born in call.given_up and step.on_device(given):
                yield "died", given, -size(given.bytes)
        else:
            yield kind, block, size(block.bytes) if kind == "born" else -size(block.bytes)


def _alive(step: Step, events: Sequence[Event], peak: _Moment) -> list[tuple[Block, StepPhase | None]]:
    """What lies in memory at a moment; of buffers of a graph also in which phase it runs."""
    alive: dict[int, tuple[Block, StepPhase | None]] = {
        id(one): (one, None) for one in step.held if step.on_device(one)
    }
    for at, (what, one) in enumerate(events[: peak.at + 1]):
        if isinstance(one, GraphCall):
            if at < peak.at:
                continue
            for kind, block, _ in list(_inside(step, one, rounded))[: peak.inside + 1]:
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


def _outside(step: Step, call: GraphCall, block: Block) -> Block | None:
    """The block of the step that a buffer of a graph is after its run."""
    graph = step.graphs[call.number]
    for place, mine in enumerate(() if graph is None else graph.results):
        if mine is block and place < len(call.outputs) and call.outputs[place] not in call.inputs:
            return call.outputs[place]
    return None


def _holders(step: Step, alive: Iterable[tuple[Block, StepPhase | None]]) -> list[MemoryHolder]:
    groups: dict[tuple[MemoryOwner, str | None, int | None, str | None], list[Block]] = defaultdict(list)
    for block, phase in alive:
        category = _category(step, block, phase)
        place = block.place if category not in ("parameter", "optimizer_state", "gradient") else (None, None, None)
        groups[category, *place].append(block)
    found = [
        MemoryHolder(
            category=category, bytes=sum(rounded(one.bytes) for one in blocks), blocks=len(blocks), file=file,
            line=line, function=function, op=max(blocks, key=lambda one: one.bytes).op or None,
        )
        for (category, file, line, function), blocks in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.bytes, one.category, one.file or "", one.line or 0))


def _category(step: Step, block: Block, inside: StepPhase | None) -> MemoryOwner:
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
