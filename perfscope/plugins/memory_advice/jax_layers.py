"""The layers of a compiled JAX training step: forward and backward positions, and kernels.

``jax.lax.scan`` over layers becomes two loops with equal numbers of iterations, one forward and one backward; values
that the backward needs are in arrays with a leading axis of layers (stacks). Layers that run one after another have
scopes that differ by a number (``block_3``, ``layers[3]``), and JAX marks the pass in the path of every instruction.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.hlo import (
    Computation,
    HloModule,
    Instruction,
    InstructionCost,
    ModuleCost,
    Schedule,
    Scope,
    fused,
    is_collected,
    is_handed_on,
    primitive,
    scope_of,
    updated_operand,
)

STACK_TRAFFIC = 4
"""Memory traffic of a value that a loop over layers keeps, relative to its size, because its stack is filled, written
and read by separate kernels: 2.8 to 5.7 in programs of the workloads compiled for an H100."""

_NUMBERED = re.compile(r"(.*?)[_\-\[.]?(?<!\d)(\d++)\]?", re.ASCII)
"""``block_3``, ``layers[3]``, ``h.3``, ``Block3``."""

MIN_LAYERS = 2
"""Fewest scopes of one kind: a single numbered scope is just a name."""

_LAUNCHED = frozenset({"reduce", "reduce-window", "scatter", "sort", "fft"})
_NOTHING = frozenset({"constant", "iota", "parameter"})


class Layers(Struct, frozen=True, kw_only=True):
    """Layers that run in one loop (and so share a policy), or a single layer."""

    name: str
    group: str
    """Equal for layers that differ only in their number."""
    count: int
    """Number of layers; 1 for a single one."""
    forward: tuple[int, int]
    """Positions in ``Schedule``, half open."""
    backward: tuple[int, int]
    input_bytes: int
    """Bytes that a layer gets from its predecessor."""
    forward_in: frozenset[str]
    """Computations that run the forward: the loop's body and its callees; for a single layer all."""
    backward_in: frozenset[str]
    path: tuple[str, ...] = ()
    """The scope of a single layer, or of the scope that contains the loop."""
    is_loop: bool = False

    def forward_kernels(self, cost: ModuleCost) -> list[InstructionCost]:
        """Kernels that compute the layers' forward, without kernels that only write their input into a stack."""
        return [
            row
            for row in cost.launched
            if row.computation in self.forward_in
            and self._is_in_scope(row)
            and scope_of(row.instruction.op_name).phase == "forward"
            and not (self.is_loop and updated_operand(cost.module, row.instruction) is not None)
        ]

    def kernels_again(self, cost: ModuleCost) -> list[InstructionCost]:
        """Kernels in the layers' backward that run the forward again."""
        return [
            row
            for row in cost.launched
            if row.computation in self.backward_in
            and self._is_in_scope(row)
            and runs_again(row.instruction.op_name, loops=self.is_loop)
        ]

    def _is_in_scope(self, row: InstructionCost) -> bool:
        if self.is_loop:
            return True
        scope = scope_of(row.instruction.op_name) if row.instruction.op_name else None
        return scope is not None and scope.path[: len(self.path)] == self.path


def runs_again(op_name: str, *, loops: bool) -> bool:
    """Whether an instruction runs a layer's forward again; a layer's own recomputation is inside an inner loop.

    ``loops``: the layers run in a loop.
    """
    before, mark, _ = op_name.partition("rematted_computation")
    return bool(mark) and before.split("/").count("while") == int(loops)


class ForwardWork(Struct, frozen=True, kw_only=True):
    """Kernels of the layers' forward, by what happens to them if fewer values are kept."""

    products: tuple[InstructionCost, ...]
    """Products whose results ``dots_with_no_batch_dims_saveable`` keeps: activations times weights."""
    summed: tuple[InstructionCost, ...]
    """Kernels that give the products' results: XLA splits a long product into one kernel for parts and one for the sum.
    """
    others: tuple[InstructionCost, ...]


