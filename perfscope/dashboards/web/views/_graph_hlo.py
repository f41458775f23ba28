"""Pictures of compiled XLA programs: an instruction, the instructions fused in it, its inputs and readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfscope.analyzers.hlo import MOVES_NOTHING, Computation, HloModule, Instruction, Shape, hlo_time, program_label
from perfscope.analyzers.programs import RoundTrip, hot_instructions, round_trips
from perfscope.dashboards.web.views._graphs import MOST_NODES, Box, Edge, Node, Subject
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns

# Instructions of XLA programs in HLO syntax, reconstructed from parsed fields.

MOST_TRIPS, MOST_HOT = 25, 45
MOST_INSIDE = 26
"""Most instructions drawn of a fusion: those with the largest results. Lines pass through the others."""
MOST_NEIGHBOURS = 10
"""Most readers, and most inputs, of one instruction."""
MOST_AROUND = 20
"""Most instructions around the opened ones: more would hide the subject."""
MOST_ENDS = 4
"""Most steps of an opened fusion that one value is connected to."""
BODY_LINES = 60

_THROUGH = frozenset({"bitcast", "get-tuple-element"})
_NOT_INSIDE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})
_ONLY_NAMED = frozenset({"constant", "after-all"})

_NO_REASON = (
    "Why XLA did not fuse them is not recorded: XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_pass_re=priority-fusion' "
    "writes its reasons next to the program."
)


def shape_text(shape: Shape) -> str:
    """A shape in HLO syntax without layouts: ``bf16[8,128]``, ``(f32[], s32[4])``."""
    if shape.dtype == "tuple":
        return f"({', '.join(shape_text(part) for part in shape.parts)})"
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def instruction_text(instruction: Instruction) -> str:
    """One line of HLO, reconstructed from the parsed instruction."""
    parts = [
        f"{instruction.name} = {shape_text(instruction.shape)} {instruction.opcode}({', '.join(instruction.operands)})"
    ]
    parts += [f"{key}={value}" for key, value in instruction.attributes.items()]
    called = ", ".join(instruction.called)
    named = (
        ("kind", instruction.fusion_kind),
        ("calls", called),
        ("custom_call_target", instruction.custom_call_target),
    )
    parts += [f"{key}={value}" for key, value in named if value]
    texts = [f'op_name="{instruction.op_name}"'] if instruction.op_name else []
    texts += [f'source_file="{instruction.file}"'] if instruction.file is not None else []
    texts += [f"source_line={instruction.line}"] if instruction.line is not None else []
    if texts:
        parts.append(f"metadata={{{' '.join(texts)}}}")
    return f"{'ROOT ' if instruction.is_root else ''}{', '.join(parts)}"


Value = tuple[str, int | None]


def program_subjects(trace: Trace) -> Iterator[Subject]:
    """Values that pass through memory between kernels that could be merged, then instructions by time."""
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
        (index, instruction.name): computation.name
        for index, module in enumerate(trace.hlo)
        for computation, instruction in module.instructions()
    }
    labels = {program_label(module, trace): index for index, module in enumerate(trace.hlo)}
    hot = [row for spots in trace.fact(hot_instructions) for row in spots.instructions]
    hot.sort(key=lambda row: -row.time_ns)
    basis = "measured" if trace.fact(hlo_time).instructions else "modelled"
    if not hot:
        hot_names = [(index, text, 0) for index, module in enumerate(trace.hlo) for text in _largest(module)]
    else:
        hot_names = [
            (labels[row.program], row.instruction, row.time_ns) for row in hot if row.program in labels and row.opcode
        ]
    for index, name, ns in hot_names[:MOST_HOT]:
        computation = places.get((index, name))
        if computation is None or (index, computation, frozenset({name})) in drawn:
            continue
        made = program(index, computation)
        instruction = made.body.by_name[name]
        why = f"{format_ns(ns)}, {basis}" if ns else "large result"
        yield made.subject(f"{name} ({instruction.opcode})", why, float(ns), [instruction], trip=None)


def _largest(module: HloModule) -> list[str]:
    """For a program without times: the instructions of the entry with the largest results."""
    instructions = [
        instruction
        for instruction in module.entry_computation().instructions
        if instruction.opcode not in MOVES_NOTHING
    ]
    return [
        instruction.name
        for instruction in sorted(instructions, key=lambda instruction: -instruction.shape.bytes)[:MOST_HOT]
    ]


def _trip(program: _Program, trip: RoundTrip) -> Subject:
    readers = ", ".join(consumer.name for consumer in trip.consumers[:3])
    times = f", {trip.runs.times:,} times per run" if trip.runs.times > 1 else ""
    reason = trip.module.fusion_refusals.get(trip.producer.name)
    texts = [
        f"{trip.producer.name} writes {format_bytes(trip.bytes)} to memory{times}, and {readers} "
        f"{'read' if len(trip.consumers) > 1 else 'reads'} it back: one kernel would not move up to "
        f"{format_bytes(trip.saved_bytes)} per run (modelled)."
    ]
    if trip.needed_elsewhere:
        texts.append("Something else needs the value too, so it is written in any case.")
    if trip.in_cache:
        texts.append("It fits into an H100's level-2 cache, so little of it may reach memory.")
    texts.append(f"XLA's reason: {reason}" if reason else _NO_REASON)
    why = f"{format_bytes(trip.saved_bytes)} per run could stay on the chip"
    more = f" and {len(trip.consumers) - 1:,} more" if len(trip.consumers) > 1 else ""
    title = f"{trip.producer.name} to {trip.consumers[0].name}{more}"
    return program.subject(
        title, why, float(trip.saved_bytes), [trip.producer, *trip.consumers[:2]], trip, tuple(texts)
    )


class _Program:
    """A computation whose instructions are launched one by one, with the readers of each value."""

    def __init__(self, trace: Trace, index: int, computation: str) -> None:
        self.trace, self.index = trace, index
        self.module = trace.hlo[index]
        self.body: Computation = self.module.computations[computation]
        self.position = {instruction.name: index for index, instruction in enumerate(self.body.instructions)}
        self.origin: dict[str, Value] = {}
        self.readers: dict[str, list[tuple[Instruction, int | None]]] = {}
        for instruction in self.body.instructions:
            if instruction.opcode in _THROUGH and instruction.operands:
                made = self.origin[instruction.operands[0]]
                part = instruction.attributes.get("index", "") if instruction.opcode == "get-tuple-element" else ""
                self.origin[instruction.name] = (made[0], int(part)) if part.isdecimal() else made
                continue
            self.origin[instruction.name] = (instruction.name, None)
            for name in dict.fromkeys(instruction.operands):
                source, number = self.origin[name]
                self.readers.setdefault(source, []).append((instruction, number))

    def value_bytes(self, value: Value) -> int:
        """Bytes of a value: an instruction's result, or a part of it."""
        shape: Shape = self.body.by_name[value[0]].shape
        return shape.parts[value[1]].bytes if value[1] is not None and value[1] < len(shape.parts) else shape.bytes

    def subject(
        self,
        title: str,
        why: str,
        weight: float,
        centres: Sequence[Instruction],
        trip: RoundTrip | None,
        texts: tuple[str, ...] = (),
    ) -> Subject:
        """The picture around some instructions; fusions among them are opened."""
        opened = {item.name: _Inside(self.module, item) for item in centres if item.opcode == "fusion" and item.called}
        room = MOST_NODES - sum(len(inside.shown) for inside in opened.values())
        kept, left = self._near(centres, len(centres) + max(0, min(room - len(centres), MOST_AROUND)))
        nodes: list[Node] = []
        boxes: list[Box] = []
        numbers: dict[tuple[str, str], int] = {}
        chosen = {item.name for item in centres}
        for instruction in kept:
            if instruction.name not in opened or not opened[instruction.name].shown:
                numbers[instruction.name, ""] = len(nodes)
                nodes.append(self._node(instruction, chosen=instruction.name in chosen))
                continue
            inside = opened[instruction.name]
            for step in inside.shown:
                numbers[instruction.name, step.name] = len(nodes)
                nodes.append(_inner(step, len(boxes), instruction))
            more = f", {inside.hidden:,} small steps not drawn" if inside.hidden else ""
            ns = self._ns(instruction)
            boxes.append(
                Box(title=instruction.name, words=f"one kernel{'' if ns is None else f', {format_ns(ns)}'}{more}")
            )
        edges = list(self._edges(kept, opened, numbers, trip))
        label = program_label(self.module, self.trace)
        where = {f"{item.file}:{item.line}" for item in centres if item.file is not None}
        return Subject(
            kind="program", title=f"{title}, {label}", why=why, weight=weight, nodes=nodes, edges=edges, boxes=boxes,
            names=frozenset(chosen), lines=frozenset(where), words=texts, left=left,
        )  # fmt: skip

    def _near(self, centres: Sequence[Instruction], room: int) -> tuple[list[Instruction], int]:
        """The centres, their inputs and readers up to two steps away, most bytes first; and the number left out."""
        kept = {item.name: item for item in centres}
        left: set[str] = set()
        layer = list(centres)
        for _ in range(2):
            result: dict[str, tuple[int, Instruction]] = {}
            for instruction in layer:
                near = [(self.origin[name], self.body.by_name[self.origin[name][0]]) for name in instruction.operands]
                near += [
                    ((instruction.name, number), reader) for reader, number in self.readers.get(instruction.name, [])
                ]
                sized = sorted(((self.value_bytes(value), other) for value, other in near), key=lambda pair: -pair[0])
                for index, (size, other) in enumerate(sized):
                    if other.opcode in _ONLY_NAMED or other.name in kept:
                        continue
                    if index >= 2 * MOST_NEIGHBOURS:
                        left.add(other.name)
                        continue
                    result[other.name] = max(
                        result.get(other.name, (0, other)), (size, other), key=lambda pair: pair[0]
                    )
            layer = []
            for _size, other in sorted(result.values(), key=lambda pair: (-pair[0], pair[1].name)):
                if len(kept) >= room:
                    left.add(other.name)
                    continue
                kept[other.name] = other
                if other.opcode not in MOVES_NOTHING:  # through a loop's state everything would be near
                    layer.append(other)
        return sorted(kept.values(), key=lambda instruction: self.position[instruction.name]), len(left - set(kept))

    def _edges(
        self,
        kept: Sequence[Instruction],
        opened: Mapping[str, _Inside],
        numbers: Mapping[tuple[str, str], int],
        trip: RoundTrip | None,
    ) -> Iterator[Edge]:
        names = {instruction.name for instruction in kept}
        readers = {consumer.name for consumer in trip.consumers} if trip is not None else set()
        for instruction in kept:
            inside = opened.get(instruction.name)
            if inside is not None:
                for step in inside.shown:
                    for source in inside.sources[step.name]:
                        if isinstance(source, str):
                            yield Edge(
                                start=numbers[instruction.name, source],
                                end=numbers[instruction.name, step.name],
                                bytes=None,
                            )
            for slot, operand in enumerate(instruction.operands):
                value = self.origin[operand]
                if value[0] not in names:
                    continue
                saved = trip is not None and value[0] == trip.producer.name and instruction.name in readers
                starts = [numbers[value[0], step] for step in _ends(opened.get(value[0]), value)]
                ends = [numbers[instruction.name, step] for step in _reads(inside, slot)]
                if starts and ends:
                    text = "could stay on the chip" if saved else ""
                    yield Edge(start=starts[0], end=ends[0], bytes=self.value_bytes(value), words=text, saved=saved)
                    # A kernel reads a value once, however many of its steps use it.
                    for end in ends[1:MOST_ENDS]:
                        yield Edge(start=starts[0], end=end, bytes=None, words="the same value")

    def _ns(self, instruction: Instruction) -> int | None:
        time = self.trace.fact(hlo_time).by_key.get((self.index, instruction.name))
        return None if time is None else time.total_ns

    def _node(self, instruction: Instruction, *, chosen: bool) -> Node:
        body = (
            self.module.computations[instruction.called[0]].instructions
            if instruction.opcode == "fusion" and instruction.called
            else ()
        )
        lines = [instruction_text(instruction), *(f"  {instruction_text(step)}" for step in body[:BODY_LINES])]
        if len(body) > BODY_LINES:
            lines.append(f"  ... {len(body) - BODY_LINES:,} more")
        what = (
            instruction.opcode
            if instruction.custom_call_target is None
            else f"{instruction.opcode} {instruction.custom_call_target}"
        )
        return Node(
            name=instruction.name, what=f"{what} {shape_text(instruction.shape)}", line=_place(instruction),
            bytes=instruction.shape.bytes,
            ns=self._ns(instruction), text="\n".join(lines), chosen=chosen,
            runs=instruction.opcode not in MOVES_NOTHING,
        )  # fmt: skip


