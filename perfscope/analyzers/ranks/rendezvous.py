"""Who waited for whom in the collectives of XLA's CPU backend: arrival skew, straggler, wait, transfer.

Each of the 8 (or so) devices is a thread of one process. For a collective they meet: every thread arrives,
waits until the last one is there, the last one does the work for all (`InvokeRendezvous`), then all go
on. One execution of an instruction may meet several times (an all-reduce does three times: enter, reduce,
leave); the n-th meeting of each device belongs together. A meeting is *complete* if all its devices were
recorded once; only complete ones are judged.

    arrival of a device   its rendezvous begins
    skew                  last arrival - first arrival
    wait of a device      last arrival - its arrival: what the straggler cost it
    straggler             the device that arrived last

Times on a CPU say nothing about a GPU's or TPU's links; who comes late to which collective they do say.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import nearest_ancestor
from perfscope.model.trace import MISSING, Trace

_WORK = "InvokeRendezvous"


class Meeting(Struct, frozen=True, kw_only=True):
    """One complete rendezvous. Times in ns on the trace's clock; devices by ascending number."""

    operation: str
    """For example ``all_reduce``."""
    module: str
    instruction: str
    program_id: int
    round: int
    """Number of the meeting in this execution of the instruction, from 0."""
    devices: tuple[int, ...]
    arrivals_ns: tuple[int, ...]
    """Arrival time of each of ``devices``."""
    work_ns: int
    """Duration of the work that the last device did for all; 0 if it was not recorded."""

    @property
    def skew_ns(self) -> int:
        """Time from the first arrival to the last."""
        return max(self.arrivals_ns) - min(self.arrivals_ns)

    @property
    def waits_ns(self) -> tuple[int, ...]:
        """Wait of each of ``devices`` for the last one."""
        return tuple(max(self.arrivals_ns) - arrival for arrival in self.arrivals_ns)

    @property
    def straggler(self) -> int:
        """The device that arrived last; of simultaneous arrivals, the lowest number."""
        return self.devices[self.arrivals_ns.index(max(self.arrivals_ns))]


class CollectiveSkew(Struct, frozen=True, kw_only=True):
    """All complete meetings of one instruction. Times in ns."""

    operation: str
    module: str
    instruction: str
    program_id: int
    devices: tuple[int, ...]
    """Devices that take part in any of its groups."""
    executions: int
    """Number of executions of the instruction by a group of devices."""
    meetings: int
    skew_ns: int
    """Sum of the skew of the first meeting of each execution: how unevenly the devices arrive."""
    largest_skew_ns: int
    wait_ns: int
    """Sum of all devices' waits in all meetings."""
    work_ns: int
    straggler: int
    """Device that was last most often at the first meeting."""
    straggler_share: float
    """Share of the first meetings at which that device was last."""
    wait_by_device_ns: dict[int, int]
    """Waits in all meetings, by device."""


class Skew(Struct, frozen=True, kw_only=True):
    """Skew of the collectives on the host in a recording."""

    collectives: tuple[CollectiveSkew, ...]
    """Longest waits first."""
    meetings: tuple[Meeting, ...]
    """By first arrival."""

    def wait_by_device_ns(self) -> dict[int, int]:
        """Wait of each device in all collectives, by device number."""
        total: dict[int, int] = defaultdict(int)
        for collective in self.collectives:
            for device, wait in collective.wait_by_device_ns.items():
                total[device] += wait
        return dict(sorted(total.items()))


def collective_skew(trace: Trace) -> Skew:
    """Return the skew of every collective of the CPU backend; empty without collectives."""
    meetings = _meetings(trace)
    groups: dict[tuple[int, str, str], list[Meeting]] = defaultdict(list)
    for meeting in meetings:
        groups[meeting.program_id, meeting.module, meeting.instruction].append(meeting)
    collectives = sorted((_summed(members) for members in groups.values()), key=lambda skew: -skew.wait_ns)
    return Skew(collectives=tuple(collectives), meetings=tuple(meetings))


class _Arrival(Struct, frozen=True, kw_only=True):
    """One device at one meeting."""

    row: int
    """Row of ``slices``."""
    device: int
    start_ns: int
    size: int


