"""Loops of compiled XLA programs with many iterations over very little work."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import ceil, log2

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Device, bytes_ns, find_device, vector_ns
from perfscope.analyzers.hlo import (
    ASSUMED,
    REPEATED,
    SAME_BUFFER,
    Computation,
    HloModule,
    Instruction,
    InstructionCost,
    ModuleCost,
    control_runs,
    costs,
    executions_of,
    is_collected,
    is_handed_on,
    module_cost,
    program_device,
    rows_of,
    tuple_index,
)
from perfscope.analyzers.programs.saving import Part
from perfscope.model.intervals import Int64
from perfscope.model.trace import Trace

_LINEAR = (SAME_BUFFER | REPEATED | {"add", "subtract", "negate"}) - {"bitcast-convert", "reverse"}
"""Opcodes that are linear in all operands together, element by element."""

_MIXING = frozenset({"concatenate", "pad", "slice", "dynamic-slice", "dynamic-update-slice", "gather", "reverse"})
"""Opcodes that are linear in the values that they move to other positions."""

_POSITIONS = {"dynamic-slice": 1, "dynamic-update-slice": 2, "gather": 1}
"""First operand that is a position."""

MOST_CARRIES = 16
"""Carries that are examined for needing each other."""

LAUNCH_NS = 2_000
"""Assumed time from the start of a kernel to the start of the next if both do nothing, outside of a CUDA graph."""

TPU_OP_NS = 250
"""Assumed shortest time of an op on a TPU, the low end of the estimate's (``predict/assumptions.py``). It only
identifies tiny steps and is not part of any cost.
"""


# Whether a loop's carry is updated linearly, so that the loop has an associative form.
#
# A first-order linear recurrence ``h[t] = a[t] * h[t-1] + b[t]`` can be computed by a parallel prefix, because ``(a2,
# b2) after (a1, b1) = (a1 * a2, a2 * b1 + b2)`` is associative (Blelloch, Prefix sums and their applications, 1990,
# section 1.4). ``tanh(h[t-1])`` cannot; ``W h[t-1]`` could, with a matrix product in every combination, which is seldom
# useful and counts as no; so do elements of the carry that are computed from others (stencils, rolls, two carries that
# need each other). Every value of the body gets the degree in which it depends on the carry, also through
# fusions.


class Degree(IntEnum):
    """Dependence of a value on the carry."""

    NONE = 0
    LINEAR = 1
    MIXED = 2
    """Linear, but computed from other elements: sums, slices, rolls."""
    OTHER = 3


_Degrees = tuple[Degree, ...]
"""By part of a tuple; one entry for an array."""


def is_linear(module: HloModule, body: Computation) -> bool:
    """Whether every floating-point carry that feeds back is a linear function of the previous carries.

    Elements passed on unchanged are inputs. Elements only updated in place, one slice per iteration, are collected
    outputs: the written values do not feed back. False if nothing feeds back.
    """
    root = body.root
    if root.opcode != "tuple":
        return False
    feeding = [
        index
        for index, name in enumerate(root.operands)
        if body.by_name[name].shape.dtype in ("f32", "f64", "bf16", "f16", "c64", "c128")
        and not is_handed_on(body, name, index)
        and not is_collected(module, body, name, index)
    ]
    parameter = next((instruction for instruction in body.instructions if instruction.opcode == "parameter"), None)
    if not feeding or parameter is None:
        return False
    carries = tuple(Degree.LINEAR if index in feeding else Degree.NONE for index in range(len(parameter.shape.parts)))
    degrees = _degrees(module, body, [carries])
    if any(max(degrees[root.operands[index]]) == Degree.OTHER for index in feeding):
        return False
    needs = set()
    for index in feeding[:MOST_CARRIES]:
        only = tuple(Degree.LINEAR if number == index else Degree.NONE for number in range(len(carries)))
        degrees = _degrees(module, body, [only])
        if max(degrees[root.operands[index]]) > Degree.LINEAR:
            return False
        needs |= {(other, index) for other in feeding if max(degrees[root.operands[other]]) and other != index}
    return not any((index, other) in needs for other, index in needs)


def _degrees(module: HloModule, computation: Computation, parameters: Sequence[_Degrees]) -> dict[str, _Degrees]:
    """Return the degree of every value; ``parameters``: degrees of the computation's parameters, by number."""
    result: dict[str, _Degrees] = {}
    for instruction in computation.instructions:
        if instruction.parameter_number is not None:
            result[instruction.name] = (
                parameters[instruction.parameter_number]
                if instruction.parameter_number < len(parameters)
                else (Degree.NONE,)
            )
        else:
            result[instruction.name] = _degree(module, instruction, [result[name] for name in instruction.operands])
    return result


