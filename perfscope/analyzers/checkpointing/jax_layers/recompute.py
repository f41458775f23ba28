"""What the backward of compiled layers computes again, today and where less is kept for it.

Values that a layer's backward reads are followed back through the layer, up to what the checkpoint policy keeps and the
layer's input: all on the way is computed again. ``jax.checkpoint`` marks what runs again in the path of its
instructions (``rematted_computation``). ``jax.checkpoint_policies.save_only_these_names`` is no policy here:
``checkpoint_name`` leaves nothing in a compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from perfscope.analyzers.checkpointing.jax_layers.layers import Layers, reached
from perfscope.analyzers.checkpointing.jax_layers.unrolled import layers_of
from perfscope.analyzers.checkpointing.step_model import Policy
from perfscope.analyzers.hlo.cost.module import ModuleCost, hlo_costs
from perfscope.analyzers.hlo.flow import POINTWISE, Flow, Value
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.analyzers.hlo.views import REPEATED, SAME_ELEMENTS
from perfscope.model.trace import Trace

PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
"""Opcodes of matrix products; libraries are called by ``custom-call``."""

_LAUNCHED = PRODUCTS | {"reduce", "reduce-window", "scatter", "sort", "fft", "get-tuple-element"}
"""Opcodes that take a kernel of their own, a loop's result (``get-tuple-element``) among them; all else is computed
within its readers."""

_FREE = frozenset({"constant", "iota", "partition-id", "replica-id", "parameter", "tuple"})
_ARGUMENT = POINTWISE | _FREE | {"slice", "dynamic-slice", "concatenate", "sine", "cosine"}
_MOVES = (SAME_ELEMENTS | {"slice", "pad", "concatenate"}) - {"convert", "reduce-precision"}
_CONTAINERS = ("fusion", "while", "call", "get-tuple-element")

Keeps = Callable[[int], bool]
"""Whether a policy keeps a value, by number in ``Flow``."""


def nothing(number: int) -> bool:
    """``jax.checkpoint`` without a policy: the layer's input only."""
    return False


def unbatched_products(flow: Flow) -> Keeps:
    """``dots_with_no_batch_dims_saveable``: products of activations with weights.

    XLA splits long products into batches that are added up at once; those have no batch of the user's.
    """

    def keeps(number: int) -> bool:
        instruction = flow.values[number].instruction
        if instruction.opcode == "all-reduce-done":  # the user's product, of which each device has a part of the sum
            return any(keeps(source) for begin in flow.values[number].operands for source in _behind(flow, begin))
        if instruction.opcode == "reduce":
            parts = (flow.values[source].instruction for source in _behind(flow, number, ("convert",)))
            return any(
                part.opcode == "dot" and part.op_name == instruction.op_name and _batched(part) for part in parts
            )
        if instruction.opcode == "custom-call" and "gemm" not in (instruction.custom_call_target or ""):
            return False
        return instruction.opcode in PRODUCTS - {"convolution"} and not _batched(instruction)

    return keeps


def _batched(product: Instruction) -> bool:
    return product.attributes.get("lhs_batch_dims", "{}") != "{}"


def _behind(flow: Flow, number: int, further: tuple[str, ...] = ()) -> Iterator[int]:
    """What computes the first operand of a value, behind bitcasts and reshapes."""
    for source in flow.back(flow.values[number].operands[:1]):
        while flow.opcode(source) in ("bitcast", "reshape", *further):
            source = next(flow.back(flow.values[source].operands[:1]))
        yield source


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What one policy makes of a layer, by number in ``Flow``."""

    computed: frozenset[int]
    """All that the backward computes again."""
    launched: frozenset[int]
    """Those of them that take a kernel: the others are computed within their readers."""
    kept: frozenset[int]
    """What the layer hands to its backward instead: its input, and what the policy keeps."""


def again_of(flow: Flow, layers: Layers, keeps: Keeps) -> Again:
    """What runs again where only ``keeps`` and the layer's input stay. Linear in the values of a layer."""
    arguments: dict[int, bool] = {}
    computed, kept, seen = set[int](), set[int](), set[int]()
    waiting = [kept_value.number for kept_value in layers.kept]
    while waiting:
        number = waiting.pop()
        value = flow.values[number]
        if number in seen or value.computation.name not in layers.within:
            continue
        seen.add(number)
        opcode = value.instruction.opcode
        if keeps(number) or _is_input(flow, layers, number):
            if keeps(number) or not _is_argument(flow, number, arguments):
                kept.add(number)
        elif _is_of_loop(value):  # a loop works in place on what it begins with
            computed.add(number)
            waiting.extend(value.names)
        elif value.names or opcode in REPEATED:
            waiting.extend(value.names or value.operands)
        elif opcode not in _FREE and not (layers.scope and _is_argument(flow, number, arguments)):
            computed.add(number)
            waiting.extend(value.operands)
    launched = frozenset(number for number in computed if flow.opcode(number) in _LAUNCHED)
    return Again(computed=frozenset(computed), launched=launched, kept=frozenset(kept))


