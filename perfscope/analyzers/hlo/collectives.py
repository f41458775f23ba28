"""Collectives of compiled XLA programs: what they move, and which of them the device has to wait for.

XLA splits a collective into a start and a done. What is scheduled between the two runs while the data
move. Three things make it blocking all the same: it was never split, the backend marked it synchronous
(GPU: ``collective_backend_config.is_sync``), or the schedule has nothing between start and done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.program import NO_WORK, Runs, control_runs
from perfscope.model.trace import Trace

KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip

Blocks = Literal["never split into start and done", "marked synchronous", "nothing scheduled beside it"]

MOST_SEARCHED = 512
"""Blocking collectives of a module for which independent work is looked for: the search is one pass over a
computation each, and the few that matter are the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a control computation."""

    module: HloModule
    computation: Computation
    start: Instruction
    """The start, or the collective itself where it is not split."""
    done: Instruction
    kind: str
    """``all-to-all`` ..., whatever it is wrapped in."""
    op: Instruction
    """What names its groups: the start, or the collective inside an ``async-start``."""
    bytes: int
    """Bytes a device sends or receives in one run of it: the larger of its operands and its result."""
    runs: Runs
    between: tuple[str, ...]
    """Launched instructions scheduled between start and done, other collectives left out."""
    blocks: Blocks | None
    """Why the device waits for it; None: it runs beside other work, or the program has no schedule."""

    @property
    def bytes_a_run(self) -> int:
        """Bytes in one run of the module."""
        return self.bytes * self.runs.times

    @property
    def group_size(self) -> int:
        """Devices that take part in one exchange."""
        if self.op.replica_groups:
            return max(map(len, self.op.replica_groups))
        return max(self.module.num_partitions, self.module.num_replicas)


def collectives(trace: Trace) -> tuple[Collective, ...]:
    """Collectives of all modules, in schedule order."""
    return tuple(found for module in trace.hlo for found in collectives_of(module))


def collectives_of(module: HloModule) -> tuple[Collective, ...]:
    """Collectives of the computations that run. What a fusion does of its own accord is not seen here."""
    found = []
    wrapped = {name for _, one in module.instructions() if one.opcode == "async-start" for name in one.called}
    for name, runs in control_runs(module).items():
        if name not in wrapped:
            found += _of_computation(module, module.computations[name], runs)
    return tuple(found)


def _of_computation(module: HloModule, computation: Computation, runs: Runs) -> list[Collective]:
    position = {one.name: index for index, one in enumerate(computation.instructions)}
    done_of = _dones(computation)
    found = []
    for start in computation.instructions:
        op = _collective_in(module, start)
        if op is None:
            continue
        split = start.opcode.endswith("-start")
        done = done_of.get(start.name, start)
        between = computation.instructions[position[start.name] + 1 : position[done.name]]
        beside = tuple(one.name for one in between if _computes(one))
        found.append(
            Collective(
                module=module,
                computation=computation,
                start=start,
                done=done,
                kind=op.opcode.removesuffix("-start"),
                op=op,
                bytes=max(_operand_bytes(computation, start), done.shape.bytes),
                runs=runs,
                between=beside,
                blocks=_blocks(start, op, split, bool(beside)) if module.is_scheduled else None,
            )
        )
    return found


def _collective_in(module: HloModule, start: Instruction) -> Instruction | None:
    """The collective an instruction is or starts; None for everything else, its done included."""
    if start.opcode.removesuffix("-start") in KINDS:
        return start
    if start.opcode == "async-start" and start.called:
        body = module.computations[start.called[0]]
        return next((one for one in body.instructions if one.opcode in KINDS), None)
    return None


def _dones(computation: Computation) -> dict[str, Instruction]:
    """Name of a start -> its done; updates between the two are followed."""
    started = {one.name: one.name for one in computation.instructions if one.opcode.endswith("-start")}
    found = {}
    for one in computation.instructions:
        origin = started.get(one.operands[0]) if one.operands else None
        if origin is not None and one.opcode == "async-update":
            started[one.name] = origin
        elif origin is not None and one.opcode.endswith("-done"):
            found[origin] = one
    return found


def _computes(one: Instruction) -> bool:
    name = one.opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")
    return one.opcode not in NO_WORK and name not in KINDS and name not in ("async", "copy", "send", "recv")


def _is_worth_it(one: Instruction) -> bool:
    """It computes, and more than a loop's counter; a TPU's own markers of asynchrony are no work."""
    marker = (one.custom_call_target or "").startswith("AsyncCollective")
    return _computes(one) and one.shape.elements > 1 and not marker


def _operand_bytes(computation: Computation, start: Instruction) -> int:
    return sum(computation.by_name[name].shape.bytes for name in start.operands)


def _blocks(start: Instruction, op: Instruction, split: bool, beside: bool) -> Blocks | None:
    if not split:
        return "never split into start and done"
    if _is_sync(start) or _is_sync(op):
        return "marked synchronous"
    return None if beside else "nothing scheduled beside it"


def is_marked(found: Collective) -> bool:
    """Whether XLA:GPU marked it to run in line with everything else, whether or not it is split."""
    return _is_sync(found.start) or _is_sync(found.op)


def _is_sync(one: Instruction) -> bool:
    config = one.backend_config.get("collective_backend_config")
    return isinstance(config, dict) and config.get("is_sync") is True


def independent_work(found: Collective) -> tuple[Instruction, ...]:
    """Work of the same computation that neither feeds the collective nor needs it, the largest result first.

    All of it may run while the collective does; the order of the schedule alone keeps it away.
    """
    computation = found.computation
    before, after = {found.start.name}, {found.start.name, found.done.name}
    for one in reversed(computation.instructions):
        if one.name in before:
            before.update(one.operands)
    for one in computation.instructions:
        if not after.isdisjoint(one.operands):
            after.add(one.name)
    free = (one for one in computation.instructions if one.name not in before and one.name not in after)
    return tuple(sorted(filter(_is_worth_it, free), key=lambda one: -one.shape.bytes))


def by_size(found: Iterable[Collective]) -> list[Collective]:
    """Those that move most in a run first."""
    return sorted(found, key=lambda one: (-one.bytes_a_run, one.start.name))
