"""Whether the machine, not the program, made one arm slower: counters of launches compared between arms and over time.

Pairs in random order cancel effects that hit both arms equally. They do not cancel a machine that was slower for one
arm. A counter with a bound on how much it can lengthen the steps explains a change if the part of the change beyond
that bound would not matter.

Because the order is random, a counter that differs between the arms is mostly moved by the program, and then explains
nothing: a head that draws more power runs at lower clocks for good; a head that computes more uses up a quota of
processor time; a head that waits more lets the clocks of the processors fall and leaves more time to other programs. So
each counter is paired with a second counter that separates the two cases. Where no second counter can (the time of
other programs), the counter is reported and explains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.statistics.paired import effect_of
from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST, MetricResult
from perfscope.model.documents.ab import Launch, Pair

LEVEL = 0.01
"""Probability at which a counter differs between the arms. Four are tested per comparison, so one differs by chance in
every 25th comparison. It must also go in the right direction and be as large as the change.
"""
LEAST_PAIRS = 6
MOST_SHARE = 0.95
"""Largest share of time taken away: with more, the bound would explain everything."""
OWN = 0.5
"""Share of samples from which the power limit is the cause of a device's clocks."""
BUSY = 0.25
"""Share of all processors' time used by other programs from which launches share the machine."""
FROM_NEIGHBOURS = 4.0
"""Movement over time that counts, in standard errors of the thirds, estimated from the spread between neighbours."""


Cause = Literal["power limit", "computes more", "waits more"]

HARDWARE = ("gpu", "cpu", "driver", "device")
"""Facts that must not differ within a pair. An arm without any of them runs on no device, which is the program's
choice.
"""

DRIFT_LEVEL = 0.001
"""Level of the alarms. Every comparison tests them, so an alarm must be rare without a cause."""

LEAST_LAUNCHES = 8


def _of_clock(mhz: float) -> float:
    return 1 / mhz if mhz > 0 else math.nan


def _of_share(share: float) -> float:
    return 1 / (1 - min(max(share, 0.0), MOST_SHARE))


class Counter(Struct, frozen=True, kw_only=True):
    """A counter of `ab_machine`. ``slowdown``: factor by which its value lengthens steps at most, up to a constant."""

    words: str
    form: str
    """Format of a value for a reader."""
    moved: float
    """Smallest movement over time that is reported: relative for a clock, else in the counter's unit."""
    slowdown: Callable[[float], float] | None = None
    of_program: Cause | None = None
    """Evidence that the slower arm moved the counter itself."""


COUNTERS: Mapping[str, Counter] = {
    "gpu_mhz": Counter(
        words="the clock of the GPU",
        form="{:.0f} MHz",
        moved=0.03,
        slowdown=_of_clock,
        of_program="power limit",
    ),
    "cpu_mhz": Counter(
        words="the clock of the processors",
        form="{:.0f} MHz",
        moved=0.05,
        slowdown=_of_clock,
        of_program="waits more",
    ),
    "steal_share": Counter(
        words="processor time that the host of this virtual machine kept",
        form="{:.1%}",
        moved=0.05,
        slowdown=_of_share,
        of_program="computes more",
    ),
    "throttled_share": Counter(
        words="periods in which the quota of the control group was used up",
        form="{:.1%}",
        moved=0.05,
        slowdown=_of_share,
        of_program="computes more",
    ),
    "others_share": Counter(words="processor time of other programs", form="{:.0%} of all", moved=0.15),
    "gpu_slowed_share": Counter(words="looks at a GPU held back by heat or a power brake", form="{:.0%}", moved=0.1),
    "gpu_celsius": Counter(words="the temperature of the GPU", form="{:.0f} C", moved=10.0),
    "memory_pressure": Counter(words="time in which tasks waited for memory", form="{:.1%}", moved=0.1),
    "io_pressure": Counter(words="time in which tasks waited for the disk", form="{:.1%}", moved=0.2),
}
"""Counters by name. Launches record more counters (load, power, processor time), which are not compared."""


