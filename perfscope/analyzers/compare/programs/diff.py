"""Two compiled programs compared by instruction: every launch of both is in one row, or equal on both sides."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from perfscope.analyzers.compare.programs.keys import (
    CHEAP,
    NO_LINES,
    LineMap,
    OpKey,
    line_map,
    lines_of,
    op_key,
    shape_text,
)
from perfscope.analyzers.compare.programs.match import Group, Launch, matched
from perfscope.analyzers.compare.programs.memory import peak_rows
from perfscope.analyzers.compare.programs.row import (
    BLOCKING,
    COLLECTIVE_GONE,
    LOST,
    NEW_COLLECTIVE,
    NO_LONGER,
    ProgramChange,
    ProgramRow,
    What,
    merged,
    some_of,
)
from perfscope.analyzers.compare.programs.units import BYTES, FLOPS, PEAK, RECOMPUTED, WIRE, Unit, Units, units_of
from perfscope.analyzers.hlo import PRODUCTS, HloModule, Instruction, ModuleCost, Shape, module_cost, refusal_of
from perfscope.model.documents.compared_programs import ProgramWritten
from perfscope.model.units import format_bytes

Source = Callable[[Sequence[OpKey]], str]
"""Return the changed line of the source program near any of these ops; ``''`` without one."""

HOPS = 2
"""Ops between a changed line and an op that it may have changed."""

MOST_CHANGED = 2_000
"""Maximum number of changed ops whose neighbours are searched; with more, the program was rewritten."""

_NOT_WRITTEN = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "call", "while", "conditional", "bitcast", "broadcast"}
)
"""Opcodes of the program's structure, or that JAX adds to any op."""

Near = tuple[str, int, str]
"""File, line (as the head counts) and primitive of an op."""

_Op = tuple[OpKey, str, Instruction]

MOST = 1 << 62
"""Largest amount that a document holds exactly."""

TOO_LARGE = "its amounts are too large to be taken apart"


# Change of each group of launches: left a fusion, more bytes, another type, a new wait.


def group_rows(base: Units, head: Units, lines: LineMap, source: Source) -> Iterator[ProgramRow]:
    """Yield a row for every group of launches whose work or number of launches differs between the sides."""
    for group in matched(_launches(base, lines), _launches(head, NO_LINES)):
        mine, theirs = ([(unit.amounts, unit.blocks) for unit in side] for side in (group.base, group.head))
        if not group.same or mine != theirs:
            yield _Row(group, head, lines, source).made()


def _launches(side: Units, lines: LineMap) -> list[Launch[Unit]]:
    made: dict[int, OpKey] = {}
    launches = []
    for unit in side.units:
        counts: Counter[OpKey] = Counter()
        for op in unit.ops:
            key = made.get(id(op))
            if key is None:
                key = made[id(op)] = op_key(op.instruction, lines)
            counts[key] += 1
        result = op_key(unit.instruction, lines)
        launches.append(Launch(unit, unit.digest, counts, result, unit.reads, unit.is_collective))
    return launches


