"""Cost of an HLO program, instruction by instruction, as often as each runs.

Modelled from the program alone: arithmetic by documented formulas, memory traffic as if nothing stayed in a cache
between two instructions and each instruction read what it needs once. Loops count as often as they run, which
XLA's own cost analysis does not do. What has no formula is unknown, never 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from perfscope.analyzers.hlo.cost_once import CONTAINERS, CONTROL, FREE, OnceCosts, callees_first, dearness, trips
from perfscope.analyzers.hlo.cost_phase import Phase, phase_of
from perfscope.analyzers.hlo.cost_types import NO_PRODUCTS, Cost
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.model.errors import DataError

MAX_AMOUNT = 1 << 128
"""Operations, bytes or runs in a module: 10^38, a million exaFLOP/s machines for a million years; floats hold it."""

Place = Literal["launched", "control", "inside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionCost:
    """What one instruction costs each time it runs, and how often it runs in one run of the module."""

    computation: str
    instruction: Instruction
    place: Place
    """``launched``: runs by itself, all traffic is here. ``control``: a loop, branch or call, with the cost of what
    it runs. ``inside``: part of a fusion or of an asynchronous op, which has its traffic."""
    once: Cost
    runs: int
    """In totals only the dearest branch of a conditional runs; instructions of the others have 0 here."""
    runs_exact: bool
    """False: around it is a loop whose trip count is not known; counted once."""
    branches: tuple[Cost, ...] = ()
    """Of a conditional: every branch, in written order."""

    @property
    def flops(self) -> int | None:
        """FLOPs each time; ``None`` if nothing in it can be counted. At least this many unless ``once.exact``."""
        return None if self.once.unknown and not self.once.flops else self.once.flops

    @property
    def total(self) -> Cost:
        """The cost of all its runs."""
        return self.once.times(self.runs, exact=self.runs_exact)


@dataclass(frozen=True, kw_only=True)
class ModuleCost:
    """Cost of one run of a module on one device."""

    module: HloModule
    total: Cost
    rows: tuple[InstructionCost, ...]
    """Every instruction that runs, operators of reductions aside; callers first."""
    by_name: Mapping[tuple[str, str], InstructionCost] = field(repr=False)
    """By computation and instruction."""

    @cached_property
    def launched(self) -> tuple[InstructionCost, ...]:
        """Instructions that run by themselves and do or move anything: their costs add up to the total."""
        return tuple(row for row in self.rows if row.place == "launched" and row.once != FREE)

    @cached_property
    def phases(self) -> Mapping[Phase, Cost]:
        """The total by phase: arithmetic by what each op inside a fusion is for, traffic by the fusion's own name."""
        found: dict[Phase, Cost] = {}
        for row in self.rows:
            if row.place == "control" or not row.runs:
                continue
            part = row.total
            if row.instruction.called and row.instruction.opcode in CONTAINERS:
                part = dataclasses.replace(part, flops=0, transcendentals=0, products=NO_PRODUCTS, unknown=0)
            if part != FREE:
                phase = phase_of(row.instruction.op_name)
                found[phase] = found[phase] + part if phase in found else part
        return found

    @property
    def unknown_bytes_share(self) -> float:
        """Share of the bytes that move for instructions whose arithmetic is unknown; 0 if nothing moves."""
        moved = sum(row.total.bytes for row in self.launched if row.flops is None)
        return moved / self.total.bytes if self.total.bytes else 0.0

    def recompute_share(self) -> float:
        """Share of the FLOPs that compute again what forward computed; 0 if there are none."""
        again = self.phases.get("recompute")
        return again.flops / self.total.flops if again is not None and self.total.flops else 0.0


def module_cost(module: HloModule) -> ModuleCost:
    """The cost of a module. Time and memory are linear in its instructions.

    ``DataError``, one line, for sizes and trip counts that no machine could run; ``ValueError`` if computations
    call one another in a circle, which readers refuse.
    """
    order = callees_first(module)
    model = OnceCosts(module)
    for name in order:
        model.count(module.computations[name])
    rows = _placed(module, model, order)
    total = model.sums[module.entry]
    if max(total.flops, total.transcendentals, total.bytes, total.wire_bytes, *(row.runs for row in rows)) > MAX_AMOUNT:
        raise DataError(f"{module.source}: a program that would never end: sizes or trip counts are not real")
    return ModuleCost(
        module=module,
        total=total,
        rows=rows,
        by_name={(row.computation, row.instruction.name): row for row in rows},
    )


def _arithmetic(cost: Cost) -> Cost:
    """A cost without its traffic."""
    if not (cost.bytes or cost.wire_bytes or cost.host_bytes):
        return cost
    return dataclasses.replace(cost, bytes_read=0, bytes_written=0, wire_bytes=0, host_bytes=0)


def _placed(module: HloModule, model: OnceCosts, order: list[str]) -> tuple[InstructionCost, ...]:
    """Rows of all computations that run, callers first, with how often they run."""
    runs: dict[str, tuple[int, bool]] = {module.entry: (1, True)}
    inside: set[str] = set()
    rows = []
    for name in reversed(order):
        if name not in runs:
            continue  # an operator of a reduction, or a computation only operators call
        times, exact = runs[name]
        for instruction, once in zip(module.computations[name].instructions, model.costs[name], strict=True):
            control = instruction.opcode in CONTROL
            branches = model.branches.get((name, instruction.name), ())
            rows.append(
                InstructionCost(
                    computation=name,
                    instruction=instruction,
                    place="inside" if name in inside else "control" if control else "launched",
                    once=_arithmetic(once) if name in inside else once,
                    runs=times,
                    runs_exact=exact,
                    branches=branches,
                )
            )
            if instruction.opcode not in CONTAINERS:
                continue  # what it calls is an operator that it applies to elements
            dearest = max(range(len(branches)), key=lambda at: dearness(branches[at])) if branches else None
            loop = instruction.opcode == "while"
            for at, called in enumerate(instruction.called if control else instruction.called[:1]):
                more = times * (trips(instruction) if loop else 1) if dearest in (None, at) else 0
                before, known = runs.get(called, (0, True))
                runs[called] = (before + more, known and exact and not (loop and instruction.trip_count is None))
                if name in inside or not control:
                    inside.add(called)
    return tuple(rows)
