"""Work of each call of an op, for the model of kernel times, and the measured time of its kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.ops.achieved import costed_calls
from perfscope.analyzers.ops.kernels import matmul_precision
from perfscope.analyzers.ops.op_call import CostKind, OpCost
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.analyzers.predict import Category, Work

_REDUCTIONS = frozenset({
    "sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all", "norm", "linalg_vector_norm", "std",
    "var", "var_mean", "std_mean", "prod", "logsumexp", "nansum", "count_nonzero", "cumsum", "mse_loss",
    "nll_loss_forward", "_foreach_norm", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
})  # fmt: skip

_GATHERS = frozenset({
    "index_select", "embedding", "gather", "embedding_dense_backward", "index", "_index_put_impl", "scatter",
    "_C_cache_ops::reshape_and_cache_flash", "sglang::store_cache",
})  # fmt: skip

_NORM = re.compile(r"(?:layer|group|rms)_?norm", re.IGNORECASE)

_IN_ROWS = re.compile(r"vectorized_elementwise|multi_tensor_apply|triton_poi|quant|and_mul", re.IGNORECASE)


class OpWork(Struct, frozen=True, kw_only=True):
    """One call of an op on one device."""

    op: int
    """Row of ``slices``."""
    device: int
    """Row of ``devices``."""
    kernels: tuple[int, ...]
    """Rows of ``kernels``: all kernels that it launched, including helpers."""
    work: Work
    time_ns: int
    """Measured time of all of them."""


def op_works(trace: Trace) -> tuple[OpWork, ...]:
    """Return every call of an op with known cost."""
    return tuple(_op_works(trace))


def _op_works(trace: Trace) -> Iterator[OpWork]:
    slices, kernels = trace.rows["slices"], trace.rows["kernels"]
    length = kernels["end_ns"] - kernels["start_ns"]
    for (owner, device), (cost, rows) in trace.fact(costed_calls).items():
        names = [trace.text(int(code)) for code in kernels["name"][rows]]
        yield OpWork(
            op=owner,
            device=device,
            kernels=tuple(rows),
            work=op_work(trace.text(int(slices["name"][owner])), cost, names),
            time_ns=int(length[rows].sum()),
        )


def op_work(name: str, cost: OpCost, kernels: Sequence[str] = ()) -> Work:
    """Return an op's cost as work of a category. ``kernels``: names of the kernels that it launched, if it ran."""
    from perfscope.analyzers.predict import Work

    precisions = [precision for kernel in kernels if (precision := matmul_precision(kernel)) is not None]
    dtype = precisions[0] if cost.dtype == "float32" and precisions else cost.dtype
    category = op_category(name, cost.kind, kernels)
    return Work(category=category, bytes=cost.bytes, flops=cost.flops, dtype=dtype, sizes=cost.sizes)


def op_category(name: str, kind: CostKind, kernels: Sequence[str] = ()) -> Category:
    """Return the category of an op's kernels. For elementwise ops the kernels' names show their access to memory."""
    plain = name.removeprefix("aten::").removeprefix("aten.").partition(".")[0].rstrip("_")
    backward = "backward" in plain.lower()
    if kind == "attention":
        return "attention backward" if backward else "attention"
    if kind == "convolution":
        return "convolution backward" if backward else "convolution"
    if kind == "product":
        return "product"
    if plain.startswith(("triton_red", "triton_per")):  # inductor fuses norms and softmax into reductions
        return "reduction"
    if plain.startswith("triton_poi"):
        return "elementwise"
    if "softmax" in plain.lower():
        return "softmax"
    if "batch_norm" in plain:
        return "batch norm backward" if backward else "batch norm"
    if _NORM.search(plain):
        return "norm backward" if backward else "norm"
    if plain in _REDUCTIONS:
        return "reduction"
    if plain in ("cat", "stack"):
        return "join"
    if plain in _GATHERS:
        return "gather"
    in_rows = all(_IN_ROWS.search(kernel) for kernel in kernels) if kernels else True
    return "elementwise" if in_rows else "strided"