def _meetings(trace: Trace) -> list[Meeting]:
    """Return the complete meetings by first arrival."""
    rows, slices, ops = trace.rows["collectives"], trace.rows["slices"], trace.rows["hlo_ops"]
    chosen = np.flatnonzero(rows["slice"] != MISSING)
    if not len(chosen):
        return []
    op_of_slice = np.full(len(slices), MISSING, np.int64)
    hosted = np.flatnonzero(ops["slice"] != MISSING)
    op_of_slice[ops["slice"][hosted]] = hosted
    above = nearest_ancestor(trace, rows["slice"][chosen], op_of_slice != MISSING)
    rounds: dict[int, int] = defaultdict(int)
    groups: dict[tuple[int, int, int, int, int, int], list[_Arrival]] = defaultdict(list)
    order = np.argsort(rows["start_ns"][chosen], kind="stable")
    for row, around in zip(chosen[order].tolist(), above[order].tolist(), strict=True):
        op = int(op_of_slice[around]) if around != MISSING else MISSING
        if op == MISSING or rows["ranks"][row] == MISSING or ops["ordinal"][op] == MISSING:
            continue
        key = (
            int(ops["module"][op]), int(ops["program_id"][op]), int(ops["name"][op]), int(ops["run_id"][op]),
            int(rows["ranks"][row]), rounds[op],
        )  # fmt: skip
        rounds[op] += 1
        groups[key].append(
            _Arrival(
                row=row,
                device=int(ops["ordinal"][op]),
                start_ns=int(rows["start_ns"][row]),
                size=int(rows["group_size"][row]),
            )
        )
    work = _work_inside(trace)
    meetings = []
    for key, arrivals in groups.items():
        expected = json.loads(trace.text(key[4]))
        meetings += [
            _meeting(trace, key, together, work)
            for together in _executions(arrivals)
            if sorted(arrival.device for arrival in together) == sorted(expected) and len(together) == together[0].size
        ]
    return sorted(meetings, key=lambda meeting: min(meeting.arrivals_ns))


def _executions(arrivals: Sequence[_Arrival]) -> list[list[_Arrival]]:
    """Split the arrivals of one key by execution, because a loop runs the same instruction many times."""
    per_device: dict[int, list[_Arrival]] = defaultdict(list)
    for arrival in arrivals:
        per_device[arrival.device].append(arrival)
    most = max(len(own) for own in per_device.values())
    return [[own[turn] for own in per_device.values() if turn < len(own)] for turn in range(most)]


def _meeting(
    trace: Trace, key: tuple[int, int, int, int, int, int], together: list[_Arrival], work: dict[int, int]
) -> Meeting:
    module, program, instruction, _, _, number = key
    ordered = sorted(together, key=lambda arrival: arrival.device)
    rows = trace.rows["collectives"]
    return Meeting(
        operation=trace.text(int(rows["name"][ordered[0].row])),
        module=trace.text(module),
        instruction=trace.text(instruction),
        program_id=program,
        round=number,
        devices=tuple(arrival.device for arrival in ordered),
        arrivals_ns=tuple(arrival.start_ns for arrival in ordered),
        work_ns=sum(work.get(int(rows["slice"][arrival.row]), 0) for arrival in ordered),
    )


def _work_inside(trace: Trace) -> dict[int, int]:
    """Return the time of the work directly inside each rendezvous, by row of ``slices``."""
    slices = trace.rows["slices"]
    codes = [code for code, text in enumerate(trace.strings) if text == _WORK]
    result: dict[int, int] = defaultdict(int)
    for row in np.flatnonzero(np.isin(slices["name"], codes) & (slices["parent"] != MISSING)).tolist():
        result[int(slices["parent"][row])] += int(slices["end_ns"][row] - slices["start_ns"][row])
    return result


def _summed(members: list[Meeting]) -> CollectiveSkew:
    first = [meeting for meeting in members if meeting.round == 0] or members
    last: dict[int, int] = defaultdict(int)
    waits: dict[int, int] = defaultdict(int)
    for meeting in first:
        last[meeting.straggler] += 1
    for meeting in members:
        for device, wait in zip(meeting.devices, meeting.waits_ns, strict=True):
            waits[device] += wait
    straggler = max(sorted(last), key=lambda device: last[device])
    return CollectiveSkew(
        operation=members[0].operation,
        module=members[0].module,
        instruction=members[0].instruction,
        program_id=members[0].program_id,
        devices=tuple(sorted(waits)),
        executions=len(first),
        meetings=len(members),
        skew_ns=sum(meeting.skew_ns for meeting in first),
        largest_skew_ns=max(meeting.skew_ns for meeting in first),
        wait_ns=sum(waits.values()),
        work_ns=sum(meeting.work_ns for meeting in members),
        straggler=straggler,
        straggler_share=last[straggler] / len(first),
        wait_by_device_ns=dict(sorted(waits.items())),
    )
