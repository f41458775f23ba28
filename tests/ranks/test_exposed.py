"""Exposed communication taken apart: waiting by late rank, the transfer, what is unclear; the parts sum exactly."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.ranks.devices import device_set, process_sets
from perfscope.analyzers.ranks.matching import align
from perfscope.analyzers.ranks.sets import rank_sets
from perfscope.analyzers.ranks.waits import Share, Wait, shares_of, summed, waits_of
from perfscope.analyzers.readers.load import load_path
from perfscope.analyzers.time.account import step_accounts
from perfscope.analyzers.time.device_time import device_times
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.ranks.build import STEP, named, rank_set
from tests.ranks.planted import job_of
from tests.ranks.test_processes import PROGRAM


def taken_apart(trace: Trace, member: int, device: int, waits: dict[int, Wait]) -> Share:
    kernels = trace.rows["kernels"]
    rows = np.flatnonzero(kernels["communication"] & (kernels["device"] == device)).tolist()
    return summed(shares_of(trace, member, device, rows, waits))


def parts(traces: Sequence[Trace], *, doubt_us: int = 0) -> dict[int, Share]:
    """By rank; each sum is the exposed communication of its steps. ``doubt_us``: how far a rank's ends may be off."""
    (found,) = rank_sets(traces)
    clocks = found.clocks
    if doubt_us:
        clocks = replace(clocks, uncertainty_ns=dict.fromkeys(found.job.ranks, 1000 * doubt_us))
    waits = waits_of(found.matching.matched, clocks, all_here=not found.job.missing)
    shares = {}
    for member in found.job.members:
        (account,) = member.trace.fact(step_accounts)
        share = taken_apart(member.trace, member.rank, account.device, waits.get(member.rank, {}))
        assert share.exposed_ns == account.total_ns["exposed_communication"]
        shares[member.rank] = share
    return shares


def test_waiting_is_by_the_rank_that_came_last() -> None:
    found = parts(rank_set([[0.0, 100.0, 0.0], [30.0, 0.0, 300.0]], jitter_us=0))
    assert [dict(found[rank].waiting_ns) for rank in range(3)] == [
        {1: 100_000, 2: 300_000 - 30_000}, {2: 300_000}, {1: 100_000},
    ]  # fmt: skip
    assert {share.core_ns for share in found.values()} == {1_000_000}
    assert {share.unclear_ns + share.together_ns + share.unmatched_ns for share in found.values()} == {0}


def test_what_computes_beside_it_is_taken_from_the_part_that_it_hides() -> None:
    def beside(build: TraceBuilder, rank: int) -> None:
        if rank == 0:  # hides 60 of 100 us of waiting and 50 of 500 us of transfer
            build.kernel("gemm", STEP, STEP + 60)
            build.kernel("gemm", STEP + 550, STEP + 700)

    found = parts(rank_set([[0.0, 100.0]], jitter_us=0, extra=beside))
    assert (found[0].late_ns, found[0].core_ns) == (40_000, 450_000)
    assert (found[1].late_ns, found[1].core_ns) == (0, 500_000)


def test_a_wait_below_what_the_clocks_agree_to_is_unclear() -> None:
    found = parts(rank_set([[0.0, 30.0], [0.0, 700.0]], jitter_us=0), doubt_us=20)
    assert (found[0].unclear_ns, dict(found[0].waiting_ns)) == (30_000, {1: 700_000})
    assert parts(rank_set([[0.0, 41.0]], jitter_us=0), doubt_us=20)[0].unclear_ns == 0


def test_ranks_that_came_last_together_are_not_told_apart() -> None:
    found = parts(rank_set([[0.0, 500.0, 500.0], [0.0, 500.0, 510.0]], jitter_us=0), doubt_us=20)
    assert (found[0].together_ns, found[0].late_ns, found[1].unclear_ns) == (1_010_000, 0, 10_000)


def test_what_no_other_rank_shows_is_unmatched() -> None:
    def alone(build: TraceBuilder, rank: int) -> None:
        if rank == 0:
            build.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 0, 70, stream=21, communication=True)

    found = parts(rank_set([[0.0, 100.0]], jitter_us=0, extra=alone))
    assert (found[0].unmatched_ns, found[0].exposed_ns, found[1].unmatched_ns) == (70_000, 670_000, 0)


