"""What is kept of one place of a set: its traces are read, judged by themselves and cut down, wherever that runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfscope.analyzers.engine import EVIDENCE_EACH, Examined, chosen_rules, examine
from perfscope.analyzers.facts.program_device import judge_for
from perfscope.analyzers.hardware import Device
from perfscope.analyzers.load import Skipped, read_in_folder
from perfscope.analyzers.scale.remote import fetched, is_remote
from perfscope.analyzers.scale.slim import slim
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The traces of one place, cut down to what comparing reads; or why there are none."""

    examined: tuple[Examined, ...] = ()
    skipped: Skipped | None = None


def digest(place: str, rules: tuple[str, ...] | None = None, device: Device | None = None) -> Digest:
    """Read what lies at ``place`` (a path, or a URL of fsspec's) and judge it.

    ``rules``: ids, all for ``None``; ``device``: as ``judge_for``.
    """
    if not is_remote(place):
        return _digest(*read_in_folder(Path(place)), rules, device)
    try:
        with fetched(place) as copy:
            traces, skipped = read_in_folder(copy)
            for trace in traces:
                trace.source = replace(trace.source, path=place)
            lost = None if skipped is None else replace(skipped, path=place)
            return _digest(traces, lost, rules, device)
    except DataError as error:
        return Digest(skipped=Skipped(path=place, reason=str(error).removeprefix(f"{place}: "), broken=True))


def _digest(
    traces: Sequence[Trace], skipped: Skipped | None, rules: tuple[str, ...] | None, device: Device | None
) -> Digest:
    chosen = chosen_rules(rules)
    examined = []
    for trace in traces:
        if device is not None:
            judge_for(trace, device)
        told = examine(trace, chosen)
        examined.append(replace(told, trace=_slim(trace)))
        trace.forget()  # facts may hold the trace itself, and its tables would wait for the garbage collector
    return Digest(examined=tuple(examined), skipped=skipped)


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


def places_of(digests: Sequence[Digest]) -> list[tuple[tuple[Trace, ...], Skipped | None]]:
    """As ``read_in_folder`` says it, of each."""
    return [(tuple(one.trace for one in digest.examined), digest.skipped) for digest in digests]
