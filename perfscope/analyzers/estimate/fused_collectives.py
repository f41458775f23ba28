"""Collectives that the TPU compiler puts into fusions: one begins the exchange, others work beside it, one ends it."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analyzers.facts.hlo_collectives import KINDS, Collective
from perfscope.analyzers.facts.hlo_program import Runs
from perfscope.analyzers.hlo.cost import InstructionCost
from perfscope.analyzers.hlo.module import Computation, HloModule

_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"


def held_collective(module: HloModule, computation: Computation, row: InstructionCost) -> Collective | None:
    """The collective that a fusion sends bytes for: it begins there, or runs there from begin to end."""
    one = row.instruction
    if one.opcode != "fusion" or not row.once.wire_bytes or not one.called:
        return None
    body = module.computations[one.called[0]]
    op = next((inner for inner in body.instructions if inner.opcode.removesuffix("-start") in KINDS), None)
    if op is None:
        return None
    begins = any(inner.custom_call_target == _START for inner in body.instructions)
    sent = sum(body.by_name[name].shape.bytes for name in op.operands)
    return Collective(
        module=module,
        computation=computation,
        start=one,
        done=one,
        kind=op.opcode.removesuffix("-start"),
        op=op,
        bytes=max(sent, op.shape.bytes),
        runs=Runs(times=row.runs, exact=row.runs_exact),
        between=(),
        blocks=None if begins else "never split into start and done",
    )


def ended_by(module: HloModule) -> Mapping[tuple[str, str], str]:
    """(computation, fusion that ends a collective) -> the fusion that begins it, joined by the channel."""
    starts: dict[tuple[str, int], str] = {}
    ends: list[tuple[str, str, int]] = []
    for computation, one in module.instructions():
        if one.opcode != "fusion" or not one.called:
            continue
        body = module.computations[one.called[0]]
        targets = {inner.custom_call_target for inner in body.instructions}
        channel = next((inner.channel_id for inner in body.instructions if inner.opcode in KINDS), None)
        if channel is None:
            continue
        if _START in targets:
            starts.setdefault((computation.name, channel), one.name)
        elif _DONE in targets:
            ends.append((computation.name, one.name, channel))
    return {
        (computation, name): starts[computation, channel]
        for computation, name, channel in ends
        if (computation, channel) in starts
    }