def _is_input(flow: Flow, layers: Layers, number: int) -> bool:
    """Whether a value is a layer's input: what a turn of the loop hands to the next, or another part of the program."""
    value = flow.values[number]
    if not layers.scope:
        return value.carried and value.computation.name == layers.body.name and bool(value.instruction.shape.dims)
    if value.names or value.instruction.opcode in REPEATED | _FREE or not value.instruction.op_name:
        return False
    return scope_of(value.instruction.op_name).path[: len(layers.scope)] != layers.scope


def _is_of_loop(value: Value) -> bool:
    """Whether a value is the result of a loop in the layer."""
    instruction = value.instruction
    return (
        instruction.opcode == "get-tuple-element"
        and value.computation.by_name[instruction.operands[0]].opcode == "while"
    )


def _is_argument(flow: Flow, number: int, known: dict[int, bool]) -> bool:
    """Weights, constants, and what is computed from them element by element: there anyway."""
    if number not in known:
        known[number] = False  # a loop's state leads back to itself
        value = flow.values[number]
        plain = bool(value.names) or value.instruction.opcode in _ARGUMENT
        known[number] = plain and all(_is_argument(flow, source, known) for source in value.names or value.operands)
    return known[number]


# Today's recomputation of a program with checkpoints, and what keeping everything would keep instead.


def runs_again(op_name: str, *, loops: bool) -> bool:
    """Whether an instruction runs a layer's forward again; what a layer recomputes of itself is inside a further loop.

    ``loops``: a loop runs the layers.
    """
    before, mark, _ = op_name.partition("rematted_computation")
    return bool(mark) and before.split("/").count("while") == int(loops)


def read_again_bytes(module: HloModule, flow: Flow, body: str, scope: tuple[str, ...] = ()) -> int:
    """Bytes of the values between recomputation and backward of one layer: what it would hand to its backward.

    ``body``: the computation that runs the backward of the layer, ``scope``: its path where it shares that computation.
    Of layers without a loop XLA computes what is cheap again by itself, within the readers: there it is what the value
    is computed from that is kept.
    """
    within, loops = reached(module, body), not scope
    sizes: dict[int, int] = {}
    for value in flow.values:
        instruction = value.instruction
        if (
            value.computation.name not in within
            or value.names
            or not instruction.op_name
            or runs_again(instruction.op_name, loops=loops)
        ):
            continue
        if scope_of(instruction.op_name).path[: len(scope)] == scope:
            cheap = not loops and instruction.opcode not in PRODUCTS
            for number in _made_again(flow, value.operands, within, loops=loops, cheap=cheap):
                sizes[number] = flow.values[number].instruction.shape.bytes
    return sum(sizes.values())


def _made_again(
    flow: Flow, numbers: Collection[int], within: frozenset[str], *, loops: bool, cheap: bool
) -> Iterator[int]:
    """What runs again and computes these values, behind moves of elements; ``cheap``: behind all without a kernel."""
    waiting, seen = list(numbers), set[int]()
    while waiting:
        number = waiting.pop()
        value = flow.values[number]
        if number in seen or value.computation.name not in within or value.carried:
            continue
        seen.add(number)
        opcode, again = value.instruction.opcode, runs_again(value.instruction.op_name, loops=loops)
        if value.names or opcode in _MOVES or (cheap and again and opcode not in _LAUNCHED):
            waiting.extend(value.names or value.operands)
        elif again and opcode not in _FREE | {"broadcast"}:
            yield number


# Arithmetic that a compiled program runs again, as it is and as it would be with another checkpoint policy.


def recomputed_flops(trace: Trace, index: int) -> int:
    """FLOPs of one run that a program computes again for its backward."""
    phases = trace.fact(hlo_costs)[index].phases
    return phases["recompute"].flops if "recompute" in phases else 0


def flops_of(cost: ModuleCost, flow: Flow, numbers: Iterable[int]) -> int:
    """Arithmetic of values in all their runs."""
    values = (flow.values[number] for number in numbers)
    rows = (cost.by_name.get((value.computation.name, value.instruction.name)) for value in values)
    return sum(row.total.flops for row in rows if row is not None and row.instruction.opcode not in _CONTAINERS)


def predicted_recompute(trace: Trace, index: int, policy: Policy) -> int | None:
    """`recomputed_flops` with ``policy`` for all layers, predicted; ``None`` for one that no prediction is made for.

    Less kept than now is what runs again besides; everything kept is what layers run again of themselves all the same,
    in loops within them.
    """
    flow = Flow(trace.hlo[index])
    layers = layers_of(flow, Schedule(flow.module))
    if not layers or policy == "offload":
        return None
    cost = trace.fact(hlo_costs)[index]
    if policy == "keep":
        return sum(
            row.total.flops
            for row in cost.by_name.values()
            if "rematted_computation" in row.instruction.op_name
            and not runs_again(row.instruction.op_name, loops=not layers[0].scope)
            and row.instruction.opcode not in _CONTAINERS
        )
    keeps: Keeps = nothing if policy == "full" else unbatched_products(flow)
    again = [again_of(flow, layer, keeps).computed for layer in layers]
    return recomputed_flops(trace, index) + sum(flops_of(cost, flow, numbers) for numbers in again)
