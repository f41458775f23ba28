"""straggler: one device late, all late in turn, too little to matter, nothing recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.ranks.sets import rank_sets
from perfscope.analyzers.ranks.waits import lateness_of
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.trace import RECORDED, Trace
from perfscope.model.trace.core_facts import CoreFacts
from tests.build import TraceBuilder
from tests.ranks.build import STEP, Extra, collective, rank_set
from tests.ranks.planted import job_of
from tests.readers.wire import SpaceWriter
from tests.rules import compared_by

LATE_US = 4_000.0
BEGIN = STEP  # where the others arrive; rank 1 arrives LATE later


def add_nothing(build: TraceBuilder, rank: int) -> None:
    """Adds nothing."""


def compute(build: TraceBuilder, rank: int) -> None:
    build.kernel("gemm", BEGIN - 2_000, BEGIN + (0.9 * LATE_US if rank == 1 else -100))


def add_earlier_collective(build: TraceBuilder, rank: int) -> None:
    if rank == 1:
        collective(build, BEGIN - 100, BEGIN + 0.9 * LATE_US, ranks=[1, 5], sequence=0, stream=24)


def loader(build: TraceBuilder, rank: int) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    build.op(name, BEGIN - 200, BEGIN + (0.9 * LATE_US if rank == 1 else -100))


def ops(build: TraceBuilder, rank: int) -> None:
    build.op("aten::sort", BEGIN - 200, BEGIN + (0.9 * LATE_US if rank == 1 else -100))


def python(build: TraceBuilder, rank: int) -> None:
    build.python("train.py(88): evaluate", BEGIN - 500, BEGIN + LATE_US + 5)
    build.python("torch/nn/modules/module.py(1): __call__", BEGIN - 400, BEGIN + LATE_US)


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (add_nothing, "host gap"),
        (compute, "longer compute"),
        (add_earlier_collective, "an earlier collective"),
        (loader, "data loader"),
        (ops, "host work"),
        (python, "host gap"),
    ],
)
def test_what_a_late_rank_did(extra: Extra, what: str) -> None:
    (found,) = rank_sets(rank_set([[0.0, LATE_US, 0.0]], extra=extra))
    late = lateness_of(found)
    assert [straggler.rank for straggler in late.stragglers] == [1]
    (arrival,) = late.stragglers[0].arrivals
    assert arrival.lateness_ns == 4_000_000 - 1_000  # rank 1 leaves 1 us after the others
    assert (arrival.before.what, arrival.before.window_ns) == (what, arrival.lateness_ns)


def test_the_line_is_the_users_where_stacks_are_recorded() -> None:
    (found,) = rank_sets(rank_set([[0.0, LATE_US, 0.0]], extra=python))
    frame = lateness_of(found).stragglers[0].arrivals[0].before.frame
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == ("train.py", 88, "evaluate")


def test_lateness_is_behind_the_next_to_last_rank() -> None:
    (found,) = rank_sets(rank_set([[0.0, LATE_US, 3_000.0]], jitter_us=0))
    late = lateness_of(found)
    (arrival,) = late.stragglers[0].arrivals
    assert (arrival.lateness_ns, arrival.waited_ns) == (1_000_000, 5_000_000)
    assert late.stragglers[0].cost_ns == 1_000_000


def test_waiting_behind_which_a_device_computes_costs_nothing() -> None:
    def busy(build: TraceBuilder, rank: int) -> None:
        if rank != 1:
            build.kernel("gemm", BEGIN - 100, BEGIN + 0.75 * LATE_US)

    (found,) = rank_sets(rank_set([[0.0, LATE_US, 0.0]], extra=busy, jitter_us=0))
    late = lateness_of(found)
    assert (late.stragglers[0].arrivals[0].lateness_ns, late.stragglers[0].cost_ns) == (4_000_000, 1_000_000)


def test_lateness_below_the_uncertainty_is_nobodys() -> None:
    (found,) = rank_sets(rank_set([[0.0, 40.0, 0.0, 0.0], [30.0, 0.0, 0.0, 0.0]], jitter_us=100))
    # ends lie 100 us apart on every second rank: an offset, not a spread
    assert found.clocks.worst_ns == 0
    uneven = rank_sets(rank_set([[0.0, 40.0], [30.0, 0.0], [0.0, 20.0]], jitter_us=0, extra=ragged))
    assert uneven[0].clocks.worst_ns >= 50_000
    assert not lateness_of(uneven[0]).stragglers


def ragged(build: TraceBuilder, rank: int) -> None:
    """Moves every end of rank 1 by another 150 us to and fro."""
    for index, (kernel, row) in enumerate(zip(build.tables["kernels"], build.tables["collectives"], strict=True)):
        moved = 150_000 * rank * (-1) ** index
        kernel["end_ns"] += moved
        row["end_ns"] += moved


def test_what_it_did_more_than_the_others_explains_it_wherever_it_lies() -> None:
    """Rank 1 loads data 4 ms longer than the others, then all compute alike until the collective."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def load_then_compute(build: TraceBuilder, rank: int) -> None:
        first = STEP + 500.0  # where the first collective ends
        late = LATE_US if rank == 1 else 0.0
        build.op(name, first + 100, first + 600 + late)
        build.kernel("gemm", first + 700 + late, first + 9_000 + late)

    (found,) = rank_sets(rank_set([[0.0, 0.0, 0.0], [0.0, LATE_US, 0.0]], extra=load_then_compute))
    (arrival,) = lateness_of(found).stragglers[0].arrivals
    assert (arrival.before.loader_ns, arrival.before.what) == (0, "data loader")
    assert arrival.before.more["data loader"] == 4_000_000
    assert arrival.before.more["longer compute"] == 0


