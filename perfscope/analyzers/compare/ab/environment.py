"""Whether the machine, not the program, made one arm slower: counters of the launches, arm against arm and over time.

Pairs in random order take out of the effect whatever strikes both arms. What is left is a machine that was slower for
one arm than for the other. A counter that bounds by how much it can have made the steps longer explains a change if
what remains of the change behind that bound would not matter.

As the order is random, a counter that differs between the arms is mostly one that the program moves, and that explains
nothing: a head that draws more power runs at lower clocks for good, one that computes more uses up a quota of processor
time, one that waits more lets the clocks of the processors fall and leaves more time to other programs. So a counter
goes with a second one that tells; where none can (the time of other programs) it is told and explains nothing.
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
"""At which a counter differs between the arms. Four are asked of every comparison, so one in 25 sees one differ by
chance; it must go the right way and be as large as the change besides."""
LEAST_PAIRS = 6
MOST_SHARE = 0.95
"""Of time taken away: beyond it the bound would explain everything."""
OWN = 0.5
"""Share of looks from which on the power limit is what sets a device's clocks."""
BUSY = 0.25
"""Of all processors' time, used by other programs: from a quarter of the machine on, launches are not alone on it."""
FROM_NEIGHBOURS = 4.0
"""Standard errors of the thirds, by the spread between neighbours, that a counter must have moved over time."""


Cause = Literal["power limit", "computes more", "waits more"]


def _of_clock(mhz: float) -> float:
    return 1 / mhz if mhz > 0 else math.nan


def _of_share(share: float) -> float:
    return 1 / (1 - min(max(share, 0.0), MOST_SHARE))


class Counter(Struct, frozen=True, kw_only=True):
    """A counter of `ab_machine`. ``slowdown``: by what factor at most its value makes steps longer, to a constant."""

    words: str
    form: str
    """Of a value, for a person."""
    moved: float
    """The least movement over time that is told: of a clock relative to it, else in its unit."""
    slowdown: Callable[[float], float] | None = None
    of_program: Cause | None = None
    """What would show that the slower arm moved it itself."""


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
"""By name; the others that a launch keeps (load, power, own processor time) are there to be read."""

HARDWARE = ("gpu", "cpu", "driver", "device")
"""Facts that must not differ within a pair. An arm that has none at all runs on no device: that is the program's."""


class Environment(Struct, frozen=True, kw_only=True):
    """What is known of what the launches ran on. ``remarks``: what differed or moved."""

    facts: Mapping[str, str]
    remarks: tuple[str, ...]
    voids: str | None = None
    """Why the step's verdict says nothing of the program, or ``None``."""

    def apply(self, step: MetricResult) -> MetricResult:
        """The step's verdict as it stands in view of this."""
        if self.voids is None or step.verdict not in ("regression", "improvement"):
            return step
        return replace(
            step, verdict="inconclusive", confirmed=False if step.confirmed else step.confirmed,
            remarks=(*step.remarks, self.voids),
        )  # fmt: skip


def environment_of(pairs: Sequence[Pair], step: MetricResult, *, least: float) -> Environment:
    """Look at the launches of the pairs that ``step`` was judged from; ``least``: the smallest change that matters."""
    facts, remarks, other = _facts(pairs)
    voids = other
    if voids is None:
        voids = next(_explanations(pairs, step, least), None)
    return Environment(facts=facts, remarks=(*remarks, *_busy(pairs), *_moved(pairs)), voids=voids)


def _facts(pairs: Sequence[Pair]) -> tuple[dict[str, str], list[str], str | None]:
    """(facts of all launches, remarks, why pairs are none)."""
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
    """Counters that differ between the arms by as much as the steps do, less what does not matter."""
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
    """Whether the slower arm moved the counter itself."""
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
            f"other programs used {typical:.0%} of the processors' time meanwhile: times spread, and more pairs are "
            "needed than on a machine of one's own"
        )


def _moved(pairs: Sequence[Pair]) -> Iterator[str]:
    """Counters whose level moved from the first third of the comparison to the last, whatever the arms."""
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


# What happened to the machine meanwhile: the base against itself over time, the place in a pair, throttling.
#
# Pairs take a drift out of the effect (docs/compare.md has the simulation), so a drift is told and does not void the
# verdict. What strikes one arm only does.


DRIFT_LEVEL = 0.001
"""Of the sentinels: they are asked of every comparison, and an alarm must mean something."""
LEAST_LAUNCHES = 8


def drift_remark(base: Sequence[float], *, least: float = STEP_LEAST) -> str | None:
    """Whether the base itself became slower or faster, from one number for each of its launches in the order they ran.

    ``None``: it did not, or there are too few launches. The thirds' medians must differ by more than ``least`` and by
    four times what the spread between neighbours, which a slow drift leaves alone, lets thirds differ.
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
    """(median of the first third, of the last, standard error of their difference by the spread between neighbours)."""
    third = len(series) // 3
    spread = float(np.sqrt(np.mean(np.diff(series) ** 2) / 2))
    # The median of n normal values has 1.25 times the standard error of their mean.
    error = 1.2533 * spread * math.sqrt(2 / third)
    return float(np.median(series[:third])), float(np.median(series[-third:])), error


def order_remark(first: Sequence[float], second: Sequence[float]) -> str | None:
    """Whether the launch that ran second in its pair differs from the one before it, whichever arm it was.

    The order is random, so it cancels out of the effect; it widens the interval all the same.
    """
    if len(first) < LEAST_LAUNCHES:
        return None
    effect = effect_of(np.log(np.asarray(second, float) / np.asarray(first, float)))
    if effect.p is None or effect.p >= DRIFT_LEVEL:
        return None
    return (
        f"the second launch of a pair takes {effect.effect:+.1%}: the one before it leaves the machine different; "
        "the order is random, so the effect is not touched"
    )
