"""Several programs of one run: how often each is called in a step, and what a step takes of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.analyzers.estimate.model import Estimate
from perfscope.analyzers.estimate.spans import Range
from perfscope.model.documents.compile_manifest import FILE, load
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

LEAST_CALLS = 2
"""Calls below which nothing says that a program is called in each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOfSeveral:
    """A step as calls of programs, as far as the calls that were seen say."""

    steps: int
    """Calls of the program that takes longest, of those that were called more than once: it stands for the step."""
    calls: tuple[float | None, ...]
    """Of each program in a step; None: called less often than there were steps, so not part of one."""
    time: Range
    """All that are part of it, one after another: nothing of one runs beside another."""


def calls_seen(trace: Trace) -> Mapping[int, int]:
    """How often each program was called while it was watched, by index in ``trace.hlo``; empty where nothing says."""
    folder = Path(trace.source.path)
    try:
        if not (folder / FILE).is_file():
            return {}
        manifest = load(folder)
    except (DataError, OSError):
        return {}
    by_file = {(folder / one.file).as_posix(): one.calls for one in manifest.programs}
    found = {}
    for index, module in enumerate(trace.hlo):
        calls = by_file.get(Path(module.source).as_posix())
        if calls is not None:
            found[index] = calls
    return found


def step_of(estimates: Sequence[Estimate], calls: Sequence[int]) -> StepOfSeveral | None:
    """What a step takes of several programs that were called so often; ``None`` where the calls do not tell."""
    if not estimates or len(estimates) != len(calls):
        return None
    often = [index for index, count in enumerate(calls) if count >= LEAST_CALLS]
    if not often:
        return None
    main = max(often, key=lambda index: (estimates[index].step_ns.middle, -index))
    steps = calls[main]
    each = tuple(count / steps if count >= steps else None for count in calls)
    total = [(one.step_ns, count) for one, count in zip(estimates, each, strict=True) if count is not None]
    return StepOfSeveral(
        steps=steps,
        calls=each,
        time=Range(
            low=sum(round(time.low * count) for time, count in total),
            high=sum(round(time.high * count) for time, count in total),
        ),
    )
