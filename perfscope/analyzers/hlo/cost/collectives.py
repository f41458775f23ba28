"""Bytes that collectives put on the wire, each device of a group the same.

Factors are those of nccl-tests (``PERFORMANCE.md``, bus bandwidth): what any algorithm must send at least
over the links of one device, n devices taking part.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.hlo.module import HloModule, Instruction, Shape

COLLECTIVES = frozenset(
    {
        "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
        "reduce-scatter",
    }
)  # fmt: skip


def is_collective(opcode: str) -> bool:
    """True for a collective, whether it blocks or is the start of one that does not."""
    return opcode.removesuffix("-start") in COLLECTIVES


def group_size(module: HloModule, instruction: Instruction) -> int:
    """Devices in one group of a collective: the largest, where groups differ; all devices where none are written.

    Without groups, a collective with a channel goes over all partitions (and over all replicas too if its
    ids are global), one without a channel over all replicas.
    """
    if instruction.replica_groups:
        return max(len(group) for group in instruction.replica_groups)
    if instruction.attributes.get("use_global_device_ids") == "true":
        return module.num_partitions * module.num_replicas
    return module.num_replicas if instruction.channel_id is None else module.num_partitions


def wire_bytes(opcode: str, operands: Sequence[Shape], result: Shape, devices: int) -> int:
    """Bytes one device sends. ``opcode`` without ``-start``; ``result`` is what comes out in the end.

    all-reduce ``2(n-1)/n`` of the operands, all-gather ``(n-1)/n`` of the result, reduce-scatter and all-to-all
    ``(n-1)/n`` of the operands (ragged: of its whole first operand, an upper bound), permute and broadcast all.
    """
    given = sum(shape.bytes for shape in (operands[:1] if opcode == "ragged-all-to-all" else operands))
    return sent_bytes(opcode, result.bytes if opcode == "all-gather" else given, devices)


def sent_bytes(opcode: str, whole: int, devices: int) -> int:
    """Bytes one of ``devices`` sends, rounded up. ``whole``: what `wire_bytes` takes its share of."""
    if opcode in ("collective-permute", "collective-broadcast"):
        return whole
    if devices < 2:
        return 0
    if opcode == "all-reduce":
        return -(-2 * (devices - 1) * whole // devices)
    return -(-(devices - 1) * whole // devices)
