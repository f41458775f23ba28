"""Source lines, phases and kernels of the instructions of a module.

Instructions that XLA adds have no line. They get that of the value they rearrange, else that of the instruction they
serve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from perfscope.analyzers.hlo import (
    REPEATED,
    SAME_BUFFER,
    Computation,
    Cost,
    Fusions,
    HloModule,
    Instruction,
    InstructionCost,
    ModuleCost,
    callees_first,
    control_runs,
    fusions_of,
    module_cost,
    path,
    path_across,
    phase_of,
    primitive,
    scope_of,
    users_of,
)
from perfscope.plugins.lower.program import StageOp, place_of

PLUMBING = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"})
"""Opcodes of values that exist already, and of constants."""

FURTHEST = 64
"""Most instructions that are examined for a reader: what XLA adds is next to what it serves."""

_ORDER = frozenset({"bitcast", "copy", "transpose", "reshape"})
"""Opcodes that only rearrange: the instruction that needs an order is further on."""
_THROUGH = REPEATED | SAME_BUFFER | {"slice", "dynamic-slice"}


Source = tuple[str, int] | None
"""Origin of a rearranged value: ``("argument", number)`` or a line; ``None`` if unknown."""


class Lines:
    """A module with the line and the kernel of each instruction."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.cost: ModuleCost = module_cost(module)
        self.fusions: Fusions = fusions_of(module)
        self.has_names = any(item.op_name and item.opcode not in PLUMBING for _, item in module.instructions())
        """Whether the program kept JAX's names of ops: without them its own ops and those of XLA look alike."""
        self._users: dict[str, Mapping[str, tuple[Instruction, ...]]] = {}

    def rows(self) -> Iterator[tuple[Computation, InstructionCost]]:
        """Every instruction that runs, without plumbing and without containers of others."""
        for row in self.cost.rows:
            instruction = row.instruction
            if row.runs and instruction.opcode not in PLUMBING and not _contains(instruction):
                yield self.module.computations[row.computation], row

    def launches(self) -> Iterator[tuple[Computation, InstructionCost]]:
        """Instructions that are launched on their own."""
        for row in self.cost.launched:
            if row.runs:
                yield self.module.computations[row.computation], row

    def place(self, computation: Computation, instruction: Instruction) -> tuple[str | None, int | None]:
        """Its line, else that of the value it rearranges, else of its reader; ``(None, None)`` without any."""
        if instruction.file is not None:
            return instruction.file, instruction.line
        for _, maker in path_across(self.module, self.fusions, computation, instruction.name, _THROUGH):
            if maker.file is not None:
                return maker.file, maker.line
        reader = self.reader(computation, instruction)
        return (None, None) if reader is None else (reader.file, reader.line)

    def shown(self, computation: Computation, instruction: Instruction) -> str:
        """`place` as ``file:line``; in a program without lines, the path of the op: ``mlp/dot_general``."""
        place = place_of(*self.place(computation, instruction))
        return place or (scope_of(instruction.op_name).label if instruction.op_name else "")

    def users(self, computation: Computation) -> Mapping[str, tuple[Instruction, ...]]:
        """Readers of each instruction of a computation."""
        if computation.name not in self._users:
            self._users[computation.name] = users_of(computation)
        return self._users[computation.name]

    def reader(self, computation: Computation, instruction: Instruction) -> Instruction | None:
        """The nearest reader with a line that computes, else that only rearranges; into fusions and out of them."""
        moves = None
        queue, seen = deque([(computation, instruction)]), {(computation.name, instruction.name)}
        while queue and len(seen) <= FURTHEST:
            holder, item = queue.popleft()
            for inside, user in self._readers(holder, item):
                if user.file is not None and not (user.opcode == "fusion" and user.called):
                    if user.opcode not in _ORDER:
                        return user
                    moves = moves or user
                if (inside.name, user.name) not in seen:
                    seen.add((inside.name, user.name))
                    queue.append((inside, user))
        return moves

    def _readers(self, holder: Computation, item: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """Readers of a value: parameters of the fusions that read it, and readers of the fusion that it is made in."""
        for user in self.users(holder).get(item.name, ()):
            if user.opcode == "fusion" and user.called:
                body = self.module.computations[user.called[0]]
                for inner in body.instructions:
                    number = inner.parameter_number
                    if number is not None and number < len(user.operands) and user.operands[number] == item.name:
                        yield body, inner
            else:
                yield holder, user
        if item.is_root and holder.name in self.fusions:
            outside, caller = self.fusions[holder.name]
            yield from self._readers(outside, caller)

    def source(self, computation: Computation, instruction: Instruction) -> Source:
        """Origin of a rearranged value, across fusions."""
        *_, (holder, maker) = path_across(self.module, self.fusions, computation, instruction.name, _THROUGH)
        return _source(self.module, holder, maker)

    def kernel(self, computation: Computation, instruction: Instruction) -> str:
        """Name of the launch that computes it."""
        caller = instruction
        for _ in range(16):
            if computation.name not in self.fusions:
                break
            computation, caller = self.fusions[computation.name]
        return caller.name

    def stage_ops(self) -> tuple[StageOp, ...]:
        """All instructions as ops of a stage."""
        return tuple(
            StageOp(
                name=row.instruction.name,
                op=row.instruction.opcode,
                file=(place := self.place(computation, row.instruction))[0],
                line=place[1],
                result=shown_shape(row.instruction),
                phase=phase(row.instruction),
                inside=self.kernel(computation, row.instruction) if row.place == "inside" else "",
                text=text_of(row.instruction),
                scope=scope_of(row.instruction.op_name).label if row.instruction.op_name else "",
            )
            for computation, row in self.rows()
        )

    def kernel_ops(self) -> tuple[StageOp, ...]:
        """The launches as ops of a stage, at each line that they compute."""
        found = []
        for computation, row in self.launches():
            inner = [item for item in _inside(self.module, row.instruction) if item.opcode not in PLUMBING]
            lines = dict.fromkeys((item.file, item.line) for item in inner if item.file is not None)
            places: list[tuple[str | None, int | None]] = [*lines]
            for file, line in places or [self.place(computation, row.instruction)]:
                found.append(
                    StageOp(
                        name=row.instruction.name, op=kind_of(row.instruction), file=file, line=line,
                        result=shown_shape(row.instruction), phase=phase(row.instruction),
                        text=f"{row.instruction.name}: {len(inner)} ops at {len(places)} lines, {row.runs} runs, "
                        f"reads {row.once.bytes_read:,} B, writes {row.once.bytes_written:,} B",
                        scope=" ".join(dict.fromkeys(primitive(item.op_name) for item in inner if item.op_name)),
                    )
                )  # fmt: skip
        return tuple(found)


class Written:
    """A module before optimization: calls are not inlined, so names and phases continue those of the callers."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._runs = control_runs(module)
        self._prefixes: dict[str, str] = {}
        for name in reversed(callees_first(module, lambda _: True)):
            for item in module.computations[name].instructions:
                for called in item.called:
                    self._prefixes.setdefault(called, self.name(name, item))

    def name(self, computation: str, item: Instruction) -> str:
        """The path of an op from the program on."""
        prefix = self._prefixes.get(computation, "")
        return item.op_name if not prefix or item.op_name.startswith("jit(") else f"{prefix}/{item.op_name}"

    def runs(self, computation: str) -> int:
        """Runs of a computation per run of the program; a loop with an unknown number of turns counts once."""
        known = self._runs.get(computation)
        return 1 if known is None else known.times

    @property
    def exact(self) -> bool:
        """Whether the number of turns of every loop is known."""
        return all(runs.exact for runs in self._runs.values())

    def phase(self, computation: str, item: Instruction) -> str:
        """Phase of training, with that of the callers."""
        return "" if not item.op_name else str(phase_of(self.name(computation, item)))

    def source(self, computation: Computation, item: Instruction) -> Source:
        """Origin of a rearranged value."""
        *_, (maker, _) = path(computation, item.name, _THROUGH)
        return _source(self.module, computation, maker)

    def stage_ops(self) -> tuple[StageOp, ...]:
        """All instructions as ops of a stage."""
        return tuple(
            StageOp(
                name=item.name, op=item.opcode, file=item.file, line=item.line, result=shown_shape(item),
                phase=self.phase(holder.name, item), text=text_of(item),
                scope=scope_of(self.name(holder.name, item)).label if item.op_name else "",
            )
            for holder, item in self.module.instructions() if item.opcode not in PLUMBING
        )  # fmt: skip


def _source(module: HloModule, holder: Computation, maker: Instruction) -> Source:
    if maker.parameter_number is not None and holder.name == module.entry:
        return "argument", maker.parameter_number
    return (maker.file, maker.line) if maker.file is not None and maker.line is not None else None


def _contains(instruction: Instruction) -> bool:
    return instruction.opcode in ("fusion", "call", "while", "conditional") or (
        instruction.opcode in ("async-start", "async-done", "async-update")
    )


def _inside(module: HloModule, instruction: Instruction) -> Iterator[Instruction]:
    if instruction.opcode != "fusion" or not instruction.called:
        yield instruction
        return
    for inner in module.computations[instruction.called[0]].instructions:
        yield from _inside(module, inner)


def kind_of(instruction: Instruction) -> str:
    """``fusion kLoop``, ``custom-call __cublas$gemm``, ``dot``."""
    extra = instruction.fusion_kind or instruction.custom_call_target
    return f"{instruction.opcode} {extra}" if extra else instruction.opcode


def phase(instruction: Instruction) -> str:
    """Phase of training; empty for an instruction without a name."""
    found = phase_of(instruction.op_name)
    return "" if found == "unnamed" else found


def shown_shape(instruction: Instruction) -> str:
    """``bf16[8,128]{1,0}``; a tuple by its number of parts."""
    shape = instruction.shape
    if shape.parts:
        return f"({len(shape.parts)} arrays)"
    order = "" if not shape.layout else "{" + ",".join(map(str, shape.layout)) + "}"
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]{order}"


def text_of(instruction: Instruction) -> str:
    """The instruction by name, without its shape and attributes."""
    return f"{instruction.name} = {instruction.opcode}({', '.join(instruction.operands)})"


def work(once: Cost, runs: int) -> int:
    """FLOPs and transcendentals of all runs."""
    return (once.flops + once.transcendentals) * runs
