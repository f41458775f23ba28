"""The sweep of live bytes, against counting them position by position."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.model.live_bytes import NEVER, Int64, curve, peak

BLOCKS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20) | st.just(NEVER), st.integers(0, 9)).map(
        lambda block: (block[0], max(block[0], block[1]), block[2])
    ),
    max_size=8,
)


def columns(blocks: list[tuple[int, int, int]]) -> Int64:
    return np.array(blocks, np.int64).reshape(-1, 3).T


def counted(blocks: list[tuple[int, int, int]], position: int) -> int:
    return sum(size for start, end, size in blocks if start <= position < end)


@given(BLOCKS, BLOCKS)
def test_live_bytes_are_those_of_the_blocks_that_hold_a_position(
    blocks: list[tuple[int, int, int]], more: list[tuple[int, int, int]]
) -> None:
    live, positions = curve(*columns(blocks)), np.arange(-1, 23)
    assert live.at(positions).tolist() == [counted(blocks, one) for one in positions.tolist()]
    assert live.at(positions, before=True).tolist() == [counted(blocks, one - 1) for one in positions.tolist()]
    both = live.plus(*columns(more))
    assert both.at(positions).tolist() == [counted([*blocks, *more], one) for one in positions.tolist()]
    position, size = peak(*columns(blocks))
    highest = max(counted(blocks, one) for one in range(21))
    assert size == highest == counted(blocks, position) if blocks else size == 0
    assert all(counted(blocks, one) < highest for one in range(position)) or not highest
