"""Factors of PyTorch's matrix products, rounded by a recipe."""

from __future__ import annotations

from typing import Any

import torch

from perfscope.model.op_flops import PLAIN_PRODUCTS
from perfscope.plugins.precision.recipes import Recipe, quantised


def rounded_factors(name: str, args: tuple[Any, ...], recipe: Recipe, noise: torch.Generator) -> tuple[Any, ...]:
    """The arguments of an op with its factors rounded along the sum; unchanged if it is not a product of floats."""
    if name not in PLAIN_PRODUCTS:
        return args
    first = 0 if len(args) < 3 else 1
    left, right = args[first : first + 2]
    if not left.is_floating_point() or not left.numel() or not right.numel():
        return args

    def rounded(values: torch.Tensor) -> torch.Tensor:
        def uniform(shape: Any) -> torch.Tensor:
            return torch.rand(shape, generator=noise).to(values.device)

        made: torch.Tensor = quantised(torch, values.float().contiguous(), recipe, noise=uniform)
        return made.to(values.dtype)

    factors = rounded(left), rounded(right.transpose(-1, -2)).transpose(-1, -2)
    return (*args[:first], *factors, *args[first + 2 :])
