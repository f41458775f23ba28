"""Values of ``--sweep``, and the resulting arguments."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.model.documents import compile_manifest
from perfscope.model.errors import UsageError
from perfscope.plugins.ahead.common import build_key
from perfscope.plugins.ahead.common import compile as compiling
from perfscope.plugins.ahead.common.build_key import sources_digest, variant_key
from perfscope.plugins.ahead.request import Limits, Request
from perfscope.plugins.ahead.sweep import pool
from perfscope.plugins.ahead.sweep.axes import (
    MAX_VALUES,
    Bisection,
    fit_axis,
    max_compilations,
    parse_axes,
    parse_axis,
    variants,
)
from perfscope.plugins.ahead.sweep.document import SweptVariant
from perfscope.plugins.ahead.sweep.pool import Job, run_jobs
from perfscope.plugins.ahead.target_request import target_request


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
        ("a=x,x", "'x' occurs twice"),
        ("a=1k,1024", "'1024' occurs twice"),
        ("a=1..", "invalid range"),
        ("a=8..4", "must rise"),
        ("a=0..4", "must rise"),
        ("a=1..9/0", "must rise"),
        ("a=1..1000000/1", "more than 64 values"),
        ("a=1e-3..1e-1", "invalid range"),
        ("a:weight=1,2", "a size or a choice"),
        ("a:size=x", "sizes are whole numbers"),
        ("a=" + "y" * 300, "300 characters"),
        ("a=" + ",".join(map(str, range(MAX_VALUES + 1))), "at most 64 are allowed"),
    ],
)
def test_what_is_no_axis(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_axis(text)
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_many() -> None:
    with pytest.raises(UsageError, match="given twice"):
        parse_axes(["a=1", "a=2"])
    with pytest.raises(UsageError, match=r"400 variants \(20 a x 20 b\); at most 256 are allowed"):
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
    with pytest.raises(UsageError, match="--seq occurs twice"):
        variants(parse_axes(["seq=1"]), ("t.py", "--seq", "1", "--seq=2"))
    with pytest.raises(UsageError, match="--seq has no value"):
        variants(parse_axes(["seq=1"]), ("t.py", "--seq"))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33])
def test_every_limit_is_found_within_the_tries_that_are_said(count: int) -> None:
    for limit in range(count + 1):  # sizes below the limit fit
        line, tried = Bisection(count), []
        while (place := line.next()) is not None:
            tried.append(place)
            line.record(place, place < limit)
        assert len(tried) == len(set(tried)) <= max_compilations(count)
        assert max((place for place in tried if place < limit), default=-1) == limit - 1
        assert min((place for place in tried if place >= limit), default=count) == limit


def test_what_is_not_known_ends_the_search() -> None:
    line = Bisection(8)
    place = line.next()
    assert place is not None
    line.record(place, None)
    assert line.next() is None


def test_sizes_rise_and_may_be_many() -> None:
    axis = fit_axis("batch=1..512/1", ())
    assert (axis.kind, len(axis.values), axis.values[0], axis.values[-1]) == ("size", 512, "1", "512")
    assert fit_axis("seq=8k,1k..4k", ()).values == ("1024", "2048", "4096", "8192")


@pytest.mark.parametrize(
    ("text", "swept", "said"),
    [
        ("policy=none,full", (), "only whole numbers"),
        ("seq:choice=1,2", (), "only whole numbers"),
        ("memory=1,2", (), "only whole numbers"),
        ("seq=1..9", ("seq=1,2",), "it is also in --sweep"),
        ("seq=1..9999/1", (), "--fit seq=1..9999/1: more than 4096 values"),
        ("seq", (), "--fit 'seq': write NAME=VALUES"),
        ("seq=1..4096/1", ("a=1..40/1",), "at most 256 in all"),
    ],
)
def test_asked_wrongly(text: str, swept: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        fit_axis(text, parse_axes(swept))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "model.py").write_text("x = 1\n")
    (tmp_path / "data.bin").write_text("1")
    return tmp_path


def _digest(*arguments: str) -> str:
    found = sources_digest(("train.py", *arguments), module=False)
    assert found is not None
    return found


def _request(*arguments: str, target: str = "h100", memory: str | None = None) -> Request:
    asked = target_request(parse_target(target, memory), configured=True)
    limits = Limits(seconds=1, memory_bytes=1)
    return Request(framework="jax", arguments=arguments, module=False, target=asked, limits=limits)


def test_the_same_sources_have_the_same_digest_wherever_it_looks_twice(program: Path) -> None:
    assert _digest() == _digest()
    assert _digest() == _digest("--x", "1")


def test_a_changed_source_changes_it_and_data_that_nobody_names_does_not(program: Path) -> None:
    first, named = _digest(), _digest("--data=data.bin")
    (program / "data.bin").write_text("2")
    assert _digest() == first
    assert _digest("--data=data.bin") != named
    (program / "model.py").write_text("x = 2\n")
    assert _digest() != first


def test_runs_environments_and_hidden_folders_are_no_sources(program: Path) -> None:
    first = _digest()
    for folder in (".git", "perfscope-runs", "__pycache__", "env"):
        (program / folder).mkdir()
        (program / folder / "new.py").write_text("x = 1\n")
    assert _digest() != first
    (program / "env" / "pyvenv.cfg").write_text("")
    assert _digest() == first


def test_a_folder_that_is_too_large_is_not_told_apart(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_key, "MOST_FILES", 1)
    assert sources_digest(("train.py",), module=False) is None


def test_a_package_is_read_without_importing_it(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program / "pack").mkdir()
    (program / "pack" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(program))
    assert sources_digest(("pack.train",), module=True) is not None


def test_what_decides_the_program_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request("train.py", "--seq", "1")
    key = variant_key(request, "s")
    assert key == variant_key(request, "s")
    assert key == variant_key(msgspec.structs.replace(request, limits=Limits(seconds=9, memory_bytes=9)), "s")
    assert key == variant_key(msgspec.structs.replace(request, folder="elsewhere"), "s")
    others = [
        variant_key(request, "t"),
        variant_key(_request("train.py", "--seq", "2"), "s"),
        variant_key(_request("train.py", "--seq", "1", target="h200"), "s"),
        variant_key(_request("train.py", "--seq", "1", memory="40GiB"), "s"),
        variant_key(msgspec.structs.replace(request, functions=("step",)), "s"),
    ]
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_latency_hiding_scheduler=true")
    others.append(variant_key(request, "s"))
    assert len({key, *others}) == 7


def _job(folder: Path, program: str, text: str | None = None) -> Job:
    if text is not None:
        (folder / program).write_text(text)
    request = Request(
        framework="jax", arguments=(str(folder / program),), module=False,
        target=target_request(parse_target("h100"), configured=True),
        limits=Limits(seconds=60, memory_bytes=4 << 30), plugins=(),
    )  # fmt: skip
    return Job(request=request, root=str(folder / "runs"), settings={"a": "one"})


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the child process, which a test writes."""
    file = tmp_path / "child.py"
    monkeypatch.setattr(compiling, "CHILD", file)
    return file


