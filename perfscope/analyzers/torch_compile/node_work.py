"""FLOPs of one node of a logged graph, by the formulas of eager ops (``model/op_flops.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfscope.model.op_flops import PLAIN_PRODUCTS, flops_of

if TYPE_CHECKING:
    from perfscope.model.compile_log import GraphNode

_CONVOLUTION: tuple[str, ...] = ("input", "weight")
_ATTENTION: tuple[str, ...] = ("query", "key", "value")
_FACTORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PLAIN_PRODUCTS, ("self", "mat2")),
    **dict.fromkeys(("_int_mm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm"), ("self", "mat2")),
    **dict.fromkeys(("mv", "dot", "vdot"), ("self",)),
    **dict.fromkeys(("convolution", "_convolution"), _CONVOLUTION),
    "convolution_backward": ("grad_output", *_CONVOLUTION),
}
"""Op -> names of the tensors that its formula reads, in the order of its inputs."""
_CAUSAL = {
    "_scaled_dot_product_flash_attention": 0,
    "_scaled_dot_product_flash_attention_for_cpu": 0,
    "_scaled_dot_product_efficient_attention": 1,
    "_scaled_dot_product_cudnn_attention": 1,
    "_scaled_dot_product_flash_attention_backward": 0,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 0,
    "_scaled_dot_product_efficient_attention_backward": 4,
    "_scaled_dot_product_cudnn_attention_backward": 0,
}
"""Op of attention -> which of its truth values is ``is_causal`` (schemas of ATen, torch 2.13)."""
_TRANSPOSED = 0
"""Which truth value of a convolution is ``transposed``; the last three of its backward are ``output_mask``."""


def node_flops(node: GraphNode, known: Mapping[str, GraphNode]) -> int | None:
    """Return the FLOPs of a product, a convolution or attention, forward or backward.

    ``known``: nodes and inputs of the graph by name. ``None`` for other ops, for sizes that are symbols, and for
    operands that the log lacks.
    """
    name = node.op.removeprefix("aten.").partition(".")[0]
    operands = [known[value] for value in node.inputs if value in known]
    flags = node.flags
    if name in _CAUSAL:
        operands = operands[1:] if name.endswith("_backward") else operands
        factors, place = _ATTENTION, _CAUSAL[name]
        named: dict[str, Any] = {"is_causal": place < len(flags) and flags[place]}
    elif name in _FACTORS:
        operands = operands[-2:] if name in PLAIN_PRODUCTS else operands
        factors = _FACTORS[name]
        named = {"transposed": bool(flags) and flags[_TRANSPOSED], "output_mask": flags[-3:]}
    else:
        return None
    operands += operands[-1:] * (len(factors) - len(operands))  # inputs have each name once: `mm(x, x)`
    if not operands or not all(isinstance(size, int) for one in (node, *operands) for size in one.shape):
        return None
    named |= dict(zip(factors, operands, strict=False))
    try:
        return flops_of(f"aten.{name}.default", named.get, (node,))
    except (IndexError, ValueError):  # a log with fewer sizes than the op has
        return None
