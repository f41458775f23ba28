"""Sparse tensors (COO) without data: how many elements a result keeps, which torch's fakes take for none.

``nn.Embedding(sparse=True)`` gives a gradient of the rows that were looked up. Torch's fake tensors carry its indices
and values, and lose them in most ops. Which elements are equal follows from data, so ``coalesce`` is answered with all
different, the most there can be.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

SAME = frozenset(
    f"aten.{name}"
    for name in ("clone", "mul", "neg", "div", "pow", "abs", "sqrt", "_to_copy", "to", "detach", "copy", "sparse_mask")
)
"""Ops whose sparse result has the elements of their last sparse argument."""
JOINED = frozenset(("aten.add", "aten.add_", "aten.sub", "aten.sub_"))
"""Of two sparse tensors: the elements of both, one behind the other, as on a GPU."""
LOOKED_UP = ("aten._embedding_bag_backward", "aten._embedding_bag_sparse_backward")
"""An element for each index that was looked up, the second argument."""
EMPTIED = frozenset(("aten.zero_", "aten.zeros_like", "aten.empty_like"))

WHOLE_TABLES = (
    "sparse gradients: ops on some rows of a table are costed as if they went over all of it, so times are too long; "
    "peaks of memory are those of the rows"
)


def is_sparse(thing: Any) -> bool:
    """Whether a thing is a sparse tensor of coordinates."""
    return isinstance(thing, torch.Tensor) and thing.layout is torch.sparse_coo


def with_elements(
    func: Any, args: Any, result: Any, *, mode: Any, note: Callable[[str, str], None], problem: Callable[[str], None]
) -> Any:
    """A sparse result with as many elements as the op leaves; any other result as it is.

    ``mode``: of the fakes; ``note(what, answer)``: an answer was made up; ``problem(text)``: an op is not known.
    """
    if not is_sparse(result):
        return result
    given = [one for one in args if is_sparse(one) and one._nnz()]
    packet = str(func).rpartition(".")[0]
    if packet in LOOKED_UP:
        return looked_up(args, result, mode)
    if not given or packet in EMPTIED or func.namespace == "prim":
        return result
    if packet == "aten.clone" and _accumulates():
        problem(WHOLE_TABLES)
        # the engine takes a gradient as it is where nobody else holds its parts; of a fake somebody always does
        return _sparse(given[0]._indices(), given[0]._values(), result, coalesced=given[0].is_coalesced())
    count = int(given[-1]._nnz())
    if packet in JOINED:
        count = sum(int(one._nnz()) for one in given)
    elif packet == "aten._coalesce":
        count = min(count, prod(given[0].shape[: given[0].sparse_dim()]))
        note("coalesce", f"{count:,} rows, all different")
    elif packet not in SAME:
        if not result._nnz():
            problem(
                f"{packet} of a sparse tensor: how many elements it leaves is not known; its result counts as empty"
            )
        return result
    if int(result._nnz()) == count:
        return result
    made = _made(result, count, mode, coalesced=packet == "aten._coalesce" or given[-1].is_coalesced())
    if any(result is one for one in args):
        result.data = made
        return result
    return made


def looked_up(args: Any, result: Any, mode: Any) -> Any:
    """The gradient of a bag of rows: an element for each index, in the indices themselves where none is padding."""
    indices, padding = args[1], args[-1]
    with mode:
        indices = indices.reshape(1, -1)
        if isinstance(padding, int) and padding >= 0:
            indices = indices.clone()
        values = torch.empty((indices.shape[1], *result.shape[1:]), dtype=result.dtype, device=result.device)
        return _sparse(indices, values, result, coalesced=False)


def _made(like: Any, count: int, mode: Any, *, coalesced: bool) -> Any:
    """A sparse tensor of so many elements."""
    with mode:
        indices = torch.empty((like.sparse_dim(), count), dtype=torch.int64, device=like.device)
        values = torch.empty((count, *like.shape[like.sparse_dim() :]), dtype=like.dtype, device=like.device)
        return _sparse(indices, values, like, coalesced=coalesced)


def _sparse(indices: Any, values: Any, like: Any, *, coalesced: bool) -> Any:
    return torch.ops.aten._sparse_coo_tensor_unsafe(indices, values, list(like.shape), is_coalesced=coalesced)


def looks_up() -> bool:
    """Whether a gradient of looked-up rows is being made: what it leaves out is padding."""
    node = torch._C._current_autograd_node()
    return node is not None and node.name().startswith("Embedding")


def _accumulates() -> bool:
    """Whether the autograd engine is putting a gradient into ``.grad``."""
    node = torch._C._current_autograd_node()
    return node is not None and "AccumulateGrad" in node.name()
