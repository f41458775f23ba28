"""Floating-point operations of one dispatched op, from the shapes of its arguments. No torch needed.

A multiply-add counts as two (`product_flops`, also for compiled programs). Matrix products, convolutions and attention
have formulas; data movement has none to do (0); every other op returns None, which means unknown and not zero.

Sources: a matrix product of (M, K) and (K, N) is M*N*K multiply-adds; attention is its two (forward) or
five (backward, with the scores recomputed) products as counted in the FlashAttention paper (Dao et al.
2022, appendix B) and ``torch.utils.flop_counter``, which counts neither the CPU kernel nor ``_grouped_mm``.

Causal policy: a causal kernel skips the part above the diagonal, so we count the pairs it must visit:
query ``i`` of ``Lq`` sees ``min(Lk, i + 1)`` keys (upper-left aligned, as torch documents ``is_causal``; the
flash-attn package aligns the lower right corner: ``i`` sees ``Lk - Lq + i + 1``).
``torch.utils.flop_counter`` counts the full square. An explicit mask skips nothing and counts in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Arguments = Callable[[str], Any]
"""Looks an argument up by its name in the op's schema; None if it is absent."""
Formula = Callable[[Arguments, Sequence[Any]], int]

PLAIN_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
"""Short names of ATen's dense matrix products: the last two tensors that they take are the factors."""
BATCHED_PRODUCTS = frozenset({"bmm", "baddbmm", "matmul", "einsum"})
"""Products that take a batch of pairs, as attention written out does."""
_OTHERS = "_addmm_activation _grouped_mm _int_mm _scaled_grouped_mm _scaled_mm addmv dot linear mkldnn_linear mv vdot"
PRODUCTS = frozenset({*PLAIN_PRODUCTS, *BATCHED_PRODUCTS, *_OTHERS.split()})
"""Short names of ATen's matrix products."""
COMPOSITE_PRODUCTS = frozenset({"einsum", "linear", "matmul"})
"""Products among these that call another product and no library."""
CONVOLUTIONS = frozenset({"_convolution", "conv1d", "conv2d", "conv3d", "convolution"})
FUSED_ATTENTION = re.compile(r"(?:_scaled_dot_product_\w*attention|_flash_attention_forward|_efficient_attention)\w*")
JAX_PRODUCTS = frozenset({"conv_general_dilated", "dot_general", "ragged_dot", "ragged_dot_general"})
"""Primitives of jaxprs; opcodes of compiled programs: ``analyzers/hlo/cost/products.py``."""


def flops_of(name: str, arguments: Arguments, outputs: Sequence[Any]) -> int | None:
    """FLOPs of the op ``aten.mm.default`` ...; None without a formula (the caller decides on 0 for views)."""
    packet = name.rpartition(".")[0]
    if packet in MOVES_DATA:
        return 0
    formula = FORMULAS.get(packet)
    return None if formula is None else formula(arguments, outputs)


def aten(names: str) -> frozenset[str]:
    """``"mm bmm"`` as ``{"aten.mm", "aten.bmm"}``: long lists of ops read better as prose."""
    return frozenset("aten." + name for name in names.split())


def product_flops(results: int, summed: int, dtype: str = "") -> int:
    """FLOPs of a product: each of its ``results`` is a sum of ``summed`` products.

    A multiply-add has 2 FLOPs, 8 if ``dtype`` is XLA's ``c64`` or ``c128``.
    """
    return (8 if dtype in ("c64", "c128") else 2) * results * summed


def attended_pairs(queries: int, keys: int, causal: bool, *, lower_right: bool = False) -> int:
    """(query, key) pairs a kernel visits: all, or with ``causal`` those on and left of the diagonal.

    ``lower_right``: the diagonal ends in the lower right corner, because the queries are the last of the keys.
    """
    if not causal:
        return queries * keys
    if lower_right and keys > queries:
        return queries * keys - queries * (queries - 1) // 2
    rows = min(queries, keys)
    return rows * (rows + 1) // 2 + (queries - rows) * keys


def attention_flops(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    *,
    causal: bool,
    backward: bool = False,
    lower_right: bool = False,
) -> int:
    """Attention over query (B, H, Lq, E), key (B, Hk, Lk, E), value (B, Hk, Lk, Ev); Hk may divide H.

    Forward: scores (E) and their product with the values (Ev). Backward: scores again (E), the gradients
    of the probabilities and of the values (2 Ev), of query and key (2 E).
    """
    batch, heads, queries, width = query
    pairs = batch * heads * attended_pairs(queries, key[2], causal, lower_right=lower_right)
    per_pair = 3 * width + 2 * value[3] if backward else width + value[3]
    return product_flops(pairs, per_pair)


