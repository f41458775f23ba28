"""The order of the launches of a try, without a process."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.model.documents.ab import AbPlan, Launch
from perfscope.model.errors import DataError
from perfscope.plugins.trials import launches as module
from perfscope.plugins.trials.command import _ordered
from perfscope.plugins.trials.interventions import load_intervention
from perfscope.plugins.trials.judge import Promise, TrialJudge
from perfscope.plugins.trials.launches import TrialPlan, Trials
from perfscope.profiler.ab.launch import Changes
from perfscope.profiler.launch.program import Target
from tests.plugins.trials.launches import launch, report

PLAN = AbPlan(
    command=("train.py",),
    kind="script",
    base="baseline",
    head="",
    base_ref="baseline",
    head_ref="",
    pairs=6,
    calibration=1,
    seed=1,
    least=0.02,
    confirm=False,
)


class Program:
    """Stands for the program: how long its steps take, and what it computes, by the interventions in effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **factors: float) -> None:
        self.factors = {name.replace("_", "-"): factor for name, factor in factors.items()}
        self.losses: dict[str, float] = {}
        self.unapplied: set[str] = set()
        self.failing: set[str] = set()
        self.launches: list[tuple[str, ...]] = []
        self.count = 0
        monkeypatch.setattr(module, "launch_once", self.launch)

    def launch(self, _target: object, _folder: object, *, changes: Changes, **settings: object) -> Launch:
        names = tuple(changes.settings["interventions"])
        self.launches.append(names)
        self.count += 1
        factor = 1.0 + 0.001 * (self.count % 3)
        for name in names:
            factor *= self.factors.get(name, 1.0)
        loss = next((self.losses[name] for name in names if name in self.losses), 3.0)
        applied = [name for name in names if name not in self.unapplied]
        losses = (loss,) if changes.settings["record_steps"] else ()
        fields = {name: settings[name] for name in ("arm", "phase", "pair", "slot")}
        problem = "exit code 1: boom" if self.failing & set(names) else None
        return launch(**fields, ms=10 * factor, reports=(report(*losses, applied=applied),), problem=problem)  # type: ignore[arg-type]


def trials(folder: Path, **more: object) -> Trials:
    plan = TrialPlan(target=Target(arguments=("train.py",)), directory=folder, ab=PLAN, record_steps=2)
    return Trials(replace(plan, **more), TrialJudge(pairs=6, least=0.02), announce=lambda line: None)  # type: ignore[arg-type]


def tried(made: Trials, *names: str) -> dict[str, str | None]:
    made.baseline()
    made.try_all([load_intervention(name) for name in names])
    made.try_helpful()
    return {attempt.intervention.name: attempt.stop for attempt in made.attempts}


def test_each_is_launched_against_the_program_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch, fused_optimizer=0.8, gc_freeze=0.9)
    made = trials(tmp_path)
    assert tried(made, "fused-optimizer", "gc-freeze", "pin-memory") == {
        "fused-optimizer": None,
        "gc-freeze": None,
        "pin-memory": "not applicable",
    }
    alone = [names for names in program.launches if names == ("fused-optimizer",)]
    assert len(alone) == 1 + 4, "one that records values, and four pairs"
    assert program.launches.count(()) == 2 + 2 + 3 * 4, "values twice, a calibration pair, and a partner in each pair"
    assert program.launches[:6] == [(), (), (), ("fused-optimizer",), *program.launches[4:6]], (
        "the first result is soon"
    )
    assert made.together is not None
    assert made.together.head == ("fused-optimizer", "gc-freeze")
    assert not any("pin-memory" in names for names in program.launches)


def test_a_ladder_keeps_what_helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Program(monkeypatch, fused_optimizer=0.8, gc_freeze=1.0, zero_grad_none=0.9)
    made = trials(tmp_path, ladder=True)
    tried(made, "fused-optimizer", "foreach-optimizer", "gc-freeze", "zero-grad-none")
    assert [(attempt.base, attempt.stop) for attempt in made.attempts] == [
        ((), None),
        (("fused-optimizer",), None),
        (("fused-optimizer",), None),
        (("fused-optimizer",), None),
    ]
    assert made.attempts[1].head == ("foreach-optimizer",), "in its place"
    assert [attempt.intervention.by_mean for attempt in made.attempts] == [False, False, True, False]
    assert made.together is not None
    assert made.together.head == ("fused-optimizer", "zero-grad-none")


