"""What the buffers of a compiled program are for, from who makes them, who reads them, and when.

JAX marks the forward pass of a differentiated function with ``jvp(...)`` in the path of an instruction and its backward
pass with ``transpose(...)``. A program without them has arguments, results and temporaries, and no more is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from perfscope.analyzers.hlo.cost.collectives import COLLECTIVES
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.views import REPEATED, SAME_BUFFER, SAME_ORDER, Source, path, sources
from perfscope.analyzers.programs.donation import updates
from perfscope.model.memory import KnownBy, MemoryPhase
from perfscope.model.trace.tables import MemoryCategory

Owner = tuple[MemoryCategory, KnownBy]

_FORWARD, _BACKWARD, _RECOMPUTED = "jvp(", "transpose(", "rematted_computation"
_WEIGHT = re.compile(r"(?<![A-Za-z])(params?|weights?|kernel|bias|embedding)(?![A-Za-z])", re.IGNORECASE)
"""Names of arguments that hold weights, as JAX's libraries give them; ``_`` and digits may stand beside."""
_LIBRARY = ("__cublas$", "__cudnn$", "cublas", "cudnn", "cusolver", "cufft", "miopen", "hipblas")
"""How targets of library calls begin whose scratch memory XLA allocates."""
_BYTES = frozenset({"s8", "u8"})
"""Element types of scratch memory."""


