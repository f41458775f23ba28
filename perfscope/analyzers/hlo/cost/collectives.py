"""Bytes that collectives send, equal for each device of a group.

Factors are those of nccl-tests (``PERFORMANCE.md``, bus bandwidth): the minimum that any algorithm must send over the
links of one of n devices.
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
    """Whether the opcode is a collective, blocking or the start of an asynchronous one."""
    return opcode.removesuffix("-start") in COLLECTIVES


def group_size(module: HloModule, instruction: Instruction) -> int:
    """Return the devices in one group of a collective: the largest group, or all devices if none are written.

    Without groups, a collective with a channel covers all partitions (and all replicas too if its ids are global), one
    without a channel covers all replicas.
    """
    if instruction.replica_groups:
        return max(len(group) for group in instruction.replica_groups)
    if instruction.attributes.get("use_global_device_ids") == "true":
        return module.num_partitions * module.num_replicas
    return module.num_replicas if instruction.channel_id is None else module.num_partitions


def wire_bytes(opcode: str, operands: Sequence[Shape], result: Shape, devices: int) -> int:
    """Return the bytes one device sends. ``opcode`` is without ``-start``; ``result`` is the final result.

    all-reduce ``2(n-1)/n`` of the operands, all-gather ``(n-1)/n`` of the result, reduce-scatter and all-to-all
    ``(n-1)/n`` of the operands (ragged: of its whole first operand, an upper bound), permute and broadcast all.
    """
    given = sum(shape.bytes for shape in (operands[:1] if opcode == "ragged-all-to-all" else operands))
    return sent_bytes(opcode, result.bytes if opcode == "all-gather" else given, devices)


def sent_bytes(opcode: str, whole: int, devices: int) -> int:
    """Return the bytes that one of ``devices`` sends, rounded up.

    ``whole``: the bytes that the factor of `wire_bytes` applies to.
    """
    if opcode in ("collective-permute", "collective-broadcast"):
        return whole
    if devices < 2:
        return 0
    if opcode == "all-reduce":
        return -(-2 * (devices - 1) * whole // devices)
    return -(-(devices - 1) * whole // devices)
