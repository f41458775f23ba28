"""Pipelines of stages in compiled programs: loops whose turns pass a value to the next stage.

A pipeline of S stages and M microbatches takes M + S - 1 turns, and each stage has work in M of them. In a compiled
program it is a loop of M + S - 1 turns with a permutation along S devices, which reads one of M inputs, or writes one
of M results, per turn. A ring (ring attention, a windowed einsum) passes a value around its S devices in at most S
turns and has no turns without work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from perfscope.analyzers.hlo import (
    CONTROL,
    UPDATES,
    Collective,
    Computation,
    HloModule,
    Instruction,
    collectives_of,
    control_runs,
    fused,
    hlo_costs,
    measured_run_ns,
    module_index,
)
from perfscope.analyzers.programs.saving import Part, Price, once_ns, price
from perfscope.model.trace import Trace

_PAIR = re.compile(r"\{(\d{1,6}),(\d{1,6})\}")

MOST_STAGES = 1 << 12
"""Maximum number of devices of one permutation."""


class ProgramPipeline(Struct, frozen=True, kw_only=True):
    """One loop that is a pipeline."""

    module: HloModule
    computation: Computation
    """Computation that contains the loop."""
    loop: Instruction
    """The ``while``."""
    permute: Collective
    stages: int
    turns: int
    entered: int
    """Number of times the loop begins per run of the program."""

    @property
    def microbatches(self) -> int:
        """Number of turns in which a stage has work."""
        return self.turns - self.stages + 1

    @property
    def bubble(self) -> float:
        """Share of the turns in which a stage has no work, 0 to 1."""
        return (self.stages - 1) / self.turns


def program_pipelines(trace: Trace) -> tuple[ProgramPipeline, ...]:
    """Return the pipelines of all programs."""
    return tuple(found for module in trace.hlo for found in _of(module))


def _of(module: HloModule) -> list[ProgramPipeline]:
    permutes: dict[str, list[Collective]] = {}
    for collective in collectives_of(module):
        if collective.kind == "collective-permute":
            permutes.setdefault(collective.computation.name, []).append(collective)
    result = []
    for name, runs in control_runs(module).items() if permutes else ():
        for loop in module.computations[name].instructions:
            if loop.opcode != "while" or loop.trip_count is None or len(loop.called) != 2:
                continue
            body = module.computations[loop.called[1]]
            for permute in permutes.get(body.name, ()):
                stages = stages_of(permute.op.attributes.get("source_target_pairs", ""))
                if 1 < stages < loop.trip_count and _feeds(module, body, loop.trip_count, stages):
                    result.append(
                        ProgramPipeline(
                            module=module,
                            computation=module.computations[name],
                            loop=loop,
                            permute=permute,
                            stages=stages,
                            turns=loop.trip_count,
                            entered=runs.times,
                        )
                    )
                    break
    return result


def stages_of(pairs: str) -> int:
    """Return the length of the chains or rings in ``{{0,1},{1,2}}`` if all have one length; else 0."""
    target = {int(source): int(sink) for source, sink in _PAIR.findall(pairs)}
    if not target or len(target) > MOST_STAGES:
        return 0
    ends, seen, lengths = set(target) - set(target.values()), set[int](), set[int]()
    for start in (*sorted(ends), *target):
        if start in seen:
            continue
        length, place = 0, start
        while place not in seen:
            seen.add(place)
            length += 1
            if place not in target:
                break
            place = target[place]
        lengths.add(length)
    return lengths.pop() if len(lengths) == 1 else 0


def _feeds(module: HloModule, body: Computation, turns: int, stages: int) -> bool:
    """Whether a turn reads one of M inputs, or writes one of M results, in the arrays of the loop's state."""
    for instruction in body.instructions:
        for one in fused(module, instruction):
            if one.opcode == "dynamic-slice" or one.opcode in UPDATES:
                holder = _shape_of(module, body, one)
                if holder and holder[0] == turns - stages + 1:
                    return True
    return False


def _shape_of(module: HloModule, body: Computation, one: Instruction) -> tuple[int, ...]:
    """Return the shape of the array that is read or written."""
    if one.opcode in UPDATES:
        return one.shape.dims
    holders = [body, *(module.computations[name] for i in body.instructions for name in i.called)]
    found = next((holder for holder in holders if holder.by_name.get(one.name) is one), None)
    return () if found is None else found.by_name[one.operands[0]].shape.dims


def pipeline_price(trace: Trace, members: Iterable[ProgramPipeline]) -> Price | None:
    """Return the saving without a bubble; ``None`` without known times."""
    return price(trace, (_part(trace, one) for one in members))


def _part(trace: Trace, pipeline: ProgramPipeline) -> Part:
    """Return the turns without work, as a part of the time of the loop's instructions in one run of the program."""
    index = module_index(trace, pipeline.module)
    cost = trace.fact(hlo_costs)[index]
    inside = _inside(pipeline.module, pipeline.loop)
    rows = [row for row in cost.launched if row.computation in inside]
    names = tuple(row.instruction.name for row in rows)
    measured = measured_run_ns(trace, pipeline.module, names)
    times = trace.fact(once_ns)
    modelled = [
        time * row.runs
        for row in rows
        if (time := times.get((index, row.computation, row.instruction.name))) is not None
    ]
    whole = measured if measured is not None else sum(modelled) if modelled else None
    return Part(
        module=pipeline.module, instructions=names, modelled_ns=None if whole is None else whole * pipeline.bubble
    )


def _inside(module: HloModule, loop: Instruction) -> set[str]:
    """Return the computations that the loop runs."""
    waiting, seen = list(loop.called), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [
                called
                for one in module.computations[name].instructions
                if one.opcode in CONTROL
                for called in one.called
            ]
    return seen
