"""What of that which XLA's priority fusion leaves in memory does not stay there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perfscope.analyzers.advice.hlo_fused import Op


def merged(ops: Sequence[Op], readers: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """Places of what is read by kernels of its own size alone: XLA makes one kernel of them, with several results.

    A kernel that reduces has the size of what it reduces.

    ``readers``: whose kernels read what is written. Not where a kernel between two of them is another one.
    """
    found: set[int] = set()
    for at in sorted(readers, reverse=True):
        users = set(readers[at])
        if any(_size(ops, one) != ops[at].elements or not ops[one].consumes for one in users):
            continue  # nobody reads it, and so nobody wants it in memory, where there are none
        beyond = {other for one in users for other in readers.get(one, ()) if other not in users}
        waiting, seen = list(beyond), set(beyond)
        while waiting:
            for one in readers.get(waiting.pop(), ()):
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
        if users.isdisjoint(seen):
            found.add(at)
    return frozenset(found)


def _size(ops: Sequence[Op], at: int) -> int:
    return ops[ops[at].operands[0]].elements if ops[at].reduces else ops[at].elements


def normalized(ops: Sequence[Op]) -> frozenset[int]:
    """Places of what is combined with its own sum or maximum along rows (a softmax, a norm).

    XLA makes a kernel of Triton's of such, before all others, and models its times in another way.
    """
    users: list[list[int]] = [[] for _ in ops]
    for at, op in enumerate(ops):
        for operand in op.operands:
            users[operand].append(at)
    found: set[int] = set()
    for at, op in enumerate(ops):
        if op.reduces:
            above = _up(ops, op.operands[:1], ops[op.operands[0]].elements)
            rows, users_of_rows = _spread(ops, users, at)
            if any(above & _up(ops, ops[one].operands, ops[one].elements) for one in users_of_rows):
                found |= above | rows
    return frozenset(found)


def _up(ops: Sequence[Op], begin: Iterable[int], elements: int) -> set[int]:
    """What leads to some values element by element."""
    waiting = [one for one in begin if ops[one].elements == elements]
    seen = set(waiting)
    while waiting:
        op = ops[waiting.pop()]
        for one in op.operands if op.pointwise or op.view else ():
            if one not in seen and ops[one].elements == elements:
                seen.add(one)
                waiting.append(one)
    return seen


def _spread(ops: Sequence[Op], users: Sequence[Sequence[int]], at: int) -> tuple[set[int], set[int]]:
    """What is computed from a row's number, and who combines it with the row's elements."""
    waiting, seen, found = [at], {at}, set[int]()
    while waiting:
        for one in users[waiting.pop()]:
            if one in seen:
                continue
            seen.add(one)
            if ops[one].elements == ops[at].elements and (ops[one].pointwise or ops[one].view):
                waiting.append(one)
            elif ops[one].broadcasts:
                found.update(users[one])
    return seen, found
