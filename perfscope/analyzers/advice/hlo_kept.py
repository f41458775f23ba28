"""What the backward of a checkpointed layer reads of what it computed again: what keeping everything would keep.

``jax.checkpoint`` marks what runs again in the path of its instructions (``rematted_computation``), also inside
fusions. A value made there and read outside is one that the layer would hand from its forward to its backward.
"""

from __future__ import annotations

from perfscope.analyzers.advice.hlo_layers import reached
from perfscope.analyzers.advice.hlo_reads import PRODUCTS
from perfscope.analyzers.facts.hlo_flow import VIEWS, Flow
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.scope import scope_of

_FREE = frozenset({"constant", "iota", "parameter", "tuple", "get-tuple-element", "broadcast"})
"""They take nothing to make again, and XLA keeps none of them."""


_DEAR = PRODUCTS | {"reduce", "reduce-window", "scatter", "sort"}
"""Opcodes whose result has a buffer: their readers do not compute it again."""

_MOVES = (VIEWS | {"slice", "pad", "concatenate"}) - {"convert", "broadcast"}
"""Opcodes that put elements elsewhere: what they take is kept, once."""


def runs_again(op_name: str, *, loops: bool) -> bool:
    """Whether an instruction runs a layer's forward again; what a layer recomputes of itself is inside a further loop.

    ``loops``: a loop runs the layers.
    """
    before, mark, _ = op_name.partition("rematted_computation")
    return bool(mark) and before.split("/").count("while") == int(loops)


def read_again(module: HloModule, flow: Flow, body: str, scope: tuple[str, ...] = ()) -> tuple[tuple[int, int], ...]:
    """Numbers in ``Flow`` and bytes of the values between recomputation and backward of one layer.

    ``body``: the computation that runs the backward of the layer, ``scope``: its path where it shares that computation.
    A value that its readers cast is counted as it is made. Of layers without a loop XLA computes what is cheap again by
    itself, within the readers: there it is what the value is computed from that is kept.
    """
    within = reached(module, body)
    found: dict[int, int] = {}
    for value in flow.values:
        one = value.instruction
        if value.computation.name not in within or value.names or not one.op_name or not _is_of(one.op_name, scope):
            continue
        if runs_again(one.op_name, loops=not scope):
            continue
        for operand in value.operands:
            for number in _made(flow, operand, within):
                for source in _kept_for(flow, number, within, one.opcode, alone=bool(scope)):
                    made = flow.values[source].instruction
                    if runs_again(made.op_name, loops=not scope) and made.opcode not in _FREE:
                        found[source] = made.shape.bytes
    return tuple(found.items())


def _kept_for(flow: Flow, number: int, within: frozenset[str], reader: str, *, alone: bool) -> list[int]:
    """What is kept so that a value can be read: the value, or what its reader computes it from."""
    if not alone or reader in PRODUCTS:
        return [number]
    found, waiting, seen = [], [number], set[int]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        value = flow.values[one]
        if value.instruction.opcode in _DEAR:
            found.append(one)
        elif runs_again(value.instruction.op_name, loops=not alone):
            waiting += [made for operand in value.operands for made in _made(flow, operand, within)]
    return found


def _is_of(op_name: str, scope: tuple[str, ...]) -> bool:
    return scope_of(op_name).path[: len(scope)] == scope


def _made(flow: Flow, number: int, within: frozenset[str]) -> list[int]:
    """What computes a value, behind other layouts of it, within the layer."""
    found, waiting, seen = [], [number], set[int]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        value = flow.values[one]
        if value.computation.name not in within or value.carried:
            continue
        if value.names:
            waiting.extend(value.names)
        elif value.instruction.opcode in _MOVES and not _of_kept(flow, value.operands, within):
            waiting.extend(value.operands)
        else:
            found.append(one)
    return found


def _of_kept(flow: Flow, numbers: tuple[int, ...], within: frozenset[str]) -> bool:
    """Whether something comes from outside of the layer's backward: a part of it is a value of its own."""
    waiting, seen = list(numbers), set[int]()
    while waiting:
        one = waiting.pop()
        value = flow.values[one]
        if one in seen:
            continue
        seen.add(one)
        if value.computation.name not in within or value.carried:
            return True
        if value.names or value.instruction.opcode in _MOVES | {"dynamic-slice"}:
            waiting.extend(value.names or value.operands[:1])
    return False
