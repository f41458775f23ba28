"""Two sequences side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compare.program_sequence import aligned, longest_rising

ITEMS = st.lists(st.sampled_from("abcdefgh"), max_size=40)


@given(ITEMS, ITEMS)
def test_pairs_are_equal_and_rise_on_both_sides(base: list[str], head: list[str]) -> None:
    pairs = aligned(base, head)
    assert all(base[one] == head[other] for one, other in pairs)
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(pairs))


@given(ITEMS, st.integers(0, 40), ITEMS)
def test_what_was_put_in_between_is_all_that_is_left(base: list[str], at: int, more: list[str]) -> None:
    fresh = [f"new {name}" for name in more]
    place = min(at, len(base))
    pairs = aligned(base, [*base[:place], *fresh, *base[place:]])
    assert len(pairs) == len(base)


@given(st.lists(st.integers(0, 50), unique=True))
def test_the_longest_rising_run(values: list[int]) -> None:
    found = longest_rising(list(enumerate(values)))
    assert all(one[1] < two[1] for one, two in pairwise(found))
    assert len(found) == _longest(values)


def _longest(values: Sequence[int]) -> int:
    best = [1] * len(values)
    for at, value in enumerate(values):
        best[at] = 1 + max((best[before] for before in range(at) if values[before] < value), default=0)
    return max(best, default=0)


def test_a_layer_more_among_layers_that_are_alike() -> None:
    layer = ["norm", "product", "add"]
    assert len(aligned(layer * 12, layer * 13)) == 36