def test_changed_results_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch, autocast_bf16=0.5)
    program.losses["autocast-bf16"] = 3.1
    made = trials(tmp_path)
    assert tried(made, "autocast-bf16") == {"autocast-bf16": "rejected"}
    assert program.launches.count(("autocast-bf16",)) == 1
    assert made.together is None


def test_what_found_nothing_to_change_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch)
    program.unapplied.add("loader-workers")
    assert tried(trials(tmp_path), "loader-workers") == {"loader-workers": "not applied"}


def test_an_intervention_that_breaks_the_program_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch)
    program.failing.add("gc-off")
    made = trials(tmp_path)
    assert tried(made, "gc-off", "gc-freeze") == {"gc-off": "failed", "gc-freeze": None}
    assert made.attempts[0].reason == "exit code 1: boom"


def test_a_program_that_fails_by_itself_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch)
    monkeypatch.setattr(module, "launch_once", lambda *_, **settings: replace(launch(), problem="exit code 2: gone"))
    assert program.count == 0
    with pytest.raises(DataError, match="exit code 2: gone"):
        trials(tmp_path).baseline()


def test_settings_that_cost_are_looked_for_in_one_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch)
    program.unapplied.add("zero-grad-none")
    made = trials(tmp_path)
    made.baseline()
    before = len(program.launches)
    every = [load_intervention(name) for name in ("compile", "debug-off", "jax-debug-off", "zero-grad-none")]
    assert made.evident(every) == ("debug-off",)
    assert program.launches[before:] == [("debug-off", "zero-grad-none")]


def test_the_budget_leaves_out_what_would_not_end_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Program(monkeypatch)
    short = time.monotonic() + 10  # a launch takes 2.3 s, so that four pairs take 21 s
    made = trials(tmp_path, deadline=short)
    assert tried(made, "gc-freeze") == {"gc-freeze": "not reached"}
    assert made.attempts[0].reason.endswith("it takes 1 min")


def test_settings_that_were_not_found_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Program(monkeypatch)
    made = trials(tmp_path)
    made.baseline()
    promised = {"unfused_optimizer": Promise(findings=1, ns=1_000_000)}  # zero-grad-none answers it
    found = promised | {"zero-grad-none": Promise(findings=1, ns=None)}
    for known, every, is_tried in ((promised, False, False), (found, False, True), (promised, True, True)):
        names = [one.name for one in _ordered(made, None, known, every=every)]
        assert ("zero-grad-none" in names) is is_tried
        assert "fused-optimizer" in names


