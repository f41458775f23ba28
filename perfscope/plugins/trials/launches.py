"""Tries interventions on a program: launches it with and without each, in pairs, like two commits.

1. The unchanged program, twice, with the values of its first steps recorded; then pairs of it for the calibration.
2. Each intervention once with recorded values. If it changes them beyond the tolerance, it is rejected.
3. Pairs of launches without and with it, until the judge has seen enough.
4. All that helped, together.

Values and times are judged by a `TrialJudge` (`perfscope.plugins.trials.judge`), not here.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.documents.ab import (
    AbPlan,
    AbState,
    Arm,
    Decision,
    Launch,
    Pair,
    Phase,
    begin,
)
from perfscope.model.errors import DataError
from perfscope.plugins.trials.attempts import Attempt, Unchanged
from perfscope.plugins.trials.interventions import load_intervention
from perfscope.plugins.trials.interventions.base import Facts, Intervention
from perfscope.plugins.trials.process_report import read_reports
from perfscope.profiler.ab.launch import ArmFolder, Changes, launch_once, profile_once
from perfscope.profiler.ab.machine import Gpus, MachineWatch, machine_facts
from perfscope.profiler.ab.runner import Judge, Run, calibrate, run_pairs
from perfscope.profiler.ab.worktrees import terminated_by_signals
from perfscope.profiler.launch.program import Target

LEAST_PAIRS = 6
"""Fewest pairs of an intervention for a result (`perfscope.analyzers.compare.statistics.paired`)."""
BASELINE = "baseline"
TOGETHER = "together"
SETTINGS = "settings"
PROFILE_LOG = "profile.log"


class TrialJudge(Protocol):
    """Judges recorded values and measured times."""

    def of(self, intervention: Intervention | None) -> Judge:
        """The judge of the pairs of an intervention, or of the calibration."""

    def rejects(self, base: Launch, head: Launch) -> str | None:
        """Why the values of ``head`` differ from those of ``base``; ``None`` if they agree or cannot be compared."""

    def helped(self, attempt: Attempt) -> bool:
        """Whether it was measured, and the head is faster."""


class TrialPlan(Struct, frozen=True, kw_only=True):
    """What to launch. ``deadline``: on ``time.monotonic``; an intervention that would end later is left out."""

    target: Target
    directory: Path
    ab: AbPlan
    """Plan of every pair of arms; its refs are replaced."""
    record_steps: int
    deadline: float | None = None
    ladder: bool = False


def fits_framework(intervention: Intervention, facts: Facts) -> bool:
    """Whether the program uses the framework of the intervention."""
    return intervention.framework in ("any", *facts.packages)


def unfit(intervention: Intervention, facts: Facts) -> str | None:
    """Why an intervention cannot help a program with these ``facts``; ``None`` if it may."""
    if not fits_framework(intervention, facts):
        return f"the program does not use {intervention.framework}"
    return intervention.applies(facts)


def _any_by_mean(names: Sequence[str]) -> bool:
    return any(load_intervention(name).by_mean for name in names)


def facts_of(launch: Launch) -> Facts:
    """Facts about the program from the baseline's launch."""
    packages = {name: launch.environment[name] for name in ("torch", "jax") if name in launch.environment}
    platform = launch.environment.get("platform", "")
    return Facts(
        packages=packages, cuda=any(word in platform.lower() for word in ("cuda", "rocm", "gpu")), ranks=launch.ranks
    )


def changes_of(names: Sequence[str], variables: Mapping[str, str], *, record_steps: int) -> Changes:
    """Return the changes of a launch with these interventions; ``record_steps``: steps whose values are recorded."""
    return Changes(
        companion="perfscope.plugins.trials.process:ProcessInterventions",
        settings={"interventions": list(names), "record_steps": record_steps},
        read=read_reports,
        variables=variables,
    )


def profile(target: Target, directory: Path, *, timeout_s: float | None, step_annotation: str | None) -> Launch:
    """Launch the program under capture, in a run folder below ``directory``; its output goes to a log there."""
    with terminated_by_signals():
        return profile_once(
            target,
            ArmFolder(root=None, folder=Path.cwd()),
            arm="base",
            pair=0,
            slot=0,
            root=directory,
            log=directory / PROFILE_LOG,
            timeout_s=timeout_s,
            step_annotation=step_annotation,
        )


