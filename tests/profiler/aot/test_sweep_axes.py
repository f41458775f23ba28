"""What ``--sweep`` may say, and the arguments that come of it."""

from __future__ import annotations

import pytest

from perfscope.model.errors import UsageError
from perfscope.profiler.ahead.sweep.axes import MAX_VALUES, parse_axes, parse_axis, variants


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("policy=none,dots,full", ("none", "dots", "full")),
        ("--policy=none, dots", ("none", "dots")),
        ("seq=1k..8k", ("1024", "2048", "4096", "8192")),
        ("seq=1k..5k", ("1024", "2048", "4096", "5120")),
        ("heads=8..32/8", ("8", "16", "24", "32")),
        ("heads=8..30/8", ("8", "16", "24", "30")),
        ("batch=1,2,8..16", ("1", "2", "8", "16")),
        ("seq=4K,1m", ("4096", "1048576")),
        ("b=3..3", ("3",)),
        ("lr=1e-3,1e-2", ("1e-3", "1e-2")),
        ("mesh=2x4,8x1", ("2x4", "8x1")),
        ("data=../a,./b", ("../a", "./b")),
        ("flag=,on", ("", "on")),
    ],
)
def test_values(text: str, values: tuple[str, ...]) -> None:
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy", "write NAME=VALUES"),
        ("=a,b", "write NAME=VALUES"),
        ("po licy=a", "write NAME=VALUES"),
        ("a=\x1b[31m", "write NAME=VALUES"),
        ("a=", "no values"),
        ("a=x,x", "'x' is there twice"),
        ("a=1k,1024", "'1024' is there twice"),
        ("a=1..", "no range"),
        ("a=8..4", "goes upwards"),
        ("a=0..4", "goes upwards"),
        ("a=1..9/0", "goes upwards"),
        ("a=1..1000000/1", "more than 64 values"),
        ("a=1e-3..1e-1", "no range"),
        ("a:weight=1,2", "a size or a choice"),
        ("a:size=x", "sizes are whole numbers"),
        ("a=" + "y" * 300, "300 characters"),
        ("a=" + ",".join(map(str, range(MAX_VALUES + 1))), "it may be 64"),
    ],
)
def test_what_is_no_axis(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_axis(text)
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_many() -> None:
    with pytest.raises(UsageError, match="swept twice"):
        parse_axes(["a=1", "a=2"])
    with pytest.raises(UsageError, match=r"400 variants \(20 a x 20 b\); it may be 256"):
        parse_axes(["a=1..20/1", "b=1..20/1"])
    assert [axis.kind for axis in parse_axes(["a:size=1", "b:choice=2", "c=3"])] == ["size", "choice", None]


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        (("t.py",), ("t.py", "--seq", "512")),
        (("t.py", "--seq", "9", "--x"), ("t.py", "--seq", "512", "--x")),
        (("t.py", "--seq=9", "--x"), ("t.py", "--seq=512", "--x")),
        (("t.py", "model.seq={seq}", "--seq", "9"), ("t.py", "model.seq=512", "--seq", "9")),
        (("t.py", "--shape", "{seq}x{seq}"), ("t.py", "--shape", "512x512")),
        (("{seq}.py",), ("{seq}.py", "--seq", "512")),
        (("t.py", "--sequence", "9"), ("t.py", "--sequence", "9", "--seq", "512")),
    ],
)
def test_where_a_value_goes(arguments: tuple[str, ...], made: tuple[str, ...]) -> None:
    (one,) = variants(parse_axes(["seq=512"]), arguments)
    assert one.arguments == made


def test_all_combinations_in_order() -> None:
    found = variants(parse_axes(["policy=none,dots", "target=h100,v5e:2x4", "seq=1k,2k"]), ("t.py",))
    assert len(found) == 8
    assert found[0].label == "policy=none target=h100 seq=1024"
    assert found[-1].arguments == ("t.py", "--policy", "dots", "--seq", "2048")  # the target is not the program's
    assert found[-1].value("target") == "v5e:2x4"


def test_flags_that_are_not_clear() -> None:
    with pytest.raises(UsageError, match="--seq is there twice"):
        variants(parse_axes(["seq=1"]), ("t.py", "--seq", "1", "--seq=2"))
    with pytest.raises(UsageError, match="--seq has no value"):
        variants(parse_axes(["seq=1"]), ("t.py", "--seq"))
