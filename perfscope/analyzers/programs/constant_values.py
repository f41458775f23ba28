"""Work of compiled programs on weights alone: the same in every call until the weights change.

The arguments that are weights follow from the program. A tree of arrays (``params['up']``) is trained if the program
differentiates and returns an array of the shape of each of its leaves. In a program without a backward pass, the only
tree that is not returned is weights. In both cases a leaf is multiplied with a value from another argument, or a
product of leaves is added to a leaf of another tree: queries and keys that are arguments are not weights.

In trained weights only products of thin factors count (those of an adapter): applied to the input, they cost less. In
weights of inference all arithmetic counts, and conversions with the name of a cast of JAX.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from perfscope.analyzers.graph import HloProgram
from perfscope.analyzers.hlo import (
    SAME_ELEMENTS,
    HloModule,
    Instruction,
    InstructionCost,
    ModuleCost,
    Shape,
    fused,
    hlo_costs,
    kernels_of,
    primitive,
)
from perfscope.model.trace import Trace

ConstantKind = Literal["product", "dequantised", "converted", "other"]

_CAST = "convert_element_type"
"""JAX's own cast; a cast by XLA has the name of the op that requires it."""
_FLOATS = frozenset({"f64", "f32", "bf16", "f16"})
_SMALL = {"s8": "int8", "u8": "uint8", "s4": "int4", "u4": "uint4", "f8e4m3fn": "float8_e4m3fn",
          "f8e5m2": "float8_e5m2", "f8e4m3": "float8_e4m3", "f8e4m3fnuz": "float8_e4m3fnuz",
          "f8e5m2fnuz": "float8_e5m2fnuz"}  # fmt: skip
"""Small dtypes in HLO, with JAX's names."""
_MOVES = frozenset({"parameter", "constant", "bitcast", "bitcast-convert", "copy", "transpose", "reshape", "slice",
                    "dynamic-slice", "broadcast", "concatenate", "pad", "tuple", "get-tuple-element", "iota", "gather",
                    "reverse", "copy-start", "copy-done", "dynamic-update-slice", "fusion", "call", "convert",
                    "compare", "select"})  # fmt: skip
"""Opcodes that compute nothing; XLA inserts many of them for layouts and loops."""
_CHANGES = frozenset({"infeed", "recv", "recv-done", "rng", "rng-get-and-update-state", "partition-id", "replica-id",
                      "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter",
                      "all-gather-start", "all-reduce-start", "collective-permute-start", "async-start"})  # fmt: skip
"""Opcodes whose result may differ between calls, or whose operands come from other devices."""


_MOST_STEPS = 100
"""Maximum number of steps from a value back to an argument; a layer of a loop has some ten."""


class ConstantWork(Struct, frozen=True, kw_only=True):
    """Kernels of one program and one file on weights alone."""

    index: int
    """In ``Trace.hlo``."""
    kind: ConstantKind
    dtype: str
    """For ``dequantised``: the small dtype, ``int8``."""
    kernels: tuple[tuple[InstructionCost, Instruction], ...]
    """Launched instructions, each with the instruction of the program's line in it."""


def constant_work(trace: Trace) -> tuple[ConstantWork, ...]:
    """Return such work of all programs."""
    return tuple(
        work for index, cost in enumerate(trace.fact(hlo_costs)) for work in _of(index, cost, _weights(cost.module))
    )


class _Weights(Struct, frozen=True, kw_only=True):
    """Arguments of a program, by the name before ``[`` or ``.``."""

    names: frozenset[str]
    trained: bool