def _degree(module: HloModule, instruction: Instruction, operands: Sequence[_Degrees]) -> _Degrees:
    if instruction.opcode == "get-tuple-element":
        index, parts = tuple_index(instruction), operands[0]
        return (parts[index],) if index < len(parts) else (max(parts),)
    if instruction.opcode == "tuple":
        return tuple(max(parts) for parts in operands)
    if instruction.opcode == "fusion" and instruction.called:
        body = module.computations[instruction.called[0]]
        return _degrees(module, body, operands)[body.root.name]
    worst = [max(parts, default=Degree.NONE) for parts in operands]
    return (_array_degree(module, instruction, worst),) * max(1, len(instruction.shape.parts))


def _array_degree(module: HloModule, instruction: Instruction, operands: Sequence[Degree]) -> Degree:
    highest = max(operands, default=Degree.NONE)
    if highest == Degree.NONE or instruction.opcode in _LINEAR:
        return highest
    if instruction.opcode == "multiply":
        return _product(operands)
    if instruction.opcode == "divide":
        return operands[0] if operands[1] == Degree.NONE else Degree.OTHER
    if instruction.opcode == "select":
        return max(operands[1:]) if operands[0] == Degree.NONE else Degree.OTHER
    where = operands[_POSITIONS.get(instruction.opcode, len(operands)) :]
    if instruction.opcode in _MIXING and max(where, default=Degree.NONE) == Degree.NONE:
        return highest if instruction.opcode == "dynamic-update-slice" else max(highest, Degree.MIXED)
    if instruction.opcode == "reduce" and _sums(module, instruction):
        return max(highest, Degree.MIXED)
    return Degree.OTHER


def _product(operands: Sequence[Degree]) -> Degree:
    depending = [degree for degree in operands if degree != Degree.NONE]
    return depending[0] if len(depending) == 1 else Degree.OTHER


def _sums(module: HloModule, instruction: Instruction) -> bool:
    return bool(instruction.called) and module.computations[instruction.called[0]].root.opcode == "add"


class Loop(Struct, frozen=True, kw_only=True):
    """A loop with a known trip count that launches kernels."""

    cost: ModuleCost
    instruction: Instruction
    """The ``while``."""
    trips: int
    entered: int
    """Number of times the loop begins per run of the program."""
    kernels: tuple[InstructionCost, ...]
    """Launches per iteration, including the condition, without nested loops. On TPU their bytes include those in the
    chip's own memory, which holds the state of a small loop.
    """
    is_linear: bool
    """Whether the carry is updated linearly, so that the loop has an associative form."""
    encloses: bool
    """Whether another loop is inside, so that an iteration has more than these kernels."""
    work_ns: float
    """Shortest time of the kernels of one iteration on ``device``: bytes over bandwidth, or FLOPs over peak."""
    device: str
    """As ``ProgramDevice.label``; an H100 if the programs have no device."""

    @property
    def launches(self) -> int:
        """Launches per run of the program."""
        return self.entered * self.trips * len(self.kernels)


def loops(trace: Trace) -> tuple[Loop, ...]:
    """Return the loops of all programs with a known trip count."""
    result = []
    known = trace.fact(program_device)
    device = find_device(ASSUMED["gpu"]) if known is None else known.device
    assert device is not None
    for cost in trace.fact(costs):
        launched: dict[str, list[InstructionCost]] = {}
        for row in _everywhere(cost).launched:
            launched.setdefault(row.computation, []).append(row)
        for name, runs in control_runs(cost.module).items():
            for instruction in cost.module.computations[name].instructions:
                if instruction.opcode != "while" or instruction.trip_count is None or len(instruction.called) != 2:
                    continue
                kernels = tuple(row for called in instruction.called for row in launched.get(called, ()))
                body = cost.module.computations[instruction.called[1]]
                result.append(
                    Loop(
                        cost=cost,
                        instruction=instruction,
                        trips=instruction.trip_count,
                        entered=runs.times,
                        kernels=kernels,
                        is_linear=is_linear(cost.module, body),
                        encloses=any(inner.opcode in ("while", "call", "conditional") for inner in body.instructions),
                        work_ns=sum(_least_ns(row, device) for row in kernels),
                        device=device.name if known is None else known.label(),
                    )
                )
    return tuple(result)


