"""The order of launches of an A/B, with launches that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from perfscope.model.documents import ab
from perfscope.model.documents.ab import (
    LAUNCHES_FILE,
    PLAN_FILE,
    AbPlan,
    AbState,
    Arm,
    Decision,
    Launch,
    Pair,
    Pairs,
    Phase,
    begin,
    pairs_of,
)
from perfscope.model.documents.run import Process
from perfscope.model.errors import DataError, UsageError
from perfscope.profiler.ab.launch import merge_ranks
from perfscope.profiler.ab.runner import first_is_head, run_pairs

Happening = Callable[[int], str | None]


class Fake:
    """Starts nothing: ``happens(n)`` gives the failure of the n-th launch, or an exception to raise."""

    def __init__(self, happens: Happening = lambda number: None) -> None:
        self.happens = happens
        self.started: list[tuple[Arm, Phase, int, int]] = []

    def __call__(self, arm: Arm, phase: Phase, pair: int, slot: int) -> Launch:
        number = len(self.started)
        self.started.append((arm, phase, pair, slot))
        problem = self.happens(number)
        return Launch(
            arm=arm, phase=phase, pair=pair, slot=slot, seconds=2.0, code=int(problem is not None),
            step_ns=(1000,) * 20, steps_seen=22, problem=problem, run=f"run-{number}" if phase == "profile" else None,
        )  # fmt: skip


class Asked:
    """A judge that decides at a number of pairs."""

    def __init__(self, decisions: dict[int, Decision] | None = None) -> None:
        self.decisions = decisions or {}
        self.looked: list[int] = []

    def calibrated(self, pairs: Sequence[Pair]) -> str:
        return f"calibrated by {len(pairs)}"

    def look(self, calibration: Sequence[Pair], pairs: Sequence[Pair]) -> Decision:
        self.looked.append(len(pairs))
        return self.decisions.get(len(pairs), "go on")


def plan(**more: object) -> AbPlan:
    held: dict[str, object] = {
        "command": ("train.py",), "kind": "script", "base": "a" * 40, "head": "b" * 40, "base_ref": "main",
        "head_ref": "HEAD", "pairs": 8, "calibration": 2, "seed": 7, "least": 0.02,
    }  # fmt: skip
    return AbPlan(**{**held, **more})  # type: ignore[arg-type]


def resume(folder: Path) -> AbState:
    return ab.resume(folder, command=("train.py",), kind="script")


def compared(state: AbState, fake: Fake, judge: Asked | None = None) -> tuple[Pairs, list[str]]:
    told: list[str] = []
    return run_pairs(state, fake, judge or Asked(), announce=told.append), told


def test_each_phase_has_its_pairs(tmp_path: Path) -> None:
    fake = Fake()
    found, told = compared(begin(tmp_path, plan()), fake)
    assert fake.started[:2] == [("base", "warm", 0, 0), ("head", "warm", 0, 1)]
    assert {arm for arm, phase, *_ in fake.started if phase == "calibrate"} == {"base"}
    assert (len(found.calibration), len(found.measured), len(found.confirming)) == (2, 8, 0)
    assert all((base.arm, head.arm) == ("base", "head") for base, head in found.measured)
    assert "calibrated by 2" in told
    assert "base against itself: pair 1 of 2, 40 s left at most, and 32 s to confirm a change" in told
    assert "pair 1 of 8, 32 s left at most, and 32 s to confirm a change" in told


def test_the_order_inside_pairs_is_random_and_follows_the_seed(tmp_path: Path) -> None:
    orders = []
    for number, seed in enumerate((7, 7, 8)):
        folder = tmp_path / str(number)
        folder.mkdir()
        fake = Fake()
        compared(begin(folder, plan(seed=seed, pairs=20)), fake)
        orders.append([arm for arm, phase, _, slot in fake.started if phase == "measure" and slot == 0])
    assert orders[0] == orders[1] != orders[2]
    assert 4 <= orders[0].count("head") <= 16
    firsts = [first_is_head(seed, "measure", 3, 0) for seed in range(2000)]
    assert 900 < sum(firsts) < 1100


def test_the_judge_may_have_seen_enough(tmp_path: Path) -> None:
    judge = Asked({6: "stop"})
    found, _ = compared(begin(tmp_path, plan()), Fake(), judge)
    assert (len(found.measured), judge.looked) == (6, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(("at", "more"), [(3, 6), (8, 8)])
def test_a_change_is_confirmed_by_as_many_pairs_and_six_at_least(tmp_path: Path, at: int, more: int) -> None:
    found, told = compared(begin(tmp_path, plan()), Fake(), Asked({at: "confirm"}))
    assert (len(found.measured), len(found.confirming)) == (at, more)
    assert f"a change was found in {at} pairs; {more} more are to confirm it" in told


def test_without_confirmation_there_is_none(tmp_path: Path) -> None:
    found, _ = compared(begin(tmp_path, plan(confirm=False)), Fake(), Asked({6: "confirm"}))
    assert found.confirming == ()


def test_a_pair_runs_again_where_a_launch_fails(tmp_path: Path) -> None:
    fake = Fake(lambda number: "exit code 1: bad luck" if number == 9 else None)
    found, told = compared(begin(tmp_path, plan()), fake)
    assert len(found.measured) == 8
    assert len(fake.started) == 2 + 4 + 16 + 2
    assert any("its pair is run again: exit code 1: bad luck" in line for line in told)


def test_an_arm_that_fails_again_and_again_ends_it(tmp_path: Path) -> None:
    fake = Fake(lambda number: "killed by SIGSEGV: oops" if number > 9 else None)
    with pytest.raises(DataError, match=r"(base|head) \((main|HEAD)\): 3 launches failed: killed by SIGSEGV: oops"):
        compared(begin(tmp_path, plan()), fake)


def test_a_program_that_does_not_run_is_told_at_once(tmp_path: Path) -> None:
    fake = Fake(lambda number: "exit code 1: no data" if number == 1 else None)
    with pytest.raises(DataError, match=r"head \(HEAD\): exit code 1: no data"):
        compared(begin(tmp_path, plan()), fake)
    assert len(fake.started) == 2


@pytest.mark.parametrize("at", [1, 4, 7, 8, 13, 20])
def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path, at: int) -> None:
    """The same pairs in the same order as without an interruption; a launch without its partner is not half a pair."""
    whole_folder, folder = tmp_path / "whole", tmp_path / "broken"
    whole_folder.mkdir()
    folder.mkdir()
    whole, _ = compared(begin(whole_folder, plan()), Fake(), Asked({8: "confirm"}))

    def interrupt(number: int) -> str | None:
        if number == at:
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        compared(begin(folder, plan()), Fake(interrupt), Asked({8: "confirm"}))
    fake = Fake()
    found, _ = compared(resume(folder), fake, Asked({8: "confirm"}))
    assert len(found.measured) == len(whole.measured)
    assert len(found.confirming) == len(whole.confirming)
    kept = at - (at % 2)  # whole pairs, and the two that warm the arms up
    assert fake.started[0] != ("base", "warm", 0, 0) or at == 0
    assert len(fake.started) == 2 + 4 + 16 + 16 - (kept if at > 1 else at)
    before = [(launch.arm, launch.slot) for pair in whole.measured for launch in pair]
    after = [(launch.arm, launch.slot) for pair in found.measured for launch in pair]
    again = at // 2 - 3 if at % 2 else None  # its second attempt draws its order anew
    same = [one == other for index, (one, other) in enumerate(zip(before, after, strict=True)) if index // 2 != again]
    assert all(same)


def test_a_run_that_is_complete_starts_nothing_when_resumed(tmp_path: Path) -> None:
    compared(begin(tmp_path, plan()), Fake())
    fake = Fake()
    found, _ = compared(resume(tmp_path), fake)
    assert fake.started == []
    assert len(found.measured) == 8


def test_launches_that_are_no_neighbours_are_no_pair() -> None:
    fake = Fake()
    first, other, second = fake("base", "measure", 0, 0), fake("base", "measure", 1, 0), fake("head", "measure", 0, 1)
    assert pairs_of([first, other, second], "measure") == ()
    assert pairs_of([first, second], "measure") == ((first, second),)
    assert pairs_of([first, second], "confirm") == ()


def test_profiled_pairs_come_last_and_their_time_is_in_the_estimate(tmp_path: Path) -> None:
    fake = Fake()
    found, told = compared(begin(tmp_path, plan(profile=2)), fake, Asked({3: "confirm"}))
    assert [phase for _, phase, *_ in fake.started[-4:]] == ["profile"] * 4
    assert [(base.arm, head.arm, base.pair) for base, head in found.profiled] == [("base", "head", n) for n in (0, 1)]
    assert found.lost == ()
    # Two seconds a launch, twice that under capture until one was seen: it takes two as well.
    assert "pair 1 of 8, 48 s left at most, and 32 s to confirm a change" in told
    assert "confirming: pair 6 of 6, 20 s left at most" in told
    assert told[-1] == "profiling: pair 2 of 2, 4 s left at most"


def test_a_profile_that_fails_costs_the_cause_and_nothing_else(tmp_path: Path) -> None:
    fake = Fake(lambda number: "exit code 1: no space left" if number >= 2 + 4 + 16 else None)
    found, told = compared(begin(tmp_path, plan(profile=5)), fake)
    assert len(found.measured) == 8
    assert found.profiled == ()
    assert {one.problem for one in found.lost} == {"exit code 1: no space left"}
    assert len(fake.started) == 2 + 4 + 16 + 5, "none is tried again, and the arm is not given up"
    assert any("gave no profile, so its cause is not known from this pair: exit code 1" in line for line in told)
    again = Fake()
    found, _ = compared(resume(tmp_path), again)
    assert [phase for _, phase, *_ in again.started] == ["profile"] * 10, "the one who resumes may have made room"
    assert (len(found.profiled), found.lost) == (5, ())


def test_an_interrupted_profile_goes_on_with_whole_pairs(tmp_path: Path) -> None:
    def interrupt(number: int) -> str | None:
        if number == 2 + 4 + 16 + 3:
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        compared(begin(tmp_path, plan(profile=2)), Fake(interrupt))
    fake = Fake()
    found, _ = compared(resume(tmp_path), fake)
    assert [(phase, pair) for _, phase, pair, _ in fake.started] == [("profile", 1), ("profile", 1)]
    assert len(found.profiled) == 2


LAUNCH = Launch(
    arm="head", phase="measure", pair=3, slot=1, seconds=2.5, code=0, step_source="perfscope.step", steps_seen=9,
    step_ns=(10, 11), windows_ns=(80, 88), window_steps=8, exact={"steps": 9}, strays=("a",), problem="none",
)  # fmt: skip


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    state = begin(tmp_path, plan(links=("data",), timeout_s=60.0))
    state.add(LAUNCH)
    held = resume(tmp_path)
    assert held.plan == state.plan
    assert held.launches == [LAUNCH]
    assert LAUNCH.times_ns() == (10, 11), "per step"


def test_times_are_the_windows_where_there_are_some() -> None:
    alone = Launch(arm="base", phase="warm", pair=0, slot=0, seconds=1, code=0, step_ns=(5, 6))
    assert alone.times_ns() == (5, 6)


def test_a_line_that_was_not_finished_is_dropped(tmp_path: Path) -> None:
    begin(tmp_path, plan()).add(LAUNCH)
    with (tmp_path / LAUNCHES_FILE).open("ab") as stream:
        stream.write(b'{"arm": "base", "pha')
    state = resume(tmp_path)
    assert state.launches == [LAUNCH]
    state.add(LAUNCH)
    assert resume(tmp_path).launches == [LAUNCH, LAUNCH]


@pytest.mark.parametrize("line", ["[]", "{}", '{"arm": "tail"}', "nonsense", "[" * 100_000])
def test_a_damaged_line_is_one_clear_error(tmp_path: Path, line: str) -> None:
    begin(tmp_path, plan())
    (tmp_path / LAUNCHES_FILE).write_text(line + "\n")
    with pytest.raises(DataError, match=r"launches.jsonl: line 1 is not a valid launch"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "not valid JSON"), ("[]", "its schema is None"), ('{"schema": "perfscope.ab/9"}', "perfscope.ab/1"),
     ('{"schema": "perfscope.ab/1", "seed": "x"}', "ab.json: ")],
)  # fmt: skip
def test_a_damaged_plan_is_one_clear_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / PLAN_FILE).write_text(text)
    with pytest.raises(DataError, match=said):
        resume(tmp_path)


def test_a_folder_without_a_plan_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ab.json: no such file"):
        resume(tmp_path)


def test_another_program_is_not_gone_on_with(tmp_path: Path) -> None:
    begin(tmp_path, plan())
    with pytest.raises(UsageError, match=r"began with another program: train.py"):
        ab.resume(tmp_path, command=("other.py",), kind="script")


def test_secrets_of_the_command_stay_off_the_disk_and_are_there_again(tmp_path: Path) -> None:
    command = ("train.py", "--hf-token", "hush")
    begin(tmp_path, plan(command=command))
    assert "hush" not in (tmp_path / PLAN_FILE).read_text()
    assert ab.resume(tmp_path, command=command, kind="script").plan == plan(command=command)


def test_nothing_of_the_environment_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "tell-nobody")
    begin(tmp_path, plan()).add(LAUNCH)
    assert "tell-nobody" not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert set(json.loads((tmp_path / PLAN_FILE).read_text())) >= {"schema", "seed", "base", "head"}


def rank(number: int, *step_ns: int, world: int | None = 2, **more: object) -> Process:
    held: dict[str, object] = {"steps_seen": len(step_ns) + 2, **more}
    return Process(
        rank=number, directory=f"rank{number:05d}", world_size=world, untraced_step_ns=step_ns, **held  # type: ignore[arg-type]
    )  # fmt: skip


def test_each_step_is_as_long_as_that_of_the_slowest_rank() -> None:
    found = merge_ranks([rank(0, 5, 9, 5), rank(1, 7, 6, 5)])
    assert (found.step_ns, found.ranks, found.remark) == ((7, 9, 5), 2, None)


def test_windows_too() -> None:
    found = merge_ranks(
        [rank(0, 1, 1, windows_ns=(80, 90), window_steps=8), rank(1, 1, 2, windows_ns=(81, 70), window_steps=8)]
    )
    assert (found.windows_ns, found.window_steps, found.step_ns) == ((81, 90), 8, (1, 2))


def test_ranks_of_different_steps_are_told() -> None:
    found = merge_ranks([rank(0, 5, 5, 5, 5), rank(1, 9, 9)])
    assert (found.step_ns, found.ranks) == ((9, 9), 2)
    assert found.remark is not None
    assert "its 2 ranks took 4 to 6 steps" in found.remark
    assert "rank 1, the slowest, represents all" in found.remark


def test_processes_that_are_no_ranks_are_not_mixed() -> None:
    first, second = rank(0, 5, 5, world=None), rank(1, 9, 9, world=None)
    found = merge_ranks([first, second])
    assert (found.step_ns, found.ranks) == ((5, 5), 1)
    assert found.remark == "2 processes had steps: the times are of the first"
    assert merge_ranks([first]).remark is None


def test_without_steps_there_are_no_times() -> None:
    assert merge_ranks([rank(0, steps_seen=0)]).step_ns == ()
    assert merge_ranks([]).ranks == 1