class Timed:
    """A judge that also ends the pairs at a time on ``time.monotonic``; ``None``: never.

    The end is independent of the measurements, so that it raises no false alarm; fewer checks are made then.
    """

    def __init__(self, judge: Judge, until: float | None) -> None:
        """``until`` applies from the `LEAST_PAIRS`-th pair on."""
        self._judge, self._until = judge, until
        self.calibrated = judge.calibrated

    def look(self, calibration: Sequence[Pair], pairs: Sequence[Pair]) -> Decision:
        """The judge's decision, unless the time is over."""
        decision = self._judge.look(calibration, pairs)
        over = self._until is not None and len(pairs) >= LEAST_PAIRS and time.monotonic() >= self._until
        return "stop" if over else decision


class Trials:
    """Launches one program, unchanged and with interventions."""

    def __init__(self, plan: TrialPlan, judge: TrialJudge, *, announce: Callable[[str], None]) -> None:
        """Progress goes to ``announce``."""
        self._plan, self._judge, self._announce = plan, judge, announce
        self._gpus = Gpus()
        self._here = machine_facts(self._gpus)
        self._facts: Facts | None = None
        self._unchanged: Unchanged | None = None
        self.together: Attempt | None = None
        """All that helped."""
        self._seconds = 0.0
        self.attempts: list[Attempt] = []
        """In the order in which they were made."""

    @property
    def facts(self) -> Facts:
        """Facts about the program; after `baseline`."""
        assert self._facts is not None
        return self._facts

    @property
    def unchanged(self) -> Unchanged:
        """The launches of the unchanged program; after `baseline`."""
        assert self._unchanged is not None
        return self._unchanged

    def baseline(self) -> Unchanged:
        """Launch the unchanged program. ``DataError`` where it fails."""
        with terminated_by_signals():
            state = self._state(BASELINE, pairs=0)
            recorded = []
            for slot, what in enumerate(("the unchanged program", "the same again, for what it does not repeat")):
                self._announce(f"recording values: {what}")
                launch = self._launch((), "base", "warm", 0, slot, state, record=True)
                if launch.problem is not None:
                    raise DataError(f"{self._plan.target.name()}: {launch.problem} (its output: {state.log})")
                state.add(launch)
                recorded.append(launch)
            self._facts = facts_of(recorded[0])
            self._seconds = recorded[1].seconds
            calibration = calibrate(state, self._run(state, (), ()), self._judge.of(None), announce=self._announce)
            self._unchanged = Unchanged(first=recorded[0], second=recorded[1], calibration=calibration)
        return self._unchanged

    def evident(self, interventions: Sequence[Intervention]) -> tuple[str, ...]:
        """Evident interventions that find something to change: one launch with all of them at once."""
        names = tuple(
            one.name
            for one in interventions
            if one.evident and fits_framework(one, self.facts) and one.applies(self.facts) is None
        )
        if not names:
            return ()
        with terminated_by_signals():
            self._announce("looking for settings that cost")
            state = self._state(SETTINGS)
            launch = self._launch(names, "head", "warm", 0, 1, state, record=False)
        return tuple(name for name in names if any(trial.applied.get(name) for trial in launch.reports))

    def try_all(self, interventions: Sequence[Intervention]) -> None:
        """Try each in turn, or climb; results are in `attempts`, also after an interruption."""
        kept: tuple[str, ...] = ()
        with terminated_by_signals():
            for number, intervention in enumerate(interventions, start=1):
                base = kept if self._plan.ladder else ()
                name = intervention.name
                others = tuple(other for other in base if load_intervention(other).family != intervention.family)
                self._announce(f"{number} of {len(interventions)}: {name} ({intervention.title})")
                until = self._until(len(interventions) - number + 2)  # and all that helped
                # after a base that moves time between steps the mean counts, otherwise rungs do not add up
                tried = dataclasses.replace(intervention, by_mean=_any_by_mean((name, *base)))
                attempt = self._attempt(f"{number:02d}-{name}", tried, base, (*others, name), until)
                self.attempts.append(attempt)
                if self._judge.helped(attempt):
                    kept = (*others, name)

    def try_helpful(self) -> None:
        """All that helped against the unchanged program; nothing if it is a single one.

        From a family the first is taken, from a ladder the last, which was measured against the first.
        """
        names: dict[str, str] = {}
        for attempt in self.attempts:
            family = attempt.intervention.family
            if self._judge.helped(attempt) and (self._plan.ladder or family not in names):
                names[family] = attempt.intervention.name
        if len(names) > 1:
            self.together = self._together(tuple(names.values()))

    def _together(self, names: Sequence[str]) -> Attempt:
        helpful = Intervention(
            name=TOGETHER, title="all that helped", family="", framework="any", answers=(), may_change="", code="",
            by_mean=_any_by_mean(names),
        )  # fmt: skip
        with terminated_by_signals():
            self._announce(f"all that helped together: {', '.join(names)}")
            return self._attempt(TOGETHER, helpful, (), tuple(names), self._until(1))

    def _attempt(
        self, folder: str, intervention: Intervention, base: tuple[str, ...], head: tuple[str, ...], until: float | None
    ) -> Attempt:
        made, name = Attempt(intervention=intervention, base=base, head=head), intervention.name
        reason = unfit(intervention, self.facts)
        if reason is not None:
            return replace(made, stop="not applicable", reason=reason)
        if not self._in_time():
            needed = f"{math.ceil(self._least_seconds() / 60)} min"
            return replace(made, stop="not reached", reason=f"too little of the budget is left: it takes {needed}")
        unchanged = self.unchanged
        state = self._state(folder, until)
        first = self._launch(head, "head", "warm", 0, 1, state, record=True)
        made = replace(made, first=first)
        if first.problem is not None:
            return replace(made, stop="failed", reason=first.problem)
        if name in head and not any(trial.applied.get(name) for trial in first.reports):
            left = [why for trial in first.reports for why in trial.refused.get(name, ())]
            return replace(made, stop="not applied", reason=left[0] if left else "it found nothing to change")
        rejected = self._judge.rejects(unchanged.first, first)
        if rejected is not None:
            return replace(made, stop="rejected", reason=rejected)
        for launch in (unchanged.second, first, *(one for pair in unchanged.calibration for one in pair)):
            state.add(replace(launch, reports=()))
        try:
            run = self._run(state, base, head)
            judge = Timed(self._judge.of(intervention), until)
            return replace(made, pairs=run_pairs(state, run, judge, announce=self._announce))
        except DataError as error:
            return replace(made, stop="failed", reason=str(error))

    def _in_time(self) -> bool:
        """Whether the fewest pairs, and the launch before them, end within the budget."""
        deadline = self._plan.deadline
        return deadline is None or time.monotonic() + self._least_seconds() <= deadline

    def _least_seconds(self) -> float:
        """Least seconds of an intervention."""
        return (1 + 2 * min(LEAST_PAIRS, self._plan.ab.pairs)) * self._seconds

    def _until(self, left: int) -> float | None:
        """End of the pairs of the next of ``left`` attempts.

        Each has the same share of the remaining time, for as many as can have their fewest pairs in it.
        """
        if self._plan.deadline is None:
            return None
        seconds = self._plan.deadline - time.monotonic()
        fitting = int(seconds / self._least_seconds()) if self._seconds else left
        return self._plan.deadline - seconds + seconds / max(1, min(left, fitting))

    def _state(self, folder: str, until: float | None = None, pairs: int | None = None) -> AbState:
        """``until``: of the pairs, limited to those that fit. ``pairs``: of a change; ``None``: the planned number."""
        directory = self._plan.directory / folder
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            raise DataError(f"{directory}: cannot be made: {error.strerror or error}") from error
        pairs = self._plan.ab.pairs if pairs is None else pairs
        if until is not None and self._seconds:
            fitting = int(((until - time.monotonic()) / self._seconds - 1) / 2)
            pairs = min(pairs, max(LEAST_PAIRS, fitting))
        return begin(directory, replace(self._plan.ab, base_ref=BASELINE, head_ref=folder, pairs=pairs))

    def _run(self, state: AbState, base: tuple[str, ...], head: tuple[str, ...]) -> Run:
        def run(arm: Arm, phase: Phase, pair: int, slot: int) -> Launch:
            return self._launch(base if arm == "base" else head, arm, phase, pair, slot, state, record=False)

        return run

    def _launch(
        self, names: tuple[str, ...], arm: Arm, phase: Phase, pair: int, slot: int, state: AbState, *, record: bool
    ) -> Launch:
        variables: dict[str, str] = {}
        for name in names:
            known = dataclasses.replace(self.facts, variables={**self.facts.variables, **variables})
            variables |= load_intervention(name).environment(known)
        with MachineWatch(self._gpus) as watch:
            launch = launch_once(
                self._plan.target,
                ArmFolder(root=None, folder=Path.cwd()),
                arm=arm,
                phase=phase,
                pair=pair,
                slot=slot,
                log=state.log,
                timeout_s=self._plan.ab.timeout_s,
                step_annotation=self._plan.ab.step_annotation,
                changes=changes_of(names, variables, record_steps=self._plan.record_steps if record else 0),
            )
        return replace(launch, machine=watch.counters(), environment={**self._here, **launch.environment})
