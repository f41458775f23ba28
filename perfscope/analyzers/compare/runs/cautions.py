"""What must be known before a verdict on two runs is believed: other programs, other machines, machines not alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from msgspec.structs import replace

from perfscope.analyzers.compare.ab.environment import BUSY
from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.analyzers.compare.runs.run_sets import MACHINE, environment_of
from perfscope.analyzers.readers.load import Loaded
from perfscope.model.documents.run import Run
from perfscope.model.units import format_share

HARDWARE = tuple(name for name in MACHINE if name != "system")


def compare_loaded(base: Loaded, head: Loaded) -> Comparison:
    """`comparison.compare` of two sides, with what the manifests of runs say of them; errors as there."""
    comparison = compare(base.traces, head.traces)
    warned = tuple(cautions(base.manifest, head.manifest))
    return replace(comparison, cautions=tuple(dict.fromkeys((*warned, *comparison.cautions))))


def cautions(base: Run | None, head: Run | None) -> Iterator[str]:
    """What the manifests of two runs say against their comparison, one sentence each; a trace file has none."""
    if base is not None and head is not None:
        yield from _programs(base, head)
        yield from _machines(base, head)
    for side, run in (("base", base), ("head", head)):
        if run is not None:
            yield from _busy(side, run)


def _programs(base: Run, head: Run) -> Iterator[str]:
    mine, theirs = (run.script or run.name for run in (base, head))
    if mine != theirs:
        yield f"different programs, {mine} and {theirs}: what differs is no change of one program"
    elif base.command != head.command:
        started = (shlex.join(run.command) for run in (base, head))
        yield f"started with other arguments, {' and '.join(f'`{command}`' for command in started)}"


def _machines(base: Run, head: Run) -> Iterator[str]:
    known = environment_of(base), environment_of(head)
    pairs = {name: [each.get(name, "") for each in known] for name in HARDWARE}
    differ = [f"{name} {' and '.join(each)}" for name, each in pairs.items() if all(each) and each[0] != each[1]]
    if differ:
        yield f"different machines, {', '.join(differ)}: the change of time is theirs as much as the program's"


def _busy(side: str, run: Run) -> Iterator[str]:
    for name, words in (("others_share", "other programs used"), ("steal_share", "the host of this machine kept")):
        share = run.machine_load.get(name, 0.0)
        if share >= BUSY:
            yield f"the machine was busy: {words} {format_share(share, 1.0)} of the processors while {side} ran"
