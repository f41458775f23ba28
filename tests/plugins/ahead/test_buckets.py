"""Buckets of DistributedDataParallel, as torch assigns them, and the order in which they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from perfscope.plugins.ahead.torch.compat import buckets_in_reverse

if TYPE_CHECKING:
    from perfscope.plugins.ahead.torch.ddp import BucketCountdown


def countdown_of(assigned: list[list[int]]) -> BucketCountdown:
    from perfscope.plugins.ahead.torch.ddp import BucketCountdown  # loads dynamo, for two seconds

    return BucketCountdown(assigned)


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


def test_a_complete_bucket_waits_for_those_before_it() -> None:
    countdown = countdown_of([[3, 2], [1], [0]])
    assert countdown.ready(1) == []
    assert countdown.ready(3) == []
    assert countdown.ready(2) == [0, 1]
    assert countdown.rest() == [2]
    assert countdown.rest() == []
    countdown.reset()
    assert countdown.ready(3) == []
    assert countdown.rest() == [0, 1, 2]


@given(sizes=st.lists(st.integers(1, 20), max_size=30), order=st.randoms())
def test_every_bucket_is_sent_once_in_order(sizes: list[int], order: object) -> None:
    assigned = buckets([(size, "float32") for size in sizes], 20, 60)
    countdown = countdown_of(assigned)
    indices = list(range(len(sizes)))
    order.shuffle(indices)  # type: ignore[attr-defined]
    sent = [number for index in indices for number in countdown.ready(index)]
    assert sent + countdown.rest() == list(range(len(assigned)))
