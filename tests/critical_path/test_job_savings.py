"""Savings of what is found by comparing ranks: against a machine whose ranks run without what was removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.critical_path import bounded_by_job, replay, unchanged
from perfscope.analyzers.critical_path.job_graph import NO_JOINS, JobGraph, job_graphs
from perfscope.analyzers.critical_path.savings import NOT_NAMED, saved_in_job
from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_path
from perfscope.model.finding import Finding, Removed
from perfscope.model.trace import MISSING, Trace
from tests.conftest import corpus_files
from tests.critical_path.machine import LATENCY, ROUNDS, TRANSFER, Round, run_job

US = 1000
LATE = [[Round(50, 100)] * 6, [Round(50, 100), *[Round(1_050, 100)] * 4, Round(50, 100)], [Round(50, 100)] * 6]
"""Rank 1 is 1 ms late four times."""


def job_of(traces: list[Trace]) -> JobGraph:
    (job,) = job_graphs(traces)
    return job


def collectives_of(traces: list[Trace], left: float) -> tuple[Removed, ...]:
    return tuple(
        Removed(table="kernels", rows=np.flatnonzero(trace.rows["kernels"]["communication"]), left=left, rank=rank)
        for rank, trace in enumerate(traces)
    )


def saved(traces: list[Trace], removes: tuple[Removed, ...]) -> int:
    saving = saved_in_job(job_of(traces), removes)
    assert saving.ns is not None, saving.reason
    return saving.ns


@given(ROUNDS, st.sampled_from([0, 7_000]), st.booleans())
def test_a_job_without_a_change_is_the_recording(ranks: list[list[Round]], shift: int, waits: bool) -> None:
    job = job_of(run_job(ranks, shift=shift, waits=waits)[0])
    assert job.graph is not None
    graph = job.graph
    assert replay(graph, unchanged(graph)).tolist() == graph.ends.tolist()
    assert ((graph.before == MISSING) | (graph.before < np.arange(len(graph)))).all()


@given(ROUNDS, st.data())
def test_a_rank_whose_host_is_faster(ranks: list[list[Round]], data: st.DataObject) -> None:
    """Half of the host time of a round of a rank less: what the machine takes with that round."""
    rank = data.draw(st.integers(0, len(ranks) - 1))
    number = data.draw(st.integers(0, len(ranks[0]) - 1))
    less = ranks[rank][number].host // 2
    traces, before = run_job(ranks, shift=7_000)
    faster = [list(rounds) for rounds in ranks]
    faster[rank][number] = replace(ranks[rank][number], host=ranks[rank][number].host - less)
    launch = int(
        traces[rank].rows["calls"]["start_ns"][
            np.flatnonzero(traces[rank].rows["calls"]["correlation"] == 2 * number)[0]
        ]
    )
    removed = Removed(table="idle", rows=np.array([(launch - less * US, launch)]), rank=rank)
    assert saved(traces, (removed,)) == (before - run_job(faster, shift=7_000)[1]) * US


@given(ROUNDS)
def test_shorter_transfers(ranks: list[list[Round]]) -> None:
    """Half of each transfer: the machine with transfers of half the length."""
    traces, before = run_job(ranks)
    after = run_job(ranks, transfer=TRANSFER // 2)[1]
    assert saved(traces, collectives_of(traces, 0.5)) == (before - after) * US


@given(ROUNDS)
def test_no_collectives(ranks: list[list[Round]]) -> None:
    """Each rank by itself: the machine without collectives, but for their launches and the order on the stream."""
    traces, before = run_job(ranks)
    after = run_job(ranks, transfer=0)[1]
    assert saved(traces, collectives_of(traces, 0.0)) == pytest.approx(
        (before - after) * US, abs=len(ranks[0]) * 2 * LATENCY * US
    )


def test_a_straggler_saves_what_the_job_is_shorter_by() -> None:
    traces, before = run_job(LATE)
    twin = run_job([LATE[0]] * 3)[1]
    (late,) = analyze(traces, ["straggler"])["straggler"].findings
    assert late.path_ns == pytest.approx((before - twin) * US, rel=0.01)
    assert late.cost_ns is not None
    assert late.path_ns is not None
    assert late.cost_ns <= 1.05 * late.path_ns
    assert (late.path_reason, late.removes) == (None, ())


def test_ranks_that_are_late_in_turn_save_nothing_one_by_one() -> None:
    """Who is late is waited for by the others, and does not wait in the next round: only the last one counts."""
    ranks = [[Round(50 + 1_000 * (number % 2 == rank), 100) for number in range(6)] for rank in range(2)]
    traces, before = run_job(ranks, waits=False)
    late = [analyze(traces, ["straggler"])["straggler"].findings[0]]
    twin = run_job([[Round(50, 100)] * 6] * 2, waits=False)[1]
    assert late[0].path_ns is not None
    assert late[0].path_ns <= (before - twin) * US


def test_reduced_traces_say_the_same() -> None:
    traces = run_job(LATE)[0]
    cut = [reduce_trace(trace) for trace in traces]
    whole, of_cut = (analyze(each, ["straggler"])["straggler"].findings[0] for each in (traces, cut))
    assert of_cut.path_ns == whole.path_ns is not None
    without = analyze([reduce_trace(trace, graph=False) for trace in traces], ["straggler"])["straggler"].findings[0]
    assert without.path_ns is None
    assert "not kept" in (without.path_reason or "")


def test_what_the_path_cannot_judge_says_so() -> None:
    found = Finding(subject="x", title="x", severity="high", basis="measured", advice="x", cost_ns=US)
    traces = run_job(LATE)[0]
    assert bounded_by_job(traces, found).path_reason == NOT_NAMED
    alone = run_job(LATE, transfer=0)[0]
    assert all(job.reason == NO_JOINS for job in job_graphs(alone))


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("pattern", "low", "high"),
    [
        ("torchrec__sst_sleep*", 2_800_000_000, 3_000_000_000),  # three sleeps of a second
        ("astra-sim__megatron_kineto_*", 0, 200_000_000),  # 324 ms by its own bound: ranks are late in turn
    ],
)
def test_stragglers_of_public_jobs(pattern: str, low: int, high: int, corpus: Path) -> None:
    traces = [trace for file in corpus_files("kineto", pattern) for trace in load_path(file).traces]
    job = job_of(traces)
    assert job.graph is not None
    assert replay(job.graph, unchanged(job.graph)).tolist() == job.graph.ends.tolist()
    (late,) = analyze(traces, ["straggler"])["straggler"].findings
    assert late.path_ns is not None
    assert low < late.path_ns < high