def test_collectives_on_the_host_say_nothing_below_a_slice() -> None:
    def hosted(late: float) -> list[int]:
        builds = [TraceBuilder(rank=rank) for rank in range(3)]
        for rank, build in enumerate(builds):
            start = 1_000 + (late if rank == 1 else 0)
            build.annotation("gloo:all_reduce", start, 60_000, tid=9)
            build.row("collectives", start_ns=round(start * 1000), end_ns=60_000_000, name=build.code("all_reduce"),
                      slice=0)  # fmt: skip
        (found,) = rank_sets([build.build() for build in builds])
        return [straggler.rank for straggler in lateness_of(found).stragglers]

    assert hosted(9_000) == []
    assert hosted(11_000) == [1]


def test_collectives_of_the_host_are_told_from_those_of_the_device_beside_them() -> None:
    """A device collective has no host span: its row must not match the last span of the trace."""

    def mixed(build: TraceBuilder, rank: int) -> None:
        begin = BEGIN + (30_000 if rank == 1 else 0)
        build.annotation("gloo:barrier", begin, BEGIN + 31_000, tid=9)
        build.row("collectives", start_ns=round(begin * 1000), end_ns=round((BEGIN + 31_000) * 1000),
                  name=build.code("barrier"), slice=0, kernel=-1, group=build.code("cpu"), group_size=2,
                  ranks=build.code("[0, 1]"), elements_in=1, elements_out=1, sequence=0)  # fmt: skip
        build.op("aten::sort", BEGIN + 100, BEGIN + 29_900 if rank == 1 else BEGIN + 110, tid=12)

    traces = []
    for rank in range(2):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        mixed(build, rank)
        build.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 100, 200, communication=True, stream=20)
        build.row("collectives", start_ns=100_000, end_ns=200_000, name=build.code("all_reduce"), slice=-1,
                  kernel=0, group=build.code("gpu"), group_size=2, ranks=build.code("[0, 1]"), elements_in=1,
                  elements_out=1, sequence=0)  # fmt: skip
        traces.append(build.build())
    (found,) = rank_sets(traces)
    (straggler,) = lateness_of(found).stragglers
    (arrival,) = straggler.arrivals
    # the sort is on the last thread of the trace, where row -1 would lie
    assert (straggler.rank, arrival.before.what, arrival.before.ops_ns) == (1, "host work", 29_800_000)


US = 1_000_000


def judged(folder: Path, arrivals_us: list[list[float]], cores: CoreFacts | None = None) -> Outcome:
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
    trace = xspace_reader.read(path)
    assert isinstance(trace, Trace)
    return judge(load_rule("straggler"), trace if cores is None else replace(trace, core_facts=cores))


def test_one_late_device_is_named(tmp_path: Path) -> None:
    outcome = judged(tmp_path, [[100, 120, 110, 500]] * 4)
    (finding,) = outcome.findings
    assert finding.subject == "one device comes late"
    assert "1.17 ms each (29.2%)" in finding.title
    assert "evice 3 causes 100%" in finding.detail
    assert finding.severity == "medium"
    assert finding.cost_ns is None
    assert finding.evidence[0] == {
        "collective": "all-reduce.1", "operation": "all_reduce", "program": "jit_step", "executions": 4,
        "wait_ns": 4 * 1_170_000, "skew_ns": 1_600_000, "largest_skew_ns": 400_000, "work_ns": 0, "straggler": 3,
        "straggler_last": "100%",
    }  # fmt: skip


@pytest.mark.parametrize(("cores", "status"), [(3, "abstained"), (4, "flagged")])
def test_virtual_devices_that_share_cores_are_not_judged(tmp_path: Path, cores: int, status: str) -> None:
    outcome = judged(tmp_path, [[100, 120, 110, 500]] * 4, CoreFacts(cores=cores))
    assert outcome.status == status


def test_virtual_devices_on_a_busy_machine_are_not_judged(tmp_path: Path) -> None:
    facts = CoreFacts(cores=8, throttled_share=0.2)
    assert judged(tmp_path, [[100, 120, 110, 500]] * 4, facts).status == "abstained"


