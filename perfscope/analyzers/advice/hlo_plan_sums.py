"""Sums that run again, in one kernel with sums of the backward over the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.analyzers.advice.hlo_dear import further_result
from perfscope.analyzers.advice.hlo_graph import Body
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.module import Computation, Instruction


def join_sums(
    flow: Flow, code: Computation, body: Body, made: Mapping[int, str], backward: frozenset[str], kernel: str
) -> None:
    """A sum that runs again is a further result of a kernel of the backward that reads the same and sums up as much.

    XLA makes one kernel of such (its multi-output fusion), unless one comes before the other. ``made``: instructions of
    ``body`` by number in ``Flow``, ``kernel``: opcode of those that were added.
    """
    users = body.users()
    for number, name in made.items():
        node, value = body.nodes[name], flow.values[number]
        if node.opcode != kernel or value.instruction.opcode != "reduce":
            continue
        size = _summed(value.computation, value.instruction)
        for host in sorted({user for operand in node.operands for user in users[operand]} & backward):
            one = code.by_name[host]
            if one.opcode != "fusion" or not set(node.operands) <= set(body.nodes[host].operands):
                continue
            inside = flow.module.computations[one.called[0]]
            sizes = {_summed(inside, part) for part in inside.instructions if part.opcode == "reduce"}
            if size in sizes and not _leads_to(users, name, host):
                further_result(body, host, name, node.bytes)
                break


def _summed(inside: Computation, one: Instruction) -> int:
    """Elements that a reduction takes."""
    return inside.by_name[one.operands[0]].shape.elements


def _leads_to(users: Mapping[str, Sequence[str]], name: str, other: str) -> bool:
    """Whether one instruction comes before another one."""
    waiting, seen = [name], {name}
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user == other:
                return True
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return False
