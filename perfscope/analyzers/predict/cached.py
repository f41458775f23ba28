"""Bytes that may still lie in a device's shared cache when an instruction reads them: small values just written.

An upper bound for the low end of a range: the cache is taken as perfect, the last bytes moved as those it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfscope.analyzers.hlo.cost.module import ModuleCost
from perfscope.analyzers.hlo.module import Computation, Instruction
from perfscope.analyzers.hlo.program import VIEWS


def cached_bytes(computation: Computation, cost: ModuleCost, cache: int | None) -> Mapping[str, int]:
    """Of the bytes of each instruction of a computation, those that may come from or stay in the cache.

    Where one run of the computation moves no more than the cache holds, all of it: the next turn, or the next step,
    finds it there.
    """
    if not cache:
        return {}
    moved = {one.name: _moved(computation, cost, one) for one in computation.instructions}
    if sum(moved.values()) <= cache:
        return moved
    found: dict[str, int] = {}
    written: dict[str, int] = {}
    so_far = 0
    for one in computation.instructions:
        so_far += moved[one.name]
        kept = one.shape.bytes if one.shape.bytes <= cache else 0
        for name in _sources(computation, one):
            size = computation.by_name[name].shape.bytes
            if name in written and so_far - written[name] <= cache:
                kept += size
        found[one.name] = min(kept, moved[one.name])
        if moved[one.name]:
            written[one.name] = so_far - moved[one.name]
    return found


def _moved(computation: Computation, cost: ModuleCost, one: Instruction) -> int:
    row = cost.by_name.get((computation.name, one.name))
    return 0 if row is None or row.place != "launched" else row.once.bytes


def _sources(computation: Computation, one: Instruction) -> Iterator[str]:
    """What wrote each operand, behind views; of a tuple its parts."""
    waiting = list(one.operands)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or len(seen) > 256:
            continue
        seen.add(name)
        source = computation.by_name[name]
        if source.opcode in VIEWS:
            waiting.extend(source.operands)
        else:
            yield name