def _weights(module: HloModule) -> _Weights:
    """Return the arguments that may be weights."""
    entry = module.entry_computation()
    leaves: dict[str, list[Instruction]] = defaultdict(list)
    for instruction in entry.instructions:
        if instruction.opcode == "parameter":
            leaves[_argument(instruction)].append(instruction)
    returned = {_key(part) for part in entry.root.shape.parts or (entry.root.shape,)}
    trees, written = set[str](), set[str]()
    for name, members in leaves.items():
        arrays = [one.shape for one in members if one.shape.dtype in {*_FLOATS, *_SMALL} and one.shape.dims]
        if sum(len(shape.dims) > 1 for shape in arrays) < 2 or all(one.op_name == name for one in members):
            continue
        trees.add(name)
        if all(_key(shape) in returned for shape in arrays):
            written.add(name)
    if any("transpose(" in instruction.op_name for _, instruction in module.instructions()):
        return _Weights(names=frozenset(written), trained=True)
    frozen = trees - written
    return _Weights(names=frozenset(frozen if len(frozen) == 1 else ()), trained=False)


def _argument(parameter: Instruction) -> str:
    return re.split(r"[.\[]", parameter.op_name, maxsplit=1)[0]


def _key(shape: Shape) -> tuple[str, tuple[int, ...]]:
    return shape.dtype, shape.dims


def _of(index: int, cost: ModuleCost, weights: _Weights) -> Iterator[ConstantWork]:
    if not weights.names:
        return
    flow = HloProgram(cost.module, cost)
    constant, changing = _reach(flow, cost.module, weights.names)
    products = {
        number
        for number, node in enumerate(flow.nodes)
        if node.product is not None and constant[number] and not changing[number]
    }
    if weights.trained:
        products = {number for number in products if _is_thin(flow, number)}
    made = _after(flow, products)
    meets = _multiplies(flow, constant, changing, made)
    pure = {number for number in made if not changing[number]}
    if not meets and not (weights.trained and _is_added(flow, cost.module, weights.names, pure)):
        return
    chosen: dict[str | None, list[tuple[InstructionCost, Instruction]]] = defaultdict(list)
    gradients = _kernels(flow, cost, _gradients(flow, products, constant, changing, made))
    for row in _launched(cost):
        number = flow.numbers[row.computation, row.instruction.name]
        at = gradients.get(row.instruction.name)
        if constant[number] and not changing[number] and (not weights.trained or number in made):
            at = _worker(list(fused(cost.module, row.instruction)))
        if at is not None:
            chosen[at.file].append((row, at))
    multiplied = _kernels(flow, cost, products)
    for kernels in chosen.values():
        is_product = weights.trained or any(row.instruction.name in multiplied for row, _ in kernels)
        of_product: tuple[ConstantKind, str] = "product", ""
        kind, dtype = of_product if is_product else _kind(cost.module, kernels)
        yield ConstantWork(index=index, kind=kind, dtype=dtype, kernels=tuple(kernels))


def _gradients(
    flow: HloProgram, products: set[int], constant: list[bool], changing: list[bool], made: set[int]
) -> set[int]:
    """Return the products of a backward pass in which a factor of some products is a factor again, at the same line."""
    lines = {flow.nodes[number].place for number in products}
    return {
        number
        for number, node in enumerate(flow.nodes)
        if node.product is not None and node.place in lines and "transpose(" in node.instruction.op_name
        if changing[number]
        if any(constant[one] and not changing[one] and one not in made for one in node.product.factors)
    }


def _kernels(flow: HloProgram, cost: ModuleCost, numbers: set[int]) -> dict[str, Instruction]:
    """Return the launched instructions that contain some values, each with one of those."""
    found, holders = {}, kernels_of(cost)
    for number in sorted(numbers):
        node = flow.nodes[number]
        row = cost.by_name.get((node.computation.name, node.instruction.name))
        for kernel in holders.around(row) if row is not None else ():
            found[kernel.instruction.name] = node.instruction
    return found


