"""When the machine explains a change, and when the program itself moved the counter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.ab.environment import Environment, environment_of
from perfscope.analyzers.compare.ab.judge import AbJudge
from perfscope.analyzers.compare.ab.profiles import Profiles, compare_profiles
from perfscope.model.documents import ab as ab_state
from perfscope.model.documents.ab import Arm, Launch, Pair, Pairs
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.profiler.ab import runner
from perfscope.profiler.ab.worktrees import checkout
from tests.ab.repositories import git, repository, sleeps
from tests.ab.test_runner import plan
from tests.compare.runs import gpu_run
from tests.conftest import REPOSITORY


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
    assert result.step.level == pytest.approx(1 - 0.0125), "of both batches"
    assert [row.name for row in result.secondary] == ["step time, mean", "step time, p90"], "sixty steps have no p99"
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


def run_comparison(folder: Path, commits: tuple[str, str], pairs: int = 6) -> tuple[Pairs, AbJudge]:
    os.chdir(folder)
    state_folder = folder.parent / "state"
    state_folder.mkdir()
    asked = plan(command=("train.py", "30"), base=commits[0], head=commits[1], pairs=pairs, calibration=0)
    judge = AbJudge(pairs=pairs, least=0.02)
    return runner.compare(ab_state.begin(state_folder, asked), checkout(), judge), judge


@pytest.mark.slow
def test_a_commit_that_sleeps_three_times_as_long_is_a_regression(code: Path) -> None:
    """Two commits in a real repository, real processes; the change is far above what any machine adds."""
    commits = repository(code, sleeps(0.004), sleeps(0.012))
    found, judge = run_comparison(code, commits)
    result = judge.result(found)
    assert (result.step.verdict, result.step.confirmed) == ("regression", True), result.step
    assert result.pairs == result.confirming == 6
    assert {launch.changed_loaded for pair in found.measured for launch in pair} == {1}
    assert not any("same code" in remark for remark in result.remarks)
    assert git(code, "worktree", "list").count("\n") == 1


def test_a_package_that_both_arms_take_from_the_checkout_is_refused(code: Path) -> None:
    from perfscope.model.errors import DataError

    program = f"import sys\nsys.path.insert(0, {str(code)!r})\n"
    commits = repository(code)
    (code / "train.py").write_text(program + (code / "train.py").read_text())
    git(code, "commit", "-qam", "strays")
    head = git(code, "rev-parse", "HEAD").strip()
    with pytest.raises(DataError, match="work came from the checkout, not from the commit of base"):
        run_comparison(code, (head, commits[1]))
    assert git(code, "worktree", "list").count("\n") == 1


@pytest.mark.slow
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
from perfscope.analyzers.compare.ab.judge import AbJudge
from perfscope.model.documents import ab as ab_state
from perfscope.profiler.ab import runner
from perfscope.profiler.ab.worktrees import checkout
from tests.ab.test_runner import plan
state = Path({str(state)!r})
asked = plan(command=("train.py", "30"), base={commits[0]!r}, head={commits[1]!r}, pairs=3, calibration=0)
again = {{"command": ("train.py", "30"), "kind": "script"}}
held = ab_state.resume(state, **again) if (state / "ab.json").exists() else ab_state.begin(state, asked)
judge = AbJudge(pairs=3, least=0.02, confirm=False)
found = runner.compare(held, checkout(), judge, announce=lambda line: print(line, flush=True))
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


Counters = dict[str, tuple[float, float]]
"""Name -> (base, head)."""


def with_counters(found: tuple[Pair, ...], held: Counters, spread: float = 0.002) -> tuple[Pair, ...]:
    rng = np.random.default_rng(3)

    def one(launch: Launch, arm: int) -> Launch:
        noise = 1 + spread * rng.standard_normal()
        return replace(launch, machine={name: sides[arm] * noise for name, sides in held.items()})

    return tuple((one(base, 0), one(head, 1)) for base, head in found)


def judged(change: float, held: Counters, count: int = 8) -> Environment:
    found = with_counters(pairs(count, change), held)
    step = JUDGE._step(JUDGE.result(Pairs(calibration=CALIBRATION, measured=found, confirming=())).estimator, found)
    assert step.verdict == ("regression" if change > 0 else "improvement" if change < 0 else "no change")
    return environment_of(found, step, least=0.02)


@pytest.mark.parametrize(
    ("change", "held"),
    [
        (0.08, {"gpu_mhz": (1980, 1800)}),
        (-0.08, {"gpu_mhz": (1800, 1980)}),
        (0.08, {"gpu_mhz": (1980, 1860)}),  # 6.5% of 8%: what remains does not matter
        (0.08, {"gpu_mhz": (1980, 1800), "gpu_capped_share": (0.1, 0.2)}),
        (0.08, {"cpu_mhz": (3000, 2700), "own_cpus": (0.98, 0.98)}),
        (0.08, {"steal_share": (0.01, 0.10), "own_cpus": (0.95, 0.88)}),
        (0.08, {"throttled_share": (0.02, 0.2)}),
    ],
)
def test_a_counter_that_is_enough_explains_the_change(change: float, held: Counters) -> None:
    found = judged(change, held)
    assert found.voids is not None
    assert found.voids.startswith("environment changed: ")
    assert f"{change:+.0%}"[:2] in found.voids


@pytest.mark.parametrize(
    ("change", "held", "why"),
    [
        (0.08, {"gpu_mhz": (1980, 1900)}, "4% of clock do not make 8%"),
        (0.08, {"gpu_mhz": (1800, 1980)}, "the slower arm had the higher clock"),
        (0.08, {"gpu_mhz": (1980, 1800), "gpu_capped_share": (0.9, 0.95)}, "its own power set the clock"),
        (0.08, {"cpu_mhz": (3000, 2700), "own_cpus": (0.98, 0.80)}, "it waits more, so processors are idle"),
        (0.08, {"throttled_share": (0.02, 0.2), "own_cpus": (0.5, 0.6)}, "it asks for more than the quota"),
        (0.08, {"steal_share": (0.01, 0.10), "own_cpus": (0.5, 0.6)}, "it asks for more"),
        (0.08, {"others_share": (0.1, 0.5)}, "a program that waits leaves time to others"),
        (0.08, {"gpu_celsius": (40, 80)}, "heat slows nothing by itself: clocks do"),
        (0.08, {"gpu_mhz": (1980, 1980)}, "nothing differs"),
        (0.0, {"gpu_mhz": (1980, 1800)}, "there is nothing to explain"),
        (0.08, {}, "nobody looked"),
    ],
)
def test_what_is_too_little_or_the_programs_own_explains_nothing(change: float, held: Counters, why: str) -> None:
    assert judged(change, held).voids is None, why


def test_a_counter_that_only_happens_to_differ_explains_nothing() -> None:
    found = list(with_counters(pairs(8, 0.08), {"gpu_mhz": (1980, 1980)}))
    base, head = found[0]
    found[0] = (base, replace(head, machine={"gpu_mhz": 900.0}))  # one launch of eight
    step = JUDGE._step(JUDGE.result(Pairs(calibration=(), measured=tuple(found), confirming=())).estimator, found)
    assert environment_of(found, step, least=0.02).voids is None


def test_few_pairs_say_nothing_of_counters() -> None:
    found = with_counters(pairs(4, 0.08), {"gpu_mhz": (1980, 1800)})
    step = JUDGE._step(JUDGE.result(Pairs(calibration=(), measured=found, confirming=())).estimator, found)
    assert environment_of(found, step, least=0.02).voids is None


def test_the_verdict_of_the_step_is_left_open_and_says_why() -> None:
    counters: Counters = {"gpu_mhz": (1980, 1800)}
    measured = with_counters(pairs(6, 0.08), counters)
    result = JUDGE.result(
        Pairs(calibration=CALIBRATION, measured=measured, confirming=with_counters(pairs(6, 0.08, seed=1), counters))
    )
    assert (result.step.verdict, result.step.confirmed) == ("inconclusive", False)
    said = [one for one in result.step.remarks if one.startswith("environment changed: the clock of the GPU was ")]
    assert re.search(r"was 19[78]\d MHz under base and (1[78]|179)\d\d? MHz under head \(p ", said[0]), said
    quiet = AbJudge(pairs=10, least=0.02).result(
        Pairs(calibration=CALIBRATION, measured=with_counters(pairs(6, 0.08), {}), confirming=())
    )
    assert quiet.step.verdict == "regression"


def remarks_on(values: Callable[[int], float], name: str = "cpu_mhz", count: int = 12) -> tuple[str, ...]:
    found = [
        tuple(replace(one, machine={name: values(number)}) for one in pair) for number, pair in enumerate(pairs(count))
    ]
    result = JUDGE.result(Pairs(calibration=CALIBRATION, measured=tuple(found), confirming=()))  # type: ignore[arg-type]
    return tuple(one for one in result.remarks if "in the course" in one)


def test_what_moves_over_time_is_told() -> None:
    (said,) = remarks_on(lambda number: 3000 - 60 * number)
    assert "the clock of the processors went from 2910 MHz to 2430 MHz" in said
    assert remarks_on(lambda number: 3000 - 2 * number) == (), "0.5% is too little to be told"
    assert remarks_on(lambda number: (3000, 2000)[number % 2]) == (), "it swings, it does not move"
    (said,) = remarks_on(lambda number: 0.02 * number, "throttled_share")
    assert "quota of the control group was used up went from 3.0% to 19.0%" in said


def facts(
    base: dict[str, str], head: dict[str, str], count: int = 6, later: dict[str, str] | None = None
) -> Environment:
    found = []
    for number, pair in enumerate(pairs(count, 0.08)):
        sides = (later, later) if later is not None and number >= count // 2 else (base, head)
        found.append(tuple(replace(one, environment=side) for one, side in zip(pair, sides, strict=True)))
    result = JUDGE.result(Pairs(calibration=(), measured=tuple(found), confirming=()))  # type: ignore[arg-type]
    return environment_of(found, result.step, least=0.02)  # type: ignore[arg-type]


def test_what_it_ran_on_is_compared() -> None:
    same = facts({"gpu": "1x A", "torch": "2.9"}, {"gpu": "1x A", "torch": "2.9"})
    assert (same.facts, same.remarks, same.voids) == ({"gpu": "1x A", "torch": "2.9"}, (), None)
    other = facts({"torch": "2.9"}, {"torch": "2.10"})
    assert other.facts == {"torch": "base 2.9, head 2.10"}
    assert "the change is its as much as the program's" in other.remarks[0]
    assert other.voids is None
    card = facts({"gpu": "1x A"}, {"gpu": "1x B"})
    assert card.voids is not None
    assert "both launches of a pair must run on the same" in card.voids
    first = facts({}, {"device": "NVIDIA H200"})
    assert first.voids is None, "the program moved to a device: that is its change"
    assert "device is base -, head NVIDIA H200" in first.remarks[0]
    moved = facts({"gpu": "1x A"}, {"gpu": "1x A"}, later={"gpu": "1x B"})
    assert moved.voids is None
    assert "gpu was 1x A, 1x B in the course of the comparison" in moved.remarks[0]


def test_a_machine_that_others_use_is_told() -> None:
    def remarks(share: float) -> tuple[str, ...]:
        found = with_counters(pairs(6), {"others_share": (share, share)})
        return JUDGE.result(Pairs(calibration=CALIBRATION, measured=found, confirming=())).remarks

    (said,) = remarks(0.5)
    assert said.startswith("other programs used 50% of the processors' time")
    assert remarks(0.1) == ()


def compare_pairs(*pairs: tuple[Trace, Trace], lost: Sequence[str] = ()) -> Profiles:
    held = {Path(f"runs/{side}-{number}"): pair[at] for number, pair in enumerate(pairs)
            for at, side in enumerate(("base", "head"))}  # fmt: skip

    def read(path: Path) -> list[Trace]:
        return [held[path]]

    runs = [(Path(f"runs/base-{number}"), Path(f"runs/head-{number}")) for number in range(len(pairs))]
    return compare_profiles(runs, lost, read=read)


def test_one_pair_is_compared_as_two_runs_are() -> None:
    found = compare_pairs((gpu_run(), gpu_run(item=True)))
    assert found.comparison is not None
    assert found.comparison.headline == "regression"
    assert found.comparison.causes[0].place == "train.py:11"
    assert (found.used, found.kernels, found.lost) == (1, (), ())


def test_a_metric_that_launches_of_one_commit_do_not_agree_on_concludes_nothing() -> None:
    odd = (gpu_run(item=True), gpu_run(item=True))
    found = compare_pairs((gpu_run(), gpu_run(item=True)), odd, (gpu_run(), gpu_run(item=True)))
    assert found.comparison is not None
    (syncs,) = [one.result for one in found.comparison.exact if one.result.name == "host syncs per step"]
    assert syncs.verdict == "inconclusive"
    assert any("differs between launches of base: 0 to 1" in remark for remark in syncs.remarks)
    assert found.comparison.gates(["regression"]) == ()
    agreed = compare_pairs((gpu_run(), gpu_run(item=True)), (gpu_run(), gpu_run(item=True)))
    assert agreed.comparison is not None
    assert agreed.comparison.gates(["regression"]) == ("host syncs per step: regression",)


def test_the_pair_in_the_middle_is_shown() -> None:
    base = gpu_run(steps=1, slow_us=1000)  # its work ends after its step
    found = compare_pairs(*((base, gpu_run(steps=1, slow_us=1000 + slow)) for slow in (0, 300, 60)))
    assert found.comparison is not None
    assert found.comparison.time is not None
    moved = [part.delta_ns for part in found.comparison.time.median.parts if part.kind == "compute" and part.delta_ns]
    assert moved == [60_000]


def test_kernels_are_judged_from_four_pairs_on() -> None:
    pairs = [(gpu_run(slow_us=0.1 * number), gpu_run(slow_us=40 + 0.2 * number)) for number in range(4)]
    assert compare_pairs(*pairs[:3]).kernels == ()
    found = compare_pairs(*pairs)
    assert (found.kernels[0].name, found.kernels[0].verdict) == ("aten::mm", "regression")
    assert found.kernels[0].q is not None
    assert found.kernels[0].change_ns == pytest.approx(40_150, abs=100)
    assert {one.verdict for one in found.kernels[1:]} <= {"inconclusive"}


def test_a_pair_that_cannot_be_read_is_told_without_our_folder() -> None:
    def read(path: Path) -> list[Trace]:
        if path.name == "head-0":
            raise DataError(f"{path}: damaged")
        return [gpu_run()]

    runs = [(Path("runs/base-0"), Path("runs/head-0")), (Path("runs/base-1"), Path("runs/head-1"))]
    found = compare_profiles(runs, ["profiled launch of base: exit code 1"], read=read)
    assert (found.used, found.lost) == (1, ("profiled launch of base: exit code 1", "head-0: damaged"))
    nothing = compare_profiles(runs[:1], read=read)
    assert (nothing.comparison, nothing.lost) == (None, ("head-0: damaged",))