class _Row:
    """A changed group, on its way to a row."""

    def __init__(self, group: Group[Unit], head: Units, lines: LineMap, source: Source) -> None:
        self.group = group
        self.head = head
        self.keys = (
            [[op_key(op.instruction, lines) for op in unit.ops] for unit in group.base],
            [[op_key(op.instruction, NO_LINES) for op in unit.ops] for unit in group.head],
        )
        self.own = (
            [op_key(unit.instruction, lines) for unit in group.base],
            [op_key(unit.instruction, NO_LINES) for unit in group.head],
        )
        inner = [key for side in self.keys for unit_keys in side for key in unit_keys]
        self.source = source([*inner, *self.own[0], *self.own[1]])
        self.edges = self._edges() if len(group.head) > 1 else []
        self.amounts = {
            name: (before, after)
            for name in dict.fromkeys(name for unit in (*group.base, *group.head) for name in unit.amounts)
            if (before := _sum(group.base, name)) != (after := _sum(group.head, name))
        }

    def made(self) -> ProgramRow:
        """Return the row."""
        change, texts = self._change()
        first = self._first(change)
        waits = sum(unit.blocks is not None for unit in self.group.head) - sum(
            unit.blocks is not None for unit in self.group.base
        )
        collectives = [unit for unit in (*self.group.base, *self.group.head) if unit.is_collective]
        return ProgramRow(
            change=change,
            what=self._what(change),
            place=first.place(),
            source=self.source,
            phase=first.phase if first.phase in ("backward", "recompute") else "",
            amounts=self.amounts,
            weight=max((unit.amounts.get(WIRE, 0) for unit in collectives), default=0),
            lost=max(0, len(self.group.head) - len(self.group.base)) if change == LOST and self.delta(BYTES) > 0 else 0,
            blocking=max(0, waits),
            base_names=tuple(unit.instruction.name for unit in self.group.base),
            head_names=tuple(unit.instruction.name for unit in self.group.head),
            said=tuple(texts),
        )

    @property
    def _collective(self) -> str | None:
        """Return ``all-reduce`` or another kind if this is a collective."""
        for unit in (*self.group.head, *self.group.base):
            if unit.is_collective:
                return (unit.ops[0].instruction if unit.ops else unit.instruction).opcode.removesuffix("-start")
        return None

    def delta(self, name: str) -> int:
        """Return head minus base."""
        base, head = self.amounts.get(name, (0, 0))
        return head - base

    def _change(self) -> tuple[What, list[str]]:
        base, head = self.group.base, self.group.head
        if not base:
            return self._alone(head, "new", NEW_COLLECTIVE, "more recompute")
        if not head:
            return self._alone(base, "gone", COLLECTIVE_GONE, "less recompute")
        if len(head) > len(base):
            return LOST, self._crossing()
        if len(head) < len(base):
            return "moved into a fusion", [f"{len(base)} → {len(head)} launches"]
        if len(head) > 1:
            return "fused otherwise", []
        return self._pair(base[0], head[0])

    def _alone(self, units: Sequence[Unit], plain: What, collective: What, again: What) -> tuple[What, list[str]]:
        if any(unit.is_collective for unit in units):
            return collective, [f"the device waits for it: {unit.blocks}" for unit in units if unit.blocks is not None]
        if _sum(units, RECOMPUTED):
            return again, []
        return plain, []

    def _pair(self, base: Unit, head: Unit) -> tuple[What, list[str]]:
        if head.is_collective and (base.blocks is None) != (head.blocks is None):
            if head.blocks is None:
                return NO_LONGER, []
            return BLOCKING, [f"the device waits for it: {head.blocks}"]
        texts = self._moved()
        if base.runs != head.runs:
            return "trip count changed", [f"runs {base.runs:,} → {head.runs:,} times", *texts]
        kinds = _types(base), _types(head)
        if kinds[0] != kinds[1]:
            return "type changed", [f"{_named(kinds[0] - kinds[1])} → {_named(kinds[1] - kinds[0])}", *texts]
        words: tuple[tuple[str, What, What], ...] = (
            (RECOMPUTED, "more recompute", "less recompute"),
            (BYTES, "more bytes", "fewer bytes"),
            (FLOPS, "more FLOPs", "fewer FLOPs"),
        )
        for name, more, fewer in words:
            if self.delta(name):
                return (more if self.delta(name) > 0 else fewer), [*_shapes(base, head), *texts]
        layouts = _layouts(base.instruction.shape), _layouts(head.instruction.shape)
        if layouts[0] != layouts[1]:
            return "layout changed", [*texts]
        return "changed", [*_shapes(base, head), *texts]

    def _moved(self) -> list[str]:
        """Return the ops that a launch gained or lost."""
        sides = [Counter(_plain(key) for keys in side for key in keys if key.opcode not in CHEAP) for side in self.keys]
        parts = []
        for word, ops in (("with", sides[1] - sides[0]), ("without", sides[0] - sides[1])):
            if ops:
                parts.append(f"{word} {some_of(dict.fromkeys(name for name, _ in ops))}")
        return parts

    def _crossing(self) -> list[str]:
        """Return the values that pass through memory between launches that were one launch."""
        names = ", ".join(unit.instruction.name for unit in self.group.base[:2])
        texts = [f"{len(self.group.base)} → {len(self.group.head)} launches; was {names}"]
        for _, shape, source, readers in self.edges[:2]:
            whose = op_key(source.instruction)
            where = f" ({whose.place()})" if whose.place() else ""
            texts.append(
                f"{shape_text(shape)} of {source.instruction.name}{where}, {format_bytes(shape.bytes)}, is written and "
                f"read by {some_of(dict.fromkeys(unit.instruction.name for unit in readers))}"
            )
        return [*texts[:2], *(f"XLA: {reason}" for reason in self._refusals()), *texts[2:]]

    def _edges(self) -> list[tuple[int, Shape, Unit, list[Unit]]]:
        """Return (bytes, shape, writer, readers) of the values between launches of the head, the largest first."""
        inside = {(unit.computation, unit.instruction.name): unit for unit in self.group.head}
        result: dict[tuple[str, str, Shape], tuple[Shape, Unit, list[Unit]]] = {}
        for name in dict.fromkeys(unit.computation for unit in self.group.head):
            computation = self.head.module.computations[name]
            made = self.head.origins[name]
            for unit in self.group.head:
                if unit.computation != name:
                    continue
                for operand in unit.instruction.operands:
                    for source in made[operand]:
                        writer = inside.get((name, source))
                        if writer is not None:
                            shape = computation.by_name[operand].shape
                            result.setdefault((name, source, shape), (shape, writer, []))[2].append(unit)
        rows = [(shape.bytes, shape, writer, readers) for shape, writer, readers in result.values()]
        return sorted(rows, key=lambda row: -row[0])

    def _refusals(self) -> list[str]:
        """Return XLA's reasons for the values that leave these launches, if its dump has them."""
        reasons = (refusal_of(self.head.module, unit.instruction) for unit in self.group.head)
        return [reason for reason in dict.fromkeys(reasons) if reason][:2]

    def _first(self, change: What) -> OpKey:
        """Return the op that locates the row: of ops that left a fusion, the one whose value crosses.

        Else the largest.
        """
        if change == LOST:
            for _, _, writer, _ in self.edges:
                key = op_key(writer.instruction)
                if key.file:
                    return key
        own = self.own[1] or self.own[0]
        inner = [key for unit_keys in (self.keys[1] or self.keys[0]) for key in unit_keys if key.opcode not in CHEAP]
        return next((key for key in (*own, *inner) if key.file), own[0])

    def _what(self, change: What) -> str:
        """Return the ops of the row; if ops left a fusion, those that are in separate launches now."""
        if len(self.group.base) == len(self.group.head) == 1 or not (self.group.base and self.group.head):
            keys = (self.keys[1] or self.keys[0])[0]
        else:
            keys = [key for unit_keys in (self.keys[1] if change == LOST else self.keys[0]) for key in unit_keys]
        heavy = [key for key in keys if key.opcode not in CHEAP] or keys
        if self._collective is not None:
            text = some_of(dict.fromkeys(key.primitive for key in heavy))
            return (
                f"{self._collective} of {text}"
                if text and text != self._collective.replace("-", "_")
                else self._collective
            )
        if change == LOST:
            heavy = [op_key(writer.instruction) for _, _, writer, _ in self.edges] or heavy
        names = dict.fromkeys(key.primitive or key.opcode for key in heavy)
        return some_of(names) or (self.group.head or self.group.base)[0].instruction.opcode


