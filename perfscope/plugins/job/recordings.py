"""Recordings that were made while a job ran, each compared with the last one before it, rank by rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Struct

from perfscope.model.documents.bounded_json import Count, Ns
from perfscope.model.documents.run import Capture, Process
from perfscope.model.errors import PerfscopeError
from perfscope.plugins.job.recorder import FOLDER
from perfscope.plugins.job.watch import REQUEST

MOST_RANKS = 4
"""Ranks whose recordings are compared: the ones with changes first. A comparison reads two traces."""
MOST_RECORDINGS = 3
"""Newest recordings per process."""
MOST_PARTS = 3
"""Parts of the step that are listed."""
NEAR_STEPS = 1_000
"""Largest number of steps from a request to its recording: ranks agree on a step up to two seconds ahead."""
STEADY = "steady"
_TIMING = "timing"


class Request(Struct, frozen=True, kw_only=True):
    """A request of a process that watches."""

    why: str
    """``steady``, or the series that changed."""
    step: Count
    unix_ns: Ns = 0


class PartOfChange(Struct, frozen=True, kw_only=True):
    """A part of the step in both recordings, ns per step."""

    name: str
    place: str
    base_ns: int
    head_ns: int


class Compared(Struct, frozen=True, kw_only=True):
    """A recording of one rank, and the one before it."""

    rank: int
    why: str
    """The series that changed; empty: requested by hand or by a signal."""
    base: str
    """Paths of the recordings."""
    head: str
    steps: tuple[int, int]
    """Steps of the newer one, half open."""
    base_ns: int
    """Mean step in the recordings."""
    head_ns: int
    parts: tuple[PartOfChange, ...]
    """The parts that changed most."""
    finding: str
    """Title of the finding that is new or costs more, most expensive first; empty without one."""
    line: str
    """Its line of the program, else that of the part that changed most; empty if neither is known."""


def compared_recordings(
    runs: Iterable[Path], ranks: Sequence[int] = (), notes: list[str] | None = None
) -> tuple[Compared, ...]:
    """The newest recordings of some ranks, compared.

    ``ranks``: taken first. ``notes``: gets a line for each recording that cannot be read.
    """
    from perfscope.analyzers.readers import divide_run

    found = []
    for run in runs:
        try:
            divided = divide_run(run)
        except PerfscopeError:  # a ledger may be read without the run's manifest
            continue
        requests = _requests(run)
        parts = [part for part in divided.parts if len(part.processes) == 1]
        parts.sort(key=lambda part: part.processes[0].rank not in ranks)
        chosen = list(dict.fromkeys(part.processes[0].rank for part in parts))[:MOST_RANKS]
        for part in parts:
            if part.processes[0].rank not in chosen:
                continue
            for base, head, why in _pairs(part.processes[0], requests):
                try:
                    compared = _compare(run, part, base, head, why)
                except PerfscopeError as error:
                    if notes is not None:
                        notes.append(str(error))
                    continue
                found += [] if compared is None else [compared]
    return tuple(sorted(found, key=lambda row: (row.rank, row.steps)))


def kept_recordings(process: Process) -> list[Capture]:
    """Recordings of a process that have a file, oldest first."""
    return [capture for capture in process.captures if capture.pass_name == _TIMING and capture.artifact]


def _pairs(process: Process, requests: Sequence[Request]) -> Iterator[tuple[Capture, Capture, str]]:
    timings = kept_recordings(process)
    reasons = {number: why for request in requests for number, why in _recording_of(request, timings)}
    pairs = [
        (base, head, reasons.get(number, "")) for number, (base, head) in enumerate(itertools.pairwise(timings), 1)
    ]
    yield from [pair for pair in pairs if pair[2] != STEADY][-MOST_RECORDINGS:]


def _recording_of(request: Request, timings: Sequence[Capture]) -> Iterator[tuple[int, str]]:
    """The number of the first recording after a request, and the reason of that."""
    for number, capture in enumerate(timings):
        if capture.steps and 0 <= capture.steps[0] - request.step <= NEAR_STEPS:
            yield number, request.why
            return


def _requests(run: Path) -> list[Request]:
    requests = []
    for file in sorted((run / FOLDER).glob(REQUEST.replace("{:03d}", "*"))):
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            requests.append(msgspec.json.decode(file.read_bytes()[:4096], type=Request))
    return requests


def _compare(run: Path, part: object, base: Capture, head: Capture, why: str) -> Compared | None:
    from perfscope.analyzers.compare import compare
    from perfscope.analyzers.readers import RunPart, read_part

    assert isinstance(part, RunPart)
    (process,) = part.processes
    sides = []
    for chosen in (base, head):
        others = tuple(capture for capture in process.captures if capture.pass_name != _TIMING or capture is chosen)
        sides.append(read_part(msgspec.structs.replace(part, processes=(replace(process, captures=others),))))
    if not all(sides):
        return None
    comparison = compare(sides[0][:1], sides[1][:1])
    if comparison.time is None:
        return None
    step = comparison.time.median
    worse = next((one.head for one in comparison.findings if one.change in ("new", "worse") and one.head), None)
    code = worse.where.label("") if worse is not None else ""
    parts = sorted(step.parts, key=lambda row: -abs(row.delta_ns))[:MOST_PARTS]
    return Compared(
        rank=process.rank,
        why=why,
        base=str(run / str(base.artifact)),
        head=str(run / str(head.artifact)),
        steps=head.steps or (0, 0),
        base_ns=step.base_ns,
        head_ns=step.head_ns,
        parts=tuple(
            PartOfChange(name=row.key().name(), place=row.key().place(), base_ns=row.base.ns, head_ns=row.head.ns)
            for row in parts
        ),
        finding="" if worse is None else worse.title,
        line=code or next((row.key().place() for row in parts), ""),
    )
