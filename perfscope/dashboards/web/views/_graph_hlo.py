"""Pictures of compiled XLA programs: an instruction, what is fused in it, what it reads and who reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape
from perfscope.analyzers.hlo.program import NO_WORK, program_label
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.programs import hot_instructions
from perfscope.analyzers.programs.fusion import RoundTrip, round_trips
from perfscope.dashboards.web.views._graphs import MOST_NODES, Box, Edge, Node, Subject
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns

# Instructions of XLA programs spelled as HLO, made again from what was read of them.


def shape_text(shape: Shape) -> str:
    """As HLO spells it, without layouts: ``bf16[8,128]``, ``(f32[], s32[4])``."""
    if shape.dtype == "tuple":
        return f"({', '.join(shape_text(part) for part in shape.parts)})"
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def instruction_text(one: Instruction) -> str:
    """One line of HLO, made again from what was read of it."""
    parts = [f"{one.name} = {shape_text(one.shape)} {one.opcode}({', '.join(one.operands)})"]
    parts += [f"{key}={value}" for key, value in one.attributes.items()]
    called = ", ".join(one.called)
    named = (("kind", one.fusion_kind), ("calls", called), ("custom_call_target", one.custom_call_target))
    parts += [f"{key}={value}" for key, value in named if value]
    told = [f'op_name="{one.op_name}"'] if one.op_name else []
    told += [f'source_file="{one.file}"'] if one.file is not None else []
    told += [f"source_line={one.line}"] if one.line is not None else []
    if told:
        parts.append(f"metadata={{{' '.join(told)}}}")
    return f"{'ROOT ' if one.is_root else ''}{', '.join(parts)}"


MOST_TRIPS, MOST_HOT = 25, 45
MOST_INSIDE = 26
"""Instructions of a fusion that are drawn; the largest results, the others are passed through."""
MOST_BESIDE = 10
"""Readers, and values read, of one instruction."""
MOST_AROUND = 20
"""Instructions around the opened ones: more of them hide what the picture is about."""
MOST_ENDS = 4
"""Steps of an opened fusion that a line leads to from one value."""
BODY_LINES = 60

_THROUGH = frozenset({"bitcast", "get-tuple-element"})
_NOT_INSIDE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})
_ONLY_NAMED = frozenset({"constant", "after-all"})

Value = tuple[str, int | None]


def program_subjects(trace: Trace) -> Iterator[Subject]:
    """Values that pass through memory between kernels that could be one, then instructions by their time."""
    held: dict[tuple[int, str], _Program] = {}
    drawn: set[tuple[int, str, frozenset[str]]] = set()

    def program(index: int, computation: str) -> _Program:
        if (index, computation) not in held:
            held[index, computation] = _Program(trace, index, computation)
        return held[index, computation]

    numbers = {id(module): index for index, module in enumerate(trace.hlo)}
    for trip in trace.fact(round_trips)[:MOST_TRIPS]:
        subject = _trip(program(numbers[id(trip.module)], trip.computation), trip)
        drawn.add((numbers[id(trip.module)], trip.computation, frozenset({trip.producer.name})))
        yield subject
    places = {
        (index, one.name): computation.name
        for index, module in enumerate(trace.hlo)
        for computation, one in module.instructions()
    }
    labels = {program_label(module, trace): index for index, module in enumerate(trace.hlo)}
    hot = [row for spots in trace.fact(hot_instructions) for row in spots.instructions]
    hot.sort(key=lambda row: -row.time_ns)
    basis = "measured" if trace.fact(hlo_time).instructions else "modelled"
    if not hot:
        hot_names = [(index, one, 0) for index, module in enumerate(trace.hlo) for one in _largest(module)]
    else:
        hot_names = [
            (labels[row.program], row.instruction, row.time_ns) for row in hot if row.program in labels and row.opcode
        ]
    for index, name, ns in hot_names[:MOST_HOT]:
        computation = places.get((index, name))
        if computation is None or (index, computation, frozenset({name})) in drawn:
            continue
        made = program(index, computation)
        one = made.body.by_name[name]
        why = f"{format_ns(ns)}, {basis}" if ns else "large result"
        yield made.subject(f"{name} ({one.opcode})", why, float(ns), [one], trip=None)


def _largest(module: HloModule) -> list[str]:
    """Of a program without any times: instructions of the entry with the largest results."""
    found = [one for one in module.entry_computation().instructions if one.opcode not in NO_WORK]
    return [one.name for one in sorted(found, key=lambda one: -one.shape.bytes)[:MOST_HOT]]


def _trip(program: _Program, trip: RoundTrip) -> Subject:
    readers = ", ".join(one.name for one in trip.consumers[:3])
    times = f", {trip.runs.times:,} times a run" if trip.runs.times > 1 else ""
    reason = trip.module.fusion_refusals.get(trip.producer.name)
    said = [
        f"{trip.producer.name} writes {format_bytes(trip.bytes)} to memory{times}, and {readers} "
        f"{'read' if len(trip.consumers) > 1 else 'reads'} it back: one kernel would not move up to "
        f"{format_bytes(trip.saved_bytes)} a run (modelled)."
    ]
    if trip.needed_elsewhere:
        said.append("Something else needs the value too, so it is written in any case.")
    if trip.in_cache:
        said.append("It fits into an H100's level-2 cache: little of it may reach memory.")
    said.append(f"XLA says why it did not: {reason}" if reason else _NO_REASON)
    why = f"{format_bytes(trip.saved_bytes)} a run could stay on the chip"
    more = f" and {len(trip.consumers) - 1:,} more" if len(trip.consumers) > 1 else ""
    title = f"{trip.producer.name} to {trip.consumers[0].name}{more}"
    return program.subject(title, why, float(trip.saved_bytes), [trip.producer, *trip.consumers[:2]], trip, tuple(said))


_NO_REASON = (
    "Why XLA did not fuse them is not recorded: XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_pass_re=priority-fusion' "
    "writes its reasons beside the program."
)


class _Program:
    """One computation of a program that is launched instruction by instruction, and who reads what in it."""

    def __init__(self, trace: Trace, index: int, computation: str) -> None:
        self.trace, self.index = trace, index
        self.module = trace.hlo[index]
        self.body: Computation = self.module.computations[computation]
        self.position = {one.name: at for at, one in enumerate(self.body.instructions)}
        self.origin: dict[str, Value] = {}
        self.readers: dict[str, list[tuple[Instruction, int | None]]] = {}
        for one in self.body.instructions:
            if one.opcode in _THROUGH and one.operands:
                made = self.origin[one.operands[0]]
                part = one.attributes.get("index", "") if one.opcode == "get-tuple-element" else ""
                self.origin[one.name] = (made[0], int(part)) if part.isdecimal() else made
                continue
            self.origin[one.name] = (one.name, None)
            for name in dict.fromkeys(one.operands):
                source, number = self.origin[name]
                self.readers.setdefault(source, []).append((one, number))

    def value_bytes(self, value: Value) -> int:
        """Bytes of a value: of an instruction's result, or of a part of it."""
        shape: Shape = self.body.by_name[value[0]].shape
        return shape.parts[value[1]].bytes if value[1] is not None and value[1] < len(shape.parts) else shape.bytes

    def subject(
        self,
        title: str,
        why: str,
        weight: float,
        centres: Sequence[Instruction],
        trip: RoundTrip | None,
        said: tuple[str, ...] = (),
    ) -> Subject:
        """The picture around some instructions; fusions among them are opened."""
        opened = {one.name: _Inside(self.module, one) for one in centres if one.opcode == "fusion" and one.called}
        room = MOST_NODES - sum(len(inside.shown) for inside in opened.values())
        kept, left = self._near(centres, len(centres) + max(0, min(room - len(centres), MOST_AROUND)))
        nodes: list[Node] = []
        boxes: list[Box] = []
        numbers: dict[tuple[str, str], int] = {}
        chosen = {one.name for one in centres}
        for one in kept:
            if one.name not in opened or not opened[one.name].shown:
                numbers[one.name, ""] = len(nodes)
                nodes.append(self._node(one, chosen=one.name in chosen))
                continue
            inside = opened[one.name]
            for step in inside.shown:
                numbers[one.name, step.name] = len(nodes)
                nodes.append(_inner(step, len(boxes), one))
            more = f", {inside.hidden:,} small steps not drawn" if inside.hidden else ""
            ns = self._ns(one)
            boxes.append(Box(title=one.name, said=f"one kernel{'' if ns is None else f', {format_ns(ns)}'}{more}"))
        edges = list(self._edges(kept, opened, numbers, trip))
        label = program_label(self.module, self.trace)
        where = {f"{one.file}:{one.line}" for one in centres if one.file is not None}
        return Subject(
            kind="program", title=f"{title}, {label}", why=why, weight=weight, nodes=nodes, edges=edges, boxes=boxes,
            names=frozenset(chosen), lines=frozenset(where), said=said, left=left,
        )  # fmt: skip

    def _near(self, centres: Sequence[Instruction], room: int) -> tuple[list[Instruction], int]:
        """The centres, what they read and who reads them, two steps far, the most bytes first; and how many not."""
        kept = {one.name: one for one in centres}
        left: set[str] = set()
        layer = list(centres)
        for _ in range(2):
            found: dict[str, tuple[int, Instruction]] = {}
            for one in layer:
                near = [(self.origin[name], self.body.by_name[self.origin[name][0]]) for name in one.operands]
                near += [((one.name, number), reader) for reader, number in self.readers.get(one.name, [])]
                sized = sorted(((self.value_bytes(value), other) for value, other in near), key=lambda pair: -pair[0])
                for at, (size, other) in enumerate(sized):
                    if other.opcode in _ONLY_NAMED or other.name in kept:
                        continue
                    if at >= 2 * MOST_BESIDE:
                        left.add(other.name)
                        continue
                    found[other.name] = max(found.get(other.name, (0, other)), (size, other), key=lambda pair: pair[0])
            layer = []
            for _size, other in sorted(found.values(), key=lambda pair: (-pair[0], pair[1].name)):
                if len(kept) >= room:
                    left.add(other.name)
                    continue
                kept[other.name] = other
                if other.opcode not in NO_WORK:  # through a loop's state everything is near everything
                    layer.append(other)
        return sorted(kept.values(), key=lambda one: self.position[one.name]), len(left - set(kept))

    def _edges(
        self,
        kept: Sequence[Instruction],
        opened: Mapping[str, _Inside],
        numbers: Mapping[tuple[str, str], int],
        trip: RoundTrip | None,
    ) -> Iterator[Edge]:
        names = {one.name for one in kept}
        readers = {one.name for one in trip.consumers} if trip is not None else set()
        for one in kept:
            inside = opened.get(one.name)
            if inside is not None:
                for step in inside.shown:
                    for source in inside.sources[step.name]:
                        if isinstance(source, str):
                            yield Edge(start=numbers[one.name, source], end=numbers[one.name, step.name], bytes=None)
            for slot, operand in enumerate(one.operands):
                value = self.origin[operand]
                if value[0] not in names:
                    continue
                saved = trip is not None and value[0] == trip.producer.name and one.name in readers
                starts = [numbers[value[0], step] for step in _ends(opened.get(value[0]), value)]
                ends = [numbers[one.name, step] for step in _reads(inside, slot)]
                if starts and ends:
                    said = "could stay on the chip" if saved else ""
                    yield Edge(start=starts[0], end=ends[0], bytes=self.value_bytes(value), said=said, saved=saved)
                    # A kernel reads a value once, whichever of its steps use it.
                    for end in ends[1:MOST_ENDS]:
                        yield Edge(start=starts[0], end=end, bytes=None, said="the same value")

    def _ns(self, one: Instruction) -> int | None:
        time = self.trace.fact(hlo_time).by_key.get((self.index, one.name))
        return None if time is None else time.total_ns

    def _node(self, one: Instruction, *, chosen: bool) -> Node:
        body = self.module.computations[one.called[0]].instructions if one.opcode == "fusion" and one.called else ()
        lines = [instruction_text(one), *(f"  {instruction_text(step)}" for step in body[:BODY_LINES])]
        if len(body) > BODY_LINES:
            lines.append(f"  ... {len(body) - BODY_LINES:,} more")
        what = one.opcode if one.custom_call_target is None else f"{one.opcode} {one.custom_call_target}"
        return Node(
            name=one.name, what=f"{what} {shape_text(one.shape)}", line=_place(one), bytes=one.shape.bytes,
            ns=self._ns(one), text="\n".join(lines), chosen=chosen, runs=one.opcode not in NO_WORK,
        )  # fmt: skip


