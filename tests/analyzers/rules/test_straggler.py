"""straggler: one device late, all late in turn, too little to matter, nothing recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.load import load
from perfscope.analyzers.readers import xplane
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import RECORDED, Trace
from tests.analyzers.ranks.build import STEP, rank_set
from tests.analyzers.readers.wire import SpaceWriter
from tests.build import TraceBuilder

US = 1_000_000


def judged(folder: Path, arrivals_us: list[list[float]]) -> Outcome:
    """``arrivals_us``: for each step (1 ms long) when each device arrives at its all-reduce."""
    devices = range(len(arrivals_us[0]))
    threads: dict[str, list[tuple[Any, ...]]] = {
        "python": [("train", 1000 * step * US, 1000 * (step + 1) * US, {"step_num": step})
                   for step in range(len(arrivals_us))]
    }  # fmt: skip
    key = f"all reduce RendezvousKey{{run_id=RunId: 1, global_devices={list(devices)}, num_local_participants=2}}"
    for device in devices:
        threads[f"pool/{device}"] = []
        for step, arrivals in enumerate(arrivals_us):
            begin, arrive, leave = (int((1000 * step + at) * US) for at in (0, arrivals[device], 990))
            stats = {"hlo_op": "all-reduce.1", "hlo_module": "jit_step", "program_id": 3, "run_id": step,
                     "device_ordinal": device}  # fmt: skip
            threads[f"pool/{device}"] += [
                ("all-reduce.1", begin, leave, stats),
                ("Rendezvous", arrive, leave, {"num_threads": len(devices), "name": key, "id": 0}),
            ]
    path = folder / "x.xplane.pb"
    path.write_bytes(SpaceWriter().plane("/host:CPU", threads).bytes())
    trace = xplane.read(path)
    assert isinstance(trace, Trace)
    return judge(load_rule("straggler"), trace)


def test_one_late_device_is_named(tmp_path: Path) -> None:
    outcome = judged(tmp_path, [[100, 120, 110, 500]] * 4)
    (finding,) = outcome.findings
    assert finding.subject == "one device comes late"
    assert "4 devices wait 1.17 ms each (29.2%) for one another at 1 collectives; device 3 causes 100%" in finding.title
    assert finding.severity == "medium"
    assert finding.cost_ns is None
    assert finding.evidence[0] == {
        "collective": "all-reduce.1", "operation": "all_reduce", "program": "jit_step", "executions": 4,
        "wait_ns": 4 * 1_170_000, "skew_ns": 1_600_000, "largest_skew_ns": 400_000, "work_ns": 0, "straggler": 3,
        "straggler_last": "100%",
    }  # fmt: skip


def test_late_in_turn_is_no_straggler(tmp_path: Path) -> None:
    turns = [[500.0 if device == step else 100.0 for device in range(4)] for step in range(4)]
    (finding,) = judged(tmp_path, turns).findings
    assert finding.subject == "devices come unevenly"
    assert finding.severity == "low"
    assert "all are late in turn (device 0 most, 25% of it)" in finding.title


@pytest.mark.parametrize(("late", "status"), [(165, "clean"), (168, "flagged")])
def test_the_threshold_is_the_mean_wait(tmp_path: Path, late: float, status: str) -> None:
    # three of four wait late - 100 us of each 1,000 us step: 4.9 % and 5.1 %
    assert judged(tmp_path, [[100, 100, 100, late]] * 4).status == status


def test_the_straggler_of_two_devices_is_more_than_half_late(tmp_path: Path) -> None:
    """Even share 50 %, threshold 75 %: late three times of four it is called so, late twice it is not."""
    three, two = [[100, 500]] * 3 + [[500, 100]], [[100, 500], [500, 100]] * 2
    assert judged(tmp_path, three).findings[0].subject == "one device comes late"
    assert judged(tmp_path, two).findings[0].subject == "devices come unevenly"


def test_even_arrival_is_clean(tmp_path: Path) -> None:
    assert judged(tmp_path, [[100, 101, 102, 103]] * 4).status == "clean"


def test_few_executions_are_not_judged(tmp_path: Path) -> None:
    outcome = judged(tmp_path, [[100, 120, 110, 500]] * 2)
    assert outcome.status == "abstained"
    assert "record more steps" in (outcome.reason or "")


def test_abstains_where_arrivals_are_not_recorded() -> None:
    build = TraceBuilder()
    build.kernel("ncclAllReduce", 0, 10, communication=True)
    outcome = judge(load_rule("straggler"), build.build())
    assert outcome.status == "abstained"
    assert outcome.reason == f"not recorded: {RECORDED['collectives']}"


@pytest.mark.corpus
def test_a_real_profile_of_eight_devices(corpus: Path) -> None:
    trace = xplane.read(corpus / "aot" / "md.xplane.pb.gz")
    assert isinstance(trace, Trace)
    (finding,) = judge(load_rule("straggler"), trace).findings
    assert finding.title.startswith("8 devices wait ")
    assert finding.subject == "devices come unevenly"  # 8 devices on 2 cores
    assert {row["operation"] for row in finding.evidence} >= {"all_reduce", "all_gather", "all_to_all"}
    waits = [row["wait_ns"] for row in finding.evidence]
    assert waits == sorted(waits, key=lambda wait: -int(wait or 0))


LATE = [[0.0, 0.0, 4_000.0, 0.0]] * 3 + [[50.0, 0.0, 0.0, 0.0]]


def compared(traces: list[Trace]) -> Outcome:
    return analyze(traces, ["straggler"])["straggler"]


def test_a_rank_that_comes_late_is_named_with_what_it_did() -> None:
    def loader(build: TraceBuilder, rank: int) -> None:
        if rank == 2:
            for at in range(3):
                begin = STEP + at * (STEP + 4_500)
                build.op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, begin + 3_800)

    (finding,) = compared(rank_set(LATE, extra=loader)).findings
    assert (finding.subject, finding.ranks, finding.severity) == ("one rank comes late", (2,), "high")
    assert "rank 2 keeps 3 others waiting up to 12.0 ms" in finding.title
    assert "at 3 of 4 collectives and causes 100% of all waiting" in finding.title
    assert "before an all_reduce it was 4.00 ms late: its host waited for the data loader" in finding.title
    assert (finding.basis, finding.cost_ns) == ("measured", 12_000_000)
    assert "num_workers" in finding.advice
    row = finding.evidence[0]
    assert (row["straggler"], row["late_ns"], row["before"], row["group"]) == (2, 4_000_000, "data loader", "0-3")
    assert row["message_bytes"] == 2_000_000
    late, waiting = finding.spans[::2], finding.spans[1::2]
    assert {one.source for one in late} == {2}
    assert 2 not in {one.source for one in waiting}
    assert [one.end_ns - one.start_ns for one in late] == [4_000_000] * 3
    assert all(one.end_ns - one.start_ns >= 4_000_000 for one in waiting)  # the first to come waited longest
    assert min(one.start_ns for one in late) == STEP * 1_000  # the others came then
    assert min(one.start_ns for one in waiting) <= STEP * 1_000


def test_ranks_that_are_late_in_turn_are_all_named() -> None:
    turns = [[4_000.0 if rank == at else 0.0 for rank in range(4)] for at in range(4)]
    (finding,) = compared(rank_set(turns)).findings
    assert (finding.subject, finding.ranks) == ("ranks come late in turn", (0, 1, 2, 3))
    assert all(f"rank {rank} 25%" in finding.title for rank in range(4))


def test_ranks_in_step_are_clean_whatever_their_clocks_say() -> None:
    even = [[0.0, 20.0, 10.0, 0.0]] * 4
    assert compared(rank_set(even)).status == "clean"
    assert compared(rank_set(even, clock_us=[0, 300_000, -9_000, 4e6])).status == "clean"
    (finding,) = compared(rank_set(LATE, clock_us=[0, 300_000, -9_000, 4e6])).findings
    assert finding.ranks == (2,)


def test_one_rank_or_a_few_of_many_are_not_judged() -> None:
    traces = rank_set(LATE)
    assert "one rank alone" in (compared(traces[:1]).reason or "")
    outcome = compared(rank_set(LATE, world=128))
    assert (outcome.status, outcome.findings) == ("abstained", ())
    assert "4 of 128 ranks are here" in (outcome.reason or "")


def test_a_missing_rank_lowers_the_verdict() -> None:
    (finding,) = compared(rank_set(LATE)[1:]).findings
    assert (finding.ranks, finding.severity) == ((2,), "low")
    assert "1 ranks are missing, one of which may have come later still" in finding.title


@pytest.mark.corpus
def test_the_sleeping_rank_of_a_real_job(corpus: Path) -> None:
    """A rank was made to sleep a second before an all-to-all, three times."""
    (finding,) = compared(real(corpus, "torchrec__sst_sleep_*")).findings
    assert finding.ranks == (2,)
    seconds = [row for row in finding.evidence if row["before"] == "host gap" and int(row["late_ns"] or 0) > 10**8]
    assert [row["operation"] for row in seconds] == ["all_to_all"] * 3
    assert all(990_000_000 < int(row["late_ns"] or 0) < 1_010_000_000 for row in seconds)
    assert "its host did nothing the trace shows" in finding.title


@pytest.mark.corpus
def test_the_same_job_without_the_sleep_is_clean(corpus: Path) -> None:
    assert compared(real(corpus, "torchrec__sst_long_a2a_*")).status == "clean"


def real(corpus: Path, pattern: str) -> list[Trace]:
    files = sorted((corpus / "kineto").glob(pattern))
    assert len(files) == 4
    return [trace for file in files for trace in load(file)]
