"""Collectives of the CPU backend: skew, straggler and wait, by hand and on a real profile of 8 devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.ranks.rendezvous import Skew, collective_skew
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.readers.wire import SpaceWriter

US = 1_000_000


def op(name: str, device: int, start: float, end: float, *, run: int = 1) -> tuple[Any, ...]:
    stats = {"hlo_op": name, "hlo_module": "jit_step", "program_id": 3, "run_id": run, "device_ordinal": device}
    return name, int(start * US), int(end * US), stats


def rendezvous_event(what: str, devices: list[int], start: float, end: float) -> tuple[Any, ...]:
    key = f"{what} RendezvousKey{{run_id=RunId: 1, global_devices={devices}, num_local_participants={len(devices)}}}"
    return "Rendezvous", int(start * US), int(end * US), {"num_threads": len(devices), "name": key, "id": 0}


def work(start: float, end: float) -> tuple[Any, ...]:
    return "InvokeRendezvous", int(start * US), int(end * US)


def skew(folder: Path, **threads: list[tuple[Any, ...]]) -> Skew:
    path = folder / "x.xplane.pb"
    path.write_bytes(SpaceWriter().plane("/host:CPU", threads).bytes())
    trace = xspace_reader.read(path)
    assert isinstance(trace, Trace)
    return trace.fact(collective_skew)


def test_skew_straggler_wait_and_work(tmp_path: Path) -> None:
    everyone = [0, 1, 2]
    found = skew(
        tmp_path,
        a=[
            op("all-reduce.1", 0, 0, 100),
            rendezvous_event("all reduce", everyone, 10, 60),
            rendezvous_event("all reduce", everyone, 70, 80),
        ],
        b=[
            op("all-reduce.1", 1, 0, 100),
            rendezvous_event("all reduce", everyone, 20, 61),
            rendezvous_event("all reduce", everyone, 71, 80),
        ],
        c=[
            op("all-reduce.1", 2, 0, 100),
            rendezvous_event("all reduce", everyone, 50, 58),
            work(52, 57),
            rendezvous_event("all reduce", everyone, 72, 81),
        ],
    )
    first, second = found.meetings
    assert (first.devices, first.arrivals_ns, first.round) == ((0, 1, 2), (10_000, 20_000, 50_000), 0)
    assert (first.skew_ns, first.waits_ns, first.straggler) == (40_000, (40_000, 30_000, 0), 2)
    assert first.work_ns == 5_000
    assert (second.round, second.skew_ns) == (1, 2_000)
    (collective,) = found.collectives
    assert (collective.operation, collective.instruction, collective.module) == (
        "all_reduce",
        "all-reduce.1",
        "jit_step",
    )
    assert (collective.executions, collective.meetings) == (1, 2)
    assert (collective.skew_ns, collective.largest_skew_ns) == (40_000, 40_000)  # of the first meeting only
    assert collective.wait_by_device_ns == {0: 42_000, 1: 31_000, 2: 0}
    assert collective.wait_ns == 73_000
    assert (collective.straggler, collective.straggler_share) == (2, 1.0)
    assert found.wait_by_device_ns() == {0: 42_000, 1: 31_000, 2: 0}


def test_groups_of_one_instruction_meet_apart(tmp_path: Path) -> None:
    threads = {
        f"t{device}": [op("all-gather", device, 0, 90), rendezvous_event("all gather", group, start, 50)]
        for device, group, start in ((0, [0, 1], 1), (1, [0, 1], 4), (2, [2, 3], 30), (3, [2, 3], 20))
    }
    found = skew(tmp_path, **threads)
    assert [(meeting.devices, meeting.skew_ns) for meeting in found.meetings] == [((0, 1), 3_000), ((2, 3), 10_000)]
    (collective,) = found.collectives
    assert (collective.executions, collective.devices) == (2, (0, 1, 2, 3))
    assert collective.straggler_share == 0.5


def test_turns_of_a_loop_are_apart(tmp_path: Path) -> None:
    def turns(device: int, late: float) -> list[tuple[Any, ...]]:
        return [
            event
            for turn in range(3)
            for event in (
                op("all-reduce", device, 100 * turn, 100 * turn + 90),
                rendezvous_event("all reduce", [0, 1], 100 * turn + late, 100 * turn + 60),
            )
        ]

    found = skew(tmp_path, a=turns(0, 5), b=turns(1, 12))
    assert [meeting.skew_ns for meeting in found.meetings] == [7_000] * 3
    assert found.collectives[0].executions == 3


def test_what_is_not_whole_is_not_judged(tmp_path: Path) -> None:
    found = skew(
        tmp_path,
        a=[
            op("all-reduce", 0, 0, 100),
            rendezvous_event("all reduce", [0, 1], 10, 60),
            rendezvous_event("all reduce", [0], 200, 201),
        ],
        b=[op("fusion", 1, 0, 100)],
    )
    assert found.meetings == ()
    assert found.collectives == ()  # its partner is missing; no instruction is around it


def test_traces_without_any() -> None:
    build = TraceBuilder()
    build.kernel("ncclAllReduce", 0, 10, communication=True)
    found = build.build().fact(collective_skew)
    assert (found.collectives, found.meetings) == ((), ())


@pytest.mark.corpus
def test_a_real_profile_of_eight_devices(corpus: Path) -> None:
    """No member leaves before the last one came: this holds only if the right rows were matched."""
    trace = xspace_reader.read(corpus / "aot" / "md.xplane.pb.gz")
    assert isinstance(trace, Trace)
    found = trace.fact(collective_skew)
    rows = trace.rows["collectives"]
    assert sum(len(meeting.devices) for meeting in found.meetings) == len(rows) == 480
    ends = dict(
        zip(zip(rows["start_ns"].tolist(), rows["slice"].tolist(), strict=True), rows["end_ns"].tolist(), strict=True)
    )
    leaving: dict[int, list[int]] = {}
    for (start, _), end in ends.items():
        leaving.setdefault(start, []).append(end)
    for meeting in found.meetings:
        for arrival in meeting.arrivals_ns:
            assert max(meeting.arrivals_ns) <= max(leaving[arrival])
    reduce = next(one for one in found.collectives if one.instruction == "all-reduce.4")
    assert (reduce.executions, reduce.meetings) == (12, 36)  # 3 steps x 4 pairs, 3 meetings each
    gathers = [m for m in found.meetings if (m.instruction, m.module) == ("all-gather", "jit__lambda")]
    assert [len(meeting.devices) for meeting in gathers] == [8] * 3
    assert np.all([meeting.work_ns > 0 for meeting in gathers])