def _sum(units: Sequence[Unit], name: str) -> int:
    return sum(unit.amounts.get(name, 0) for unit in units)


def _plain(key: OpKey) -> tuple[str, str]:
    return key.primitive or key.opcode, f"{key.file}:{key.line}"


def _types(unit: Unit) -> frozenset[str]:
    """Return the types of a unit's results and of its products, with their precision."""
    kinds = {part.dtype for part in _parts(unit.instruction.shape)}
    for op in unit.ops:
        if op.instruction.opcode in PRODUCTS:
            precision = op.instruction.attributes.get("operand_precision", "")
            algorithm = op.instruction.attributes.get("algorithm", "")
            kinds.add(" ".join(filter(None, ("product", op.instruction.shape.dtype, precision, algorithm))))
    return frozenset(kinds)


def _named(kinds: frozenset[str]) -> str:
    return ", ".join(sorted(kinds)) or "none"


def _parts(shape: Shape) -> Iterator[Shape]:
    if shape.dtype != "tuple":
        yield shape
    for part in shape.parts:
        yield from _parts(part)


def _layouts(shape: Shape) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(part.layout for part in _parts(shape))


def _shapes(base: Unit, head: Unit) -> list[str]:
    before, after = shape_text(base.instruction.shape), shape_text(head.instruction.shape)
    return [f"writes {before} → {after}"] if before != after else []


# Differences of the programs before optimization: lines, and the ops near them.


class WrittenChange(Struct, frozen=True, kw_only=True):
    """Lines that differ, and the ops that they may have changed."""

    rows: tuple[ProgramWritten, ...]
    near: Mapping[Near, tuple[int, str]] = field(default_factory=dict)
    """Op -> (distance in steps, line that differs), for the nearest line."""

    def source_of(self, keys: Iterable[OpKey]) -> str:
        """Return the changed line nearest to any of these ops; ``''`` if none is near."""
        nearest = (self.near.get(near_of(key)) for key in keys)
        return min((near for near in nearest if near is not None), default=(0, ""))[1]


def near_of(key: OpKey) -> Near:
    """Return the part of an op's key that survives optimization."""
    return key.file, key.line, key.primitive