def forward_work(layers: Layers, cost: ModuleCost) -> ForwardWork:
    """The kernels that a checkpointed layer may run again: all but its last product, whose result no backward reads."""
    rows = layers.forward_kernels(cost)
    inside = {id(row): tuple(fused(cost.module, row.instruction)) for row in rows}
    sums = {
        _origin(instruction)
        for row in rows
        for instruction in inside[id(row)]
        if instruction.opcode == "reduce" and primitive(instruction.op_name) == "dot_general"
    }
    products: dict[tuple[str, str | None, int | None], list[InstructionCost]] = {}
    summed, others = [], []
    for row in rows:
        plain = {_origin(one) for one in inside[id(row)] if _is_plain_product(one)}
        sum_of = {_origin(one) for one in inside[id(row)] if one.opcode == "reduce"} & sums
        part_of = {_origin(one) for one in inside[id(row)] if one.opcode == "dot"} & sums
        origin = min(plain or sum_of or part_of, key=repr, default=None)
        if origin is None:
            others.append(row)
        else:
            products.setdefault(origin, []).append(row)
        if plain or sum_of:
            summed.append(row)
    return ForwardWork(
        products=tuple(row for origin in list(products)[:-1] for row in products[origin]),
        summed=tuple(summed),
        others=tuple(others),
    )


def holds_product(module: HloModule, row: InstructionCost) -> bool:
    """Whether a kernel multiplies activations with weights."""
    return any(map(_is_plain_product, fused(module, row.instruction)))


def takes_a_kernel(module: HloModule, row: InstructionCost) -> bool:
    """Whether work needs a kernel when it runs again: elementwise work is then computed within its readers."""
    return bool(row.once.products) or any(one.opcode in _LAUNCHED for one in fused(module, row.instruction))


def _is_plain_product(instruction: Instruction) -> bool:
    product = instruction.opcode == "dot" or "gemm" in (instruction.custom_call_target or "")
    return product and instruction.attributes.get("lhs_batch_dims", "{}") == "{}"


def _origin(instruction: Instruction) -> tuple[str, str | None, int | None]:
    return instruction.op_name, instruction.file, instruction.line


def layers_of(module: HloModule, schedule: Schedule) -> tuple[Layers, ...]:
    """Loops over layers, else layers with a scope each. Loops inside such a layer (over time, blocks) do not count."""
    single = single_layers(module, schedule)
    loops = [
        loop
        for loop in layer_loops(module, schedule)
        if not any(loop.path[: len(layer.path)] == layer.path for layer in single)
    ]
    return tuple(loops) or single


def layer_loops(module: HloModule, schedule: Schedule) -> tuple[Layers, ...]:
    """Pairs of loops of the entry, one forward and one backward, in program order."""
    loops = [
        instruction
        for instruction in module.entry_computation().instructions
        if instruction.opcode == "while" and instruction.trip_count and len(instruction.called) == 2
    ]
    found: list[Layers] = []
    taken: set[str] = set()
    for index in reversed(range(len(loops))):  # the last forward loop is the first backward loop
        forward, body = loops[index], module.computations[loops[index].called[1]]
        size = sum(_carried_bytes(module, body))
        backward = next(
            (
                loop
                for loop in loops[index + 1 :]
                if loop.trip_count == forward.trip_count and loop.name not in taken and _is_backward(module, loop)
            ),
            None,
        )
        if backward is None or not size or _is_backward(module, forward):
            continue
        taken.add(backward.name)
        found.append(
            Layers(
                name=_label(forward),
                group=_label(forward),
                count=forward.trip_count or 1,
                forward=(schedule.begins[forward.name], schedule.positions[forward.name] + 1),
                backward=(schedule.begins[backward.name], schedule.positions[backward.name] + 1),
                input_bytes=size,
                forward_in=_reached(module, body.name),
                backward_in=_reached(module, backward.called[1]),
                path=_path(forward),
                is_loop=True,
            )
        )
    return tuple(reversed(found))


def _is_backward(module: HloModule, loop: Instruction) -> bool:
    """Whether a loop is backward, by its path, or without a path by the paths of its body."""
    names = (
        [loop.op_name] if loop.op_name else [one.op_name for one in module.computations[loop.called[1]].instructions]
    )
    return any(scope_of(name).phase != "forward" for name in names if name)