def _everywhere(cost: ModuleCost) -> ModuleCost:
    """Return the cost with bytes in every memory of the device, for a TPU program with loops."""
    module = cost.module
    counted = any(
        instruction.opcode == "while" and instruction.trip_count is not None for _, instruction in module.instructions()
    )
    return module_cost(replace(module, platform=None)) if module.platform == "tpu" and counted else cost


def _least_ns(row: InstructionCost, device: Device) -> float:
    return max(bytes_ns(device, row.once.bytes), vector_ns(device, row.once.flops))  # these kernels are elementwise


# Duration of loops of tiny steps, and of an equivalent parallel prefix.


def least_ns(loop: Loop) -> int:
    """Return the time of the ops of one step regardless of their work: launches, or the shortest ops on a TPU."""
    return (TPU_OP_NS if loop.cost.module.platform == "tpu" else LAUNCH_NS) * len(loop.kernels)


def launching_ns(loop: Loop) -> float:
    """Return the modelled time of the loop in one run of the program, in which each kernel takes at least a launch."""
    return loop.entered * loop.trips * max(LAUNCH_NS * len(loop.kernels), loop.work_ns)


def parallel_ns(loop: Loop) -> float:
    """Return the modelled time of a parallel prefix: twice the work in ``2 log2(n)`` rounds with the kernels of a step.

    Up and down sweep (Blelloch 1990, Prefix sums and their applications, section 1.3).
    """
    rounds = 2 * ceil(log2(max(2, loop.trips)))
    return loop.entered * (rounds * LAUNCH_NS * len(loop.kernels) + 2 * loop.trips * loop.work_ns)


def measured_loop_ns(trace: Trace, loop: Loop) -> float | None:
    """Return the time of the loop in one run of the program on one device, including gaps; None if not recorded.

    It is that of the loop's own row if the profile has one, else from its first kernel to its last. If its kernels
    cannot be divided evenly among its runs (the trace begins inside one), it is the sum of their durations.
    """
    module, ops = loop.cost.module, trace.rows["hlo_ops"]
    ran = executions_of(trace, module)
    if ran is None:
        return None
    own = rows_of(trace, module, (loop.instruction.name,))
    own = own[ops["encloses"][own]]
    if len(own):
        return float((ops["end_ns"][own] - ops["start_ns"][own]).sum()) / ran.count
    rows = rows_of(trace, module, (row.instruction.name for row in loop.kernels))
    if not len(rows):
        return None
    total = sum(
        _around(ops["start_ns"][mine], ops["end_ns"][mine], ran.rounds * loop.entered)
        for ordinal in np.unique(ops["ordinal"][rows])
        for mine in (rows[ops["ordinal"][rows] == ordinal],)
    )
    return total / ran.count


def _around(starts: Int64, ends: Int64, times: float) -> int:
    """Return the sum of the spans of ``times`` equal parts, in order of their start."""
    if times != int(times) or len(starts) % int(times):
        return int((ends - starts).sum())
    order = np.argsort(starts, kind="stable")
    parts = (int(times), -1)
    return int((ends[order].reshape(parts).max(axis=1) - starts[order].reshape(parts).min(axis=1)).sum())


def part_of(trace: Trace, loop: Loop) -> Part:
    """Return the saving of the parallel form, for ``price``.

    It is mostly time between kernels, so their time does not limit it.

    Empty for a program compiled for a CPU or a TPU, where a step has no launch cost.
    """
    if loop.cost.module.platform != "gpu":
        return Part(module=loop.cost.module, instructions=(), modelled_ns=None)
    measured = measured_loop_ns(trace, loop)
    took = launching_ns(loop) if measured is None else measured
    return Part(module=loop.cost.module, instructions=(), modelled_ns=max(0.0, took - parallel_ns(loop)))
