"""Up to which size a choice fits, and what a sweep says in sentences."""

from __future__ import annotations

from perfscope.analyzers.sweep.front import Swept, front_of
from perfscope.analyzers.sweep.point import Point
from perfscope.analyzers.sweep.reach import Reach, reaches
from perfscope.analyzers.sweep.said import sentences
from tests.analyzers.sweep.points import MEMORY, point

SEQ = Swept(name="seq", values=("512", "1024", "2048"), kind="size")
POLICY = Swept(name="policy", values=("none", "full"))


def _line(*peaks: int | None) -> list[Point]:
    return [
        point(f"seq={value}", None if peak is None else 1, None if peak is None else 2, peak)
        for value, peak in zip(SEQ.values, peaks, strict=True)
    ]


def _reach(*peaks: int | None) -> Reach:
    (found,) = reaches(["seq"], _line(*peaks))
    return found


def _said(*peaks: int | None) -> str:
    points = _line(*peaks)
    front = front_of([SEQ], points)
    return sentences(front, reaches(front.sizes, points), points)[0]


def test_exactly_the_memory_fits() -> None:
    assert _reach(MEMORY - 1, MEMORY, MEMORY + 1).fits_to == 1024
    assert _said(MEMORY - 1, MEMORY, MEMORY + 1) == "fits up to seq=1024 on 1000 B; seq=2048 needs 1001 B"


def test_all_or_nothing() -> None:
    assert _said(1, 2, 3) == "fits up to seq=2048 on 1000 B, the most that was tried"
    assert _said(2000, 3000, 4000) == "does not fit at seq=512 on 1000 B: it needs 1.95 KiB"


def test_nothing_is_claimed_beyond_what_is_not_known() -> None:
    gap = _reach(1, None, 3)
    assert (gap.fits_to, gap.not_known, gap.first_that_does_not) == (512, (1024,), None)
    assert _said(1, None, 3) == "fits up to seq=512 on 1000 B; not known: seq=1024"
    assert _said(None, 2000, 3) == "is not known to fit at any seq; it fits again at seq=2048: the compiler " + (
        "recomputes more there; not known: seq=512"
    )


def test_nothing_known_is_said_once() -> None:
    assert _said(None, None, None) == "is not known to fit at any seq"


def test_what_fits_again_is_told() -> None:
    assert _reach(1, 2000, 3).fits_again == (2048,)
    assert "it fits again at seq=2048" in _said(1, 2000, 3)


def test_one_value_is_no_reach() -> None:
    assert reaches(["seq"], [point("seq=512", 1, 2, 3)]) == ()


def test_order_is_by_number_not_by_the_order_of_the_values() -> None:
    points = [point("seq=2048", 1, 2, 2000), point("seq=512", 1, 2, 3), point("seq=1024", 1, 2, 900)]
    (found,) = reaches(["seq"], points)
    assert (found.fits_to, found.first_that_does_not, found.most_tried) == (1024, 2048, 2048)


def test_choices_of_which_the_same_is_true_share_a_sentence() -> None:
    points = [
        *(point(f"policy=none seq={value}", 10, 20, peak) for value, peak in zip(SEQ.values, (1, 2, 3), strict=True)),
        *(point(f"policy=full seq={value}", 11, 21, peak) for value, peak in zip(SEQ.values, (2, 3, 4), strict=True)),
    ]
    front = front_of([POLICY, SEQ], points)
    assert sentences(front, reaches(front.sizes, points), points) == (
        "policy=full is dominated by policy=none: neither quicker nor leaner at each of the 3 seq at which it is known",
        "policy=none and policy=full fit up to seq=2048 on 1000 B, the most that was tried",
    )


def test_programs_that_are_the_same_are_called_so() -> None:
    axis = Swept(name="flag", values=("on", "off"))
    same = [point(f"flag={value}", 1, 2, 3, fingerprints=("f",)) for value in axis.values]
    front = front_of([axis], same)
    assert sentences(front, (), same) == ("flag=off and flag=on compile to the same program",)
    alike = [point(f"flag={value}", 1, 2, 3, fingerprints=(value,)) for value in axis.values]
    front = front_of([axis], alike)
    assert sentences(front, (), alike) == ("flag=off and flag=on have the same modelled time and the same peak",)


def test_what_failed_and_what_was_not_reached_is_counted() -> None:
    axis = Swept(name="flag", values=("a", "b", "c"))
    points = [
        point("flag=a", None, None, None, reason="x"),
        Point(settings=(("flag", "b"),), state="not reached"),
        point("flag=c", 1, 2, 3),
    ]
    said = sentences(front_of([axis], points), (), points)
    assert said == (
        "1 of 3 variant was not compiled: the table has the reason",
        "1 of 3 variants were not reached; the same command goes on with them",
    )
