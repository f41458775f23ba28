"""What XLA's priority fusion leaves in memory, by its cost model for an H100."""

from __future__ import annotations

import math

import pytest

from perfscope.analyzers.checkpointing.xla_model import fused
from perfscope.analyzers.checkpointing.xla_model.fused import Op, merged, normalized, saving, written

LARGE = 8 * 1024 * 1024
WIDTH = 2
"""Of bfloat16."""


def array(*operands: int, elements: int = LARGE, cycles: int = 3, **fields: bool) -> Op:
    """An instruction that goes over its operands element by element."""
    uses = (1.0,) * len(operands)
    return Op(
        operands=operands, uses=uses, elements=elements, bytes=WIDTH * elements, cycles=cycles * elements, **fields
    )


def held(elements: int = LARGE) -> Op:
    """Something in memory."""
    return array(elements=elements, cycles=0, produces=False, consumes=False)


def part(operand: int, elements: int, of: int) -> Op:
    """A slice."""
    size = WIDTH * elements
    return Op(operands=(operand,), uses=(elements / of,), elements=elements, bytes=size, pointwise=False)


def test_times_are_those_that_xla_logs() -> None:
    """From the fusion dump of ``ssm --variant associative`` with a policy: microseconds apart less together."""
    row = 512 * 8 * 4
    whole, half, quarter = row * 256, row * 128, row * 64
    ops = [held(whole), held(half), part(0, half, whole), array(1, 2, elements=half)]
    assert saving(ops, 2) * 1e6 == pytest.approx(8.261 - 4.758, abs=0.01)
    ops = [held(whole), held(whole), array(0, 1, elements=whole)]
    ops += [part(2, size, whole) for size in (half, row, half, row * 127)]
    assert saving(ops, 2) * 1e6 == pytest.approx(20.024 - 15.275, abs=0.01)
    ops = [held(half), held(half), array(0, 1, elements=half)]
    ops += [part(2, size, half) for size in (quarter, row, quarter, row * 63)]
    assert saving(ops, 2) * 1e6 == pytest.approx(12.511 - 9.636, abs=0.01)


@pytest.mark.parametrize(("readers", "is_written"), [(1, False), (2, False), (3, True), (6, True)])
def test_what_many_read_and_is_made_of_much_is_written(readers: int, is_written: bool) -> None:
    """A sum of three arrays: each reader with it inside reads three arrays instead of one."""
    ops = [held(), held(), held(), array(0, 1, 2), *(held() for _ in range(readers))]
    ops += [array(3, 4 + at) for at in range(readers)]
    assert (3 in written(ops)) is is_written


def test_what_the_readers_read_anyway_costs_nothing() -> None:
    ops = [held(), held(), held(), array(0, 1, 2), *(array(0, 1, 2, 3) for _ in range(6))]
    assert 3 not in written(ops)


def test_what_is_dear_is_written_for_two_readers_and_not_for_one() -> None:
    for readers, is_written in ((1, False), (2, True)):
        ops = [held(), array(0, cycles=400), *(array(1) for _ in range(readers))]
        assert (1 in written(ops)) is is_written


def test_a_reader_that_needs_a_buffer_keeps_it_in_memory_for_all() -> None:
    ops = [held(), array(0), array(1), array(1, produces=False, consumes=False)]
    assert written(ops)[1] == {2, 3}
    assert saving(ops, 1) == -math.inf


def test_copies_that_double_at_every_step_stay_bounded() -> None:
    """Small numbers that each depend on the two before: every fusion seems to save a launch."""
    ops = [held(1), held(1)]
    ops += [array(at, at + 1, elements=1) for at in range(60)]
    assert 1 < len(written(ops)) < 30


def test_what_would_take_too_long_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [held(), array(0, cycles=400), array(1), array(1)]
    assert written(ops)
    monkeypatch.setattr(fused, "MOST_WORK", 3)
    assert not written(ops)


def test_a_view_is_no_instruction_of_its_own() -> None:
    view = Op(operands=(1,), uses=(1.0,), elements=LARGE, bytes=WIDTH * LARGE, pointwise=False, view=True)
    ops = [held(), array(0), view, array(2)]
    assert set(written(ops)) == {0, 3}


def test_kernels_of_one_size_that_read_the_same_become_one_with_what_they_read() -> None:
    ops = [held(), array(0, cycles=400), array(1), array(1)]
    readers = written(ops)
    assert 1 in readers
    assert 1 in merged(ops, readers)
    smaller = [held(), array(0, cycles=400), array(1), part(1, LARGE // 2, LARGE)]
    assert 1 not in merged(smaller, written(smaller))


def test_kernels_with_another_one_between_them_stay_apart() -> None:
    product = array(2, produces=False, consumes=False)
    ops = [held(), array(0, cycles=400), array(1), product, array(1, 3)]
    readers = written(ops)
    assert readers[1] == {2, 4}
    assert 1 not in merged(ops, readers)


def test_what_is_combined_with_its_own_sum_is_triton_s() -> None:
    rows = LARGE // 1024
    total = Op(operands=(1,), uses=(1.0,), elements=rows, bytes=4 * rows, pointwise=False, reduces=True, produces=False)
    spread = Op(operands=(2,), uses=(1024.0,), elements=LARGE, bytes=4 * LARGE, pointwise=False, broadcasts=True)
    ops = [held(), array(0), total, spread, array(1, 3), array(0)]
    assert {1, 2} <= normalized(ops)
    assert 5 not in normalized(ops)
    assert not normalized([held(), array(0), total, spread, array(0, 3, elements=LARGE // 2)])
