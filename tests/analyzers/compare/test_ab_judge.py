"""The judge of an A/B: looks, rejected launches, counters, remarks; and a whole comparison of two real commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.compare.ab_judge import AbJudge
from perfscope.profiler import ab, ab_state
from perfscope.profiler.ab_pairs import Arm, Launch, Pair, Pairs
from perfscope.profiler.ab_worktrees import checkout
from tests.conftest import REPOSITORY
from tests.profiler.ab_programs import git, repository, sleeps
from tests.profiler.test_ab import plan


def launch(arm: Arm, pair: int, level: float, *, seed: int, slot: int = 0, **more: object) -> Launch:
    rng = np.random.default_rng(seed)
    times = level * 1e6 * np.exp(0.01 * rng.standard_normal(60))
    held: dict[str, object] = {
        "seconds": 1.0, "code": 0, "step_source": "perfscope.step", "steps_seen": 62,
        "step_ns": tuple(int(time) for time in times),
    }  # fmt: skip
    return Launch(arm=arm, phase="measure", pair=pair, slot=slot, **{**held, **more})  # type: ignore[arg-type]


def pairs(count: int, change: float = 0.0, spread: float = 0.003, seed: int = 0, **head: object) -> tuple[Pair, ...]:
    rng = np.random.default_rng(seed)
    found = []
    for pair in range(count):
        levels = 10 * np.exp(spread * rng.standard_normal(2))
        base = launch("base", pair, levels[0], seed=1000 * seed + 2 * pair)
        other = launch("head", pair, levels[1] * (1 + change), seed=1000 * seed + 2 * pair + 1, slot=1, **head)
        found.append((base, other))
    return tuple(found)


CALIBRATION = pairs(5, seed=9)
JUDGE = AbJudge(pairs=10, least=0.02)


def test_it_looks_only_where_a_look_was_planned() -> None:
    found = pairs(10, change=0.1)
    assert [JUDGE.look(CALIBRATION, found[:done]) for done in range(1, 7)] == ["go on"] * 5 + ["confirm"]
    assert AbJudge(pairs=10, least=0.02, confirm=False).look(CALIBRATION, found[:6]) == "stop"


def test_it_stops_early_where_nothing_changed_and_at_the_end_where_it_cannot_tell() -> None:
    assert JUDGE.look(CALIBRATION, pairs(6)) == "stop"
    noisy = pairs(10, spread=0.1)
    assert [JUDGE.look(CALIBRATION, noisy[:done]) for done in (6, 10)] == ["go on", "stop"]
    result = JUDGE.result(Pairs(calibration=CALIBRATION, measured=noisy, confirming=()))
    assert result.step.verdict == "inconclusive"
    assert result.step.needed_pairs is not None
    assert result.step.needed_pairs > 10


def test_a_confirmed_regression_and_what_stands_beside_it() -> None:
    found = Pairs(calibration=CALIBRATION, measured=pairs(6, 0.06), confirming=pairs(6, 0.05, seed=1))
    result = JUDGE.result(found)
    assert (result.step.verdict, result.step.confirmed, result.step.pairs) == ("regression", True, 12)
    assert result.step.estimator == "median"
    assert result.step.level == pytest.approx(1 - 0.028), "two looks"
    assert [row.name for row in result.beside] == ["step time, mean", "step time, p90"], "sixty steps have no p99"
    assert result.step.gates is True
    phases = [row.phase for row in result.launches]
    assert (phases.count("measure"), len(phases)) == (10 + 12 + 12, 10 + 12 + 12), "they are all called so here"
    assert all(row.ns is not None and 9e6 < row.ns < 12e6 for row in result.launches)


def test_a_second_batch_that_does_not_agree_leaves_it_open() -> None:
    found = Pairs(calibration=CALIBRATION, measured=pairs(6, 0.06), confirming=pairs(6, 0.0, seed=1))
    assert JUDGE.result(found).step.verdict == "inconclusive"


def test_launches_that_never_settle_are_left_out_and_many_of_them_settle_nothing() -> None:
    falling = {"step_ns": tuple(int(time) for time in 1e7 * np.exp(-np.arange(60) / 40))}
    good = pairs(6, 0.06)
    one = (*good[:5], (good[5][0], launch("head", 5, 10, seed=5, slot=1, **falling)))
    result = JUDGE.result(Pairs(calibration=(), measured=one, confirming=()))
    assert result.step.pairs == 5
    assert any("1 of 6 pairs are not used: no steady state" in remark for remark in result.step.remarks)
    bad = tuple((base, launch("head", pair, 10, seed=5, slot=1, **falling)) for pair, (base, _) in enumerate(good[:3]))
    assert JUDGE.result(Pairs(calibration=(), measured=(*bad, *good[3:]), confirming=())).step.verdict == "inconclusive"
    nothing = JUDGE.result(Pairs(calibration=(), measured=bad, confirming=()))
    assert (nothing.step.verdict, nothing.step.pairs) == ("inconclusive", 0)


def test_counters_are_compared_exactly() -> None:
    counted = tuple(
        (base, launch("head", 0, 10, seed=1, slot=1, exact={"torch_compilations": 7, "peak_bytes_in_use": 1 << 30}))
        for base, _ in pairs(6)
    )
    more = tuple(
        (launch("base", 0, 10, seed=2, exact={"torch_compilations": 2, "peak_bytes_in_use": 1 << 30}), head)
        for _, head in counted
    )
    result = JUDGE.result(Pairs(calibration=(), measured=more, confirming=()))
    assert {row.name: row.verdict for row in result.gating[1:]} == {
        "peak memory in use": "no change",
        "compilations by torch.compile": "regression",
    }


def test_arms_that_take_different_numbers_of_steps_have_no_comparable_counters() -> None:
    found = pairs(6, steps_seen=80, exact={"torch_compilations": 7})
    result = JUDGE.result(Pairs(calibration=(), measured=found, confirming=()))
    assert len(result.gating) == 1
    assert any("base takes 62 steps and head 80" in remark for remark in result.remarks)


def test_a_machine_that_moves_meanwhile_is_told_and_pairs_bear_it() -> None:
    found = []
    for pair in range(10):
        level = 10 * (1 + 0.05 * pair)
        found.append(
            (launch("base", pair, level, seed=2 * pair), launch("head", pair, level, seed=2 * pair + 1, slot=1))
        )
    result = JUDGE.result(Pairs(calibration=CALIBRATION, measured=tuple(found), confirming=()))
    assert result.step.verdict == "no change"
    assert any(remark.startswith("environment changed: the base itself moved by +") for remark in result.remarks)


def test_arms_that_run_the_same_code_are_told() -> None:
    def remarks(counts: tuple[int | None, int | None]) -> tuple[str, ...]:
        found = tuple(
            (replace(base, changed_loaded=counts[0]), replace(head, changed_loaded=counts[1]))
            for base, head in pairs(6)
        )
        return JUDGE.result(Pairs(calibration=(), measured=found, confirming=())).remarks

    assert any("the same code ran twice" in remark for remark in remarks((0, 0)))
    for counts in ((0, 1), (1, 1), (None, None)):
        assert remarks(counts) == ()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "code"


def compared(folder: Path, commits: tuple[str, str], pairs: int = 6) -> tuple[Pairs, AbJudge]:
    os.chdir(folder)
    state_folder = folder.parent / "state"
    state_folder.mkdir()
    asked = plan(command=("train.py", "30"), base=commits[0], head=commits[1], pairs=pairs, calibration=0)
    judge = AbJudge(pairs=pairs, least=0.02)
    return ab.compare(ab_state.begin(state_folder, asked), checkout(), judge), judge


@pytest.mark.slow
def test_a_commit_that_sleeps_three_times_as_long_is_a_regression(code: Path) -> None:
    """Two commits in a real repository, real processes; the change is far above what any machine adds."""
    commits = repository(code, sleeps(0.004), sleeps(0.012))
    found, judge = compared(code, commits)
    result = judge.result(found)
    assert (result.step.verdict, result.step.confirmed) == ("regression", True), result.step
    assert result.pairs == result.confirming == 6
    assert {launch.changed_loaded for pair in found.measured for launch in pair} == {1}
    assert not any("same code" in remark for remark in result.remarks)
    assert git(code, "worktree", "list").count("\n") == 1


def test_a_package_that_both_arms_take_from_the_checkout_is_refused(code: Path) -> None:
    from perfscope.profiler.errors import DataError

    program = f"import sys\nsys.path.insert(0, {str(code)!r})\n"
    commits = repository(code)
    (code / "train.py").write_text(program + (code / "train.py").read_text())
    git(code, "commit", "-qam", "strays")
    head = git(code, "rev-parse", "HEAD").strip()
    with pytest.raises(DataError, match="work came from the checkout, not from the commit of base"):
        compared(code, (head, commits[1]))
    assert git(code, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_interrupted_leaves_no_worktree_and_no_process_and_goes_on(
    code: Path, number: signal.Signals
) -> None:
    commits = repository(code, sleeps(0.02), sleeps(0.02))
    state = code.parent / "state"
    state.mkdir()
    scratch = code.parent / "scratch"
    scratch.mkdir()
    program = f"""