def _product(arguments: Arguments, outputs: Sequence[Any]) -> int:
    left, right = _first(arguments, "mat1", "batch1", "self"), _first(arguments, "mat2", "batch2")
    *batch, m, k = left.shape
    return product_flops(prod((*batch, m, right.shape[-1])), k)


def _vector(arguments: Arguments, outputs: Sequence[Any]) -> int:
    first = arguments("mat") if arguments("mat") is not None else arguments("self")
    return product_flops(1, prod(first.shape))


def _linear(arguments: Arguments, outputs: Sequence[Any]) -> int:
    rows, (n, k) = prod(arguments("input").shape[:-1]), arguments("weight").shape
    return product_flops(rows * n, k)


def _matmul(arguments: Arguments, outputs: Sequence[Any]) -> int:
    return product_flops(prod(outputs[0].shape), arguments("self").shape[-1])


def _grouped_mm(arguments: Arguments, outputs: Sequence[Any]) -> int:
    # With offsets the groups share one dimension and partition it, so the sum over groups is one product:
    # (M, K) x (G, K, N): rows are partitioned; (M, K) x (K, N) -> (G, M, N): K is; (G, M, K) x (K, N): N is.
    left, right = arguments("self").shape, arguments("mat2").shape
    batch = left[0] if len(left) == len(right) == 3 else 1
    return product_flops(batch * left[-2] * right[-1], left[-1])


def _convolution(arguments: Arguments, outputs: Sequence[Any]) -> int:
    weight = arguments("weight").shape
    # Every weight meets every position of the output (of the input, where transposed), once per sample;
    # the weight's second dimension is already divided by the groups.
    positions = arguments("input").shape if arguments("transposed") else outputs[0].shape
    return product_flops(positions[0] * prod(positions[2:]), prod(weight))


def _convolution_backward(arguments: Arguments, outputs: Sequence[Any]) -> int:
    weight = arguments("weight").shape
    positions = arguments("input").shape if arguments("transposed") else arguments("grad_output").shape
    # The gradients of input and of weight each use every multiply-add of the forward once.
    once = product_flops(positions[0] * prod(positions[2:]), prod(weight))
    return once * sum(bool(wanted) for wanted in arguments("output_mask")[:2])


def _attention(arguments: Arguments, outputs: Sequence[Any]) -> int:
    query, key, value = (arguments(name).shape for name in ("query", "key", "value"))
    return attention_flops(query, key, value, causal=bool(arguments("is_causal")))


def _undivided_attention(arguments: Arguments, outputs: Sequence[Any]) -> int:
    shapes = (arguments(name).shape for name in ("query", "key", "value"))
    query, key, value = ((1, prod(shape[:-2]), *shape[-2:]) for shape in shapes)
    return attention_flops(query, key, value, causal=bool(arguments("is_causal")))


def _attention_backward(arguments: Arguments, outputs: Sequence[Any]) -> int:
    query, key, value = (arguments(name).shape for name in ("query", "key", "value"))
    return attention_flops(query, key, value, causal=bool(arguments("is_causal")), backward=True)


def _first(arguments: Arguments, *names: str) -> Any:
    return next(value for name in names if (value := arguments(name)) is not None)


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(aten("mm addmm bmm baddbmm _addmm_activation _int_mm _scaled_mm"), _product),
    "aten.mv": _vector,
    "aten.addmv": _vector,
    "aten.dot": _vector,
    "aten.vdot": _vector,
    "aten.linear": _linear,
    "aten.mkldnn_linear": _linear,
    "aten._grouped_mm": _grouped_mm,
    "aten._scaled_grouped_mm": _grouped_mm,
    # Under torch.inference_mode() the dispatcher does not divide these into the ops above and below.
    "aten.matmul": _matmul,
    "aten.conv1d": _convolution,
    "aten.conv2d": _convolution,
    "aten.conv3d": _convolution,
    "aten.scaled_dot_product_attention": _undivided_attention,
    "aten.convolution": _convolution,
    "aten._convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention": _attention,
    "aten._scaled_dot_product_efficient_attention": _attention,
    "aten._scaled_dot_product_cudnn_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten._scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten._scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten._scaled_dot_product_cudnn_attention_backward": _attention_backward,
}

MOVES_DATA = aten(
    "_to_copy clone copy copy_ cat stack contiguous index index_select gather scatter scatter_ index_copy "
    "index_copy_ embedding fill fill_ zero_ zeros zeros_like ones ones_like full full_like new_zeros new_ones "
    "new_full scalar_tensor arange repeat repeat_interleave flip roll constant_pad_nd tril triu masked_fill "
    "masked_fill_ masked_select where nonzero slice_backward select_backward _local_scalar_dense one_hot eye "
    "_foreach_copy_ _foreach_zero_ slice_scatter select_scatter unfold_backward"
)
"""Ops that only move, fill or choose data: no arithmetic on floating-point values."""
