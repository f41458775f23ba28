"""Tries interventions on a program: launches it with and without each, in pairs, like two commits.

1. The unchanged program, with the values of its first steps recorded.
2. Each intervention once with recorded values. If it changes them beyond the tolerance, it is rejected.
3. Pairs of launches without and with it, until the judge has seen enough. The launches without it are also the
   program against itself.
4. If it helped, one launch with it to the program's end: the others end when enough of their steps are timed.
5. All that helped, together.

Values and times are judged by a `TrialJudge` (`perfscope.plugins.trials.judge`), not here. Each launch is on disk when
it has ended; `Trials` with the same folder goes on from there.
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
    PLAN_FILE,
    AbPlan,
    AbState,
    Arm,
    Decision,
    Launch,
    Pair,
    Phase,
    begin,
    resume,
)
from perfscope.model.errors import DataError
from perfscope.plugins.trials.attempts import Attempt, Unchanged
from perfscope.plugins.trials.interventions import load_intervention
from perfscope.plugins.trials.interventions.base import Facts, Intervention
from perfscope.plugins.trials.process_report import Ending, ProcessTrial, read_reports
from perfscope.profiler.ab.launch import ArmFolder, Changes, launch_once, profile_once, why_nothing
from perfscope.profiler.ab.machine import Gpus, MachineWatch, machine_facts
from perfscope.profiler.ab.runner import Judge, Run, calibrate, duration, pairs_by_phase, run_pairs
from perfscope.profiler.ab.worktrees import terminated_by_signals
from perfscope.profiler.launch.program import Target

LEAST_PAIRS = 4
"""Fewest pairs of an intervention for a result (`perfscope.analyzers.compare.EARLY_LOOK`)."""
FEWEST_STEPS = 6
"""Fewest steps of a launch that is ended as soon as its values are recorded: some of its steps must be timed."""
BASELINE = "baseline"
TOGETHER = "together"
SETTINGS = "settings"
PROFILE_LOG = "profile.log"
PROFILED = "base-1"
"""Name of the run of the launch under capture: its arm and the number of its pair."""
MOST_FOLDERS = 100
"""Folders of one intervention in one try: a ladder that is tried again may have other rungs."""


class TrialJudge(Protocol):
    """Judges recorded values and measured times."""

    def settle(self, unchanged: Unchanged) -> None:
        """Choose the estimator of a launch from the launches of the unchanged program; before any other call."""

    def of(self, intervention: Intervention | None) -> Judge:
        """The judge of the pairs of an intervention, or of the calibration."""

    def so_far(self, intervention: Intervention, pairs: Sequence[Pair]) -> str:
        """The change by the pairs so far, in one line."""

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
    whole: bool = False
    """Whether each launch runs to the program's end."""
    whole_s: float | None = None
    """Duration of a launch to its end, if it is known."""


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


def changes_of(
    names: Sequence[str], variables: Mapping[str, str], *, record_steps: int, ending: Ending | None = None
) -> Changes:
    """Return the changes of a launch with these interventions; ``record_steps``: steps whose values are recorded."""
    end = None if ending is None else dataclasses.asdict(ending)
    return Changes(
        companion="perfscope.plugins.trials.process:ProcessInterventions",
        settings={"interventions": list(names), "record_steps": record_steps, "ending": end},
        read=read_reports,
        variables=variables,
    )