class _Inside:
    """What of a fusion is drawn, and where each drawn step gets its values: a drawn step, or an operand's number."""

    def __init__(self, module: HloModule, fusion: Instruction) -> None:
        self.body = module.computations[fusion.called[0]]
        able = [one for one in self.body.instructions if one.opcode not in _NOT_INSIDE]
        kept = {one.name for one in sorted(able, key=lambda one: -one.shape.bytes)[:MOST_INSIDE]}
        self.shown = [one for one in able if one.name in kept]
        self.hidden = len(able) - len(self.shown)
        reach: dict[str, dict[str | int, None]] = {}
        self.sources: dict[str, list[str | int]] = {}
        for one in self.body.instructions:
            found: dict[str | int, None] = {}
            for name in one.operands:
                found |= reach[name]
            if one.parameter_number is not None:
                found = {one.parameter_number: None}
            self.sources[one.name] = list(found)
            reach[one.name] = {one.name: None} if one.name in kept else found

    def makes(self, part: int | None) -> list[str]:
        """The drawn steps that the fusion's result, or a part of it, comes from."""
        root = self.body.root
        if part is not None and root.opcode == "tuple" and part < len(root.operands):
            root = self.body.by_name[root.operands[part]]
        names = {one.name for one in self.shown}
        return [root.name] if root.name in names else [one for one in self.sources[root.name] if isinstance(one, str)]

    def reads(self, slot: int) -> list[str]:
        """The drawn steps that read an operand."""
        return [one.name for one in self.shown if slot in self.sources[one.name]]


def _ends(inside: _Inside | None, value: Value) -> list[str]:
    return [""] if inside is None or not inside.shown else inside.makes(value[1])


def _reads(inside: _Inside | None, slot: int) -> list[str]:
    return [""] if inside is None or not inside.shown else inside.reads(slot)


def _inner(step: Instruction, box: int, fusion: Instruction) -> Node:
    return Node(
        name=step.name, what=f"{step.opcode} {shape_text(step.shape)}", box=box, line=_place(step),
        bytes=step.shape.bytes, text=f"{instruction_text(step)}\n-- in --\n{instruction_text(fusion)}", chosen=True,
    )  # fmt: skip


def _place(one: Instruction) -> str:
    return "" if one.file is None else f"{one.file}:{one.line}" if one.line is not None else one.file
