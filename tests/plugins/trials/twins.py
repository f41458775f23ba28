"""The planted programs, and what their fixed twins gain in pairs of launches."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.compare.ab.judge import AbJudge
from perfscope.analyzers.compare.statistics.verdict import MetricResult
from perfscope.model.documents.ab import AbPlan, Arm, Launch, Phase, begin
from perfscope.profiler.ab.launch import ArmFolder, launch_once
from perfscope.profiler.ab.runner import run_pairs
from perfscope.profiler.launch.program import Target

PLANTED = Path(__file__).with_name("planted")


def twin_against(program: str, folder: Path, *, pairs: int, estimator: str) -> MetricResult:
    """The step time of ``program --twin`` against that of ``program``, by the ``estimator`` that a try took."""
    plan = AbPlan(
        command=(program,),
        kind="script",
        base="planted",
        head="twin",
        base_ref="planted",
        head_ref="twin",
        pairs=pairs,
        calibration=0,
        seed=1,
        least=0.02,
        confirm=False,
    )
    folder.mkdir()
    state = begin(folder, plan)

    def run(arm: Arm, phase: Phase, pair: int, slot: int) -> Launch:
        arguments = (program, "--twin") if arm == "head" else (program,)
        where = ArmFolder(root=None, folder=PLANTED)
        target = Target(arguments=arguments)
        return launch_once(target, where, arm=arm, phase=phase, pair=pair, slot=slot, log=state.log)

    judge = AbJudge(pairs=pairs, least=plan.least, confirm=False, give_up=True, estimator=estimator)
    return judge.result(run_pairs(state, run, judge, announce=lambda line: None)).step