def earlier_profile(directory: Path) -> str | None:
    """Name of the run folder that `profile` left in ``directory`` before; ``None`` without a usable one."""
    runs = sorted(path for path in directory.glob(f"*-{PROFILED}-*") if path.is_dir() and why_nothing(path) is None)
    return runs[-1].name if runs else None


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
    """A judge that reports each pair, and ends the pairs at a time on ``time.monotonic``; ``None``: never.

    The end is independent of the measurements, so that it raises no false alarm; fewer checks are made then.
    """

    def __init__(self, judge: Judge, until: float | None, report: Callable[[Sequence[Pair]], None]) -> None:
        """``until`` applies from the `LEAST_PAIRS`-th pair on."""
        self._judge, self._until, self._report = judge, until, report
        self.calibrated = judge.calibrated

    def look(self, calibration: Sequence[Pair], pairs: Sequence[Pair]) -> Decision:
        """The judge's decision, unless the time is over."""
        self._report(pairs)
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
        self._steps = 0
        """Steps after which a launch is ended; 0: it runs to its end."""
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

    @property
    def begun(self) -> bool:
        """Whether the unchanged program was launched, so that there is something to show."""
        return self._unchanged is not None

    def baseline(self) -> Unchanged:
        """Launch the unchanged program. ``DataError`` where it fails."""
        with terminated_by_signals():
            state = self._state(BASELINE, pairs=0)
            self._announce("recording values of the unchanged program")
            whole = self._plan.whole or self._plan.target.command
            first = self._values(state, (), "base", 0, None if whole else Ending(began_unix_s=time.time()))
            if first.problem is not None:
                raise DataError(f"{self._plan.target.name()}: {first.problem} (its output: {state.log})")
            self._facts = facts_of(first)
            self._seconds, self._steps = first.seconds, _ended_after(first)
            if self._steps:
                self._announce(f"each launch ends after {self._steps} steps; --to-the-end runs the whole program")
            unchanged = Unchanged(first=first)
            self._judge.settle(unchanged)
            calibration = calibrate(
                state, self._run(state, (), (), self._ending()), self._judge.of(None), announce=self._announce
            )
            self._unchanged = replace(unchanged, calibration=calibration)
            self._judge.settle(self._unchanged)
        return self._unchanged

    def repeat(self) -> None:
        """Record the values of the unchanged program a second time: what differs then is not due to a change."""
        if self.unchanged.second is not None:
            return
        with terminated_by_signals():
            self._announce("recording values of the unchanged program again, for what it does not repeat")
            second = self._values(self._state(BASELINE, pairs=0), (), "base", 1, self._recording())
        if second.problem is None:
            self._unchanged = replace(self.unchanged, second=second)
        else:
            self._announce(f"the unchanged program failed: {second.problem}")

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
            state = self._state(SETTINGS, head=names)
            launch = self._launch(names, "head", "warm", 0, 1, state, ending=self._recording())
        return tuple(name for name in names if any(trial.applied.get(name) for trial in launch.reports))

    def try_all(self, interventions: Sequence[Intervention]) -> None:
        """Try each in turn, or climb; results are in `attempts`, also after an interruption."""
        kept: tuple[str, ...] = ()
        with terminated_by_signals():
            for number, intervention in enumerate(interventions, start=1):
                base = kept if self._plan.ladder else ()
                name = intervention.name
                others = tuple(other for other in base if load_intervention(other).family != intervention.family)
                self._announce(
                    f"{number} of {len(interventions)}: {name} ({intervention.title}), "
                    f"{self._time_of(interventions[number - 1 : number])}; to the end "
                    f"{self._time_of(interventions[number - 1 :])}"
                )
                until = self._until(len(interventions) - number + 2)  # and all that helped
                # after a base that moves time between steps the mean counts, otherwise rungs do not add up
                tried = dataclasses.replace(intervention, by_mean=_any_by_mean((name, *base)))
                attempt = self._attempt(name, tried, base, (*others, name), until)
                self.attempts.append(attempt)
                if self._judge.helped(attempt):
                    kept = (*others, name)
                if attempt.first is not None:
                    self.repeat()

    def _time_of(self, interventions: Sequence[Intervention]) -> str:
        """Shortest and longest time of these, in words."""
        seconds = [self._launch_s(one.by_mean) for one in interventions]
        least, most = (sum((1 + 2 * pairs) * one for one in seconds) for pairs in (LEAST_PAIRS, self._plan.ab.pairs))
        return f"{duration(least)} to {duration(most)}"

    def _launch_s(self, whole: bool) -> float:
        """Expected seconds of a launch."""
        return self._plan.whole_s or self._seconds if whole and self._steps else self._seconds

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
        intervention = Intervention(
            name=TOGETHER, title="all that helped", family="", framework="any", answers=(), may_change="", code="",
            by_mean=_any_by_mean(names),
        )  # fmt: skip
        with terminated_by_signals():
            self._announce(f"all that helped together: {', '.join(names)}")
            return self._attempt(TOGETHER, intervention, (), tuple(names), self._until(1))

    def _attempt(
        self, folder: str, intervention: Intervention, base: tuple[str, ...], head: tuple[str, ...], until: float | None
    ) -> Attempt:
        made = Attempt(intervention=intervention, base=base, head=head)
        reason = unfit(intervention, self.facts)
        if reason is not None:
            return replace(made, stop="not applicable", reason=reason)
        if not self._in_time(intervention):
            needed = f"{math.ceil(self._least_seconds(intervention) / 60)} min"
            return replace(made, stop="not reached", reason=f"too little of the budget is left: it takes {needed}")
        state = self._state(folder, base=base, head=head, until=until)
        first = self._first(state, intervention, head)
        made = replace(made, first=first)
        if first.problem is not None:
            return replace(made, stop="failed", reason=first.problem)
        if not _applies(intervention, head, first):
            left = [why for trial in first.reports for why in trial.refused.get(intervention.name, ())]
            return replace(made, stop="not applied", reason=left[0] if left else "it found nothing to change")
        rejected = self._judge.rejects(self.unchanged.first, first)
        if rejected is not None:
            return replace(made, stop="rejected", reason=rejected)
        return self._measured(state, made, until)

    def _first(self, state: AbState, intervention: Intervention, head: tuple[str, ...]) -> Launch:
        """The launch with recorded values; to its end if the intervention has found nothing to change before."""
        ending = self._recording(intervention)
        first = self._values(state, head, "head", 1, ending)
        if ending is not None and first.problem is None and not _applies(intervention, head, first):
            return self._launch(head, "head", "warm", 0, 1, state, record=True)
        return first

    def _measured(self, state: AbState, made: Attempt, until: float | None) -> Attempt:
        """The attempt with its pairs. If it is interrupted, the pairs so far are kept in `attempts` or `together`."""
        intervention = made.intervention
        if not any(launch.phase == "warm" and launch.arm == "base" for launch in state.launches):
            unchanged = self.unchanged
            for launch in (unchanged.first, *(one for pair in unchanged.calibration for one in pair)):
                state.add(replace(launch, reports=()))
        ending = self._ending(intervention)

        def report(pairs: Sequence[Pair]) -> None:
            self._announce(self._judge.so_far(intervention, pairs))

        judge = Timed(self._judge.of(intervention), until, report)
        try:
            pairs = run_pairs(state, self._run(state, made.base, made.head, ending), judge, announce=self._announce)
            done = replace(made, pairs=pairs)
            problem = self._problem_at_the_end(state, done) if ending is not None else None
        except DataError as error:
            return replace(made, stop="failed", reason=str(error))
        except KeyboardInterrupt:
            self._keep(replace(made, pairs=pairs_by_phase(state)))
            raise
        return done if problem is None else replace(made, stop="failed", reason=f"after the timed steps: {problem}")

    def _keep(self, unfinished: Attempt) -> None:
        """Keep an interrupted attempt if it has pairs."""
        if unfinished.pairs is None or not unfinished.pairs.measured:
            return
        if unfinished.intervention.name == TOGETHER:
            self.together = unfinished
        else:
            self.attempts.append(unfinished)

    def _problem_at_the_end(self, state: AbState, made: Attempt) -> str | None:
        """Run a program that became faster to its end once; return why it fails there, or None."""
        if not self._judge.helped(made):
            return None
        ended = [launch for launch in state.launches if (launch.phase, launch.pair) == ("warm", 1)]
        if not ended:
            self._announce(f"{made.intervention.name} helps; running the program to its end with it, once")
            launch = self._launch(made.head, "head", "warm", 1, 1, state)
            state.add(replace(launch, reports=()))
            ended = [launch]
        return ended[-1].problem

    def _in_time(self, intervention: Intervention) -> bool:
        """Whether the fewest pairs, and the launch before them, end within the budget."""
        deadline = self._plan.deadline
        return deadline is None or time.monotonic() + self._least_seconds(intervention) <= deadline

    def _least_seconds(self, intervention: Intervention | None = None) -> float:
        """Least seconds of an intervention."""
        launch_s = self._launch_s(intervention is not None and intervention.by_mean)
        return (1 + 2 * min(LEAST_PAIRS, self._plan.ab.pairs)) * launch_s

    def _until(self, left: int) -> float | None:
        """End of the pairs of the next of ``left`` attempts.

        Each has the same share of the remaining time, for as many as can have their fewest pairs in it.
        """
        if self._plan.deadline is None:
            return None
        seconds = self._plan.deadline - time.monotonic()
        fitting = int(seconds / self._least_seconds()) if self._seconds else left
        return self._plan.deadline - seconds + seconds / max(1, min(left, fitting))

    def _ending(self, intervention: Intervention | None = None) -> Ending | None:
        """The end of a timed launch; None: the program's own, also if the intervention moves time between steps."""
        whole = not self._steps or (intervention is not None and intervention.by_mean)
        return None if whole else Ending(steps=self._steps)

    def _recording(self, intervention: Intervention | None = None) -> Ending | None:
        """The end of a launch for its values alone."""
        steps = max(FEWEST_STEPS, self._plan.record_steps + 1)
        return None if self._ending(intervention) is None else Ending(steps=min(steps, self._steps))

    def _state(
        self,
        folder: str,
        *,
        base: tuple[str, ...] = (),
        head: tuple[str, ...] = (),
        until: float | None = None,
        pairs: int | None = None,
    ) -> AbState:
        """The state of an attempt in ``folder``, with its earlier launches if it had the same interventions.

        ``until``: of the pairs, limited to those that fit. ``pairs``: of a change; ``None``: the planned number.
        """
        pairs = self._plan.ab.pairs if pairs is None else pairs
        if until is not None and self._seconds:
            fitting = int(((until - time.monotonic()) / self._seconds - 1) / 2)
            pairs = min(pairs, max(LEAST_PAIRS, fitting))
        sides = {"base_ref": " ".join(base) or BASELINE, "head_ref": " ".join(head) or folder}
        plan = replace(self._plan.ab, **sides, pairs=pairs)
        for number in range(1, MOST_FOLDERS):
            directory = self._plan.directory / (folder if number == 1 else f"{folder}-{number}")
            if not (directory / PLAN_FILE).exists():
                return _begin(directory, plan)
            earlier = resume(directory, command=plan.command, kind=plan.kind)
            if sides == {"base_ref": earlier.plan.base_ref, "head_ref": earlier.plan.head_ref}:
                return AbState(directory, plan, [_with_reports(launch) for launch in earlier.launches])
        raise DataError(f"{self._plan.directory}: too many attempts of {folder}")

    def _run(self, state: AbState, base: tuple[str, ...], head: tuple[str, ...], ending: Ending | None) -> Run:
        def run(arm: Arm, phase: Phase, pair: int, slot: int) -> Launch:
            return self._launch(base if arm == "base" else head, arm, phase, pair, slot, state, ending=ending)

        return run

    def _values(self, state: AbState, names: tuple[str, ...], arm: Arm, slot: int, ending: Ending | None) -> Launch:
        """A launch whose values are recorded, or the earlier one of the folder; to its end if it cannot be ended."""
        wanted = ("warm", arm, 0, slot)
        for launch in state.launches:
            if (launch.phase, launch.arm, launch.pair, launch.slot) == wanted and launch.problem is None:
                return launch
        launch = self._launch(names, arm, "warm", 0, slot, state, record=True, ending=ending)
        if launch.problem is not None and _ended_after(launch):
            self._announce(
                "the program cannot be ended before its own end, so each launch takes as long as the program"
            )
            self._steps = 0
            launch = self._launch(names, arm, "warm", 0, slot, state, record=True)
        if launch.problem is None:
            state.add(launch)
        return launch

    def _launch(
        self,
        names: tuple[str, ...],
        arm: Arm,
        phase: Phase,
        pair: int,
        slot: int,
        state: AbState,
        *,
        record: bool = False,
        ending: Ending | None = None,
    ) -> Launch:
        variables: dict[str, str] = {}
        for name in names:
            known = dataclasses.replace(self.facts, variables={**self.facts.variables, **variables})
            variables |= load_intervention(name).environment(known)
        steps = self._plan.record_steps if record else 0
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
                changes=changes_of(names, variables, record_steps=steps, ending=ending),
            )
        return replace(launch, machine=watch.counters(), environment={**self._here, **launch.environment})


def _ended_after(launch: Launch) -> int:
    """Steps after which a launch was ended; 0 if it ended by itself."""
    return max((trial.ended_after or 0 for trial in launch.reports), default=0)


def _applies(intervention: Intervention, head: Sequence[str], launch: Launch) -> bool:
    """Whether the intervention changed something in the launch."""
    return intervention.name not in head or any(trial.applied.get(intervention.name) for trial in launch.reports)


def _with_reports(launch: Launch) -> Launch:
    """A launch from the disk, its reports as values."""
    import msgspec

    return replace(launch, reports=tuple(msgspec.convert(report, ProcessTrial) for report in launch.reports))


def _begin(directory: Path, plan: AbPlan) -> AbState:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{directory}: cannot be made: {error.strerror or error}") from error
    return begin(directory, plan)