def test_late_in_turn_is_no_straggler(tmp_path: Path) -> None:
    turns = [[500.0 if device == step else 100.0 for device in range(4)] for step in range(4)]
    (finding,) = judged(tmp_path, turns).findings
    assert finding.subject == "devices come unevenly"
    assert finding.severity == "low"
    assert "late in turn (device 0 most, 25% of it)" in finding.detail


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
    trace = xspace_reader.read(corpus / "aot" / "md.xplane.pb.gz")
    assert isinstance(trace, Trace)
    (finding,) = judge(load_rule("straggler"), trace).findings
    assert finding.title.startswith("8 devices")
    assert finding.subject == "devices come unevenly"  # 8 devices on 2 cores
    assert {row["operation"] for row in finding.evidence} >= {"all_reduce", "all_gather", "all_to_all"}
    waits = [row["wait_ns"] for row in finding.evidence]
    assert waits == sorted(waits, key=lambda wait: -int(wait or 0))


LATE_RANK_2 = [[0.0, 0.0, 4_000.0, 0.0]] * 3 + [[50.0, 0.0, 0.0, 0.0]]


compared = compared_by("straggler")


def test_a_rank_that_comes_late_is_named_with_what_it_did() -> None:
    def loader(build: TraceBuilder, rank: int) -> None:
        if rank == 2:
            for index in range(3):
                begin = STEP + index * (STEP + 4_500)
                build.op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, begin + 3_800)

    (finding,) = compared(rank_set(LATE_RANK_2, extra=loader, waits=True)).findings
    assert (finding.subject, finding.ranks, finding.severity) == ("one rank comes late", (2,), "high")
    assert "3 of 4 collectives" in finding.title
    assert "causes 100% of all waiting" in finding.detail
    assert "Before an all_reduce it was 4.00 ms late: its host waited for the data loader" in finding.detail
    assert (finding.basis, finding.cost_ns) == ("measured", 12_000_000)
    assert "num_workers" in finding.advice
    row = finding.evidence[0]
    assert (row["straggler"], row["late_ns"], row["before"], row["group"]) == (2, 4_000_000, "data loader", "0-3")
    assert row["message_bytes"] == 2_000_000
    late, waiting = finding.spans[::2], finding.spans[1::2]
    assert {item.source for item in late} == {2}
    assert 2 not in {item.source for item in waiting}
    assert [item.end_ns - item.start_ns for item in late] == [4_000_000] * 3
    assert all(item.end_ns - item.start_ns >= 4_000_000 for item in waiting)  # the first to come waited longest
    assert min(item.start_ns for item in late) == STEP * 1_000  # the others came then
    assert min(item.start_ns for item in waiting) <= STEP * 1_000


def test_ranks_that_are_late_in_turn_are_all_named() -> None:
    turns = [[4_000.0 if rank == index else 0.0 for rank in range(4)] for index in range(4)]
    (finding,) = compared(rank_set(turns)).findings
    assert (finding.subject, finding.ranks) == ("ranks come late in turn", (0, 1, 2, 3))
    assert all(f"rank {rank} 25%" in finding.detail for rank in range(4))


def test_ranks_in_step_are_clean_whatever_their_clocks_say() -> None:
    even = [[0.0, 20.0, 10.0, 0.0]] * 4
    assert compared(rank_set(even)).status == "clean"
    assert compared(rank_set(even, clock_us=[0, 300_000, -9_000, 4e6])).status == "clean"
    (finding,) = compared(rank_set(LATE_RANK_2, clock_us=[0, 300_000, -9_000, 4e6])).findings
    assert finding.ranks == (2,)


def test_one_rank_or_a_few_of_many_are_not_judged() -> None:
    traces = rank_set(LATE_RANK_2)
    assert "a single rank" in (compared(traces[:1]).reason or "")
    outcome = compared(rank_set(LATE_RANK_2, world=128))
    assert (outcome.status, outcome.findings) == ("abstained", ())
    assert "4 of 128 ranks were recorded" in (outcome.reason or "")


def test_a_missing_rank_lowers_the_verdict() -> None:
    (finding,) = compared(rank_set(LATE_RANK_2)[1:]).findings
    assert (finding.ranks, finding.severity) == ((2,), "low")
    assert "1 ranks are missing and may have come even later" in finding.detail


@pytest.mark.corpus
def test_the_sleeping_rank_of_a_real_job(corpus: Path) -> None:
    """A rank was made to sleep a second before an all-to-all, three times."""
    (finding,) = compared(job_of(corpus, "torchrec__sst_sleep*")).findings
    assert finding.ranks == (2,)
    seconds = [row for row in finding.evidence if row["before"] == "host gap" and int(row["late_ns"] or 0) > 10**8]
    assert [row["operation"] for row in seconds] == ["all_to_all"] * 3
    assert all(990_000_000 < int(row["late_ns"] or 0) < 1_010_000_000 for row in seconds)
    assert "its host did nothing the trace shows" in finding.detail


@pytest.mark.corpus
def test_the_same_job_without_the_sleep_is_clean(corpus: Path) -> None:
    assert compared(job_of(corpus, "torchrec__sst_long_a2a*")).status == "clean"
