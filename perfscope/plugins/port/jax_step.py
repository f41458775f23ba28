"""The step of a JAX program: the compiled program with most work, from a recording or compiled ahead."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from perfscope.analyzers.graph import HloProgram, score_groups
from perfscope.analyzers.hlo import (
    COLLECTIVES,
    CONTROL,
    ITEM_BITS,
    Computation,
    HloModule,
    Instruction,
    InstructionCost,
    ModuleCost,
    Schedule,
    executions,
    hlo_costs,
    live_values,
    primitive,
    scope_of,
)
from perfscope.analyzers.programs import donation_of, updates
from perfscope.model.trace import Trace
from perfscope.plugins.port.instruction_times import times_of
from perfscope.plugins.port.pieces import Fact, Held, Kind, Phase, Piece, Program, Weight, common_call

_MOVES = frozenset(
    {
        "bitcast", "bitcast-convert", "broadcast", "concatenate", "constant", "convert", "copy", "dynamic-slice",
        "dynamic-update-slice", "get-tuple-element", "iota", "pad", "parameter", "reshape", "reverse",
        "slice", "transpose", "tuple",
    }
)  # fmt: skip
"""Opcodes of a fusion that computes nothing. Arithmetic on indices does not count."""
_FLOATS = frozenset(dtype for dtype in ITEM_BITS if dtype.startswith(("f", "bf")))
_SMALL = 64
"""Elements up to which a value is a number or an index, and not data."""
_PASSED_ON = frozenset(["bitcast", "broadcast", "convert", "copy", "dynamic-slice", "reshape", "slice", "transpose"])
"""Opcodes through which a factor of a product is followed to the type that the program gives it."""
_TIED = ".head"
"""Added to the name of an embedding where it is the output layer."""
_MOST_STEPS = 100
"""Longest such chain; programs have some ten."""
_LEAST_CONSTANT = 64 << 10
"""Smallest constant in bytes that counts as baked in: XLA keeps tables of positions and masks that are smaller."""


def jax_step(trace: Trace) -> Program | None:
    """The step of a trace's main program; ``None`` if it has no scheduled program."""
    costs = [(index, cost) for index, cost in enumerate(trace.fact(hlo_costs)) if cost.module.is_scheduled]
    if not costs:
        return None
    ran = trace.fact(executions)
    per_step = {index: ran[index].rounds if index in ran else 1.0 for index, _ in costs}
    if ran:
        costs = [(index, cost) for index, cost in costs if index in ran]
    main, cost = max(costs, key=lambda pair: pair[1].total.flops * per_step[pair[0]])
    times = times_of(trace, main)
    reader = _Reader(cost, times.ns)
    module = cost.module
    return Program(
        path=trace.source.path,
        framework="jax",
        device=trace.target.shown if trace.target is not None else module.platform or "",
        pieces=tuple(reader.pieces),
        weights=tuple(reader.weights),
        step_ns=times.step_ns,
        basis=times.basis,
        held=tuple(_held(module, reader.of_instruction)),
        facts=(
            *_attentions(reader),
            *_constants(module, reader),
            *_not_donated(module, reader.pieces),
            *_reads(trace),
            *_dispatches(trace, main),
        ),
        notes=tuple(_notes(trace, main)),
    )


def _notes(trace: Trace, main: int) -> Iterator[str]:
    ran = trace.fact(executions)
    others = [module.name for index, module in enumerate(trace.hlo) if index != main and (not ran or index in ran)]
    if others:
        yield f"{trace.hlo[main].name} is the step; {len(others)} smaller program{'s' * (len(others) > 1)} left out"


