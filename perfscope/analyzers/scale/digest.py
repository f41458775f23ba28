"""What is kept of one task of a set: its traces are read, judged by themselves and cut down, wherever that runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfscope.analyzers.engine import EVIDENCE_EACH, Examined, chosen_rules, examine
from perfscope.analyzers.facts.program_device import judge_for
from perfscope.analyzers.hardware import Device
from perfscope.analyzers.load import Read, Skipped, Task, read_in_folder, read_task
from perfscope.analyzers.readers._program import is_program_alone
from perfscope.analyzers.readers._run_parts import RunPart
from perfscope.analyzers.scale.remote import fetched
from perfscope.analyzers.scale.remote_runs import fetched_part
from perfscope.analyzers.scale.slim import slim
from perfscope.analyzers.scale.urls import is_remote, shown_url
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The traces of one task, cut down to what comparing reads; or why there are none."""

    examined: tuple[Examined, ...] = ()
    programs: tuple[Trace, ...] = ()
    """Compiled programs alone: whole and not judged yet, for several files of them are one trace together."""
    skipped: Skipped | None = None


def digest(task: Task, rules: tuple[str, ...] | None = None, device: Device | None = None) -> Digest:
    """Read a task (a path, a URL of fsspec's, or a part of a run) and judge it.

    ``rules``: ids, all for ``None``; ``device``: as ``judge_for``.
    """
    if isinstance(task, RunPart):
        return digest_of(*_part(task), rules, device)
    if not is_remote(task):
        return digest_of(*read_task(task), rules, device)
    shown = shown_url(task)
    try:
        with fetched(task) as copy:
            traces, skipped = read_in_folder(copy)
            for trace in traces:
                _lies_at(trace, str(copy), shown)
            lost = None if skipped is None else replace(skipped, path=shown)
            return digest_of(traces, lost, rules, device)
    except DataError as error:
        return Digest(skipped=Skipped(path=shown, reason=str(error).removeprefix(f"{shown}: "), broken=True))


def _part(part: RunPart) -> Read:
    if not is_remote(part.path):
        return read_task(part)
    shown = shown_url(part.path)
    named = f"{shown}/{part.name()}"
    try:
        with fetched_part(part) as here:
            traces, lost = read_task(here)
    except DataError as error:
        return (), Skipped(path=named, reason=str(error).removeprefix(f"{shown}: "), broken=True)
    for trace in traces:
        _lies_at(trace, here.path, shown)
    return traces, None if lost is None else replace(lost, path=named, reason=lost.reason.replace(here.path, shown))


def _lies_at(trace: Trace, copy: str, shown: str) -> None:
    """Say where the trace lies, and not where its copy lay."""
    source = trace.source
    notes = tuple(note.replace(copy, shown) for note in source.notes)
    trace.source = replace(source, path=source.path.replace(copy, shown), notes=notes)
    trace.hlo = tuple(replace(module, source=module.source.replace(copy, shown)) for module in trace.hlo)
    if trace.compile_log is not None:
        trace.compile_log = replace(trace.compile_log, path=trace.compile_log.path.replace(copy, shown))


def digest_of(
    traces: Sequence[Trace], skipped: Skipped | None, rules: tuple[str, ...] | None, device: Device | None
) -> Digest:
    """Judge traces that were read as one task, and cut them down; arguments as of `digest` and `Digest`."""
    programs = tuple(trace for trace in traces if is_program_alone(trace))
    chosen = chosen_rules(rules)
    examined = []
    for trace in traces:
        if is_program_alone(trace):
            continue
        if device is not None:
            judge_for(trace, device)
        told = examine(trace, chosen)
        examined.append(replace(told, trace=_slim(trace)))
        trace.forget()  # facts may hold the trace itself, and its tables would wait for the garbage collector
    return Digest(examined=tuple(examined), programs=programs, skipped=skipped)


def _slim(trace: Trace) -> Trace:
    """A trace of which a fact breaks is kept whole, so that comparing meets the same error."""
    try:
        return slim(trace)
    except Exception:
        _log.warning("%s is kept whole", trace.source.path, exc_info=True)
        return trace


def shortened(digest: Digest) -> Digest:
    """Without the evidence that is not shown of a rank among others."""
    return replace(digest, examined=tuple(map(_shortened, digest.examined)))


def _shortened(one: Examined) -> Examined:
    outcomes = (
        replace(
            outcome,
            findings=tuple(replace(finding, evidence=finding.evidence[:EVIDENCE_EACH]) for finding in outcome.findings),
        )
        if outcome.findings
        else outcome
        for outcome in one.outcomes
    )
    return replace(one, outcomes=tuple(outcomes))


def read_of(digest: Digest) -> Read:
    """What was read of its task."""
    return (*(one.trace for one in digest.examined), *digest.programs), digest.skipped
