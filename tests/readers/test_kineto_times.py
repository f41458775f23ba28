"""Times of Kineto traces: microseconds to integer nanoseconds, exactly."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers.kineto.shard import EXACT_BELOW_US, floats_to_ns, text_to_ns, texts_to_ns


@given(st.integers(0, int(EXACT_BELOW_US) * 1000 - 1))
def test_floats_with_three_decimals_are_exact_below_the_limit(ns: int) -> None:
    written = f"{ns // 1000}.{ns % 1000:03d}"
    found = floats_to_ns(np.array([float(written)]))
    assert found is not None
    assert found.tolist() == [ns]


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=3))
def test_text_is_exact(us: Decimal) -> None:
    assert text_to_ns(str(us)) == int(us * 1000)


def test_text_that_is_no_time() -> None:
    assert [text_to_ns(bad) for bad in ("", "nan", "inf", "null", "1e300", "1e999999", "12:30", '"5"')] == [None] * 8
    assert text_to_ns("1.6e3") == 1_600_000


NUMBERS = st.one_of(
    st.decimals(min_value=-(10**4), max_value=10**17, places=3).map(str),
    st.integers(-1, 10**20).map(str),
    st.from_regex(r"[0-9]{0,18}[.]?[0-9]{0,5}(e[0-9])?", fullmatch=True),
    st.sampled_from(["", "nan", "null", "1.2.3", '"5"', "+5", "1 2"]),
)


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_many_texts_at_once_are_what_each_is_alone(texts: list[str]) -> None:
    found, known = texts_to_ns([text.encode() for text in texts])
    alone = [text_to_ns(text) for text in texts]
    assert [int(ns) if is_known else None for ns, is_known in zip(found, known, strict=True)] == alone