class Environment(Struct, frozen=True, kw_only=True):
    """Facts about the machine of the launches. ``remarks``: facts that differed and counters that moved."""

    facts: Mapping[str, str]
    remarks: tuple[str, ...]
    voids: str | None = None
    """Reason why the verdict on the step does not apply to the program, or ``None``."""

    def apply(self, step: MetricResult) -> MetricResult:
        """Return the verdict on the step, adjusted for the environment."""
        if self.voids is None or step.verdict not in ("regression", "improvement"):
            return step
        return replace(
            step, verdict="inconclusive", confirmed=False if step.confirmed else step.confirmed,
            remarks=(*step.remarks, self.voids),
        )  # fmt: skip


def environment_of(pairs: Sequence[Pair], step: MetricResult, *, least: float) -> Environment:
    """Inspect the launches of the pairs of the verdict ``step``. ``least``: the smallest change that matters."""
    facts, remarks, other = _facts(pairs)
    voids = other
    if voids is None:
        voids = next(_explanations(pairs, step, least), None)
    return Environment(facts=facts, remarks=(*remarks, *_busy(pairs), *_moved(pairs)), voids=voids)


def _facts(pairs: Sequence[Pair]) -> tuple[dict[str, str], list[str], str | None]:
    """Return (facts of all launches, remarks, why the pairs are invalid)."""
    names = dict.fromkeys(name for pair in pairs for launch in pair for name in launch.environment)
    facts: dict[str, str] = {}
    remarks: list[str] = []
    void = None
    for name in names:
        sides = [list(dict.fromkeys(pair[arm].environment.get(name, "-") for pair in pairs)) for arm in (0, 1)]
        texts = [", ".join(side) for side in sides]
        facts[name] = texts[0] if texts[0] == texts[1] else f"base {texts[0]}, head {texts[1]}"
        arms = [(pair[0].environment.get(name), pair[1].environment.get(name)) for pair in pairs]
        mixed = any(base != head for base, head in arms)
        if name in HARDWARE and any(base != head and base is not None and head is not None for base, head in arms):
            void = f"environment changed: {name} is {facts[name]}: both launches of a pair must run on the same"
        elif mixed:
            remarks.append(f"{name} is {facts[name]}: the change is its as much as the program's")
        elif max(map(len, sides)) > 1:
            remarks.append(f"environment changed: {name} was {facts[name]} in the course of the comparison")
    return facts, remarks, void


def _explanations(pairs: Sequence[Pair], step: MetricResult, least: float) -> Iterator[str]:
    """Yield counters that differ between the arms by as much as the steps do, less the change that does not matter."""
    if step.effect is None or step.verdict not in ("regression", "improvement"):
        return
    change = math.log1p(step.effect)
    for name, counter in COUNTERS.items():
        values = _values(pairs, name)
        if counter.slowdown is None or len(values) < LEAST_PAIRS:
            continue
        slower = np.log([[counter.slowdown(value) for value in pair] for pair in values])
        bound = slower[:, 1] - slower[:, 0]
        if not np.all(np.isfinite(bound)) or not bound.any():
            continue
        effect = effect_of(bound)
        much = math.log1p(effect.effect)
        enough = much * change > 0 and abs(change) - abs(much) < math.log1p(least)
        if not enough or effect.p is None or effect.p >= LEVEL or _by_program(pairs, counter, change > 0, least):
            continue
        base, head = (float(np.median([pair[arm] for pair in values])) for arm in (0, 1))
        yield (
            f"environment changed: {counter.words} was {counter.form.format(base)} under base and "
            f"{counter.form.format(head)} under head (p {effect.p:.2g}), which alone can change the step by up to "
            f"{effect.effect:+.1%}; {step.effect:+.1%} was measured, and what remains would not matter: no verdict"
        )


