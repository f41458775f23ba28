"""False alarms and power of `perfscope compare --ab`, from recorded base/base launches with injected effects.

python benchmarks/compare_power.py               the table of docs/compare.md
python benchmarks/compare_power.py record FILE N  N rounds of new launches, in the form of fixtures/noise

A trial draws pairs of one program's launches, in random order inside the pair: five to choose the estimator, then those
that are measured, head's times longer by the effect. It follows `AbJudge` with the same functions and constants.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from perfscope.analyzers.compare.statistics import estimators
from perfscope.analyzers.compare.statistics.paired import (
    CONFIRM_LEVEL,
    LEAST_CONFIRMING,
    SECOND_BATCH_LEVEL,
    level_for,
    looks_for,
)
from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST
from perfscope.analyzers.compare.statistics.warm_up import steady_part
from perfscope.profiler.ab.launch import ArmFolder, launch_once
from perfscope.profiler.ab.machine import Gpus, MachineWatch
from perfscope.profiler.launch.program import Target

NOISE = Path(__file__).resolve().parents[1] / "fixtures" / "noise"
WORLDS = ("quiet", "busy")
EFFECTS = (0.03, 0.05, 0.1, 0.3, 1.0)
TRIALS = 4000
CALIBRATION = 5
PROGRAMS = {
    "attention": ("perfscope.workloads.attention", "--size", "tiny", "--variant", "sdpa", "--steps", "600"),
    "moe": ("perfscope.workloads.moe", "--size", "tiny", "--variant", "loop", "--steps", "600"),
    "jax-attention": ("perfscope.workloads.jax.attention", "--size", "tiny", "--steps", "1000"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Pairs of launches of one program. ``ratios``: log ratio by pair and estimator (`estimators.CANDIDATES`)."""

    world: str
    program: str
    ratios: np.ndarray
    others_share: np.ndarray
    """By pair, mean of both launches."""

    @property
    def spread(self) -> np.ndarray:
        """By estimator, around zero."""
        return np.sqrt(np.mean(self.ratios**2, axis=0))


def noises(world: str) -> list[Noise]:
    """The recorded launches of a world, by program; pairs of which a launch never settled are left out."""
    launches: dict[str, dict[tuple[int, int], dict]] = defaultdict(dict)
    for line in gzip.decompress((NOISE / f"{world}.jsonl.gz").read_bytes()).decode().splitlines():
        launch = json.loads(line)
        launches[launch["program"]][launch["pair"], launch["slot"]] = launch
    result = []
    for program, by_pair in launches.items():
        ratios, shares = [], []
        for pair in sorted({pair for pair, _ in by_pair}):
            both = [by_pair[pair, slot] for slot in (0, 1)]
            levels = [_levels(launch["times_us"]) for launch in both]
            if None not in levels:
                ratios.append(np.log(np.divide(levels[1], levels[0])))
                shares.append(np.mean([launch["others_share"] for launch in both]))
        result.append(Noise(world=world, program=program, ratios=np.array(ratios), others_share=np.array(shares)))
    return result


def _levels(times: Sequence[float]) -> list[float] | None:
    part = steady_part(times)
    if part.problem is not None:
        return None
    return [float(estimators.location(times[part.dropped :], name) or 0) for name in estimators.CANDIDATES]


def draw(noise: Noise, most: int, rng: np.random.Generator) -> np.ndarray:
    """Log ratios of trials without an effect, by the estimator that each of them chooses, shape (trials, 2 most).

    First the measured pairs, then as many to confirm.
    """
    drawn = rng.integers(len(noise.ratios), size=(TRIALS, CALIBRATION + 2 * max(most, LEAST_CONFIRMING)))
    ratios = noise.ratios[drawn] * rng.choice([-1.0, 1.0], size=drawn.shape)[:, :, None]
    calibration = ratios[:, :CALIBRATION]
    spread = np.sqrt(np.mean(calibration**2, axis=1))
    best = spread.argmin(axis=1)
    least = spread[np.arange(TRIALS), best]
    chosen = np.where(least < estimators.CLEARLY_LESS * spread[:, 0], best, 0)
    busy = np.median(noise.others_share[drawn[:, :CALIBRATION]], axis=1) > estimators.BUSY_SHARE
    chosen = np.where(busy, estimators.CANDIDATES.index(estimators.BUSY), chosen)
    return np.asarray(np.take_along_axis(ratios[:, CALIBRATION:], chosen[:, None, None], axis=2)[:, :, 0])


