"""Fronts of sweeps: exact, with ties, by the work that variants do."""

from __future__ import annotations

import random
from itertools import product

from perfscope.plugins.ahead.sweep.document import SweptReach, SweptVariant
from perfscope.plugins.ahead.sweep.front import (
    Swept,
    dominates,
    kind_of,
    pareto_front,
    sentences,
    size_limits,
)
from tests.plugins.ahead.sweep.points import MEMORY, point

POLICY = Swept(name="policy", values=("none", "dots", "full"))
SEQ = Swept(name="seq", values=("512", "1024"))


def test_what_nothing_beats_is_the_front() -> None:
    points = [point("policy=none", 10, 20, 900), point("policy=dots", 12, 22, 500), point("policy=full", 13, 23, 600)]
    front = pareto_front([POLICY], points)
    assert front.on_front == {0, 1}
    assert front.beaten_by == {2: (1,)}
    (one,) = front.dominated
    assert (one.worse, one.better, one.sizes) == ("policy=full", "policy=dots", 1)


def test_equals_are_both_on_the_front_and_neither_dominates() -> None:
    points = [point("policy=none", 10, 20, 500), point("policy=dots", 10, 20, 500), point("policy=full", 10, 20, 501)]
    front = pareto_front([POLICY], points)
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
    front = pareto_front([POLICY, SEQ], points)
    assert (front.sizes, front.choices) == (("seq",), ("policy",))
    assert front.on_front == {0, 1, 2}
    assert front.beaten_by == {3: (1,)}
    assert front.dominated == ()  # at 512 dots needs less


def test_whole_numbers_that_change_no_input_are_choices() -> None:
    axis = Swept(name="block", values=("64", "128"))
    points = [point("block=64", 10, 20, 500, inputs=(9, 9)), point("block=128", 9, 19, 500, inputs=(9, 9))]
    assert kind_of(axis, points) == "choice"
    assert pareto_front([axis], points).on_front == {1}
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
    front = pareto_front([POLICY], points)
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
    assert pareto_front([POLICY, SEQ], points).dominated == ()


def test_a_front_is_what_comparing_each_with_each_gives() -> None:
    source = random.Random(7)
    axis = Swept(name="a", values=tuple(f"v{number}" for number in range(60)))
    points = []
    for value in axis.values:
        low = source.randrange(6)
        points.append(point(f"a={value}", low, low + source.randrange(4), source.randrange(1, 8)))
    front = pareto_front([axis], points)
    for mine, one in enumerate(points):
        beaten = any(
            its != mine and costs(other) != costs(one)
            and all(before <= after for before, after in zip(costs(other), costs(one), strict=True))
            for its, other in enumerate(points)
        )  # fmt: skip
        assert (mine in front.on_front) == (not beaten)
    assert 0 < len(front.on_front) < len(points)


def costs(one: SweptVariant) -> tuple[int, int, int]:
    assert one.step_low_ns is not None
    assert one.step_high_ns is not None
    assert one.peak_bytes is not None
    return one.step_low_ns, one.step_high_ns, one.peak_bytes


def test_dominance_goes_to_one_that_is_not_dominated_itself() -> None:
    values = list(product(("none", "dots", "full")))
    points = [point(f"policy={value}", 10 * at, 10 * at, 10 * at + 1) for at, (value,) in enumerate(values, start=1)]
    found = {one.worse: one.better for one in pareto_front([POLICY], points).dominated}
    assert found == {"policy=dots": "policy=none", "policy=full": "policy=none"}


def test_machines_are_not_held_against_each_other_unless_asked() -> None:
    axis = Swept(name="target", values=("h100", "h200"))
    points = [
        point("policy=none target=h100", 10, 20, 500), point("policy=none target=h200", 8, 16, 400),
        point("policy=full target=h100", 11, 21, 501), point("policy=full target=h200", 9, 17, 401),
    ]  # fmt: skip
    front = pareto_front([POLICY, axis], points)
    assert (front.choices, front.apart, front.sizes) == (("policy",), ("target",), ())
    assert front.on_front == {0, 1}
    assert [(one.worse, one.better, one.sizes) for one in front.dominated] == [("policy=full", "policy=none", 2)]
    asked = Swept(name="target", values=("h100", "h200"), kind="choice")
    assert pareto_front([POLICY, asked], points).on_front == {1}


def test_without_a_choice_there_is_no_front() -> None:
    points = [point("seq=512", 1, 2, 3), point("seq=1024", 2, 3, 4)]
    assert pareto_front([Swept(name="seq", values=("512", "1024"), kind="size")], points).on_front == frozenset()