def _path(loop: Instruction) -> tuple[str, ...]:
    return scope_of(loop.op_name).path if loop.op_name else ()


def _carried_bytes(module: HloModule, body: Computation) -> Iterator[int]:
    """Sizes of the arrays that an iteration passes on besides stacks: what a layer gives to the next."""
    for element, name in enumerate(body.root.operands if body.root.opcode == "tuple" else ()):
        value = body.by_name[name]
        if value.shape.dims and not is_handed_on(body, name, element) and not is_collected(module, body, name, element):
            yield value.shape.bytes


def _reached(module: HloModule, name: str) -> frozenset[str]:
    """A computation and everything it calls."""
    names, waiting = {name}, [name]
    while waiting:
        for instruction in module.computations[waiting.pop()].instructions:
            waiting += [called for called in instruction.called if called not in names]
            names.update(instruction.called)
    return frozenset(names)


def _label(loop: Instruction) -> str:
    """``layers of mlp at model.py:73`` for a loop in a scope of the user's program."""
    path = _path(loop)
    line = "" if loop.file is None or loop.line is None else f"{PurePosixPath(loop.file).name}:{loop.line}"
    if path:
        return f"layers of {'/'.join(path)}" + (f" at {line}" if line else "")
    return f"layers of the scan at {line}" if line else f"layers of {loop.name}"


def single_layers(module: HloModule, schedule: Schedule) -> tuple[Layers, ...]:
    """Layers of the entry with a scope each, in the order they run. Linear in the entry's instructions."""
    entry = module.entry_computation()
    scopes = {
        instruction.name: scope_of(instruction.op_name) for instruction in entry.instructions if instruction.op_name
    }
    kinds: dict[str, dict[tuple[str, ...], list[Instruction]]] = defaultdict(lambda: defaultdict(list))
    for instruction in entry.instructions:
        path = _numbered(scopes[instruction.name].path) if instruction.name in scopes else None
        operands = [entry.by_name[name] for name in instruction.operands]
        if path is not None and any(operand.opcode not in _NOTHING for operand in operands):  # zeros may be anywhere
            match = _NUMBERED.fullmatch(path[-1])
            kind = "/".join((*path[:-1], match[1] if match is not None else path[-1]))
            kinds[kind][path].append(instruction)
    everything = _reached(module, module.entry)
    layers = []
    for kind, members_by_path in kinds.items():
        for path, members in members_by_path.items() if len(members_by_path) >= MIN_LAYERS else ():
            forward = [one for one in members if scopes[one.name].phase == "forward"]
            backward = [schedule.positions[one.name] for one in members if scopes[one.name].phase != "forward"]
            positions = [schedule.positions[one.name] for one in forward]
            early = [position for position in positions if position < min(backward, default=0)]
            if early:
                layers.append(
                    Layers(
                        name="/".join(path),
                        group=kind,
                        count=1,
                        forward=(min(early), max(early) + 1),
                        backward=(min(backward), max(backward) + 1),
                        input_bytes=_input_bytes(entry, scopes, path, forward),
                        forward_in=everything,
                        backward_in=everything,
                        path=path,
                    )
                )
    # XLA may delay gradients of weights: a layer's backward ends where that of the next one begins
    begins = sorted(layer.backward[0] for layer in layers)
    ends = dict(pairwise(begins))
    bounded = (
        replace(layer, backward=(layer.backward[0], ends.get(layer.backward[0], layer.backward[1]))) for layer in layers
    )
    return tuple(sorted(bounded, key=lambda layer: layer.forward))


def _numbered(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path up to its first numbered segment."""
    return next((path[: index + 1] for index, segment in enumerate(path) if _NUMBERED.fullmatch(segment)), None)


def _input_bytes(
    entry: Computation, scopes: dict[str, Scope], path: tuple[str, ...], members: list[Instruction]
) -> int:
    """The largest array that a layer's forward reads from another part of the forward."""
    read = {name for member in members for name in member.operands}
    return max(
        (
            entry.by_name[name].shape.bytes
            for name in read
            if name in scopes
            and scopes[name].phase == "forward"
            and scopes[name].path[: len(path)] != path
            and entry.by_name[name].opcode != "parameter"
        ),
        default=0,
    )
