"""The collectives inside of a planned graph: functional ones, which inductor calls as they are and waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from perfscope.profiler.aot.torch_collectives import WAIT, Groups
from perfscope.profiler.aot.torch_exchange import KINDS, NAMESPACES, exchange_of
from perfscope.profiler.aot.torch_processes_file import Moment, PlannedCollective


def is_wait(kernel: Any) -> bool:
    """Whether a scheduled node only waits for a collective: no launch of its own."""
    from torch._inductor import ir

    return isinstance(getattr(kernel, "node", None), ir._WaitKernel)


def is_collective(kernel: Any) -> bool:
    """Whether a scheduled node is an exchange with other processes."""
    from torch._inductor import ir

    return isinstance(getattr(kernel, "node", None), ir._CollectiveKernel) and not is_wait(kernel)


def graph_collectives(
    scheduled: Any,
    groups: Groups,
    place_of: Callable[[Iterable[Any]], Any],
    launches: Callable[[Any], bool],
) -> tuple[PlannedCollective, ...]:
    """Those of a scheduled graph in the order in which inductor would run it; moments count its kernels.

    ``place_of(nodes)``: the user's line of nodes of the FX graph. ``launches(node)``: whether a node is a kernel.
    """
    found: list[PlannedCollective] = []
    made: dict[Any, int] = {}
    kernels = 0
    for kernel in scheduled.scheduler.nodes:
        for node in kernel.get_nodes():
            if is_wait(node):
                for origin in _origins(node):
                    number = made.get(_waited_for(origin))
                    if number is not None and found[number].until is None:
                        found[number] = replace(found[number], until=Moment(ops=kernels))
            elif is_collective(node):
                for origin in _origins(node):
                    if origin not in made and _packet(origin) in KINDS:
                        made[origin] = len(found)
                        found.append(_one(origin, scheduled.backward, groups, place_of, Moment(ops=kernels)))
        kernels += launches(kernel)
    return tuple(found)


def _one(
    origin: Any, backward: bool, groups: Groups, place_of: Callable[[Iterable[Any]], Any], at: Moment
) -> PlannedCollective:
    exchange = exchange_of(
        origin.target,
        torch.fx.map_arg(tuple(origin.args), _value),
        torch.fx.map_arg(dict(origin.kwargs), _value),
        _value(origin),
    )
    place = place_of([origin])
    stack = str(origin.meta.get("stack_trace") or "")
    return PlannedCollective(
        kind=exchange.kind,
        op=origin.target._schema.name.replace("::", "."),
        bytes=exchange.bytes,
        dtype=exchange.dtype,
        group=groups.number(exchange.ranks),
        by="DTensor" if "torch/distributed/tensor/" in stack.replace("\\", "/") else "the program",
        phase="backward" if backward else "forward",
        file=None if place is None else place.file,
        line=None if place is None else place.line,
        function=None if place is None else place.function,
        at=at,
        after=at,
        pairs=exchange.pairs,
    )


def _origins(node: Any) -> list[Any]:
    return sorted(
        (one for one in node.node.get_origins() if getattr(one.target, "namespace", "") in NAMESPACES),
        key=lambda one: str(one.name),
    )


def _packet(origin: Any) -> str:
    return str(origin.target._schema.name).partition("::")[2]


def _waited_for(origin: Any) -> Any:
    """The FX node of the collective that a wait is for."""
    if str(origin.target._schema.name).replace("::", ".") != WAIT:
        return None
    one = origin.args[0]
    while isinstance(one, torch.fx.Node) and getattr(one.target, "namespace", "") not in NAMESPACES and one.args:
        one = one.args[0]
    return one


def _value(node: Any) -> Any:
    return node.meta.get("val")