SEQ_SIZES = Swept(name="seq", values=("512", "1024", "2048"), kind="size")
TWO_POLICIES = Swept(name="policy", values=("none", "full"))


def _line(*peaks: int | None) -> list[SweptVariant]:
    return [
        point(f"seq={value}", None if peak is None else 1, None if peak is None else 2, peak)
        for value, peak in zip(SEQ_SIZES.values, peaks, strict=True)
    ]


def _reach(*peaks: int | None) -> SweptReach:
    (found,) = size_limits(["seq"], _line(*peaks))
    return found


def _first_sentence(*peaks: int | None) -> str:
    points = _line(*peaks)
    front = pareto_front([SEQ_SIZES], points)
    return sentences(front, size_limits(front.sizes, points), points)[0]


def test_exactly_the_memory_fits() -> None:
    assert _reach(MEMORY - 1, MEMORY, MEMORY + 1).fits_to == 1024
    assert _first_sentence(MEMORY - 1, MEMORY, MEMORY + 1) == "fits up to seq=1024 on 1000 B; seq=2048 needs 1001 B"


def test_all_or_nothing() -> None:
    assert _first_sentence(1, 2, 3) == "fits up to seq=2048 on 1000 B, the most that was tried"
    assert _first_sentence(2000, 3000, 4000) == "does not fit at seq=512 on 1000 B: it needs 1.95 KiB"


def test_nothing_is_claimed_beyond_what_is_not_known() -> None:
    gap = _reach(1, None, 3)
    assert (gap.fits_to, gap.not_known, gap.first_that_does_not) == (512, (1024,), None)
    assert _first_sentence(1, None, 3) == "fits up to seq=512 on 1000 B; not known: seq=1024"
    assert _first_sentence(
        None, 2000, 3
    ) == "is not known to fit at any seq; it fits again at seq=2048: the compiler " + (
        "recomputes more there; not known: seq=512"
    )


def test_nothing_known_is_said_once() -> None:
    assert _first_sentence(None, None, None) == "is not known to fit at any seq"


def test_what_fits_again_is_told() -> None:
    assert _reach(1, 2000, 3).fits_again == (2048,)
    assert "it fits again at seq=2048" in _first_sentence(1, 2000, 3)


def test_one_value_is_no_reach() -> None:
    assert size_limits(["seq"], [point("seq=512", 1, 2, 3)]) == ()


def test_order_is_by_number_not_by_the_order_of_the_values() -> None:
    points = [point("seq=2048", 1, 2, 2000), point("seq=512", 1, 2, 3), point("seq=1024", 1, 2, 900)]
    (found,) = size_limits(["seq"], points)
    assert (found.fits_to, found.first_that_does_not, found.most_tried) == (1024, 2048, 2048)


def test_choices_of_which_the_same_is_true_share_a_sentence() -> None:
    points = [
        *(
            point(f"policy=none seq={value}", 10, 20, peak)
            for value, peak in zip(SEQ_SIZES.values, (1, 2, 3), strict=True)
        ),
        *(
            point(f"policy=full seq={value}", 11, 21, peak)
            for value, peak in zip(SEQ_SIZES.values, (2, 3, 4), strict=True)
        ),
    ]
    front = pareto_front([TWO_POLICIES, SEQ_SIZES], points)
    assert sentences(front, size_limits(front.sizes, points), points) == (
        "policy=full is dominated by policy=none: neither quicker nor leaner at each of the 3 seq at which it is known",
        "policy=none and policy=full fit up to seq=2048 on 1000 B, the most that was tried",
    )


def test_programs_that_are_the_same_are_called_so() -> None:
    axis = Swept(name="flag", values=("on", "off"))
    same = [point(f"flag={value}", 1, 2, 3, fingerprints=("f",)) for value in axis.values]
    front = pareto_front([axis], same)
    assert sentences(front, (), same) == ("flag=off and flag=on compile to the same program",)
    alike = [point(f"flag={value}", 1, 2, 3, fingerprints=(value,)) for value in axis.values]
    front = pareto_front([axis], alike)
    assert sentences(front, (), alike) == ("flag=off and flag=on have the same modelled time and the same peak",)


def test_what_failed_and_what_was_not_reached_is_counted() -> None:
    axis = Swept(name="flag", values=("a", "b", "c"))
    points = [
        point("flag=a", None, None, None, reason="x"),
        SweptVariant(settings={"flag": "b"}, state="not reached"),
        point("flag=c", 1, 2, 3),
    ]
    said = sentences(pareto_front([axis], points), (), points)
    assert said == (
        "1 of 3 variant was not compiled: the table has the reason",
        "1 of 3 variants were not reached; the same command goes on with them",
    )
