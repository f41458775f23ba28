"""Why a rank comes late: inputs, cores, lines, kernels; and the same without a cause."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ranks.late_causes import Cause, Why, cause_of
from perfscope.analyzers.ranks.sets import rank_sets
from perfscope.analyzers.ranks.waits import lateness_of
from perfscope.model.trace import Trace
from perfscope.model.trace.core_facts import CoreFacts
from tests.build import EVERYTHING, TraceBuilder
from tests.ranks.build import STEP, Extra, rank_set
from tests.rules import compared_by

LATE_US = 30_000.0
LATE = [[0.0, 0.0, 0.0], [0.0, LATE_US, 0.0]]
"""Rank 1 comes late to the second collective; the first one is at ``STEP``."""
FIRST_END = STEP + 500.0
END = FIRST_END + STEP + LATE_US + 1_000

compared = compared_by("straggler")


def with_steps(extra: Extra) -> Extra:
    def add(build: TraceBuilder, rank: int) -> None:
        build.step(1, 0, END)
        extra(build, rank)

    return add


def causes(extra: Extra, traces: list[Trace] | None = None) -> Cause:
    (found,) = rank_sets(rank_set(LATE, extra=with_steps(extra)) if traces is None else traces)
    (late,) = lateness_of(found).stragglers
    return cause_of(found, late, late.arrivals[0].before.what, in_turn=False)


def gemm(*, blocks: tuple[int, int] = (64, 64), shapes: tuple[str, str] | None = None) -> Extra:
    """Each rank computes until its second collective; values of the others, and of rank 1."""

    def add(build: TraceBuilder, rank: int) -> None:
        begin, late = FIRST_END + 100, rank == 1
        build.kernel("gemm", begin, begin + 9_000 + LATE_US * late, blocks=blocks[late])
        build.op("aten::mm", begin - 50, begin - 10, shapes=None if shapes is None else shapes[late])

    return add


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (gemm(), Why.SLOWER_DEVICE),
        (gemm(blocks=(64, 256)), Why.MORE_WORK),
        (gemm(blocks=(-1, -1)), Why.UNKNOWN),
        (gemm(shapes=("[[8, 64], [64, 64]]", "[[8, 512], [512, 64]]")), Why.SHAPES),
        (gemm(shapes=("[[8, 64], [64, 64]]", "[[8, 66], [66, 64]]")), Why.SLOWER_DEVICE),  # 3 % more
        (gemm(shapes=("[[8, 512], [512, 64]]", "[[8, 64], [64, 64]]")), Why.SLOWER_DEVICE),  # the others' are larger
        (gemm(shapes=("not JSON", "[[8, 512], [512")), Why.SLOWER_DEVICE),
    ],
)
def test_longer_compute(extra: Extra, why: Why) -> None:
    assert causes(extra).why is why


def test_inputs_that_differ_are_named_with_a_way_to_balance_them() -> None:
    extra = with_steps(gemm(shapes=("[[8, 64], [64, 64]]", "[[8, 512], [512, 64]]")))
    (finding,) = compared(rank_set(LATE, extra=extra)).findings
    assert "`aten::mm` [8, 512], [512, 64], on rank 2 [8, 64], [64, 64]" in finding.detail
    assert finding.title.endswith("inputs differ")
    assert finding.where.op == "aten::mm"
    assert "one length" in finding.advice


def test_a_device_that_takes_longer_for_the_same_kernels() -> None:
    (finding,) = compared(rank_set(LATE, extra=with_steps(gemm()))).findings
    assert "4.33 times as long for the same kernels" in finding.detail
    assert "clocks" in finding.advice


def test_without_a_cause_there_is_no_fix() -> None:
    (finding,) = compared(rank_set(LATE, extra=with_steps(gemm(blocks=(-1, -1))))).findings
    assert finding.advice == ""
    assert "record_shapes" in finding.record


def sampled(stack: str, *, all_ranks: bool = False) -> Extra:
    """Rank 1 is in a line of its code while the others wait; ``all_ranks``: the others are there as well."""

    def add(build: TraceBuilder, rank: int) -> None:
        at = FIRST_END
        build.op("aten::relu", at + 10, at + 12)
        while at < FIRST_END + 10_000 + LATE_US * (rank == 1):
            at += 1_000
            build.sample(stack if rank == 1 or all_ranks else "train.py(3): main", at, step=1)

    return add


def test_a_line_that_one_rank_alone_runs() -> None:
    extra = with_steps(sampled("train.py(3): main > train.py(40): evaluate"))
    (finding,) = compared(rank_set(LATE, extra=extra)).findings
    assert (finding.where.file, finding.where.line) == ("train.py", 40)
    assert "alone was in `evaluate`" in finding.detail
    assert "only rank 1 runs it" in finding.advice


def test_a_sleep_is_told_as_such() -> None:
    extra = with_steps(sampled("train.py(3): main > train.py(41): pause > time.sleep"))
    (finding,) = compared(rank_set(LATE, extra=extra)).findings
    assert finding.where.line == 41
    assert finding.advice.startswith("Remove the sleep")


def test_a_line_of_all_ranks_is_not_said_to_be_of_one() -> None:
    cause = causes(sampled("train.py(3): main > train.py(40): step", all_ranks=True))
    assert (cause.why, cause.alone) == (Why.LINE, False)


def hosted(wait_us: float, *, threads: int = 1, cores: int = 2, other_us: float = 0, line: str = "") -> list[Trace]:
    """Two ranks with collectives on the host; rank 1 comes 40 ms late, ``wait_us`` of it without a core, at ``line``.

    ``other_us``: the wait of rank 0.
    """
    traces = []
    for rank in range(2):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.step(1, 0, 100_000)
        for number, (start, end) in enumerate(((1_000, 2_000), (50_000 if rank else 10_000, 60_000))):
            build.annotation("gloo:all_reduce", start, end, tid=9)
            build.row("collectives", start_ns=start * 1000, end_ns=end * 1000, name=build.code("all_reduce"),
                      slice=number)  # fmt: skip
        build.op("aten::mm", 2_100, 49_000 if rank else 9_000)
        build.core_reading(2_000, 50_000, wait=wait_us if rank else other_us)
        for at in range(3_000, 49_000 if rank and line else 0, 1_000):
            build.sample(line, at, step=1)
        facts = CoreFacts(cores=cores, compute_threads=threads, local_processes=2)
        traces.append(replace(build.build(), core_facts=facts))
    return traces


@pytest.mark.parametrize(("wait_us", "why"), [(19_000, Why.UNKNOWN), (21_000, Why.CORE)])
def test_half_of_the_lateness_without_a_core_is_the_cause(wait_us: float, why: Why) -> None:
    assert causes(gemm(), hosted(wait_us)).why is why


def test_ranks_that_wait_for_cores_of_other_programs_are_not_judged() -> None:
    assert compared(hosted(30_000)).status == "abstained"
    assert compared(hosted(30_000, threads=8, cores=16)).status == "abstained"
    (one,) = compared(hosted(30_000, threads=2)).findings  # two ranks with two threads each on two cores
    assert "OMP_NUM_THREADS=1" in one.advice
    assert compared(hosted(30_000, cores=1)).status == "abstained"  # fewer than one thread per rank is impossible
    (own,) = compared(hosted(30_000, threads=8)).findings
    assert own.about == "program"
    assert "OMP_NUM_THREADS=1" in own.advice


@pytest.mark.parametrize(
    ("wait_us", "line", "status"),
    [
        (21_000, "", "abstained"),
        (19_000, "", "flagged"),
        (21_000, "train.py(3): main > train.py(40): evaluate", "flagged"),  # rank 1 alone runs it
        (21_000, "train.py(3): main > train.py(41): pause > time.sleep", "flagged"),
    ],
)
def test_ranks_that_all_wait_for_cores_need_evidence_that_no_core_explains(
    wait_us: float, line: str, status: str
) -> None:
    outcome = compared(hosted(wait_us, other_us=wait_us, line=line))
    assert outcome.status == status
    assert status == "flagged" or "waited for a core" in (outcome.reason or "")


@pytest.mark.parametrize(("late", "told"), [(True, True), (False, False)])
def test_waiting_that_a_late_rank_explains_is_told_once(*, late: bool, told: bool) -> None:
    traces = hosted(0) if late else hosted(0)[:1]
    analysis = analyze(traces, ["straggler", "unexplained_idle"])
    rules = [rule for rule, _ in analysis.findings()]
    assert ("straggler" in rules) is told
    assert not (told and "unexplained_idle" in rules)


def host_ranks(*late_us: int) -> list[Trace]:
    """Ranks that come so late to the second of two all-reduces on the host, without a known cause."""
    traces = []
    for rank, late in enumerate(late_us):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json", recorded=EVERYTHING - {"device_work"})
        build.step(1, 0, 100_000)
        for number, (start, end) in enumerate(((1_000, 2_000), (5_000 + late, 90_000))):
            build.annotation("gloo:all_reduce", start, end, tid=9)
            build.row("collectives", start_ns=start * 1000, end_ns=end * 1000, name=build.code("all_reduce"),
                      slice=number)  # fmt: skip
        build.op("aten::mm", 2_100, 4_900 + late)
        traces.append(build.build())
    return traces


def test_waiting_for_several_late_ranks_is_explained_by_them() -> None:
    """The last rank is late only relative to the next-to-last; the others waited for both."""
    traces = host_ranks(0, 0, 50_000, 80_000)
    analysis = analyze(traces, ["straggler", "unexplained_idle"])
    assert [rule for rule, _ in analysis.findings()] == ["straggler"]
    (late,) = analysis["straggler"].findings
    assert (late.cost_ns, late.covers_ns) == (30_000_000, {"other_ranks": 80_000_000})
    assert (late.advice, late.record[:6]) == ("", "Record")


def test_ranks_in_step_explain_no_waiting() -> None:
    analysis = analyze(host_ranks(0, 0, 0, 0), ["straggler", "unexplained_idle"])
    assert [rule for rule, _ in analysis.findings()] == ["unexplained_idle"]


def test_an_earlier_collective_of_the_same_group_is_no_cause() -> None:
    (found,) = rank_sets(rank_set(LATE, extra=with_steps(gemm())))
    (late,) = lateness_of(found).stragglers
    assert cause_of(found, late, "an earlier collective", in_turn=False).why is Why.UNKNOWN
