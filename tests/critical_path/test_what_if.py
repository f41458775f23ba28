"""What-ifs against a machine that runs the changed program."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfscope.analyzers.critical_path import parse_hypothesis, what_if
from perfscope.model.errors import UsageError
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.critical_path.machine import Op, run, scaled, without_waits
from tests.critical_path.test_path import OPS

US = 1000


def after_us(trace: Trace, text: str) -> float:
    answer = what_if(trace, parse_hypothesis(text))
    assert answer is not None
    return answer.after_ns / US


PROGRAM = [
    Op("load", 40),
    Op("mm", 10, 300),
    Op("item", 5, 4, waits=True),
    Op("mm", 10, 300),
    Op("end", 5, 4, waits=True),
]


def test_a_wait_that_is_taken_away() -> None:
    trace, before = run(PROGRAM)
    twin = run(without_waits(PROGRAM))[1]
    assert twin < before
    predicted = after_us(trace, "sync x0")
    assert predicted == pytest.approx(twin, abs=4)


def test_an_op_that_takes_half_the_time() -> None:
    trace, _ = run(PROGRAM)
    assert after_us(trace, "mm x0.5") == pytest.approx(run(scaled(PROGRAM, "mm", 0.5))[1], abs=1)


def test_a_kernel_by_a_part_of_its_name() -> None:
    trace, before = run(PROGRAM)
    assert after_us(trace, "k_mm x0.5") == pytest.approx(before - 300, abs=1)


def test_work_beside_the_path_saves_nothing() -> None:
    program = [Op("mm", 10, 300), Op("side", 10, 50, stream=8), Op("end", 5, 4, waits=True)]
    trace, before = run(program)
    assert after_us(trace, "k_side x0") == before


def test_launches_that_cost_nothing() -> None:
    trace, before = run([Op("a", 20, 5), Op("b", 20, 5), Op("c", 20, 5, waits=True)])
    answer = what_if(trace, parse_hypothesis("launch x0"))
    assert answer is not None
    assert answer.nodes == 3
    assert answer.after_ns < before * US
    assert answer.saved_ns <= 3 * (3 + 6) * US


def test_a_trace_without_host_or_device_has_no_answer() -> None:
    assert what_if(TraceBuilder().build(), parse_hypothesis("sync x0")) is None


@pytest.mark.parametrize("text", ["mm", "mm 0.5", "x0.5", "mm x-1", "sync x0.5", ""])
def test_what_is_no_change_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--what-if"):
        parse_hypothesis(text)


def test_a_name_that_does_not_occur_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no op, host span or kernel is called nothing"):
        after_us(run(PROGRAM)[0], "nothing x0")


@given(OPS, st.sampled_from([0, 0.5, 2]))
def test_drawn_programs_with_an_op_scaled(ops: list[Op], factor: float) -> None:
    """Within the roundings and the 2 us of a wait for nothing; with parallel streams not longer than that.

    The effect of a shorter op on a wait for all streams is not visible.
    """
    assume(any(op.name == "a" for op in ops))
    trace, before = run([*ops, Op("end", 5, 4, waits=True)])
    twin = run([*scaled(ops, "a", factor), Op("end", 5, 4, waits=True)])[1]
    after = after_us(trace, f"a x{factor}")
    assert after <= 1.1 * twin + 8 * len(ops)
    if all(op.stream == 7 for op in ops):
        assert after >= 0.9 * twin - 8 * len(ops)
    assert before == what_if(trace, parse_hypothesis("a x1")).after_ns / US  # type: ignore[union-attr]