def _by_program(pairs: Sequence[Pair], counter: Counter, head_is_slower: bool, least: float) -> bool:
    """Return whether the slower arm moved the counter itself."""
    slow = 1 if head_is_slower else 0
    if counter.of_program == "power limit":
        capped = _values(pairs, "gpu_capped_share")
        return bool(capped) and float(np.mean([pair[slow] for pair in capped])) >= OWN
    used = [
        tuple(
            launch.machine["own_cpus"] * (launch.seconds if counter.of_program == "computes more" else 1)
            for launch in pair
        )
        for pair in pairs
        if _has(pair, "own_cpus")
    ]
    logs = [math.log(pair[slow] / pair[1 - slow]) for pair in used if min(pair) > 0]
    if not logs:
        return False
    more = float(np.median(logs))
    return more >= math.log1p(least) if counter.of_program == "computes more" else more <= -math.log1p(least)


def _busy(pairs: Sequence[Pair]) -> Iterator[str]:
    shares = [share for pair in _values(pairs, "others_share") for share in pair]
    if shares and (typical := float(np.median(shares))) >= BUSY:
        yield (
            f"other programs used {typical:.0%} of the processors' time: times spread more, so more pairs are "
            "needed than on an exclusive machine"
        )


def _moved(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield counters whose level moved from the first third of the comparison to the last, in either arm."""
    for name, counter in COUNTERS.items():
        series = [sum(pair) / 2 for pair in _values(pairs, name)]
        if len(series) < LEAST_PAIRS:
            continue
        first, last, error = _thirds(np.asarray(series))
        least = counter.moved * abs(first) if counter.slowdown is _of_clock else counter.moved
        if abs(last - first) >= max(least, FROM_NEIGHBOURS * error) and last != first:
            yield (
                f"environment changed: {counter.words} went from {counter.form.format(first)} to "
                f"{counter.form.format(last)} in the course of the comparison; pairs take that out"
            )


def _values(pairs: Sequence[Pair], name: str) -> list[tuple[float, float]]:
    return [(pair[0].machine[name], pair[1].machine[name]) for pair in pairs if _has(pair, name)]


def _has(pair: tuple[Launch, Launch], name: str) -> bool:
    return all(name in launch.machine for launch in pair)


# Changes of the machine during the comparison: the base against itself over time, the place in a pair, throttling.
#
# Pairs cancel a drift (docs/compare.md has the simulation), so a drift is reported and does not void the verdict.
# Effects on one arm only do.


def drift_remark(base: Sequence[float], *, least: float = STEP_LEAST) -> str | None:
    """Return whether the base itself became slower or faster, from one number per launch in the order of the launches.

    ``None`` if it did not, or if there are too few launches. The thirds' medians must differ by more than ``least``,
    and by four times the difference that the spread between neighbours explains; a slow drift does not change that
    spread.
    """
    if len(base) < LEAST_LAUNCHES:
        return None
    first, last, error = _thirds(np.log(np.asarray(base, float)))
    change = last - first
    if abs(change) <= max(math.log1p(least), FROM_NEIGHBOURS * error):
        return None
    return (
        f"environment changed: the base itself moved by {math.expm1(change):+.1%} from the first third of the "
        "comparison to the last; pairs take that out, but times are not those of a quiet machine"
    )


def _thirds(series: np.ndarray) -> tuple[float, float, float]:
    """Return the medians of the first and last third, and the standard error of their difference from neighbours."""
    third = len(series) // 3
    spread = float(np.sqrt(np.mean(np.diff(series) ** 2) / 2))
    # The median of n normal values has 1.25 times the standard error of their mean.
    error = 1.2533 * spread * math.sqrt(2 / third)
    return float(np.median(series[:third])), float(np.median(series[-third:])), error


def order_remark(first: Sequence[float], second: Sequence[float]) -> str | None:
    """Return whether the second launch of a pair differs from the first, for either arm.

    The order is random, so this cancels out of the effect, but it widens the interval.
    """
    if len(first) < LEAST_LAUNCHES:
        return None
    effect = effect_of(np.log(np.asarray(second, float) / np.asarray(first, float)))
    if effect.p is None or effect.p >= DRIFT_LEVEL:
        return None
    return (
        f"the second launch of a pair takes {effect.effect:+.1%}: the first one changes the state of the machine; "
        "the order is random, so the effect is unbiased"
    )
