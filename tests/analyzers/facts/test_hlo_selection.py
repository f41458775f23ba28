"""What is known to be zero of an array, against arrays."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from perfscope.analyzers.facts.hlo_selection import (
    UNKNOWN,
    Pattern,
    positions_equal,
    product,
    regrouped,
    renumbered,
    same_values,
    summed,
    total,
)

GENERATOR = np.random.default_rng(0)

T, K, E, C = 6, 2, 4, 3

INDEX = Pattern(constant=frozenset({2, 3}))
"""An index of tokens and choices, [T, K], broadcast to [T, K, E, C]."""


def one_hot(axis: int) -> tuple[Pattern, np.ndarray]:
    """Of random indices [T, K] an array [T, K, E, C], one-hot along E (2) or C (3) and the same along the other."""
    size = (E, C)[axis - 2]
    positions = Pattern(distinct=frozenset({axis}), constant=frozenset(range(4)) - {axis})
    found = positions_equal(positions, INDEX, (T, K, E, C))
    index = GENERATOR.integers(0, size, (T, K))
    array = (index[:, :, None] == np.arange(size)).astype(float)
    return found, np.broadcast_to(array[:, :, :, None] if axis == 2 else array[:, :, None, :], (T, K, E, C))


def assert_holds(told: Pattern, array: np.ndarray) -> None:
    """Nothing the pattern says is wrong of the array."""
    for axes, most in told.bounds.items():
        assert np.count_nonzero(array, axis=tuple(axes)).max() <= most, axes
    for axis in told.constant:
        assert (array == array.take([0], axis)).all()
    if told.is_zero:
        assert not array.any()


def test_an_index_compared_with_positions_is_one_hot():
    told, array = one_hot(2)
    assert told.bounds == {frozenset({2}): 1}
    assert told.density((T, K, E, C)) == 1 / E
    assert_holds(told, array)


def test_positions_of_both_sides_do_not_meet_once():
    """Neither stays the same along the axis: any of the elements may be equal."""
    positions = Pattern(distinct=frozenset({0}))
    assert positions_equal(positions, positions, (T,)).bounds == {}


def test_a_dispatch_mask_has_as_many_entries_a_token_as_choices():
    (experts, of_experts), (places, of_places) = one_hot(2), one_hot(3)
    both = product(experts, places, (T, K, E, C))
    assert both.bounds[frozenset({2, 3})] == 1
    sent = summed(both, (T, K, E, C), [1])
    assert sent.bounds[frozenset({1, 2})] == K
    assert sent.density((T, E, C)) == K / (E * C)
    assert_holds(both, of_experts * of_places)
    assert_holds(sent, (of_experts * of_places).sum(1))


def test_two_that_depend_on_one_another_do_not_combine():
    """One-hot along E where the index depends on C as well: over both there is one for each of C."""
    told = product(Pattern(bounds={frozenset({2}): 1}), Pattern(bounds={frozenset({3}): 1}), (T, K, E, C))
    assert frozenset({2, 3}) not in told.bounds


def test_a_sum_over_the_hot_axis_tells_nothing():
    told, array = one_hot(2)
    assert summed(told, (T, K, E, C), [2]).bounds == {}
    assert_holds(summed(told, (T, K, E, C), [2]), array.sum(2))


def test_a_sum_of_two_has_the_entries_of_both():
    (first, one), (second, other) = one_hot(2), one_hot(2)
    both = total(first, second, (T, K, E, C))
    assert both.bounds == {frozenset({2}): 2}
    assert_holds(both, one + other)
    assert total(first, UNKNOWN, (T, K, E, C)).bounds == {}


@pytest.mark.parametrize(
    ("into", "bounds"),
    [
        ((T, K, E * C), {frozenset({2}): C}),
        ((T * K, E, C), {frozenset({1}): 1}),
        ((2, T // 2, K, 2, E // 2, C), {frozenset({3, 4}): 1}),
        ((T, 1, K, E, C, 1), {frozenset({3}): 1}),
        ((T, K * E, C), {frozenset({1}): K}),
        ((T * K * E * C,), {frozenset({0}): T * K * C}),
    ],
)
def test_the_same_elements_in_other_dimensions(into: tuple[int, ...], bounds: dict[frozenset[int], int]):
    told, array = one_hot(2)
    changed = regrouped(told, (T, K, E, C), into)
    assert changed.bounds == bounds
    assert_holds(changed, array.reshape(into))


def test_any_reshape_of_any_selection_holds():
    choose = random.Random(0)
    for _ in range(300):
        dims = [choose.choice([1, 2, 3, 4]) for _ in range(4)]
        hot = choose.randrange(4)
        array = np.zeros(dims)
        index = GENERATOR.integers(0, dims[hot], [1 if axis == hot else size for axis, size in enumerate(dims)])
        np.put_along_axis(array, index, 1.0, hot)
        told = Pattern(bounds={frozenset({hot}): 1})
        into = list(itertools.chain.from_iterable([2, size // 2] if size % 2 == 0 else [size] for size in dims))
        while len(into) > 1 and choose.random() < 0.7:
            at = choose.randrange(len(into) - 1)
            into[at : at + 2] = [into[at] * into[at + 1]]
        assert_holds(regrouped(told, dims, into), array.reshape(into))


def test_a_reshape_that_makes_no_sense_tells_nothing():
    assert regrouped(Pattern(bounds={frozenset({0}): 1}), (4, 3), (4, 2)).bounds == {}


def test_one_of_several_is_what_holds_of_all():
    told, _ = one_hot(2)
    zero = Pattern(is_zero=True, constant=frozenset(range(4)))
    assert same_values([told, zero]).bounds == told.bounds
    assert same_values([told, UNKNOWN]) == UNKNOWN
    wider = Pattern(bounds={frozenset({2}): 3})
    assert same_values([told, wider]).bounds == {frozenset({2}): 3}


def test_axes_by_other_names():
    told, array = one_hot(2)
    turned = renumbered(told, [3, 0, 1, 2])  # T is the last now
    assert_holds(turned, array.transpose(1, 2, 3, 0))
    assert turned.bounds == {frozenset({1}): 1}


def test_zero_is_nothing_anywhere():
    zero = Pattern(is_zero=True)
    assert product(zero, UNKNOWN, (T,)).is_zero
    assert (zero.density((T,)), UNKNOWN.density((T,))) == (0.0, 1.0)