def written_change(base: HloModule, head: HloModule, lines: LineMap) -> WrittenChange:
    """Return ops of one program that the other lacks, by line. Linear in both programs."""
    mine, theirs = list(_ops(base, lines)), list(_ops(head, NO_LINES))
    counts = Counter(key for key, _, _ in mine), Counter(key for key, _, _ in theirs)
    gone, new = counts[0] - counts[1], counts[1] - counts[0]
    shapes = _without_shapes(gone) & _without_shapes(new)
    rows: Counter[tuple[str, str, str]] = Counter()
    for change, differing in (("new", new), ("gone", gone)):
        rest = Counter(shapes)
        for key, count in differing.items():
            plain = key.without_shape()
            reshaped = min(count, rest[plain])
            rest[plain] -= reshaped
            if reshaped and change == "new":
                rows[key.place(), "other shape", key.primitive] += reshaped
            if count > reshaped and key.file:
                rows[key.place(), change, key.primitive] += count - reshaped
    near: dict[Near, tuple[int, str]] = {}
    if new.total() + gone.total() <= MOST_CHANGED:
        for side, differing in ((theirs, new), (mine, gone)):
            _spread(side, differing, near)
    order = {"new": 0, "gone": 1, "other shape": 2}
    return WrittenChange(
        rows=tuple(
            ProgramWritten(place=location, change=change, what=what, count=count)
            for (location, change, what), count in sorted(rows.items(), key=lambda row: (order[row[0][1]], row[0][0]))
            if location
        ),
        near=near,
    )


def _ops(module: HloModule, lines: LineMap) -> Iterator[_Op]:
    for computation, instruction in module.instructions():
        if instruction.opcode not in _NOT_WRITTEN and instruction.op_name:
            yield op_key(instruction, lines), computation.name, instruction


def _without_shapes(counts: Counter[OpKey]) -> Counter[OpKey]:
    result: Counter[OpKey] = Counter()
    for key, count in counts.items():
        result[key.without_shape()] += count
    return result


def _spread(ops: list[_Op], changed: Counter[OpKey], near: dict[Near, tuple[int, str]]) -> None:
    """Extend from the changed ops to their consumers and producers."""
    keys = {(computation, instruction.name): key for key, computation, instruction in ops}
    neighbours: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for _, computation, instruction in ops:
        for operand in instruction.operands:
            neighbours[computation, instruction.name].append((computation, operand))
            neighbours[computation, operand].append((computation, instruction.name))
    for key, computation, instruction in ops:
        if not changed[key] or not key.file:
            continue
        location, seen, edge = key.place(), {(computation, instruction.name)}, [(computation, instruction.name)]
        for hops in range(HOPS + 1):
            for node in edge:
                if node in keys:
                    mark = near_of(keys[node])
                    near[mark] = min(near.get(mark, (hops, location)), (hops, location))
            edge = [other for node in edge for other in neighbours.get(node, ()) if other not in seen]
            seen.update(edge)


def program_change(
    base: HloModule,
    head: HloModule,
    *,
    before: tuple[HloModule | None, HloModule | None] = (None, None),
    costs: tuple[ModuleCost, ModuleCost] | None = None,
    name: str = "",
) -> ProgramChange:
    """Return the changes from one scheduled program to another.

    ``before``: both programs before optimization, if known; changed lines are derived from them. ``costs``: their
    costs, if counted already. About n log n of n instructions. ``ValueError`` if rows and totals disagree, which would
    be a bug.
    """
    costs = costs or (module_cost(base), module_cost(head))
    units = units_of(costs[0]), units_of(costs[1])
    prints = units[0].digests[base.entry][:16], units[1].digests[head.entry][:16]
    written = (before[0], before[1]) if before[0] is not None and before[1] is not None else None
    lines = line_map(*map(lines_of, (base, head) if written is None else written))
    source = None if written is None else written_change(*written, lines)
    peak, live = peak_rows(base, head, lines)
    totals = {key: (units[0].totals[key], units[1].totals[key]) for key in units[0].totals}
    if peak is not None:
        totals[PEAK] = peak
    notes: list[str] = []
    rows: list[ProgramRow] = []
    if max(max(both) for both in totals.values()) > MOST:
        totals, notes = {}, [TOO_LARGE]
    else:
        if prints[0] != prints[1]:
            near = (lambda keys: "") if source is None else source.source_of
            rows += group_rows(*units, lines, near)
        rows += live
    change = ProgramChange(
        name=name or head.name,
        base_fingerprint=prints[0],
        head_fingerprint=prints[1],
        totals=totals,
        rows=merged(rows, totals),
        written=None if source is None else source.rows,
        notes=tuple(notes),
        lines=lines,
    )
    change.check()
    return change
