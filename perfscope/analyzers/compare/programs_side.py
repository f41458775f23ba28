"""Compiled XLA programs of both sides: which is which, and what of them does not depend on a clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.compare.measures import LEAST_OF_PROGRAM, Measure
from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_memory import memory_timeline
from perfscope.analyzers.facts.hlo_program import program_label
from perfscope.analyzers.hlo.cost import ModuleCost
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.structure import callees_first
from perfscope.analyzers.trace import Trace

MOST_PROGRAMS = 8
"""Programs that are compared one by one, those that do most: a script has two or three that matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSide:
    """One program of one side."""

    name: str
    """Its module's name, without what tells it from others of that name."""
    label: str
    fingerprint: str
    measures: Mapping[str, Measure]


def fingerprint(module: HloModule) -> str:
    """What a program computes and how, as 16 hexadecimal digits: equal for programs that differ in names only.

    Of each instruction: opcode, shape, operands by place, attributes, and what it calls; no names, no metadata.
    """
    made: dict[str, str] = {}
    for name in callees_first(module, lambda one: bool(one.called)):
        made[name] = _digest(module.computations[name], made)
    return made[module.entry][:16]


def _digest(computation: Computation, made: Mapping[str, str]) -> str:
    place = {one.name: number for number, one in enumerate(computation.instructions)}
    held = hashlib.sha256()
    for one in computation.instructions:
        called = [made.get(name, "") for name in one.called]
        operands = [place.get(name, -1) for name in one.operands]
        attributes = sorted((key, value) for key, value in one.attributes.items() if "%" not in value)
        said = (
            one.opcode, repr(one.shape), operands, called, one.fusion_kind, one.custom_call_target,
            one.parameter_number, one.value, one.replica_groups, one.trip_count, attributes, one.is_root,
        )  # fmt: skip
        held.update(repr(said).encode())
    return held.hexdigest()


def program_sides(trace: Trace) -> tuple[ProgramSide, ...]:
    """The programs of a trace, those that do most first."""
    costs = trace.fact(hlo_costs)
    ordered = sorted(costs, key=lambda cost: -(cost.total.bytes + cost.total.flops))[:MOST_PROGRAMS]
    return tuple(
        ProgramSide(
            name=cost.module.name.partition("(")[0],
            label=program_label(cost.module, trace),
            fingerprint=fingerprint(cost.module),
            measures={one.name: one for one in _measures(cost)},
        )
        for cost in ordered
    )


def paired_programs(
    base: Sequence[ProgramSide], head: Sequence[ProgramSide]
) -> tuple[tuple[ProgramSide, ProgramSide], ...]:
    """Programs of one name in order of size; one against one whatever their names."""
    if len(base) == len(head) == 1:
        return ((base[0], head[0]),)
    left: dict[str, list[ProgramSide]] = {}
    for one in base:
        left.setdefault(one.name, []).append(one)
    return tuple((left[one.name].pop(0), one) for one in head if left.get(one.name))


def _measures(cost: ModuleCost) -> Iterator[Measure]:
    module = cost.module
    launched = [row for row in cost.launched if row.runs]
    unknown = (f"{cost.total.unknown} instructions without a formula",) if cost.total.unknown else ()
    computing = [(row.instruction, row.total.flops) for row in cost.rows if row.total.flops and row.place != "control"]
    yield Measure(
        name="FLOPs a run",
        unit="FLOP",
        value=cost.total.flops,
        places=_by_line(computing),
        remarks=unknown,
        least=LEAST_OF_PROGRAM,
    )
    if module.is_scheduled:
        moving = [(row.instruction, row.total.bytes) for row in launched if row.total.bytes]
        yield Measure(name="bytes moved a run", unit="bytes", value=cost.total.bytes, places=_by_line(moving))
        yield Measure(
            name="instructions launched a run",
            unit="count",
            value=sum(row.runs for row in launched),
            places=_by_line((row.instruction, row.runs) for row in launched),
            least=LEAST_OF_PROGRAM,
        )
        fusions = [(row.instruction, 1) for row in cost.launched if row.instruction.opcode == "fusion"]
        yield Measure(name="fusions", unit="count", value=len(fusions), places=_by_line(fusions), neutral=True)
    again = [
        (row.instruction, row.total.flops)
        for row in cost.rows
        if "rematted_computation" in row.instruction.op_name and row.total.flops and row.place != "control"
    ]
    yield Measure(name="recomputed FLOPs a run", unit="FLOP", value=sum(n for _, n in again), places=_by_line(again))
    memory = memory_timeline(module)
    if memory is not None:
        yield Measure(name="peak memory of the program", unit="bytes", value=memory.peak_bytes)


def _by_line(rows: Iterable[tuple[Instruction, int]]) -> dict[str, float]:
    places: dict[str, float] = {}
    for one, amount in rows:
        if one.file is not None:
            at = f"{one.file}:{one.line}" if one.line is not None else one.file
            places[at] = places.get(at, 0) + amount
    return places
