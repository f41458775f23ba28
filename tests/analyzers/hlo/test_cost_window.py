"""Window positions in closed form against counting them one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.cost_window import MAX_WINDOW_STEPS, WindowDim, valid_positions, window_dims


def by_hand(window: WindowDim, inputs: int, outputs: int) -> int:
    span = range(0, inputs * window.lhs_dilate, window.lhs_dilate)
    return sum(
        (output * window.stride + element * window.rhs_dilate - window.pad_low) in span
        for output in range(outputs)
        for element in range(window.size)
    )


windows = st.builds(
    WindowDim,
    size=st.integers(0, 7),
    stride=st.integers(1, 7),
    pad_low=st.integers(-4, 9),
    lhs_dilate=st.integers(1, 8),
    rhs_dilate=st.integers(1, 4),
)


@given(windows, st.integers(0, 9), st.integers(0, 9))
def test_the_closed_form_counts_what_there_is(window: WindowDim, inputs: int, outputs: int):
    assert valid_positions(window, inputs, outputs) == by_hand(window, inputs, outputs)


def test_a_long_window_over_few_outputs_is_counted_the_other_way_round():
    # a sum over everything: one output, all positions on the input
    assert valid_positions(WindowDim(size=MAX_WINDOW_STEPS + 1), MAX_WINDOW_STEPS + 1, 1) == MAX_WINDOW_STEPS + 1


def test_sizes_that_nobody_could_go_through_are_unknown():
    assert valid_positions(WindowDim(size=2**60), 2**61, 2**60) is None
    assert valid_positions(WindowDim(size=3, stride=0), 5, 5) is None


def test_the_text_of_a_window():
    assert window_dims("{size=3x5 stride=2x1 pad=1_0x-1_2 lhs_dilate=1x2 rhs_dilate=3x1 rhs_reversal=1x1}") == (
        WindowDim(size=3, stride=2, pad_low=1, rhs_dilate=3),
        WindowDim(size=5, pad_low=-1, lhs_dilate=2),
    )
    assert window_dims("") == ()
    assert window_dims("{size=3x3 stride=2}") is None