from pathlib import Path
from perfscope.analyzers.compare.ab_judge import AbJudge
from perfscope.profiler import ab, ab_state
from perfscope.profiler.ab_worktrees import checkout
from tests.profiler.test_ab import plan
state = Path({str(state)!r})
asked = plan(command=("train.py", "30"), base={commits[0]!r}, head={commits[1]!r}, pairs=3, calibration=0)
again = {{"command": ("train.py", "30"), "kind": "script"}}
held = ab_state.resume(state, **again) if (state / "ab.json").exists() else ab_state.begin(state, asked)
judge = AbJudge(pairs=3, least=0.02, confirm=False)
found = ab.compare(held, checkout(), judge, tell=lambda line: print(line, flush=True))
print("done", len(found.measured), flush=True)
"""
    environment = {**os.environ, "TMPDIR": str(scratch)}
    child = subprocess.Popen(
        [sys.executable, "-c", program], cwd=code, env=environment, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("pair 2"):
            break
    time.sleep(0.3)
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode != 0
    assert git(code, "worktree", "list").count("\n") == 1
    assert list(scratch.iterdir()) == []
    kept = len(ab_state.resume(state, command=("train.py", "30"), kind="script").launches)
    assert kept >= 4
    done = subprocess.run([sys.executable, "-c", program], cwd=code, env=environment, capture_output=True, text=True)
    assert "done 3" in done.stdout, done.stderr
    assert "warming up" not in done.stdout
