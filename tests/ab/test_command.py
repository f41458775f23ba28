"""``perfscope compare commits`` on its command line, with real commits and processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.ab.judge import AbJudge, AbResult
from perfscope.analyzers.compare.ab.profiles import Profiles, compare_profiles
from perfscope.commands.compare.commits import gates_not_met, inconclusive
from perfscope.dashboards.report.compare.json import ab_document, as_text
from perfscope.dashboards.report.compare.render import render_text
from perfscope.dashboards.report.compare.words import is_quiet
from perfscope.model.documents import comparison as compare_document
from perfscope.model.documents.ab import LAUNCHES_FILE, Pairs
from perfscope.model.trace import Trace
from tests.ab.repositories import git, repository, sleeps
from tests.ab.test_runner import plan
from tests.compare.runs import gpu_run
from tests.compare.test_ab import CALIBRATION, JUDGE, pairs
from tests.session.programs import plain

QUICK = ("--calibration", "0", "--pairs", "6", "--no-confirm", "--profile", "0")


def asked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return plain("-m", "perfscope", "compare", "--ab", *arguments, cwd=folder)


@pytest.mark.slow
def test_a_regression_fails_the_build_that_asked_for_it(tmp_path: Path) -> None:
    repository(tmp_path, sleeps(0.004), sleeps(0.016))
    done = asked(tmp_path, "--base", "HEAD~1", *QUICK, "--seed", "5", "--fail-on", "regression", "--", "train.py", "25")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("perfscope: regression: step time +")
    assert "order by seed 5" in done.stdout
    assert "no launch was profiled (--profile 0)" in done.stdout
    assert "perfscope: gate not met: step time: regression" in done.stderr
    assert "perfscope: pair 6 of 6" in done.stderr
    (folder,) = (tmp_path / "perfscope-runs").iterdir()
    held = json.loads((folder / "result.json").read_text())
    assert (held["schema"], held["headline"]) == ("perfscope.compare/1", "regression")
    assert held["metrics"][0]["verdict"] == "regression"
    assert held["failed"] == ["step time: regression"]
    assert held["method"]["base_commit"] == git(tmp_path, "rev-parse", "HEAD~1").strip()
    assert len(held["method"]["launches"]) == 12
    assert str(tmp_path) not in (folder / "result.json").read_text()
    assert git(tmp_path, "worktree", "list").count("\n") == 1

    # A complete result: resuming it starts nothing and prints the same.
    launches = (folder / LAUNCHES_FILE).read_bytes()
    again = asked(tmp_path, "--resume", str(folder), "--json", "-", "-q", "--", "train.py", "25")
    assert again.returncode == 0, "no gate was asked for"
    assert json.loads(again.stdout) == {**held, "failed": [], "gates": []}
    assert (again.stderr, (folder / LAUNCHES_FILE).read_bytes()) == ("", launches)
    other = asked(tmp_path, "--resume", str(folder), "--", "other.py")
    assert other.returncode == 2
    assert "began with another program" in other.stderr


@pytest.mark.slow
def test_the_reverse_is_an_improvement_and_two_pairs_settle_nothing(tmp_path: Path) -> None:
    repository(tmp_path, sleeps(0.004), sleeps(0.016))
    done = asked(tmp_path, "--base", "HEAD", "--head", "HEAD~1", *QUICK, "--fail-on", "regression", "train.py", "25")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("perfscope: improvement: step time -")
    few = asked(
        tmp_path, "--base", "HEAD", "--pairs", "2", "--calibration", "0", "--least", "0.01", "--strict",
        "--profile", "0", "train.py",
    )  # fmt: skip
    assert few.returncode == 3, few.stdout
    assert "inconclusive" in few.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("train.py",), 2, "--base REF"),
        (("--base", "HEAD"), 2, "nothing to run"),
        (("--base", "nowhere", "train.py"), 2, "nowhere: not a commit"),
        (("--base", "HEAD", "--pairs", "1", "train.py"), 2, "--pairs"),
        (("--base", "HEAD", "missing.py"), 4, "base (HEAD): exit code 2"),
        (("--base", "HEAD", "--link", "nothing", "train.py"), 2, "--link nothing: no such file"),
        (("--resume", "nothing", "train.py"), 4, "no such file"),
        (("--base", "HEAD", "--", "no-such-tool"), 125, "no-such-tool: no such command"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    repository(tmp_path)
    done = asked(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert git(tmp_path, "worktree", "list").count("\n") == 1


def test_outside_of_a_checkout(tmp_path: Path) -> None:
    done = asked(tmp_path, "--base", "HEAD", "train.py")
    assert done.returncode == 2
    assert "not in a git checkout" in done.stderr


TEN_PAIRS_JUDGE = AbJudge(pairs=10, least=0.02)
QUIET = TEN_PAIRS_JUDGE.result(Pairs(calibration=CALIBRATION, measured=pairs(6), confirming=()))
WORSE = TEN_PAIRS_JUDGE.result(
    Pairs(calibration=CALIBRATION, measured=pairs(6, 0.06), confirming=pairs(6, 0.05, seed=1))
)


def profiles(base: Trace, head: Trace) -> Profiles:
    return compare_profiles([(Path("base"), Path("head"))], read=lambda path: [base if path.name == "base" else head])


def made(result: AbResult, found: Profiles = Profiles(), **more: Any) -> dict[str, Any]:  # noqa: B008 (it is frozen)
    held = ab_document(result, plan(**more), found)
    compare_document.parse(as_text(held).encode(), "it")  # what we write can be read
    return held


def test_a_regression_with_its_cause() -> None:
    held = made(WORSE, profiles(gpu_run(), gpu_run(item=True)), profile=1)
    assert held["headline"] == "regression"
    assert held["summary"].startswith("regression: step time +5.5% (")
    assert [held["metrics"][0][key] for key in ("name", "verdict", "gates", "confirmed")] == [
        "step time", "regression", True, True,
    ]  # fmt: skip
    syncs = next(one for one in held["metrics"] if one["name"] == "host syncs per step")
    assert (syncs["verdict"], syncs["gates"]) == ("regression", True)
    assert held["causes"][0]["place"] == "train.py:11"
    assert [one["name"] for one in held["beside"]] == ["step time, mean", "step time, p90", "step time (profiled)"]
    assert not any(one["gates"] for one in held["beside"])
    assert held["step"]["delta_ns"] == held["step"]["head_ns"] - held["step"]["base_ns"]
    (note,) = [one for one in held["notes"] if one.startswith("the step itself changed by +5.5%")]
    assert "(12 pairs of launches without a profiler)" in note
    assert "the parts sum to the second" in note
    method = held["method"]
    assert (method["kind"], method["pairs"], method["confirming_pairs"], method["profiled"]) == (
        "launches in turns", 6, 6, 1,
    )  # fmt: skip
    assert (method["base_ref"], method["base_commit"], method["seed"]) == ("main", "a" * 40, 7)
    assert len(method["launches"]) == 34
    text = render_text(compare_document.of(held))
    assert text.startswith("perfscope: regression: step time +5.5%")
    assert "train.py:11" in text
    assert "6 pairs of launches and 6 to confirm" in text


def test_an_exact_regression_alone_is_one_though_the_step_is_quiet() -> None:
    held = made(QUIET, profiles(gpu_run(), gpu_run(item=True)), profile=1)
    assert (held["metrics"][0]["verdict"], held["headline"]) == ("no change", "regression")
    back = made(QUIET, profiles(gpu_run(item=True), gpu_run()), profile=1)
    assert back["headline"] == "improvement"


def test_without_a_change_it_is_quiet() -> None:
    held = made(QUIET, profiles(gpu_run(), gpu_run()), profile=1)
    assert held["headline"] == "no change"
    assert not any(one["exact"] for one in held["causes"])


@pytest.mark.parametrize(
    ("lost", "asked", "reason"),
    [
        ((), 0, "no launch was profiled (--profile 0)"),
        ((), 1, "no profiled pair is complete yet"),
        (
            ("profiled launch of head: exit code 1: no space left",),
            1,
            "profiled launch of head: exit code 1: no space left",
        ),
    ],
)
def test_without_profiles_the_verdict_stands_and_the_cause_was_not_looked_for(
    lost: tuple[str, ...], asked: int, reason: str
) -> None:
    held = made(WORSE, Profiles(lost=lost), profile=asked)
    assert (held["headline"], held["step"], held["causes"], held["findings"]) == ("regression", None, [], [])
    (said,) = held["not_looked"]
    assert (said["reason"], said["sides"]) == (reason, ["base", "head"])
    assert "Not compared" in render_text(compare_document.of(held))


def test_of_several_pairs_those_that_are_lost_are_told() -> None:
    found = replace(profiles(gpu_run(), gpu_run()), lost=("head-2: damaged",))
    assert {"name": "profiled pairs beyond 1", "reason": "head-2: damaged", "sides": ["base", "head"]} in made(
        QUIET, found, profile=2
    )["not_looked"]


def test_paths_of_worktrees_are_those_of_the_repository() -> None:
    def run(arm: str, item: bool) -> Trace:
        return gpu_run(file=f"/tmp/perfscope-ab-x1y2z3/{arm}/pkg/train.py", item=item)

    held = made(WORSE, profiles(run("base", False), run("head", True)), profile=1)
    assert "perfscope-ab-" not in json.dumps(held)
    assert held["causes"][0]["place"] == "pkg/train.py:11"


def test_nothing_at_all_has_a_document_too() -> None:
    held = made(TEN_PAIRS_JUDGE.result(Pairs(calibration=(), measured=(), confirming=())))
    assert (held["headline"], held["metrics"][0]["base"]) == ("inconclusive", None)


def test_secrets_and_what_steers_a_terminal_are_not_shown() -> None:
    held = made(QUIET, command=("train.py", "--api-key", "hush"), base_ref="\x1b[31mred\nline")
    text = render_text(compare_document.of(held), verbose=True)
    assert "\x1b" not in text + json.dumps(held)
    assert "hush" not in text + json.dumps(held)


def test_a_module_is_named_as_one() -> None:
    assert made(QUIET, command=("pkg.train", "--lr", "1"), kind="module")["method"]["command"] == [
        "-m", "pkg.train", "--lr", "1",
    ]  # fmt: skip


def test_a_kernel_that_cannot_be_told_did_not_change() -> None:
    runs = [(Path(f"base-{number}"), Path(f"head-{number}")) for number in range(4)]
    found = compare_profiles(runs, read=lambda path: [gpu_run()])
    held = made(QUIET, found, profile=4)
    assert {one["verdict"] for one in held["kernels"]} == {"inconclusive"}
    document = compare_document.of(held)
    assert f"Kernels: 0 of {len(held['kernels'])} changed" in render_text(document)
    assert is_quiet(document)


ITEM = profiles(gpu_run(), gpu_run(item=True))
SAME = profiles(gpu_run(), gpu_run())
OPEN = JUDGE.result(Pairs(calibration=CALIBRATION, measured=pairs(10, spread=0.1), confirming=()))


@pytest.mark.parametrize(
    ("result", "found", "fail_on", "lines"),
    [
        (WORSE, SAME, ("regression",), ["step time: regression"]),
        (WORSE, ITEM, ("regression",), ["step time: regression", "host syncs per step: regression"]),
        (QUIET, ITEM, ("regression",), ["host syncs per step: regression"]),
        (QUIET, SAME, ("regression", "inconclusive", "finding:low"), []),
        (WORSE, Profiles(), ("regression", "finding:low"), ["step time: regression"]),
        (WORSE, ITEM, (), []),
        (OPEN, ITEM, ("inconclusive",), ["step time: inconclusive"]),
    ],
)
def test_what_fails_a_build(result: AbResult, found: Profiles, fail_on: tuple[str, ...], lines: list[str]) -> None:
    assert list(gates_not_met(result, found, fail_on)) == lines


def test_a_new_finding_fails_where_it_was_asked_for() -> None:
    assert any(": new, " in line for line in gates_not_met(QUIET, ITEM, ("finding:low",)))


def test_the_time_of_a_profiled_pair_was_not_meant_to_be_judged() -> None:
    assert ITEM.comparison is not None
    assert ITEM.comparison.inconclusive != (), "by itself it is not"
    assert list(inconclusive(QUIET, ITEM)) == []
    assert list(inconclusive(OPEN, Profiles())) == ["step time"]