DIES = """
import json, os, sys
if "deadly.py" in open(sys.argv[1]).read():
    os.kill(os.getpid(), 9)
os.write(int(sys.argv[2]), json.dumps({"event": "failed", "reason": "as it should"}).encode() + bytes([10]))
"""


def test_a_child_that_dies_is_a_reason_and_the_rest_goes_on(tmp_path: Path, child: Path) -> None:
    child.write_text(DIES)
    ended: dict[int, SweptVariant] = {}
    names = ["deadly.py", "a.py", "b.py"]
    run_jobs([_job(tmp_path, name, "") for name in names], ended.__setitem__, most_at_once=2)
    assert sorted(ended) == [0, 1, 2]
    assert {outcome.state for outcome in ended.values()} == {"failed"}
    assert "SIGKILL" in ended[0].reason
    assert all("as it should" in ended[number].reason for number in (1, 2))
    assert all(outcome.folder and outcome.seconds_to_compile is not None for outcome in ended.values())


HOLDS = """
import pathlib, sys, time
held = bytearray({mib} << 20) if {name!r} in open(sys.argv[1]).read() else b""
while held and not pathlib.Path({flag!r}).exists():
    time.sleep(0.05)
"""


def test_one_that_takes_too_much_alone_has_failed_and_the_rest_goes_on(tmp_path: Path, child: Path) -> None:
    child.write_text(HOLDS.format(mib=300, name="greedy", flag=str(tmp_path / "never")))
    ended: dict[int, SweptVariant] = {}
    jobs = [_job(tmp_path, "greedy.py", ""), _job(tmp_path, "modest.py", "")]
    run_jobs(jobs, ended.__setitem__, most_at_once=2, memory_bytes=200 << 20)
    assert "exceeds the allowed memory of this machine (0.2 GiB" in ended[0].reason
    assert "exceeds the allowed memory" not in ended[1].reason


def test_two_that_take_too_much_together_are_done_one_after_the_other(
    tmp_path: Path, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "JOB_BYTES", 1 << 20)
    rounds: list[tuple[int, ...]] = []
    real_round = pool._round

    def noted(jobs: Any, numbers: Any, *rest: Any) -> Any:
        rounds.append(tuple(sorted(numbers)))
        if len(rounds) == 2:
            (tmp_path / "one was ended").touch()
        return real_round(jobs, numbers, *rest)

    monkeypatch.setattr(pool, "_round", noted)
    child.write_text(HOLDS.format(mib=150, name="large", flag=str(tmp_path / "one was ended")))
    ended: dict[int, SweptVariant] = {}
    jobs = [_job(tmp_path, "large-a.py", ""), _job(tmp_path, "large-b.py", "")]
    run_jobs(jobs, ended.__setitem__, most_at_once=2, memory_bytes=260 << 20)
    assert rounds == [(0, 1), (0, 1)]
    assert sorted(ended) == [0, 1]
    assert all("exceeds the allowed memory" not in outcome.reason for outcome in ended.values())


def test_an_interrupt_ends_all(tmp_path: Path, child: Path) -> None:
    child.write_text(HOLDS.format(mib=1, name="large", flag=str(tmp_path / "never")))
    begun = time.monotonic()

    def interrupted(number: int, outcome: SweptVariant) -> None:
        raise KeyboardInterrupt

    jobs = [_job(tmp_path, "large.py", ""), _job(tmp_path, "short.py", "")]
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, interrupted, most_at_once=2)
    assert time.monotonic() - begun < jobs[0].request.limits.seconds
    manifests = [compile_manifest.load(file.parent) for file in (tmp_path / "runs").glob("*/compile.json")]
    assert {manifest.complete for manifest in manifests} == {False}
    assert any("interrupted" in note for manifest in manifests for note in manifest.notes)