def test_while_members_are_missing_the_shortest_may_hold_waiting() -> None:
    traces = rank_set([[0.0, 100.0, 0.0]], jitter_us=0)
    found = parts(traces[:2])
    assert (found[0].late_ns, found[0].core_ns, found[0].unclear_ns) == (100_000, 0, 500_000)
    unnamed = parts(rank_set([[0.0, 100.0, 0.0]], jitter_us=0, recorded=False)[:2])
    assert (unnamed[0].core_ns, unnamed[0].unclear_ns) == (0, 500_000)


def test_several_devices_of_a_rank_are_not_taken_apart() -> None:
    def second(build: TraceBuilder, rank: int) -> None:
        build.kernel("gemm", STEP, STEP + 600, device=1)

    (found,) = rank_sets(rank_set([[0.0, 100.0]], jitter_us=0, extra=second))
    waits = waits_of(found.matching.matched, found.clocks, all_here=True)
    share = taken_apart(found.job.members[0].trace, 0, 0, waits[0])
    assert (share.unmatched_ns, share.exposed_ns) == (600_000, 600_000)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 900), min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 30_000), st.integers(301, 9_000)), max_size=5),
    st.integers(0, 50),
)
def test_the_parts_sum_to_the_exposed_time(
    late: list[list[int]], computing: list[tuple[int, int]], jitter: int
) -> None:
    def extra(build: TraceBuilder, rank: int) -> None:
        for stream, (start, lasting) in enumerate(computing, 30):  # not on the stream of the collectives
            build.kernel("gemm", start + 100 * rank, start + lasting, stream=stream)

    for share in parts(rank_set(late, jitter_us=jitter, extra=extra)).values():
        assert min(share.late_ns, share.together_ns, share.core_ns, share.unclear_ns, share.unmatched_ns) >= 0


@pytest.mark.corpus
def test_megatron_waits_and_transfers(corpus: Path) -> None:
    found = parts(job_of(corpus, "astra-sim__megatron_kineto_*"))
    # 84 all-reduces of 64 MiB and less on 8 A100s: nothing hides them, so the transfer is the same for all, but for
    # the one or two at the ends that lie outside of a rank's step
    assert {share.core_ns for share in found.values()} == {48_785_000, 50_005_000, 50_048_000, 50_099_000}
    assert {share.collectives for share in found.values()} == {84}
    assert found[4].exposed_ns == 478_999_000
    assert dict(found[4].waiting_ns) == {0: 229_807_000, 6: 171_928_000, 3: 1_839_000, 2: 24_795_000}


@pytest.mark.corpus
def test_torchrec_waits_for_the_rank_that_slept(corpus: Path) -> None:
    found = parts(job_of(corpus, "torchrec__sst_sleep*"))
    assert [found[rank].waiting_ns[2] for rank in (0, 1, 3)] == [2_983_237_000, 2_980_312_000, 2_979_384_000]
    assert found[2].late_ns < 1_000_000
    assert {found[rank].core_ns for rank in (0, 1, 3)} == {36_551_000}


@pytest.mark.slow
@pytest.mark.corpus
def test_maxtext_devices(corpus: Path, tmp_path: Path) -> None:
    (archive,) = (corpus / "nsys_jax").glob("*.zip")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path, [name for name in packed.namelist() if name.startswith(("dump/", "nvtx_gpu"))])
    (trace,) = load_path(tmp_path).traces
    found = device_set(trace)
    assert found is not None
    waits = waits_of(found.collectives, align(found.collectives, found.devices), all_here=True)
    for account in trace.fact(step_accounts):
        share = taken_apart(trace, account.ordinal, account.device, waits[account.ordinal])
        assert share.exposed_ns == account.total_ns["exposed_communication"]
        assert (share.collectives, share.unmatched_ns) == (160, 0)
        # in four of five executions, the steps: 128 of the collectives; what no computing hides differs by device
        assert 12_500_000 < share.core_ns < 13_500_000


RUN_US, END_US = 100_000, 60_000
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def process(
    rank: int, arrivals_us: Sequence[Sequence[float]], *, groups: str = "{{0,1,2,3}}", place: bool = True
) -> Trace:
    """Two devices that compute until they arrive in each run's all-reduce, which all leave together."""
    build = TraceBuilder(rank=rank, path=f"process{rank}.xplane.pb")
    kernels = 0
    for run, arrivals in enumerate(arrivals_us):
        begin = RUN_US * run
        for turn, arrival in enumerate(arrivals):
            build.kernel("fusion", begin, begin + arrival, device=turn)
            build.kernel(KERNEL, begin + arrival, begin + END_US, device=turn, stream=20, communication=True)
            build.row(
                "hlo_ops", start_ns=int(1000 * (begin + arrival)), end_ns=1000 * (begin + END_US),
                name=build.code("reduced"), module=build.code("jit_step"), program_id=5, run_id=run, ordinal=turn,
                place=2 * rank + turn if place else -1, launch_end_ns=-1, encloses=False, kernel=kernels + 1, copy=-1,
                slice=-1,
            )  # fmt: skip
            kernels += 2
    trace = named(build.build(), world=2)
    trace = msgspec.structs.replace(
        trace,
        hlo=(
            msgspec.structs.replace(
                module_of(PROGRAM.replace("GROUPS", groups).splitlines(keepends=True), "step"), program_id=5
            ),
        ),
    )
    return msgspec.structs.replace(trace, recorded=trace.recorded | {"hlo"})