@pytest.mark.slow
def test_pairs_grow_until_the_answer_is_clear_or_they_would_not_give_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(monkeypatch)
    scatter = {"zero-grad-none": (0.35, 1.4, 0.6, 0.9), "gc-off": (0.3, 3.0)}
    whole = program.launch

    def launch(*given: object, changes: Changes, **settings: object) -> Launch:
        for name in changes.settings["interventions"]:
            factors = scatter[name]
            program.factors[name] = factors[program.count // 2 % len(factors)]
        return whole(*given, changes=changes, **settings)

    monkeypatch.setattr(module, "launch_once", launch)
    plan = TrialPlan(
        target=Target(arguments=("train.py",)),
        directory=tmp_path,
        ab=replace(PLAN, pairs=45),
        record_steps=2,
    )
    judge = TrialJudge(pairs=45, least=0.02)
    made = Trials(plan, judge, announce=lambda line: None)
    tried(made, "zero-grad-none", "gc-off")
    pairs = {attempt.intervention.name: len(attempt.pairs.measured) for attempt in made.attempts if attempt.pairs}
    assert judge.helped(made.attempts[0])
    assert 6 < pairs["zero-grad-none"] < 45
    assert 6 < pairs["gc-off"] < 45, "given up"


def test_each_has_its_share_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch)
    clock = [1000.0]
    whole = program.launch

    def launch(*given: object, changes: Changes, **settings: object) -> Launch:
        clock[0] += 2.3
        program.factors["gc-freeze"] = program.factors["gc-off"] = (0.3, 3.0, 1.0)[program.count // 2 % 3]
        return whole(*given, changes=changes, **settings)

    monkeypatch.setattr(module, "launch_once", launch)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    plan = TrialPlan(
        target=Target(arguments=("train.py",)),
        directory=tmp_path,
        ab=replace(PLAN, pairs=45),
        record_steps=2,
        deadline=1000.0 + 110,
    )
    made = Trials(plan, TrialJudge(pairs=45, least=0.02), announce=lambda line: None)
    made.baseline()
    made.try_all([load_intervention(name) for name in ("gc-freeze", "gc-off")])
    pairs = [len(attempt.pairs.measured) for attempt in made.attempts if attempt.pairs]
    assert [count >= 4 for count in pairs] == [True, True]
    assert sum(pairs) <= 22


def whole(made: Trials) -> dict[str, int]:
    return {one.intervention.name: len(one.pairs.measured) for one in made.attempts if one.pairs is not None}


def test_an_interrupted_try_keeps_its_pairs_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch, fused_optimizer=0.8)
    plain = program.launch

    def launch(*given: object, **settings: object) -> Launch:
        if program.count == 9:
            raise KeyboardInterrupt
        return plain(*given, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "launch_once", launch)
    made = trials(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tried(made, "fused-optimizer", "gc-freeze")
    assert whole(made) == {"fused-optimizer": 2}, "the third pair has one launch"
    before = list(program.launches)
    monkeypatch.setattr(module, "launch_once", plain)
    again = trials(tmp_path)
    assert tried(again, "fused-optimizer", "gc-freeze") == {"fused-optimizer": None, "gc-freeze": None}
    assert whole(again)["fused-optimizer"] == 4
    later = program.launches[len(before) :]
    assert later.count(("fused-optimizer",)) == 2, "neither its values nor its finished pairs again"
    assert again.unchanged.first.reports == made.unchanged.first.reports


def test_the_profile_of_an_interrupted_try_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.earlier_profile(tmp_path) is None
    monkeypatch.setattr(module, "why_nothing", lambda path: None if "whole" in path.name else "it was cut")
    for name in ("20260101-000000-base-1-cut", "20260101-000001-base-1-whole", "20260101-000002-base-1-cut2"):
        (tmp_path / name).mkdir()
    (tmp_path / "fused-optimizer").mkdir()
    assert module.earlier_profile(tmp_path) == "20260101-000001-base-1-whole"


def test_launches_end_early_but_those_of_a_gain_run_once_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(monkeypatch, fused_optimizer=0.8, gc_freeze=0.8, foreach_optimizer=0.8)
    plain, endings = program.launch, []

    def launch(*given: object, changes: Changes, **settings: object) -> Launch:
        ending = changes.settings["ending"]
        endings.append((changes.settings["interventions"], None if ending is None else ending["steps"]))
        ended = plain(*given, changes=changes, **settings)
        steps = None if ending is None else ending["steps"] or 20
        problem = "exit code 1: boom" if endings[-1] == (["foreach-optimizer"], None) else ended.problem
        return replace(
            ended, problem=problem, reports=tuple(dataclasses.replace(one, ended_after=steps) for one in ended.reports)
        )

    monkeypatch.setattr(module, "launch_once", launch)
    made = trials(tmp_path)
    assert tried(made, "fused-optimizer", "gc-freeze", "foreach-optimizer") == {
        "fused-optimizer": None,
        "gc-freeze": None,
        "foreach-optimizer": "failed",
    }
    assert endings[0] == ([], 0)
    of_fused = [steps for names, steps in endings if names == ["fused-optimizer"]]
    assert of_fused == [6, 20, 20, 20, 20, None], "values, four pairs, and once to the end"
    assert {steps for names, steps in endings if names == ["gc-freeze"]} == {None}, "time moves between its steps"
    assert made.attempts[2].reason == "after the timed steps: exit code 1: boom"


def test_a_program_that_cannot_be_ended_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch, fused_optimizer=0.8)
    plain = program.launch

    def launch(*given: object, changes: Changes, **settings: object) -> Launch:
        ended = plain(*given, changes=changes, **settings)
        if changes.settings["ending"] is None:
            return ended
        reports = tuple(dataclasses.replace(one, ended_after=20) for one in ended.reports)
        return replace(ended, problem="exit code 1: it caught SystemExit", reports=reports)

    monkeypatch.setattr(module, "launch_once", launch)
    assert tried(trials(tmp_path), "fused-optimizer") == {"fused-optimizer": None}