def _reach(flow: HloProgram, module: HloModule, weights: frozenset[str]) -> tuple[list[bool], list[bool]]:
    """Return for each value whether it follows from weights, and whether from anything that may change."""
    entry = module.entry
    constant, changing = [False] * len(flow.nodes), [False] * len(flow.nodes)
    for number, node in enumerate(flow.nodes):
        one = node.instruction
        if one.opcode == "parameter" and node.computation.name == entry:
            (constant if _argument(one) in weights else changing)[number] = True
        elif one.opcode in _CHANGES or (one.opcode == "custom-call" and not node.reads):
            changing[number] = True
    for flags in (constant, changing):
        waiting = [number for number, flag in enumerate(flags) if flag]
        while waiting:
            for user in flow.users[waiting.pop()]:
                if not flags[user]:
                    flags[user] = True
                    waiting.append(user)
    return constant, changing


def _after(flow: HloProgram, numbers: set[int]) -> set[int]:
    """Return values that follow from some, with them."""
    found, waiting = set(numbers), list(numbers)
    while waiting:
        for user in flow.users[waiting.pop()]:
            if user not in found:
                found.add(user)
                waiting.append(user)
    return found


def _is_thin(flow: HloProgram, number: int) -> bool:
    """Whether the factors of a product have fewer elements than its result."""
    product = flow.nodes[number].product
    return product is not None and sum(flow.nodes[one].size for one in product.factors) < flow.nodes[number].size


def _multiplies(flow: HloProgram, constant: list[bool], changing: list[bool], made: set[int]) -> bool:
    """Whether a weight, not a product of weights, is multiplied with a value from another argument."""
    for node in flow.nodes:
        if node.product is None:
            continue
        left, right = node.product.factors
        for weight, value in ((left, right), (right, left)):
            if constant[weight] and not changing[weight] and weight not in made and changing[value]:
                return True
    return False


def _is_added(flow: HloProgram, module: HloModule, weights: frozenset[str], pure: set[int]) -> bool:
    """Whether a product of weights is added to a leaf of another tree of arguments: a frozen weight."""
    for node in flow.nodes:
        if node.instruction.opcode != "add" or len(node.reads) != 2:
            continue
        for mine, other in (node.reads, node.reads[::-1]):
            leaf = _origin(flow, module, other) if mine in pure else None
            if leaf is not None and _argument(leaf) not in weights | {leaf.op_name}:
                return True
    return False


def _origin(flow: HloProgram, module: HloModule, number: int) -> Instruction | None:
    """Return the program's argument that a value is a part or a cast of; ``None`` if it is computed."""
    for _ in range(_MOST_STEPS):
        node = flow.nodes[number]
        if node.names:
            number = node.names[0]
        elif node.instruction.opcode == "parameter":
            return node.instruction if node.computation.name == module.entry else None
        elif node.instruction.opcode in SAME_ELEMENTS or node.op == "slice":
            number = node.reads[0]
        else:
            return None
    return None


def _launched(cost: ModuleCost) -> Iterator[InstructionCost]:
    """Yield the instructions that run by themselves and have results."""
    for row in cost.rows:
        if row.place == "launched" and row.runs and row.instruction.shape.elements > 1:
            yield row


def _worker(inside: list[Instruction]) -> Instruction | None:
    """Return the instruction of a kernel that computes or that the program asked to convert; ``None`` without any."""
    worked = [one for one in inside if one.opcode not in _MOVES]
    cast = [one for one in inside if one.opcode == "convert" and primitive(one.op_name) == _CAST]
    placed = (one for one in (*worked, *cast) if one.file is not None)
    return next(placed, next(iter((*worked, *cast)), None))


def _kind(module: HloModule, kernels: list[tuple[InstructionCost, Instruction]]) -> tuple[ConstantKind, str]:
    """Return the kind of work without products, and the dtype that is converted."""
    inside = [one for row, _ in kernels for one in fused(module, row.instruction)]
    holders = ((module.computations[row.computation].by_name, row.instruction) for row, _ in kernels)
    read = [by_name[name] for by_name, instruction in holders for name in instruction.operands]
    small = [_SMALL[one.shape.dtype] for one in (*read, *inside) if one.shape.dtype in _SMALL]
    if small:
        return "dequantised", small[0]
    return ("converted" if all(one.opcode in _MOVES for one in inside) else "other"), ""
