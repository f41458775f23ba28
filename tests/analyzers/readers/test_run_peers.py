"""Peers from the detail pass: carried over where the order of a step is the same in both passes, else unknown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfscope.analyzers.ranks.local import locals_of
from perfscope.analyzers.readers._run_peers import CARRIED, DIFFERS, carry_peers
from perfscope.analyzers.trace import Trace
from tests.build import TraceBuilder

Message = tuple[str, int | None]
STEP_US = 1000
SENDS: Sequence[Message] = (("recv", 0), ("send", 2), ("recv", 2), ("send", 0))


def recorded(steps: Sequence[Sequence[Message]], *, told: bool = True, threads: int = 1, before: int = 0) -> Trace:
    """A pass with those messages a step; ``before``: of another kind, ahead of the first step."""
    build = TraceBuilder(rank=1)
    messages: list[tuple[float, Message]] = [(-500.0 + at, ("send", 3)) for at in range(before)]
    for number, found in enumerate(steps):
        build.step(number, STEP_US * number, STEP_US * number + 900)
        messages += [(STEP_US * number + 50.0 * at + 10, one) for at, one in enumerate(found)]
    placed = sorted((at % threads, start, one) for at, (start, one) in enumerate(messages))
    for row, (thread, start, (operation, peer)) in enumerate(placed):
        build.op(f"gloo:{operation}", start, start + 40, tid=10 + thread)
        build.row(
            "collectives", start_ns=int(start * 1000), end_ns=int(start * 1000) + 40_000, name=build.code(operation),
            kernel=-1, slice=row, peer=-1 if peer is None or not told else peer,
        )  # fmt: skip
    return build.build()


def peers(trace: Trace) -> list[int | None]:
    return [one.peer for one in trace.fact(locals_of)]


def test_the_kth_of_a_step_is_with_whom_the_kth_is_there() -> None:
    timing, detail = recorded([SENDS] * 3, told=False), recorded([SENDS] * 2)
    assert carry_peers(timing, detail) == (CARRIED,)
    assert peers(timing) == [0, 2, 2, 0] * 3


def test_what_lies_outside_of_steps_stays_unknown() -> None:
    timing = recorded([SENDS], told=False, before=2)
    assert carry_peers(timing, recorded([SENDS], before=1)) == (CARRIED,)
    assert peers(timing) == [None, None, 0, 2, 2, 0]


@pytest.mark.parametrize(
    ("timing", "detail"),
    [
        ([SENDS, SENDS[:2]], [SENDS]),  # a step of the timing pass has fewer
        ([SENDS, SENDS[::-1]], [SENDS]),  # or another order
        ([SENDS], [SENDS, (("recv", 2), ("send", 0), ("recv", 0), ("send", 2))]),  # same order, other ranks
        ([SENDS], [SENDS, (*SENDS[:3], ("send", None))]),  # one of them does not tell
    ],
)
def test_steps_that_differ_are_not_guessed(
    timing: Sequence[Sequence[Message]], detail: Sequence[Sequence[Message]]
) -> None:
    trace = recorded(timing, told=False)
    assert carry_peers(trace, recorded(detail)) == (DIFFERS,)
    assert set(peers(trace)) == {None}


def test_several_threads_have_no_order() -> None:
    trace = recorded([SENDS], told=False, threads=2)
    assert carry_peers(trace, recorded([SENDS], threads=2)) == (DIFFERS,)
    assert set(peers(trace)) == {None}


def test_nothing_is_said_where_nothing_is_to_be_filled() -> None:
    assert carry_peers(recorded([SENDS]), recorded([SENDS])) == ()
    assert carry_peers(recorded([SENDS], told=False), recorded([SENDS], told=False)) == ()
    assert carry_peers(recorded([()], told=False, before=1), recorded([SENDS])) == ()
    assert carry_peers(recorded([]), recorded([])) == ()