class _Reader:
    """Makes the pieces in the order in which a step runs them."""

    def __init__(self, cost: ModuleCost, times: Mapping[str, int] | None) -> None:
        self.cost, self.module, self.times = cost, cost.module, times
        self.graph = HloProgram(cost.module, cost)
        self.pieces: list[Piece] = []
        self.weights: list[Weight] = []
        self.of_instruction: dict[str, int] = {}
        self.of_node: dict[int, int] = {}
        """Node of a launched instruction -> piece."""
        self._weight_of: dict[str, int] = {}
        self._products: dict[str, list[int]] = defaultdict(list)
        """Nodes that are products, by computation."""
        for number, value in enumerate(self.graph.nodes):
            if value.product is not None:
                self._products[value.computation.name].append(number)
        self._gathers: set[int] = set()
        """Pieces that pick rows of a table."""
        self._narrow = any(one.shape.dtype in ("bf16", "f16") for _, one in self.module.instructions())
        self._holders: list[str] = []
        """Computation of each piece."""
        self._state = _state_of(self.module)
        self._emit(self.module.entry_computation(), 1)
        self.pieces = _phases(self.pieces, self._holders, self.module.entry)
        self._keep_weights()
        again = [piece for piece in self.pieces if piece.recompute]
        call = common_call(again)
        self.pieces = [replace(piece, checkpoint=call) if piece.recompute else piece for piece in self.pieces]

    def _emit(self, computation: Computation, turns: int) -> None:
        for instruction in computation.instructions:
            row = self.cost.by_name.get((computation.name, instruction.name))
            if row is None or not row.runs:
                continue
            if row.place == "control" and instruction.opcode in CONTROL:
                inner = (instruction.trip_count or 1) if instruction.opcode == "while" else 1
                for called in instruction.called:
                    self._emit(self.module.computations[called], turns * inner)
            elif row.place == "launched" and (row.once.flops or row.once.bytes or row.once.transcendentals):
                self._add(computation, row)

    def _add(self, computation: Computation, row: InstructionCost) -> None:
        instruction, number = row.instruction, len(self.pieces)
        node = self.graph.numbers[computation.name, instruction.name]
        reads, weights = self._inputs(node)
        kind = self._kind(row)
        named = scope_of(instruction.op_name)
        products = row.once.products
        if instruction.name in self.of_instruction:
            return
        self.of_instruction[instruction.name] = self.of_node[node] = number
        self._holders.append(computation.name)
        if any(one.opcode in ("gather", "scatter") for one in _inside(self.module, instruction)):
            self._gathers.add(number)
        carries = bool(weights) and (kind in ("move", "cast") or instruction.opcode.startswith("all-gather"))
        carries = carries and all(self.pieces[one].carries or not self.pieces[one].data for one in reads)
        self.pieces.append(
            Piece(
                name=instruction.name,
                op=named.primitive if instruction.op_name else instruction.opcode,
                kind=kind,
                phase="backward"
                if named.phase in ("backward", "recompute")
                else "forward"
                if instruction.op_name
                else "other",
                reads=reads,
                weights=weights,
                carries=carries,
                data=any(part.dtype in _FLOATS for part in instruction.shape.parts or (instruction.shape,)),
                flops=sum(products.values()) * row.runs,
                bytes=row.once.bytes * row.runs,
                launches=row.runs,
                turns=row.runs,
                recompute=named.phase == "recompute",
                dtype=self._dtype(node, row) if products else "",
                size=instruction.shape.elements,
                time_ns=None if self.times is None else self.times.get(instruction.name, 0),
                scope="/".join(named.path),
                file=instruction.file,
                line=instruction.line,
                lines=instruction.lines,
                added=not instruction.op_name,
            )
        )

    def _inputs(self, node: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pieces and weights whose values an instruction reads."""
        nodes = self.graph.nodes
        reads: dict[int, None] = {}
        weights: dict[int, None] = {}
        waiting, seen = list(nodes[node].reads), set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            value = nodes[number]
            if number in self.of_node:
                reads[self.of_node[number]] = None
            elif value.instruction.opcode == "parameter" and value.computation.name == self.module.entry:
                weight = self._weight(value.instruction)
                if weight is not None:
                    weights[weight] = None
            elif value.carried:
                waiting.extend(value.names[:1])
            else:
                waiting.extend(value.names or value.reads)
        for one in reads:
            if self.pieces[one].carries:
                weights.update(dict.fromkeys(self.pieces[one].weights))
        return tuple(reads), tuple(weights)

    def _weight(self, parameter: Instruction) -> int | None:
        shape = parameter.shape
        if parameter.name not in self._state or shape.dtype not in _FLOATS or not shape.dims:
            return None
        if parameter.name not in self._weight_of:
            self._weight_of[parameter.name] = len(self.weights)
            elements = math.prod(shape.dims)
            self.weights.append(
                Weight(name=parameter.op_name or parameter.name, elements=elements, stacked=shape.dims[0])
            )
        return self._weight_of[parameter.name]

    def _dtype(self, node: int, row: InstructionCost) -> str:
        """Type of the factors of a kernel's products in the program: XLA for CPUs widens products on its own.

        The narrower factor counts; ``''`` if both are computed in a type that the compiler chose.
        """
        instruction = row.instruction
        holders = instruction.called if instruction.opcode == "fusion" else ()
        numbers = [node] if self.graph.nodes[node].product else [n for name in holders for n in self._products[name]]
        products = [product for number in numbers if (product := self.graph.nodes[number].product) is not None]
        written = max(row.once.products, key=lambda product: row.once.products[product]).dtype
        if self.module.platform != "cpu" or not products or not self._narrow:
            return written
        known = [dtype for one in products for factor in one.factors if (dtype := self._factor(factor))]
        return min(known, key=lambda dtype: ITEM_BITS[dtype], default="")

    def _factor(self, number: int) -> str:
        """Type of a factor before conversions without a name; ``''`` if the compiler chose it."""
        for _ in range(_MOST_STEPS):
            value = self.graph.nodes[number]
            instruction = value.instruction
            if value.names:
                number = value.names[0]
            elif instruction.opcode == "convert" and primitive(instruction.op_name) == "convert_element_type":
                return instruction.shape.dtype
            elif instruction.opcode in _PASSED_ON and value.reads:
                number = value.reads[0]
            else:
                return instruction.shape.dtype if instruction.opcode == "parameter" else ""
        return ""

    def _keep_weights(self) -> None:
        """Keep the weights that the forward pass reads, and drop the state of the optimizer."""
        self._split_tied()
        forward = [piece for piece in self.pieces if piece.phase == "forward"]
        used = sorted({weight for piece in forward for weight in piece.weights})
        turns = {(weight, piece.turns) for piece in forward for weight in piece.weights}
        numbers = {old: new for new, old in enumerate(used)}
        self.weights = [
            replace(held, elements=held.elements // held.stacked)
            if held.stacked > 1 and (old, held.stacked) in turns
            else replace(held, stacked=1)
            for old, held in ((old, self.weights[old]) for old in used)
        ]
        for piece in self.pieces:
            if piece.kind == "collective" and piece.carries and len(piece.weights) == 1:  # the whole of a sharded one
                new = numbers.get(piece.weights[0])
                if new is not None and piece.size > self.weights[new].elements:
                    self.weights[new] = replace(self.weights[new], elements=piece.size)
        for number, piece in enumerate(self.pieces):
            kept = tuple(dict.fromkeys(new for old in piece.weights if (new := numbers.get(old)) is not None))
            updates = piece.phase == "optimizer"
            self.pieces[number] = replace(
                piece,
                weights=() if updates else kept,
                updates=kept if updates else (),
                carries=piece.carries and bool(kept) and not updates,
            )

    def _split_tied(self) -> None:
        """Make two weights of an embedding that is the output layer, too: of its rows, and of its product."""
        forward = [(number, piece) for number, piece in enumerate(self.pieces) if piece.phase == "forward"]
        rows = {weight for number, piece in forward if number in self._gathers for weight in piece.weights}
        products = {weight for _, piece in forward if piece.kind == "product" for weight in piece.weights}
        for weight in sorted(rows & products):
            copy = len(self.weights)
            held = self.weights[weight]
            self.weights.append(replace(held, name=f"{held.name}{_TIED}"))
            for number, piece in enumerate(self.pieces):
                if weight in piece.weights and number not in self._gathers and piece.phase != "optimizer":
                    kept = tuple(copy if one == weight else one for one in piece.weights)
                    self.pieces[number] = replace(piece, weights=kept)

    def _kind(self, row: InstructionCost) -> Kind:
        instruction = row.instruction
        if row.once.products:
            return "product"
        if instruction.opcode in COLLECTIVES:
            return "collective"
        inner = list(_inside(self.module, instruction))
        if any(one.opcode not in _MOVES and one.shape.elements > 1 and one.shape.dtype in _FLOATS for one in inner):
            return "other"
        if any(one.opcode in ("reduce", "reduce-window", "scatter", "select") for one in inner):
            return "other"
        if any(to in _FLOATS and of in _FLOATS for of, to in _casts(self.module, row)):
            return "cast"
        written = instruction.shape.elements
        read = max((one.shape.elements for one in inner if one.opcode == "parameter"), default=0)
        if instruction.opcode != "fusion":
            holder = self.module.computations[row.computation]
            read = max((holder.by_name[name].shape.elements for name in instruction.operands), default=0)
        repeats = any(one.opcode == "broadcast" for one in inner)
        return "repeat" if repeats and read > _SMALL and written > read else "move"


def _inside(module: HloModule, instruction: Instruction) -> Iterator[Instruction]:
    if instruction.opcode != "fusion":
        yield instruction
        return
    for called in instruction.called:
        for inner in module.computations[called].instructions:
            yield from _inside(module, inner)


def _casts(module: HloModule, row: InstructionCost) -> Iterator[tuple[str, str]]:
    """Element types before and after each conversion of data."""
    instruction = row.instruction
    names = instruction.called if instruction.opcode == "fusion" else (row.computation,)
    for holder in (module.computations[name] for name in names):
        for inner in holder.instructions if instruction.opcode == "fusion" else (instruction,):
            if inner.opcode == "convert" and inner.shape.elements > _SMALL:
                yield holder.by_name[inner.operands[0]].shape.dtype, inner.shape.dtype


def _state_of(module: HloModule) -> frozenset[str]:
    """Names of parameters that are weights or state: arguments that a training step updates, else all floats."""
    updated = {update.parameter.name for update in updates(module, Schedule(module)) if update.is_state}
    if updated:
        return frozenset(updated)
    return frozenset(
        one.name
        for one in module.entry_computation().instructions
        if one.opcode == "parameter" and one.shape.dtype in _FLOATS
    )


def _phases(pieces: list[Piece], holders: list[str], entry: str) -> list[Piece]:
    """Phases of pieces without a name in the program, and those after the backward pass: the optimizer.

    ``holders``: computation of each piece. A piece without a name in a loop has the phase of most others there.
    """
    phases: list[Phase] = [piece.phase for piece in pieces]
    of_loop: dict[str, dict[Phase, int]] = defaultdict(lambda: defaultdict(int))
    users: dict[int, list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        of_loop[holders[number]][phases[number]] += phases[number] != "other"
        for one in piece.reads:
            users[one].append(number)
    after = [False] * len(pieces)
    for number, piece in enumerate(pieces):
        inputs = [one for one in piece.reads if pieces[one].data]
        if phases[number] == "other" and holders[number] != entry:
            counts = of_loop[holders[number]]
            phases[number] = max(counts, key=lambda phase: counts[phase])
        elif phases[number] == "other" and inputs:
            phases[number] = "backward" if any(phases[one] == "backward" for one in inputs) else phases[inputs[-1]]
        gradients = any(phases[one] == "backward" and pieces[one].reads for one in inputs)
        after[number] = gradients or any(after[one] for one in inputs)
        if phases[number] == "forward" and after[number]:
            phases[number] = "optimizer"
    for number in range(len(pieces) - 1, -1, -1):
        if phases[number] == "other" and users[number]:
            phases[number] = phases[users[number][0]]
    return [replace(piece, phase=phase) for piece, phase in zip(pieces, phases, strict=True)]


def _held(module: HloModule, numbers: Mapping[str, int]) -> Iterator[Held]:
    """Buffers that are live at the peak, by the schedule."""
    values = live_values(module, Schedule(module))
    change: dict[int, int] = defaultdict(int)
    for value in values:
        change[value.start] += value.bytes
        change[value.end] -= value.bytes
    now = most = at = 0
    for moment in sorted(change):
        now += change[moment]
        if now > most:
            most, at = now, moment
    for value in values:
        if value.start <= at < value.end:
            yield Held(bytes=value.bytes, piece=numbers.get(value.instruction))


def _attentions(reader: _Reader) -> Iterator[Fact]:
    for group in score_groups(reader.graph):
        numbers = sorted(_launchers(reader, group.values))
        file, line = reader.graph.nodes[group.place].place
        moved = sum(reader.pieces[one].bytes for one in numbers if reader.pieces[one].kind != "product")
        yield Fact(
            kind="attention", bytes=moved, count=1, file=file if line else None, line=line, pieces=tuple(numbers)
        )


def _launchers(reader: _Reader, values: frozenset[int]) -> set[int]:
    """Pieces that compute some values: themselves, or the kernels that hold them."""
    callers = {
        called: piece
        for node, piece in reader.of_node.items()
        for called in reader.graph.nodes[node].instruction.called
    }
    found = {reader.of_node[number] for number in values if number in reader.of_node}
    holders = {reader.graph.nodes[number].computation.name for number in values}
    return found | {callers[name] for name in holders if name in callers}


def _constants(module: HloModule, reader: _Reader) -> Iterator[Fact]:
    """Arrays that are part of the program, with the pieces that read them."""
    graph = reader.graph
    for number, value in enumerate(graph.nodes):
        constant = value.instruction
        if constant.opcode != "constant" or constant.shape.bytes < _LEAST_CONSTANT:
            continue
        pieces = sorted(_launchers(reader, _readers(graph, number)))
        first = reader.pieces[pieces[0]] if pieces else None
        yield Fact(
            kind="constant", bytes=constant.shape.bytes, count=1, pieces=tuple(pieces[:1]),
            file=first.file if first is not None else None, line=first.line if first is not None else None,
            detail=f"{constant.shape.dtype}[{','.join(map(str, constant.shape.dims))}]",
        )  # fmt: skip


def _readers(graph: HloProgram, number: int) -> frozenset[int]:
    """Nodes that read a value, also by another name."""
    found: set[int] = set()
    waiting, seen = [number], {number}
    while waiting:
        for user in graph.users[waiting.pop()]:
            found.add(user)
            if user not in seen and (graph.nodes[user].names or graph.nodes[user].instruction.opcode == "bitcast"):
                seen.add(user)
                waiting.append(user)
    return frozenset(found)


def _not_donated(module: HloModule, pieces: list[Piece]) -> Iterator[Fact]:
    """State that is not donated, at the line that calls the program; without frames, at the line of an update."""
    found = donation_of(module)
    if found is not None:
        one = next(one for one in module.entry_computation().instructions if one.name == found.updates[0].written_by)
        call = common_call(*([piece for piece in pieces if piece.phase == phase] for phase in ("forward", "optimizer")))
        file, line = call or (one.file, one.line)
        yield Fact(
            kind="donation", bytes=found.bytes, count=len(found.updates), file=file, line=line,
            detail=found.updates[0].parameter.op_name,
        )  # fmt: skip


def _reads(trace: Trace) -> Iterator[Fact]:
    """Reads on the host in steps, by line, per step."""
    steps = {read.step for read in trace.host_reads if read.step is not None}
    times: dict[tuple[str | None, int | None, str], list[int]] = defaultdict(list)
    for read in trace.host_reads:
        if read.step is not None and read.main_thread:
            times[read.file, read.line, read.call].append(read.duration_ns)
    for (file, line, call), waits in times.items():
        if len(waits) * 2 > len(steps):  # reads in few steps are for logging
            yield Fact(
                kind="sync", count=max(1, round(len(waits) / len(steps))), time_ns=round(sum(waits) / len(steps)),
                file=file, line=line, detail=call,
            )  # fmt: skip


def _dispatches(trace: Trace, main: int) -> Iterator[Fact]:
    """Programs that the host starts per step besides the main one."""
    ran = trace.fact(executions)
    if main not in ran:
        return
    others = sum(found.rounds for index, found in ran.items() if index != main)
    count = round(others / ran[main].rounds)
    if count:
        yield Fact(kind="dispatch", count=count, detail=f"{count} programs besides {trace.hlo[main].name}")
