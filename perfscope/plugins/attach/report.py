"""The stacks of a process as a report: where its main thread is, and the stack of each thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.dashboards.report.blocks import Listing, Report, Section
from perfscope.plugins.attach.stacks import WAITS, ThreadStack
from perfscope.plugins.attach.target import Target
from perfscope.plugins.job import place_of

MAIN = "MainThread"
NAMED = frozenset(
    {"waiting for ranks", "waiting for data", "compilation", "evaluation", "saving checkpoints", "restoring"}
)
"""Causes that say more than the function; others are of trainings, and this may be any program."""
FEW_FRAMES = 12
"""Innermost frames of a thread that are shown without ``-v``."""


def report_of(target: Target, stacks: Sequence[ThreadStack], way: str, *, verbose: bool) -> Report:
    """The stacks as blocks. ``way``: how they were read."""
    ordered = sorted(stacks, key=lambda stack: (not _is_main(stack), not stack.frames, stack.name))
    return Report(
        headline=f"process {target.pid}: {_where(ordered[0]) if ordered else 'no thread runs Python'}",
        facts=tuple(_facts(target, stacks, way)),
        sections=tuple(_section(stack, verbose=verbose) for stack in ordered),
    )


def _facts(target: Target, stacks: Sequence[ThreadStack], way: str) -> Iterator[str]:
    if target.command:
        yield target.command
    threads = "1 thread" if len(stacks) == 1 else f"{len(stacks):,} threads"
    yield f"{threads}, read by {way}; the process goes on"
    if target.run is not None:
        yield f"it records into {target.run}: `perfscope attach {target.pid} --record 3` records its next steps"


def _is_main(stack: ThreadStack) -> bool:
    """py-spy names the main thread by its process where the program has named it."""
    return stack.name == MAIN or bool(stack.frames and stack.frames[-1][2] == "<module>")


def _where(stack: ThreadStack) -> str:
    place = place_of(stack.frames)
    does = "waits" if stack.state == WAITS else "is"
    inside = f" in {stack.frames[0][2]}" if stack.frames else ""
    cause = f" ({place.cause})" if place.cause in NAMED else ""
    return f"{stack.name} {does}{inside}{cause}{f' at {place.line}' if place.line else ''}"


def _section(stack: ThreadStack, *, verbose: bool) -> Section:
    lines = [f"{call}  {file}:{line}" for file, line, call in stack.frames]
    shown = lines if verbose else lines[:FEW_FRAMES]
    more = [f"and {len(lines) - len(shown)} outer frames (-v)"] if len(shown) < len(lines) else []
    title = f"{stack.name}, {stack.state}" if stack.state else stack.name
    return Section(title=title, blocks=(Listing(items=(*shown, *more)),))
