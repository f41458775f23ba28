"""Hangs of a job: which rank did not come to which collective, and where each rank is.

Each process writes the stacks of its threads when no step ends for long, and torch's record of its last collectives
(`recorder.py`). Here the stalls of all ranks at one time are one hang. The records show which ranks are missing;
without records, a rank is missing if its thread of the steps is not in a call that waits for other ranks, and the
threads of other ranks are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from perfscope.model.errors import PerfscopeError
from perfscope.plugins.job.causes import Cause
from perfscope.plugins.job.charge import Charged
from perfscope.plugins.job.recorder import FLIGHT, FOLDER, MOST_FLIGHTS
from perfscope.plugins.job.steps import MAY_WAIT

if TYPE_CHECKING:
    from perfscope.analyzers.ranks import Hang as FlightHang
    from perfscope.model.documents.flight_recorder import FlightRecord

MAIN = "MainThread"


class RankStall(Struct, frozen=True, kw_only=True):
    """One rank of a hang."""

    rank: int | None
    begin_ns: int
    """End of its last step, since 1970."""
    end_ns: int
    """End of its next step, or of its last row."""
    line: str
    """Where its thread of the steps is."""
    cause: Cause
    waits: bool
    """Whether that is a call that waits for other ranks."""
    threads: tuple[tuple[str, str], ...]
    """(Thread, line)."""
    flight: str
    """Path of torch's record of its last collectives; empty without one."""


class Hang(Struct, frozen=True, kw_only=True):
    """No rank of some completed a step for long."""

    unix_ns: int
    ns: int
    ranks: tuple[RankStall, ...]
    missing: tuple[int, ...]
    """Ranks that others wait for; empty if not known."""
    dead: tuple[int, ...]
    """Missing ranks without a process."""
    collective: str
    """Which the others are in, with its size; empty if not known."""
    known: Literal["flight recorder", "stacks"]
    """How the missing ranks are known."""


def stalls_of(charged: Charged, rank: int | None) -> list[RankStall]:
    """The stalls of one process."""
    ledger = charged.ledger
    offset = ledger.head.unix_ns - ledger.head.began_ns
    found = []
    for number, stall in enumerate(ledger.stalls, 1):
        begin = stall.stalled or 0
        threads = [(name, charged.place(node)) for name, node in stall.stacks]
        place = next((place for name, place in threads if name == MAIN), charged.place(-1))
        resumed = (row.end for row in ledger.rows if row.steps and row.end is not None and row.begin > begin)
        flight = ledger.file.with_name(FLIGHT.format(pid=ledger.head.pid, stall=number, rank=rank))
        found.append(
            RankStall(
                rank=rank,
                begin_ns=begin + offset,
                end_ns=next(resumed, max(begin, ledger.end_ns)) + offset,
                line=place.line,
                cause=place.cause,
                waits=place.kind in MAY_WAIT,
                threads=tuple((name, place.line) for name, place in threads if place.line),
                flight=str(flight) if number <= MOST_FLIGHTS and flight.is_file() else "",
            )
        )
    return found


def hangs(stalls: Iterable[RankStall], alive: Mapping[int, Sequence[tuple[int, int]]], notes: list[str]) -> list[Hang]:
    """The hangs of a job, by time.

    ``alive``: begin and end of the processes of each rank, since 1970. ``notes``: gets a line for each unreadable
    record.
    """
    groups: list[list[RankStall]] = []
    for stall in sorted(stalls, key=lambda stall: stall.begin_ns):
        group = groups[-1] if groups else []
        if group and stall.begin_ns < max(other.end_ns for other in group) and stall.rank not in _ranks(group):
            group.append(stall)
        else:
            groups.append([stall])
    return [_hang(group, alive, notes) for group in groups]


def _hang(group: Sequence[RankStall], alive: Mapping[int, Sequence[tuple[int, int]]], notes: list[str]) -> Hang:
    begin = max(stall.begin_ns for stall in group)
    end = max(stall.end_ns for stall in group)
    gone = {rank for rank, spans in alive.items() if not any(first < end and last > begin for first, last in spans)}
    missing, collective = _by_flight(group, notes)
    by_flight = bool(missing or collective)
    if not missing:
        waiting = [stall for stall in group if stall.waits]
        missing = _ranks(group) - _ranks(waiting) if waiting else set()
        missing |= gone if waiting else set()
    return Hang(
        unix_ns=begin,
        ns=end - begin,
        ranks=tuple(group),
        missing=tuple(sorted(missing)),
        dead=tuple(sorted(missing & gone)),
        collective=collective,
        known="flight recorder" if by_flight else "stacks",
    )


def _by_flight(group: Sequence[RankStall], notes: list[str]) -> tuple[set[int], str]:
    """(Missing ranks, collective) by torch's records of the ranks; nothing if they do not show it."""
    from perfscope.analyzers.ranks import hang_of

    records = {stall.rank: _record(stall.flight, notes) for stall in group if stall.rank is not None and stall.flight}
    hang = hang_of({rank: record for rank, record in records.items() if record is not None})
    for causes in (hang.absent, hang.undumped):
        if causes:
            return {rank for rank, _ in causes}, causes[0][1][0].call.label()
    if hang.stuck:
        return {stuck.rank for stuck in hang.stuck}, hang.stuck[0].call.label()
    return set(), _unending(hang)


def _unending(hang: FlightHang) -> str:
    return hang.unending[0][1].label() if hang.unending else ""


def _record(flight: str, notes: list[str]) -> FlightRecord | None:
    from perfscope.analyzers.readers import load_one

    path = Path(flight)
    try:
        return load_one(path).flight_record
    except PerfscopeError as error:
        notes.append(f"{FOLDER}/{path.name}: {error}")
        return None


def _ranks(stalls: Iterable[RankStall]) -> set[int]:
    return {stall.rank for stall in stalls if stall.rank is not None}
