"""False alarms and power of `perfscope compare --ab` and of the usual tests: on real launches, and simulated.

python benchmarks/compare_aa.py record FILE COUNT MODULE ARGS...   launches of one program, as --ab runs them
python benchmarks/compare_aa.py judge FILE                         the same program split into two arms, many times
python benchmarks/compare_aa.py simulate                           launches that are made up, with and without a change
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy import stats

from perfscope.analyzers.compare.ab.judge import AbJudge
from perfscope.analyzers.compare.runs.comparison import from_single_captures
from perfscope.analyzers.compare.statistics.estimators import choose, location
from perfscope.analyzers.compare.statistics.paired import effect_of, log_ratios
from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST, from_pairs
from perfscope.analyzers.compare.statistics.warm_up import steady_part
from perfscope.model.documents.ab import Launch, Pair, Pairs
from perfscope.profiler.ab.launch import ArmFolder, launch_once
from perfscope.profiler.launch.program import Target
from tests.compare.simulated_launches import WORLDS, arms, level

SPLITS = 1000
PAIRS = 10
CALIBRATION = 5
REPETITIONS = 1000


def record(file: Path, count: int, module: Sequence[str]) -> None:
    target = Target(arguments=tuple(module), module=True)
    here = ArmFolder(root=Path.cwd(), folder=Path.cwd())
    for number in range(count):
        launch = launch_once(
            target, here, arm="base", phase="measure", pair=number // 2, slot=number % 2, log=file.with_suffix(".log")
        )
        with file.open("a") as stream:
            stream.write(json.dumps(msgspec.to_builtins(launch)) + "\n")
        print(number + 1, launch.problem or f"{launch.seconds:.1f} s", flush=True)


def steady(launch: Launch) -> np.ndarray:
    part = steady_part(launch.times_ns())
    return np.array(launch.times_ns()[part.dropped :])


def judge(file: Path) -> None:
    launches = [msgspec.convert(json.loads(line), Launch) for line in file.read_text().splitlines()]
    launches = [launch for launch in launches if launch.problem is None]
    times = [steady(launch) for launch in launches]
    rejected = sum(steady_part(launch.times_ns()).problem is not None for launch in launches)
    medians = np.array([np.median(one) for one in times])
    print(f"{len(launches)} launches of {launches[0].steps_seen} steps, {rejected} without a steady state; ", end="")
    print(f"spread of launch medians {np.log(medians).std(ddof=1):.1%}")
    for name in ("median", "p25", "p10", "mean"):
        levels = np.array([location(one, name) for one in times])
        ratios = np.log(levels[1::2] / levels[: len(levels) // 2 * 2 : 2])
        print(f"  spread of pairs by {name}: {np.sqrt(np.mean(ratios**2)):.1%}")
    rng = np.random.default_rng(0)
    counts: dict[str, list[bool]] = {}
    chosen: dict[str, int] = {}
    long = 30

    def note(name: str, p: float, change: float) -> None:
        counts.setdefault(f"{name}, p < .05", []).append(p < 0.05)
        counts.setdefault(f"{name}, p < .05 and 2%", []).append(p < 0.05 and abs(change) >= STEP_LEAST)

    for _ in range(SPLITS):
        first = int(rng.integers(len(launches) - 1))
        one, other = times[first], times[first + 1]
        change = float(np.median(other) / np.median(one) - 1)
        note("1 launch each, Welch on steps", stats.ttest_ind(one, other, equal_var=False).pvalue, change)
        note("1 launch each, Mann-Whitney on steps", stats.mannwhitneyu(one, other).pvalue, change)
        if len(counts.setdefault("blocks", [])) < 200:
            found = from_single_captures("step", launches[first].times_ns(), launches[first + 1].times_ns())
            counts["blocks"].append(found.verdict in ("regression", "improvement"))
        start = int(rng.integers(len(launches) - 2 * PAIRS + 1))
        block = medians[start : start + 2 * PAIRS]
        change = float(np.exp(np.log(block[PAIRS:]).mean() - np.log(block[:PAIRS]).mean()) - 1)
        note(
            "10 launches each, AAA...BBB, Welch on medians",
            stats.ttest_ind(np.log(block[:PAIRS]), np.log(block[PAIRS:]), equal_var=False).pvalue,
            change,
        )
        start = int(rng.integers(len(launches) - 2 * (CALIBRATION + PAIRS) + 1))
        calibration = pairs_from(launches, start, CALIBRATION, rng)
        pairs = pairs_from(launches, start + 2 * CALIBRATION, PAIRS, rng)
        estimator = choose([(steady(a).tolist(), steady(b).tolist()) for a, b in calibration]).name
        chosen[estimator] = chosen.get(estimator, 0) + 1
        sides = [[float(location(steady(pair[arm]), estimator) or 0) for pair in pairs] for arm in (0, 1)]
        effect = effect_of(log_ratios(*sides))
        note("10 pairs, ours (estimator calibrated), one look", effect.p or 1.0, effect.effect)
        for most in (PAIRS, long):
            needed = 2 * (CALIBRATION + 2 * most)
            if needed > len(launches):
                continue
            start = int(rng.integers(len(launches) - needed + 1))
            verdict, confirmed = whole(launches, start, most, rng)
            counts.setdefault(f"up to {most} pairs with looks, before confirmation", []).append(verdict)
            counts.setdefault(f"up to {most} pairs with looks, confirmed by a second batch", []).append(confirmed)
    print(f"estimators chosen: {chosen}")
    for name, alarms in counts.items():
        print(f"  {name}: {np.mean(alarms):.1%} of {len(alarms)} splits")


def pairs_from(launches: Sequence[Launch], start: int, count: int, rng: np.random.Generator) -> list[Pair]:
    """Neighbours in time as pairs, in random order."""
    pairs: list[Pair] = []
    for pair in range(count):
        one, other = launches[start + 2 * pair], launches[start + 2 * pair + 1]
        pairs.append((one, other) if rng.random() < 0.5 else (other, one))
    return pairs


def whole(launches: Sequence[Launch], start: int, most: int, rng: np.random.Generator) -> tuple[bool, bool]:
    """The procedure of the command: whether it found a change at some look, and whether a second batch confirmed it."""
    calibration = pairs_from(launches, start, CALIBRATION, rng)
    pairs = pairs_from(launches, start + 2 * CALIBRATION, 2 * most, rng)
    asked = AbJudge(pairs=most, least=STEP_LEAST)
    for done in range(1, most + 1):
        decision = asked.look(calibration, pairs[:done])
        if decision == "stop":
            return False, False
        if decision == "confirm":
            batches = Pairs(
                calibration=tuple(calibration),
                measured=tuple(pairs[:done]),
                confirming=tuple(pairs[done : done + max(done, 6)]),
            )
            return True, asked.result(batches).step.confirmed is True
    return False, False


def simulate() -> None:
    tests: dict[str, Callable[[list[np.ndarray], list[np.ndarray]], bool]] = {
        "1 launch each, Welch on steps": lambda a, b: (
            stats.ttest_ind(a[0][6:], b[0][6:], equal_var=False).pvalue < 0.05
        ),
        "1 launch each, Mann-Whitney": lambda a, b: stats.mannwhitneyu(a[0][6:], b[0][6:]).pvalue < 0.05,
        "10 pairs, paired t (ours)": lambda a, b: (effect_of(log_ratios(*levels(a, b))).p or 1) < 0.05,
        "the rule: and at least 2% (ours)": lambda a, b: (
            from_pairs("step", *levels(a, b), estimator="median").verdict in ("regression", "improvement")
        ),
    }
    print("| test |", " | ".join(WORLDS), "|")
    for name, test in tests.items():
        cells = []
        for world in WORLDS.values():
            rng = np.random.default_rng(0)
            shares = []
            for change in (0.0, 0.03):
                found = [test(*arms(world, PAIRS, change, rng)[:2]) for _ in range(REPETITIONS)]
                shares.append(np.mean(found))
            cells.append(f"{shares[0]:.3f} / {shares[1]:.2f}")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


def levels(base: list[np.ndarray], head: list[np.ndarray]) -> tuple[list[float], list[float]]:
    return [level(times) for times in base], [level(times) for times in head]


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "record":
        record(Path(rest[0]), int(rest[1]), rest[2:])
    elif verb == "judge":
        judge(Path(rest[0]))
    else:
        simulate()
