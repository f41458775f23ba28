"""The search for the largest size that fits: right for every limit, and never more tries than it says."""

from __future__ import annotations

import pytest

from perfscope.model.errors import UsageError
from perfscope.profiler.ahead.sweep.axes import Bisection, fit_axis, max_compilations, parse_axes


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33])
def test_every_limit_is_found_within_the_tries_that_are_said(count: int) -> None:
    for limit in range(count + 1):  # sizes below the limit fit
        line, tried = Bisection(count), []
        while (place := line.next()) is not None:
            tried.append(place)
            line.tell(place, place < limit)
        assert len(tried) == len(set(tried)) <= max_compilations(count)
        assert max((place for place in tried if place < limit), default=-1) == limit - 1
        assert min((place for place in tried if place >= limit), default=count) == limit


def test_what_is_not_known_ends_the_search() -> None:
    line = Bisection(8)
    place = line.next()
    assert place is not None
    line.tell(place, None)
    assert line.next() is None


def test_sizes_rise_and_may_be_many() -> None:
    axis = fit_axis("batch=1..512/1", ())
    assert (axis.kind, len(axis.values), axis.values[0], axis.values[-1]) == ("size", 512, "1", "512")
    assert fit_axis("seq=8k,1k..4k", ()).values == ("1024", "2048", "4096", "8192")


@pytest.mark.parametrize(
    ("text", "swept", "said"),
    [
        ("policy=none,full", (), "only whole numbers"),
        ("seq:choice=1,2", (), "only whole numbers"),
        ("memory=1,2", (), "only whole numbers"),
        ("seq=1..9", ("seq=1,2",), "it is swept, too"),
        ("seq=1..9999/1", (), "--fit seq=1..9999/1: more than 4096 values"),
        ("seq", (), "--fit 'seq': write NAME=VALUES"),
        ("seq=1..4096/1", ("a=1..40/1",), "it may be 256 in all"),
    ],
)
def test_asked_wrongly(text: str, swept: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        fit_axis(text, parse_axes(swept))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
