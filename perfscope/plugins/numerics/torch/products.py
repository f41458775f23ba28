"""Factors of the matrix products of a step in PyTorch: some of their rows and their largest magnitudes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from perfscope.model.op_flops import PLAIN_PRODUCTS
from perfscope.plugins.numerics.document import ProductKind
from perfscope.plugins.numerics.products import ProductKey, Products
from perfscope.plugins.precision import sample
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.op_graph.storages import storage_of

MOST_KEPT = 4_000
"""Most products of a step, each at most half a megabyte on the device until the step ends."""


@dataclass(frozen=True, slots=True)
class _Forward:
    name: str
    line: str
    factors: tuple[int, int]
    """Storages."""
    weight: bool
    """Its second factor is a parameter."""


class ProductWatch:
    """The products of one step. Nothing is copied to the host before ``finish``."""

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = {_storage(parameter) for parameter in parameters}
        self._forward: dict[int, _Forward] = {}
        """By the number of its node of autograd."""
        self._kept: list[tuple[ProductKey, list[torch.Tensor]]] = []

    def add(self, name: str, args: Any, line: str, module: str) -> None:
        """Keep the factors of an op if it is a product of floating-point matrices."""
        if name not in PLAIN_PRODUCTS or len(self._kept) >= MOST_KEPT:
            return
        left, right = args[-2:] if len(args) < 3 else args[1:3]
        if not left.is_floating_point() or left.dtype.itemsize < 2 or not left.numel() or not right.numel():
            return
        kind, owner, place = self._place(left, right, line, module)
        if kind is None:
            return
        if left.dim() == 2:
            left, right = left[None], right[None]
        factors = left.detach(), right.detach().transpose(1, 2)
        (batch, rows, terms), columns = factors[0].shape, factors[1].shape[1]
        dtype = str(left.dtype).removeprefix("torch.")
        key: ProductKey = (kind, owner, name, place, dtype, (batch, rows, columns, terms))
        numbers = [torch.stack([factor.abs().amax().float() for factor in factors])]
        self._kept.append((key, [*(sample(_take, factor) for factor in factors), *numbers]))

    def finish(self, products: Products, moment: Any) -> None:
        """Copy everything to the host and measure it."""
        kept, self._kept = self._kept, []
        for key, tensors in kept:
            left, right, amax = (tensor.cpu().numpy() for tensor in tensors)
            products.add(moment, key, left, right, (float(amax[0]), float(amax[1])))
        self._forward.clear()

    def _place(self, left: Any, right: Any, line: str, module: str) -> tuple[ProductKind | None, str, str]:
        """Kind, name and line of a product; no kind for one that a checkpoint computes again."""
        node = compat.running_node()
        numbers = _storage(left), _storage(right)
        if node is None:
            weight = numbers[1] in self._parameters
            self._forward[compat.next_sequence() - 1] = _Forward(module, line, numbers, weight)
            return (None if compat.in_backward() else "forward"), module, line
        made = self._forward.get(compat.sequence_of(node))
        if made is None:
            return "gradient", module, line
        if made.weight and made.factors[1] in numbers:
            return "input gradient", made.name, made.line
        return ("weight gradient" if made.weight else "gradient"), made.name, made.line


def _storage(tensor: Any) -> int:
    """Number of a storage, which is used again after it was freed."""
    storage = storage_of(tensor)
    return 0 if storage is None else int(storage._cdata)


def _take(factor: torch.Tensor, picked: tuple[list[int], list[int], int]) -> torch.Tensor:
    batches, rows, terms = picked
    device = factor.device
    part = factor[:, :, :terms].index_select(0, torch.tensor(batches, device=device))
    return part.index_select(1, torch.tensor(rows, device=device)).float().contiguous()
