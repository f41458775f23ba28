"""Buckets of DistributedDataParallel, as torch assigns them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from perfscope.plugins.ahead.torch.compat import buckets_in_reverse


def buckets(parameters: list[tuple[int, str]], first_cap: int, cap: int) -> list[list[int]]:
    """``parameters``: (elements, dtype)."""
    tensors = [torch.empty(count, dtype=getattr(torch, dtype)) for count, dtype in parameters]
    return buckets_in_reverse(tensors, first_cap, cap)


@pytest.mark.parametrize(
    ("parameters", "first_cap", "cap", "expected"),
    [
        ([(1, "float32")] * 6, 4, 8, [[5], [4, 3], [2, 1], [0]]),
        ([(1, "float32"), (1, "bfloat16"), (1, "float32"), (1, "bfloat16")], 4, 100, [[3, 1], [2], [0]]),
        ([], 1, 1, []),
    ],
    ids=["in reverse with a smaller first", "by dtype", "none"],
)
def test_parameters_are_in_buckets(
    parameters: list[tuple[int, str]], first_cap: int, cap: int, expected: list[list[int]]
) -> None:
    assert buckets(parameters, first_cap, cap) == expected