def found(drawn: np.ndarray, most: int, effect: float, *, separate: bool = False) -> np.ndarray:
    """Whether each trial ends in a confirmed change. ``separate``: both batches are significant, as it was before."""
    ratios, looks = drawn + np.log1p(effect), looks_for(most)
    over, result = np.zeros(TRIALS, bool), np.zeros(TRIALS, bool)
    asked = level_for(len(looks)) if separate else SECOND_BATCH_LEVEL
    for look in looks:
        more = max(look, LEAST_CONFIRMING)
        first, second, both = ratios[:, :look], ratios[:, look : look + more], ratios[:, : look + more]
        asks = ~over & (_p(first) < asked) & _large(first)
        agree = first.mean(axis=1) * second.mean(axis=1) > 0
        agree &= (_p(second) < 0.05) & _large(both) if separate else (_p(both) < CONFIRM_LEVEL) & _large(second)
        result |= asks & agree
        over |= asks
    return result


def _p(ratios: np.ndarray) -> np.ndarray:
    count = ratios.shape[1]
    spread = np.maximum(ratios.std(axis=1, ddof=1), 1e-12)
    return np.asarray(2 * stats.t.sf(np.abs(ratios.mean(axis=1)) / (spread / np.sqrt(count)), count - 1))


def _large(ratios: np.ndarray) -> np.ndarray:
    return np.abs(ratios.mean(axis=1)) >= np.log1p(STEP_LEAST)


def noise_floor(drawn: np.ndarray, pairs: int = 12) -> float:
    """The change that 95 in 100 comparisons of a program with itself stay below, by so many pairs."""
    return float(np.expm1(np.quantile(np.abs(drawn[:, :pairs].mean(axis=1)), 0.95)))


def table() -> None:
    """Prints the tables of docs/compare.md."""
    print(f"| launches of | pairs | {' | '.join(estimators.CANDIDATES)} | others use |")
    print(f"| --- | ---: |{' ---: |' * (len(estimators.CANDIDATES) + 1)}")
    every = [noise for world in WORLDS for noise in noises(world)]
    for noise in every:
        spreads = " | ".join(f"{value:.0%}" for value in noise.spread)
        shares = f"{np.min(noise.others_share):.0%} to {np.max(noise.others_share):.0%}"
        print(f"| {noise.world}: {noise.program} | {len(noise.ratios)} | {spreads} | {shares} |")
    heads = " | ".join(f"+{effect:.0%}" for effect in EFFECTS)
    for most, separate in ((6, False), (10, False), (12, False), (6, True), (10, True)):
        rule = ", the rule before" if separate else ""
        print(f"\n--pairs {most}{rule}\n\n| launches of | false alarms | {heads} | noise floor | at three of it |")
        print(f"| --- | ---: |{' ---: |' * (len(EFFECTS) + 2)}")
        for noise in every:
            drawn = draw(noise, most, np.random.default_rng(0))
            floor = noise_floor(drawn)
            cells = [found(drawn, most, effect, separate=separate).mean() for effect in (0.0, *EFFECTS)]
            shares = " | ".join(f"{cell:.1%}" for cell in cells)
            there = found(drawn, most, 3 * floor, separate=separate).mean()
            print(f"| {noise.world}: {noise.program} | {shares} | {floor:.1%} | {there:.1%} |")


def record(file: Path, rounds: int) -> None:
    """Launch each program twice a round, one right after the other as the arms of a pair; a line of ``file`` each."""
    here, gpus = ArmFolder(root=Path.cwd(), folder=Path.cwd()), Gpus()
    for pair in range(rounds):
        for program, arguments in PROGRAMS.items():
            for slot in (0, 1):
                with MachineWatch(gpus) as watch:
                    launch = launch_once(
                        Target(arguments=arguments, module=True),
                        here,
                        arm="base",
                        phase="measure",
                        pair=pair,
                        slot=slot,
                        log=file.with_suffix(".log"),
                    )
                line = {
                    "program": program,
                    "pair": pair,
                    "slot": slot,
                    "seconds": launch.seconds,
                    "others_share": watch.counters()["others_share"],
                    "times_us": [round(time / 1e3) for time in launch.times_ns()],
                }
                with file.open("a") as stream:
                    stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        record(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        table()
