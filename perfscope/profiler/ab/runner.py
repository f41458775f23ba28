"""Runs an A/B test: pairs of process launches of two commits in random order, until the result is settled.

1. Each arm once, for its caches: compilation, autotuning, bytecode, the disk. Not counted.
2. The base against itself: from these pairs the judge chooses the estimator of a launch.
3. Pairs. After some of them the judge checks whether it has seen enough.
4. A change is confirmed by as many pairs again. 5. Pairs under capture, for the cause. Their times are not judged, and
   a failed one costs only the cause.

Verdicts are given by a `Judge` (`perfscope.analyzers.compare.ab`), not here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median_high
from typing import Protocol

from msgspec.structs import replace

from perfscope.model.documents.ab import AbPlan, AbState, Arm, Decision, Launch, Pair, Pairs, Phase, pairs_of
from perfscope.model.errors import DataError
from perfscope.profiler.ab.launch import ArmFolder, launch_once, profile_once, run_build
from perfscope.profiler.ab.machine import Gpus, MachineWatch, machine_facts
from perfscope.profiler.ab.worktrees import Checkout, remove_left, terminated_by_signals, worktrees
from perfscope.profiler.launch.program import Target

# Progress of an A/B test and its longest remaining time: everything that may still follow is counted.


LEAST_CONFIRMING = 6
"""Fewest pairs of the second batch: fewer cannot reach the level with a usual spread."""
UNSEEN_PROFILE = 2.0
"""Assumed duration of a launch under capture relative to others, until one was measured."""

MOST_FAILURES = 3
"""Most failed launches of one arm before the comparison is given up: one may be chance, three are the program."""
ARMS: tuple[Arm, Arm] = ("base", "head")


def progress(state: AbState, phase: Phase, pair: int) -> str:
    """The line before pair ``pair`` of a phase: its number, the time left, and the additional time after a change."""
    measured = len(pairs_of(state.launches, "measure"))
    of = {"calibrate": state.plan.calibration, "measure": state.plan.pairs, "profile": state.plan.profile}
    of["confirm"] = max(measured, LEAST_CONFIRMING)
    names = {"calibrate": "base against itself: pair", "confirm": "confirming: pair", "profile": "profiling: pair"}
    sure, maybe = seconds_left(state, phase, pair)
    line = f"{names.get(phase, 'pair')} {pair + 1} of {of[phase]}, {duration(sure)} left at most"
    return f"{line}, and {duration(maybe)} to confirm a change" if maybe else line


def seconds_left(state: AbState, phase: Phase, pair: int) -> tuple[float, float]:
    """Seconds from before this pair to the end: without a confirmation, and the additional time of one.

    By the median launch so far. A confirmation takes as many pairs as were measured, which may be all.
    """
    plan = state.plan
    ended = [launch for launch in state.launches if launch.problem is None]
    plain = median_high([launch.seconds for launch in ended if launch.phase != "profile"] or [0.0])
    profiled = median_high(
        [launch.seconds for launch in ended if launch.phase == "profile"] or [UNSEEN_PROFILE * plain]
    )
    profiling = plan.profile - (pair if phase == "profile" else 0)
    left = 0
    maybe = 0
    if phase == "calibrate":
        left = plan.calibration - pair + plan.pairs
    elif phase == "measure":
        left = plan.pairs - pair
    elif phase == "confirm":
        left = max(len(pairs_of(state.launches, "measure")), LEAST_CONFIRMING) - pair
    if phase in ("calibrate", "measure") and plan.confirm:
        maybe = max(plan.pairs, LEAST_CONFIRMING)
    return 2 * left * plain + 2 * profiling * profiled, 2 * maybe * plain


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``1.6 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


Run = Callable[[Arm, Phase, int, int], Launch]
"""Runs one launch: arm, phase, pair, slot."""


class Judge(Protocol):
    """Judges the pairs (``perfscope.analyzers.compare.ab.judge``)."""

    def calibrated(self, pairs: Sequence[Pair]) -> str:
        """The result of the calibration, in words."""

    def look(self, calibration: Sequence[Pair], pairs: Sequence[Pair]) -> Decision:
        """The next action after these pairs."""


def compare(
    state: AbState, repository: Checkout, judge: Judge, *, announce: Callable[[str], None] = lambda line: None
) -> Pairs:
    """Run the rest of the comparison in ``state``, in worktrees of ``repository``; progress goes to ``announce``.

    ``DataError`` if an arm fails repeatedly, or imports from the checkout; ``KeyboardInterrupt`` on a request to end:
    then everything up to the last complete launch is kept and the worktrees are removed.
    """
    plan = state.plan
    target = Target(arguments=plan.command, module=plan.kind == "module", command=plan.kind == "command")
    with terminated_by_signals():
        remove_left(repository)
        announce(f"base {plan.base_ref} ({plan.base[:12]}), head {plan.head_ref} ({plan.head[:12]}), seed {plan.seed}")
        with worktrees(repository, {"base": plan.base, "head": plan.head}, links=plan.links) as folders:
            run = _runner(state, target, folders, repository, announce)
            return run_pairs(state, run, judge, announce=announce)


def run_pairs(state: AbState, run: Run, judge: Judge, *, announce: Callable[[str], None]) -> Pairs:
    """The order of the launches. ``run`` starts one; each finished launch is stored in ``state``."""
    plan = state.plan
    for arm in ARMS:
        _warm(state, run, arm, announce)
    calibration = calibrate(state, run, judge, announce=announce)
    decision: Decision = "go on"
    done = 0
    while done < plan.pairs and decision == "go on":
        _pair(state, run, "measure", done, announce)
        done += 1
        decision = judge.look(calibration, pairs_of(state.launches, "measure")[:done])
    if decision == "confirm" and plan.confirm:
        announce(f"a change was found in {done} pairs; {max(done, LEAST_CONFIRMING)} more are to confirm it")
        for pair in range(max(done, LEAST_CONFIRMING)):
            _pair(state, run, "confirm", pair, announce)
    for pair in range(plan.profile):
        _profile(state, run, pair, announce)
    return pairs_by_phase(state)


def calibrate(state: AbState, run: Run, judge: Judge, *, announce: Callable[[str], None]) -> tuple[Pair, ...]:
    """The pairs of the base against itself, including earlier ones."""
    known = len(pairs_of(state.launches, "calibrate"))
    for pair in range(state.plan.calibration):
        _pair(state, run, "calibrate", pair, announce)
    calibration = pairs_of(state.launches, "calibrate")
    if known < state.plan.calibration:
        announce(judge.calibrated(calibration))
    return calibration


def pairs_by_phase(state: AbState) -> Pairs:
    """The finished pairs, by phase."""
    profiled = pairs_of(state.launches, "profile")
    whole = {launch.pair for launch, _ in profiled}
    lost = [launch for launch in state.launches if launch.phase == "profile" and launch.problem is not None]
    return Pairs(
        calibration=pairs_of(state.launches, "calibrate"),
        measured=pairs_of(state.launches, "measure"),
        confirming=pairs_of(state.launches, "confirm"),
        profiled=profiled,
        lost=tuple(launch for launch in lost if launch.pair not in whole),
    )


def first_is_head(seed: int, phase: Phase, pair: int, attempt: int) -> bool:
    """The order inside a pair: a function of seed and number, so that it survives an interruption."""
    return random.Random(f"{seed}/{phase}/{pair}/{attempt}").random() < 0.5  # noqa: S311 (an order, no secret)


def _runner(
    state: AbState,
    target: Target,
    folders: Mapping[Arm, ArmFolder],
    repository: Checkout,
    announce: Callable[[str], None],
) -> Run:
    plan = state.plan
    changed = repository.changed(plan.base, plan.head)
    to_build = plan.build
    gpus = Gpus()
    here = machine_facts(gpus)

    def run(arm: Arm, phase: Phase, pair: int, slot: int) -> Launch:
        nonlocal to_build
        if to_build is not None:  # not for a complete comparison
            run_build(to_build, folders, logs=state.directory, checkout=repository.top, announce=announce)
            to_build = None
        if phase == "profile":
            return profile_once(
                target,
                folders[arm],
                arm=arm,
                pair=pair,
                slot=slot,
                root=state.profiled,
                log=state.log,
                timeout_s=plan.timeout_s,
                checkout=repository.top,
                step_annotation=plan.step_annotation,
            )
        with MachineWatch(gpus) as watch:
            launch = launch_once(
                target,
                folders[arm],
                arm=arm,
                phase=phase,
                pair=pair,
                slot=slot,
                log=state.log,
                timeout_s=plan.timeout_s,
                checkout=repository.top,
                step_annotation=plan.step_annotation,
                changed=changed or None,
            )
        launch = replace(launch, machine=watch.counters(), environment={**here, **launch.environment})
        if launch.strays:
            named = ", ".join(launch.strays[:MOST_FAILURES])
            raise DataError(
                f"{repository.top}: {named} came from the checkout, not from the commit of {arm}: is it installed in "
                "editable mode, or on a path that the program sets itself? Both arms would run the same code"
            )
        return launch

    return run


def _warm(state: AbState, run: Run, arm: Arm, announce: Callable[[str], None]) -> None:
    """One launch of an arm for its caches; a program that cannot run is reported before an hour of launches."""
    slot = 0 if arm == "base" else 1
    warm_launches = [
        launch for launch in state.launches if launch.phase == "warm" and launch.arm == arm and launch.problem is None
    ]
    if warm_launches:
        return
    announce(f"warming up {arm}")
    launch = run(arm, "warm", 0, slot)
    if launch.problem is not None:
        raise DataError(f"{_named(state.plan, arm)}: {launch.problem} (its output: {state.log})")
    state.add(launch)


def _pair(state: AbState, run: Run, phase: Phase, pair: int, announce: Callable[[str], None]) -> None:
    """Both launches of a pair, repeated if one fails."""
    if any(launch.pair == pair for launch, _ in pairs_of(state.launches, phase)):
        return
    while True:
        attempt = _attempt(state, phase, pair)
        announce(progress(state, phase, pair))
        for slot, arm in enumerate(_order(state, phase, pair, attempt)):
            launch = replace(run(arm, phase, pair, slot), attempt=attempt)
            state.add(launch)
            if launch.problem is not None:
                failed = [
                    launch
                    for launch in state.launches
                    if launch.arm == arm and launch.problem is not None and launch.phase != "profile"
                ]
                if len(failed) >= MOST_FAILURES:
                    raise DataError(
                        f"{_named(state.plan, arm)}: {len(failed)} launches failed: {launch.problem} "
                        f"(its output: {state.log})"
                    )
                announce(f"{arm} failed, and its pair is run again: {launch.problem}")
                break
        else:
            return


def _profile(state: AbState, run: Run, pair: int, announce: Callable[[str], None]) -> None:
    """Both launches of a pair under capture; if one fails, there is no second try before the next resumption."""
    if any(launch.pair == pair for launch, _ in pairs_of(state.launches, "profile")):
        return
    attempt = _attempt(state, "profile", pair)
    announce(progress(state, "profile", pair))
    for slot, arm in enumerate(_order(state, "profile", pair, attempt)):
        launch = replace(run(arm, "profile", pair, slot), attempt=attempt)
        state.add(launch)
        if launch.problem is not None:
            announce(f"{arm} gave no profile, so its cause is not known from this pair: {launch.problem}")
            return


def _attempt(state: AbState, phase: Phase, pair: int) -> int:
    attempts = [launch.attempt for launch in state.launches if (launch.phase, launch.pair) == (phase, pair)]
    return 1 + max(attempts, default=-1)


def _order(state: AbState, phase: Phase, pair: int, attempt: int) -> tuple[Arm, Arm]:
    if phase == "calibrate":
        return ("base", "base")
    return ("head", "base") if first_is_head(state.plan.seed, phase, pair, attempt) else ("base", "head")


def _named(plan: AbPlan, arm: Arm) -> str:
    return f"{arm} ({plan.base_ref if arm == 'base' else plan.head_ref})"