class Owners:
    """Says it for one module."""

    def __init__(self, module: HloModule, schedule: Schedule) -> None:
        """Linear in the module; arguments are looked at when they are asked for."""
        self._module = module
        self._schedule = schedule
        entry = module.entry_computation()
        self._entry = entry
        self._reads = reads(schedule)
        self._begins = self._first_backward()

    @property
    def differentiates(self) -> bool:
        """Whether the program has a backward pass."""
        return self._begins < len(self._schedule)

    def phase(self, instruction: Instruction) -> MemoryPhase:
        """The part of a training step that an instruction is of."""
        if not self.differentiates:
            return MemoryPhase.UNKNOWN
        known = _path_phase(instruction)
        if known is not MemoryPhase.UNKNOWN:
            return known
        late = self._schedule.positions.get(instruction.name, 0) > self._begins
        return (
            MemoryPhase.OPTIMIZER
            if late and instruction.op_name and instruction.opcode != "parameter"
            else MemoryPhase.UNKNOWN
        )

    def argument(self, parameter: Instruction) -> Owner:
        """What an argument is: weights that the forward reads, state that only the update does, or an input.

        Where the program updates nothing, weights are those with a gradient of their shape among the results, or
        with a name of weights.
        """
        if self.differentiates and parameter.parameter_number in self._updated:
            weights = parameter.name in self._read_by_forward
            return (MemoryCategory.PARAMETER if weights else MemoryCategory.OPTIMIZER_STATE), KnownBy.SCHEDULE
        if parameter.shape.dtype[:1] in ("f", "b"):
            if _WEIGHT.search(parameter.op_name.replace("_", " ")):
                return MemoryCategory.PARAMETER, KnownBy.RECORDED
            shape = (parameter.shape.dtype, parameter.shape.dims)
            if shape in self._gradients and parameter.name in self._read_by_forward:
                return MemoryCategory.PARAMETER, KnownBy.SCHEDULE
        return MemoryCategory.INPUT, KnownBy.RECORDED

    def temporary(self, made: Sequence[tuple[Instruction, tuple[int, ...]]]) -> Owner:
        """What a buffer of the arena is; ``made``: the instructions that write it, the first first, and which part."""
        first, part = made[0]
        if first.opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVES:
            return MemoryCategory.COMMUNICATION, KnownBy.SCHEDULE
        if _is_scratch(first, part):
            return MemoryCategory.WORKSPACE, KnownBy.SCHEDULE
        phases = [self.phase(instruction) for instruction, _ in made]
        known = next((phase for phase in phases if phase is not MemoryPhase.UNKNOWN), MemoryPhase.UNKNOWN)
        read = {self.phase(read) for maker, part in made for read in self._reads.get((maker.name, part), ())}
        if known is MemoryPhase.UNKNOWN and MemoryPhase.FORWARD in read:
            known = MemoryPhase.FORWARD  # room that a loop of the forward writes its turns into
        if known is MemoryPhase.FORWARD and read & {MemoryPhase.BACKWARD, MemoryPhase.RECOMPUTE}:
            return MemoryCategory.ACTIVATION, KnownBy.SCHEDULE
        if known is MemoryPhase.BACKWARD and MemoryPhase.OPTIMIZER in read:
            return MemoryCategory.GRADIENT, KnownBy.SCHEDULE
        return MemoryCategory.TEMPORARY, KnownBy.SCHEDULE

    @cached_property
    def _updated(self) -> frozenset[int | None]:
        return frozenset(update.parameter.parameter_number for update in updates(self._module, self._schedule))

    @cached_property
    def _gradients(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """Shapes of results that the backward pass makes."""
        root = self._entry.root
        results = [self._entry.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return frozenset(
            (result.shape.dtype, result.shape.dims) for result in results if _BACKWARD in self._path_behind(result)
        )

    @cached_property
    def _read_by_forward(self) -> frozenset[str]:
        """Arguments that an instruction of the differentiated function reads, behind views and casts of them."""
        flow = Flow(self._module)
        names = set()
        for instruction in self._entry.instructions:
            if instruction.opcode == "parameter" and _reaches(flow, flow.numbers[self._entry.name, instruction.name]):
                names.add(instruction.name)
        return frozenset(names)

    def _first_backward(self) -> int:
        """Where the backward pass begins: its first instruction that reads what the forward made."""
        begin = len(self._schedule)
        for (name, _), readers in self._reads.items():
            if _path_phase(self._schedule.instructions[name]) is MemoryPhase.FORWARD:
                places = (
                    self._schedule.begins[reader.name]
                    for reader in readers
                    if _path_phase(reader) in (MemoryPhase.BACKWARD, MemoryPhase.RECOMPUTE)
                )
                begin = min(begin, *places, begin)
        return begin

    def _path_behind(self, instruction: Instruction) -> str:
        behind = path(self._entry, instruction.name, SAME_BUFFER | SAME_ORDER)
        return next((each.op_name for each, _ in behind if each.op_name), "")


def reads(schedule: Schedule) -> dict[Source, list[Instruction]]:
    """Who reads each value, views of it included. What a loop carries is read by whoever reads the loop's result."""
    result: dict[Source, list[Instruction]] = {}
    for computation in schedule.computations.values():
        behind = sources(computation)
        carried: dict[Source, tuple[Source, ...]] = {
            (instruction.name, (index,)): part
            for instruction in computation.instructions
            if instruction.opcode == "while" and instruction.operands
            for index, part in enumerate(behind[instruction.operands[0]])
        }
        for instruction in computation.instructions:
            if instruction.opcode in SAME_BUFFER:
                continue
            waiting = [source for operand in instruction.operands for part in behind[operand] for source in part]
            read: set[Source] = set()
            while waiting:
                source = waiting.pop()
                if source not in read:
                    read.add(source)
                    waiting += carried.get(source, ())
            for source in read:
                result.setdefault(source, []).append(instruction)
    return result


def _path_phase(instruction: Instruction) -> MemoryPhase:
    if _RECOMPUTED in instruction.op_name:
        return MemoryPhase.RECOMPUTE
    if _BACKWARD in instruction.op_name:
        return MemoryPhase.BACKWARD
    return MemoryPhase.FORWARD if _FORWARD in instruction.op_name else MemoryPhase.UNKNOWN


def _reaches(flow: Flow, start: int) -> bool:
    """Whether an instruction of a differentiated function reads a value, or a view of it."""
    waiting, seen = [start], {start}
    while waiting:
        number = waiting.pop()
        for user in flow.users[number]:
            value = flow.values[user]
            if user in seen:
                continue
            seen.add(user)
            if _FORWARD in value.instruction.op_name:
                return True
            if number in value.names or value.instruction.opcode in REPEATED:
                waiting.append(user)
    return False


def _is_scratch(instruction: Instruction, part: tuple[int, ...]) -> bool:
    """Whether a part of what a library call gives back is its scratch memory: the last, in bytes."""
    parts = instruction.shape.parts
    if instruction.opcode != "custom-call" or len(parts) < 2 or part != (len(parts) - 1,):
        return False
    return (instruction.custom_call_target or "").startswith(_LIBRARY) and parts[-1].dtype in _BYTES
