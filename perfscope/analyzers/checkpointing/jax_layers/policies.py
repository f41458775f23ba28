"""What a checkpoint policy of JAX keeps of a layer, told from the compiled program.

``jax.checkpoint_policies.save_only_these_names`` is not among them: ``checkpoint_name`` leaves nothing in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from perfscope.analyzers.checkpointing.jax_layers.reads import PRODUCTS
from perfscope.analyzers.hlo.cost.module import ModuleCost
from perfscope.analyzers.hlo.flow import Flow

Keeps = Callable[[int], bool]
"""Whether a policy keeps a value, by number in ``Flow``."""


def nothing(number: int) -> bool:
    """``jax.checkpoint`` without a policy: the layer's input only."""
    return False


def flops_of(cost: ModuleCost, flow: Flow, numbers: Iterable[int]) -> int:
    """Arithmetic of values in all their runs."""
    total = 0
    for number in numbers:
        value = flow.values[number]
        row = cost.by_name.get((value.computation.name, value.instruction.name))
        if row is not None and value.instruction.opcode not in ("fusion", "while", "call", "get-tuple-element"):
            total += row.total.flops
    return total


def unbatched_products(flow: Flow) -> Keeps:
    """``dots_with_no_batch_dims_saveable``: products of activations with weights.

    XLA splits long products into batches that are added up at once; those have no batch of the user's.
    """

    def keeps(number: int) -> bool:
        value = flow.values[number]
        opcode = value.instruction.opcode
        if opcode == "convolution":
            return False
        if opcode in PRODUCTS:
            if opcode == "custom-call" and "gemm" not in (value.instruction.custom_call_target or ""):
                return False
            return value.instruction.attributes.get("lhs_batch_dims", "{}") == "{}"
        if opcode == "all-reduce-done":  # the user's product, of which each device has a part of the sum
            return any(keeps(source) for source in _summed(flow, number))
        return opcode == "reduce" and _adds_up_product(flow, number)

    return keeps


def _summed(flow: Flow, number: int) -> Iterator[int]:
    """What a sum over devices adds up, behind views."""
    for begin in flow.values[number].operands:
        for source in flow.back(flow.values[begin].operands):
            while flow.opcode(source) in ("bitcast", "reshape"):
                source = next(flow.back(flow.values[source].operands[:1]))
            yield source


def _adds_up_product(flow: Flow, number: int) -> bool:
    """Whether a reduction adds up the parts that XLA split a product into: one axis, and the product's path."""
    value = flow.values[number]
    for source in flow.back(value.operands[:1]):
        product = flow.values[source].instruction
        while product.opcode in ("bitcast", "reshape", "convert"):
            source = next(iter(flow.back(flow.values[source].operands[:1])))
            product = flow.values[source].instruction
        if product.opcode == "dot" and product.op_name == value.instruction.op_name:
            return product.attributes.get("lhs_batch_dims", "{}") != "{}"
    return False