def exposed(traces: Sequence[Trace]) -> list[Finding]:
    return [
        item for rule, item in analyze(traces, ["exposed_communication"]).findings() if rule == "exposed_communication"
    ]


EARLY, LATE = [(10_000, 11_000)] * 4, [(40_000, 41_000)] * 4


def test_the_process_that_came_late_is_named_and_its_part_is_not_the_cost() -> None:
    (finding,) = exposed([process(0, EARLY), process(1, LATE)])
    assert finding.ranks == (0, 1)
    first, second = finding.evidence
    assert (first["rank"], first["exposed_ns"], first["waiting_ns"], first["mostly_for"]) == (
        0, 4 * 50_000_000, 4 * 31_000_000, 1,
    )  # fmt: skip
    # the device of process 1 that has most came 1 ms before the other one of it
    assert (second["rank"], second["exposed_ns"], second["waiting_ns"], second["own_device_ns"]) == (
        1, 4 * 20_000_000, 0, 4_000_000,
    )  # fmt: skip
    assert first["transfer_ns"] == second["transfer_ns"] == 4 * 19_000_000
    assert finding.cost_ns == 4 * 20_000_000
    assert "124 ms waiting for rank 1, which came late" in finding.detail


def test_the_parts_of_every_device_sum_to_its_exposed_time() -> None:
    traces = [process(0, [(10_000, 30_000), (5_000, 7_000)]), process(1, [(20_000, 12_000), (40_000, 6_000)])]
    (finding,) = exposed(traces)
    rows = {row["rank"]: row for row in finding.evidence}
    for trace in traces:
        most = max(device.exposed_communication_ns for device in trace.fact(device_times))
        row = rows[trace.source.rank]
        parts = ("waiting_ns", "own_device_ns", "together_ns", "transfer_ns", "unclear_ns", "unmatched_ns")
        assert row["exposed_ns"] == most == sum(int(row[part] or 0) for part in parts)


def test_processes_that_come_together_have_no_waiting() -> None:
    (finding,) = exposed([process(0, EARLY), process(1, EARLY)])
    assert {row["waiting_ns"] for row in finding.evidence} == {0}
    assert {row["transfer_ns"] for row in finding.evidence} == {4 * 49_000_000}
    assert "came late" not in finding.detail


def test_a_device_of_another_process_that_came_as_late_is_not_told_apart() -> None:
    (found,) = process_sets([process(0, [(10_000, 40_500)] * 3), process(1, [(10_000, 41_000)] * 3)])
    ends = align(found.devices.collectives, found.devices.devices)
    for uncertainty_ns, late in ((dict.fromkeys(range(4), 300_000), None), (ends.uncertainty_ns, 1)):
        clocks = replace(ends, uncertainty_ns=uncertainty_ns)
        waits = waits_of(found.devices.collectives, clocks, all_here=True, rank_at=found.rank_at)
        assert {wait.late for by_kernel in waits.values() for wait in by_kernel.values()} == {late}


def test_slim_traces_say_the_same() -> None:
    traces = [process(0, EARLY), process(1, LATE)]
    assert exposed([reduce_trace(trace) for trace in traces]) == exposed(traces)


@pytest.mark.parametrize(
    ("groups", "place"), [("{{0,1},{2,3}}", True), ("{{0,1,2,3}}", False)], ids=["within a process", "places unknown"]
)
def test_without_collectives_across_processes_each_says_its_own(groups: str, place: bool) -> None:
    (finding,) = exposed([process(0, EARLY, groups=groups, place=place), process(1, LATE, groups=groups, place=place)])
    assert (finding.evidence[0]["device"], finding.evidence[0]["waiting_ns"], finding.cost_ns) == (
        0, 4_000_000, 200_000_000,
    )  # fmt: skip
