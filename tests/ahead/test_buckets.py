"""Buckets of DistributedDataParallel from the sizes of parameters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfscope.profiler.ahead.torch.ddp import BucketCountdown, assign_buckets

PARAMETERS = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["float32", "bfloat16"])), max_size=30)


def test_parameters_are_taken_in_reverse_with_a_smaller_first_bucket() -> None:
    parameters = [(4, "float32")] * 6
    assert assign_buckets(parameters, 4, 8) == [[5], [4, 3], [2, 1], [0]]


def test_each_dtype_has_buckets_and_caps_of_its_own() -> None:
    parameters = [(4, "float32"), (2, "bfloat16"), (4, "float32"), (2, "bfloat16")]
    assert assign_buckets(parameters, 4, 100) == [[2], [3, 1], [0]]


def test_no_parameters_need_no_bucket() -> None:
    assert assign_buckets([], 1, 1) == []


@given(parameters=PARAMETERS, first_cap=st.integers(1, 60), cap=st.integers(1, 100))
def test_every_parameter_is_in_one_bucket_of_its_dtype(
    parameters: list[tuple[int, str]], first_cap: int, cap: int
) -> None:
    buckets = assign_buckets(parameters, first_cap, cap)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(parameters)))
    for bucket in buckets:
        assert len({parameters[index][1] for index in bucket}) == 1
        assert bucket == sorted(bucket, reverse=True)
        # without its last parameter no bucket reaches its cap
        assert sum(parameters[index][0] for index in bucket[:-1]) < max(first_cap, cap)


def test_a_complete_bucket_waits_for_those_before_it() -> None:
    countdown = BucketCountdown([[3, 2], [1], [0]])
    assert countdown.ready(1) == []
    assert countdown.ready(3) == []
    assert countdown.ready(2) == [0, 1]
    assert countdown.rest() == [2]
    assert countdown.rest() == []
    countdown.reset()
    assert countdown.ready(3) == []
    assert countdown.rest() == [0, 1, 2]


@given(parameters=PARAMETERS, order=st.randoms())
def test_every_bucket_is_sent_once_in_order(parameters: list[tuple[int, str]], order: object) -> None:
    buckets = assign_buckets(parameters, 20, 60)
    countdown = BucketCountdown(buckets)
    indices = list(range(len(parameters)))
    order.shuffle(indices)  # type: ignore[attr-defined]
    sent = [number for index in indices for number in countdown.ready(index)]
    assert sent + countdown.rest() == list(range(len(buckets)))