class _Inside:
    """The drawn steps of a fusion, and the source of each value: a drawn step, or an operand's number."""

    def __init__(self, module: HloModule, fusion: Instruction) -> None:
        self.body = module.computations[fusion.called[0]]
        able = [instruction for instruction in self.body.instructions if instruction.opcode not in _NOT_INSIDE]
        kept = {
            instruction.name
            for instruction in sorted(able, key=lambda instruction: -instruction.shape.bytes)[:MOST_INSIDE]
        }
        self.shown = [instruction for instruction in able if instruction.name in kept]
        self.hidden = len(able) - len(self.shown)
        reach: dict[str, dict[str | int, None]] = {}
        self.sources: dict[str, list[str | int]] = {}
        for instruction in self.body.instructions:
            result: dict[str | int, None] = {}
            for name in instruction.operands:
                result |= reach[name]
            if instruction.parameter_number is not None:
                result = {instruction.parameter_number: None}
            self.sources[instruction.name] = list(result)
            reach[instruction.name] = {instruction.name: None} if instruction.name in kept else result

    def makes(self, part: int | None) -> list[str]:
        """The drawn steps that the fusion's result, or a part of it, comes from."""
        root = self.body.root
        if part is not None and root.opcode == "tuple" and part < len(root.operands):
            root = self.body.by_name[root.operands[part]]
        names = {instruction.name for instruction in self.shown}
        return (
            [root.name]
            if root.name in names
            else [source for source in self.sources[root.name] if isinstance(source, str)]
        )

    def reads(self, slot: int) -> list[str]:
        """The drawn steps that read an operand."""
        return [instruction.name for instruction in self.shown if slot in self.sources[instruction.name]]


def _ends(inside: _Inside | None, value: Value) -> list[str]:
    return [""] if inside is None or not inside.shown else inside.makes(value[1])


def _reads(inside: _Inside | None, slot: int) -> list[str]:
    return [""] if inside is None or not inside.shown else inside.reads(slot)


def _inner(step: Instruction, box: int, fusion: Instruction) -> Node:
    return Node(
        name=step.name, what=f"{step.opcode} {shape_text(step.shape)}", box=box, line=_place(step),
        bytes=step.shape.bytes, text=f"{instruction_text(step)}\n-- in --\n{instruction_text(fusion)}", chosen=True,
    )  # fmt: skip


def _place(instruction: Instruction) -> str:
    return (
        ""
        if instruction.file is None
        else f"{instruction.file}:{instruction.line}"
        if instruction.line is not None
        else instruction.file
    )
