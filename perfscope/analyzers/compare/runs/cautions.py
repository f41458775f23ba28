"""Cautions for a verdict on two runs: other programs, other machines, shared machines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from msgspec.structs import replace

from perfscope.analyzers.compare.ab.environment import BUSY
from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.analyzers.compare.runs.likely import SETTLE
from perfscope.analyzers.compare.runs.run_sets import MACHINE, environment_of
from perfscope.analyzers.readers import Loaded
from perfscope.model.documents.run import Run
from perfscope.model.units import format_share

COMMIT_DIGITS = 12

HARDWARE = tuple(name for name in MACHINE if name != "system")


def compare_loaded(base: Loaded, head: Loaded) -> Comparison:
    """Compare two sides like `comparison.compare`, with the facts of the runs' manifests. Same errors."""
    runs = [run for run in (base.manifest, head.manifest) if run is not None]
    comparison = compare(base.traces, head.traces, busy=any(map(_was_busy, runs)))
    warned = tuple(cautions(base.manifest, head.manifest))
    return replace(
        comparison,
        cautions=tuple(dict.fromkeys((*warned, *comparison.cautions))),
        settle=comparison.settle and _settle(base.manifest, head.manifest),
    )


def _was_busy(run: Run) -> bool:
    return max(run.machine_load.values(), default=0.0) >= BUSY


def _settle(base: Run | None, head: Run | None) -> str:
    """Return the command that launches both sides in turns, with the known commits and program of the runs."""
    if base is None or head is None:
        return SETTLE
    commits = [str((run.git or {}).get("commit") or "")[:COMMIT_DIGITS] for run in (base, head)]
    program = shlex.join(head.command) if head.command else "train.py"
    if all(commits) and commits[0] != commits[1] and not any((run.git or {}).get("dirty") for run in (base, head)):
        return f"perfscope compare commits --base {commits[0]} --head {commits[1]} -- {program}"
    return f"perfscope compare commits --base REF -- {program}"


def cautions(base: Run | None, head: Run | None) -> Iterator[str]:
    """Yield one sentence per objection to the comparison in the manifests of the runs; none for a trace file."""
    if base is not None and head is not None:
        yield from _programs(base, head)
        yield from _machines(base, head)
    for side, run in (("base", base), ("head", head)):
        if run is not None:
            yield from _busy(side, run)


def _programs(base: Run, head: Run) -> Iterator[str]:
    mine, theirs = (run.script or run.name for run in (base, head))
    if mine != theirs:
        yield f"different programs, {mine} and {theirs}: the difference is not a change of one program"
    elif base.command != head.command:
        started = (shlex.join(run.command) for run in (base, head))
        yield f"started with other arguments, {' and '.join(f'`{command}`' for command in started)}"


def _machines(base: Run, head: Run) -> Iterator[str]:
    known = environment_of(base), environment_of(head)
    pairs = {name: [each.get(name, "") for each in known] for name in HARDWARE}
    differ = [f"{name} {' and '.join(each)}" for name, each in pairs.items() if all(each) and each[0] != each[1]]
    if differ:
        yield f"different machines, {', '.join(differ)}: the machines may cause the change of time"


def _busy(side: str, run: Run) -> Iterator[str]:
    for name, words in (("others_share", "other programs used"), ("steal_share", "the host of this machine kept")):
        share = run.machine_load.get(name, 0.0)
        if share >= BUSY:
            yield f"the machine was busy: {words} {format_share(share, 1.0)} of the processors while {side} ran"
