"""Fronts of sweeps: exact, with ties, by the work that variants do."""

from __future__ import annotations

import random
from itertools import product

from perfscope.analyzers.sweep.front import Swept, dominates, front_of, kind_of
from tests.analyzers.sweep.points import MEMORY, point

POLICY = Swept(name="policy", values=("none", "dots", "full"))
SEQ = Swept(name="seq", values=("512", "1024"))


def test_what_nothing_beats_is_the_front() -> None:
    points = [point("policy=none", 10, 20, 900), point("policy=dots", 12, 22, 500), point("policy=full", 13, 23, 600)]
    front = front_of([POLICY], points)
    assert front.on_front == {0, 1}
    assert front.beaten_by == {2: (1,)}
    (one,) = front.dominated
    assert (one.worse, one.better, one.groups) == ("policy=full", "policy=dots", 1)


def test_equals_are_both_on_the_front_and_neither_dominates() -> None:
    points = [point("policy=none", 10, 20, 500), point("policy=dots", 10, 20, 500), point("policy=full", 10, 20, 501)]
    front = front_of([POLICY], points)
    assert front.on_front == {0, 1}
    assert front.same == ((0, 1),)
    assert front.beaten_by == {2: (0, 1)}
    assert [one.worse for one in front.dominated] == ["policy=full"]


def test_a_range_that_crosses_another_is_not_beaten() -> None:
    assert not dominates(point("a=1", 10, 20, 500), point("a=2", 9, 30, 500))
    assert not dominates(point("a=1", 10, 20, 500), point("a=2", 10, 20, 500))
    assert dominates(point("a=1", 10, 20, 500), point("a=2", 10, 21, 500))
    assert not dominates(point("a=1", None, None, 500), point("a=2", 10, 21, 600))


def test_sizes_are_not_held_against_each_other() -> None:
    small, large = {"inputs": (10, 5)}, {"inputs": (20, 5)}
    points = [
        point("policy=none seq=512", 10, 20, 400, **small),
        point("policy=none seq=1024", 30, 40, 800, **large),
        point("policy=dots seq=512", 11, 21, 300, **small),
        point("policy=dots seq=1024", 31, 41, 900, **large),
    ]
    front = front_of([POLICY, SEQ], points)
    assert (front.sizes, front.choices) == (("seq",), ("policy",))
    assert front.on_front == {0, 1, 2}
    assert front.beaten_by == {3: (1,)}
    assert front.dominated == ()  # at 512 dots needs less


def test_whole_numbers_that_change_no_input_are_choices() -> None:
    axis = Swept(name="block", values=("64", "128"))
    points = [point("block=64", 10, 20, 500, inputs=(9, 9)), point("block=128", 9, 19, 500, inputs=(9, 9))]
    assert kind_of(axis, points) == "choice"
    assert front_of([axis], points).on_front == {1}
    assert kind_of(Swept(name="block", values=("64", "128"), kind="size"), points) == "size"
    seq = Swept(name="seq", values=("1", "2"), kind="choice")
    assert kind_of(seq, [point("seq=1", 1, 1, 1, inputs=(1, 1))]) == "choice"


def test_whole_numbers_of_which_nothing_is_known_are_sizes() -> None:
    assert kind_of(SEQ, [point("seq=512", None, None, None), point("seq=1024", None, None, None)]) == "size"
    half = [point("seq=512", 1, 1, 1, inputs=(1, 1)), point("seq=1024", None, None, None)]
    assert kind_of(SEQ, half) == "size"
    assert kind_of(Swept(name="target", values=("1", "2")), []) == "machine"


def test_what_does_not_fit_or_failed_is_on_no_front_and_beats_nothing() -> None:
    points = [
        point("policy=none", 1, 2, MEMORY + 1),
        point("policy=dots", None, None, None, reason="no"),
        point("policy=full", 50, 60, MEMORY),
    ]
    front = front_of([POLICY], points)
    assert front.on_front == {2}
    assert not front.beaten_by
    assert not front.dominated


def test_a_choice_that_fits_where_the_better_one_does_not_is_not_dominated() -> None:
    sizes = [{"inputs": (1, 1)}, {"inputs": (2, 2)}]
    points = [
        point("policy=none seq=512", 10, 20, 400, **sizes[0]),
        point("policy=none seq=1024", 20, 30, MEMORY + 5, **sizes[1]),
        point("policy=full seq=512", 11, 21, 500, **sizes[0]),
        point("policy=full seq=1024", 22, 32, 900, **sizes[1]),
    ]
    assert front_of([POLICY, SEQ], points).dominated == ()


def test_a_front_is_what_comparing_each_with_each_gives() -> None:
    source = random.Random(7)
    axis = Swept(name="a", values=tuple(f"v{number}" for number in range(60)))
    points = []
    for value in axis.values:
        low = source.randrange(6)
        points.append(point(f"a={value}", low, low + source.randrange(4), source.randrange(1, 8)))
    front = front_of([axis], points)
    for mine, one in enumerate(points):
        beaten = any(
            its != mine and other.step is not None and one.step is not None and other.peak_bytes is not None
            and (other.step.low, other.step.high, other.peak_bytes) != (one.step.low, one.step.high, one.peak_bytes)
            and other.step.low <= one.step.low and other.step.high <= one.step.high
            and other.peak_bytes <= (one.peak_bytes or 0)
            for its, other in enumerate(points)
        )  # fmt: skip
        assert (mine in front.on_front) == (not beaten)
    assert 0 < len(front.on_front) < len(points)


def test_dominance_goes_to_one_that_is_not_dominated_itself() -> None:
    values = list(product(("none", "dots", "full")))
    points = [point(f"policy={value}", 10 * at, 10 * at, 10 * at + 1) for at, (value,) in enumerate(values, start=1)]
    found = {one.worse: one.better for one in front_of([POLICY], points).dominated}
    assert found == {"policy=dots": "policy=none", "policy=full": "policy=none"}


def test_machines_are_not_held_against_each_other_unless_asked() -> None:
    axis = Swept(name="target", values=("h100", "h200"))
    points = [
        point("policy=none target=h100", 10, 20, 500), point("policy=none target=h200", 8, 16, 400),
        point("policy=full target=h100", 11, 21, 501), point("policy=full target=h200", 9, 17, 401),
    ]  # fmt: skip
    front = front_of([POLICY, axis], points)
    assert (front.choices, front.apart, front.sizes) == (("policy",), ("target",), ())
    assert front.on_front == {0, 1}
    assert [(one.worse, one.better, one.groups) for one in front.dominated] == [("policy=full", "policy=none", 2)]
    asked = Swept(name="target", values=("h100", "h200"), kind="choice")
    assert front_of([POLICY, asked], points).on_front == {1}


def test_without_a_choice_there_is_no_front() -> None:
    points = [point("seq=512", 1, 2, 3), point("seq=1024", 2, 3, 4)]
    assert front_of([Swept(name="seq", values=("512", "1024"), kind="size")], points).on_front == frozenset()
