"""What a late rank did before: computed, communicated, loaded data, ran ops, or nothing the trace shows."""

from __future__ import annotations

import pytest

from perfscope.analyzers.ranks.lateness import lateness_of
from perfscope.analyzers.ranks.sets import rank_sets
from tests.analyzers.ranks.build import STEP, Extra, collective, rank_set
from tests.build import TraceBuilder

LATE = 4_000.0
BEGIN = STEP  # where the others arrive; rank 1 arrives LATE later


def nothing(build: TraceBuilder, rank: int) -> None:
    """Adds nothing."""


def compute(build: TraceBuilder, rank: int) -> None:
    build.kernel("gemm", BEGIN - 2_000, BEGIN + (0.9 * LATE if rank == 1 else -100))


def earlier(build: TraceBuilder, rank: int) -> None:
    if rank == 1:
        collective(build, BEGIN - 100, BEGIN + 0.9 * LATE, ranks=[1, 5], sequence=0, stream=24)


def loader(build: TraceBuilder, rank: int) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    build.op(name, BEGIN - 200, BEGIN + (0.9 * LATE if rank == 1 else -100))


def ops(build: TraceBuilder, rank: int) -> None:
    build.op("aten::sort", BEGIN - 200, BEGIN + (0.9 * LATE if rank == 1 else -100))


def python(build: TraceBuilder, rank: int) -> None:
    build.python("train.py(88): evaluate", BEGIN - 500, BEGIN + LATE + 5)
    build.python("torch/nn/modules/module.py(1): __call__", BEGIN - 400, BEGIN + LATE)


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (nothing, "host gap"),
        (compute, "longer compute"),
        (earlier, "an earlier collective"),
        (loader, "data loader"),
        (ops, "host work"),
        (python, "host gap"),
    ],
)
def test_what_a_late_rank_did(extra: Extra, what: str) -> None:
    (found,) = rank_sets(rank_set([[0.0, LATE, 0.0]], extra=extra))
    late = lateness_of(found)
    assert [one.rank for one in late.stragglers] == [1]
    (arrival,) = late.stragglers[0].arrivals
    assert arrival.lateness_ns == 4_000_000 - 1_000  # rank 1 leaves 1 us after the others
    assert (arrival.before.what, arrival.before.window_ns) == (what, arrival.lateness_ns)


def test_the_line_is_the_users_where_stacks_are_recorded() -> None:
    (found,) = rank_sets(rank_set([[0.0, LATE, 0.0]], extra=python))
    frame = lateness_of(found).stragglers[0].arrivals[0].before.frame
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == ("train.py", 88, "evaluate")


def test_lateness_is_behind_the_next_to_last_rank() -> None:
    (found,) = rank_sets(rank_set([[0.0, LATE, 3_000.0]], jitter_us=0))
    late = lateness_of(found)
    (arrival,) = late.stragglers[0].arrivals
    assert (arrival.lateness_ns, arrival.waited_ns) == (1_000_000, 5_000_000)
    assert late.stragglers[0].cost_ns == 1_000_000


def test_waiting_behind_which_a_device_computes_costs_nothing() -> None:
    def busy(build: TraceBuilder, rank: int) -> None:
        if rank != 1:
            build.kernel("gemm", BEGIN - 100, BEGIN + 0.75 * LATE)

    (found,) = rank_sets(rank_set([[0.0, LATE, 0.0]], extra=busy, jitter_us=0))
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
    for at, (kernel, row) in enumerate(zip(build.tables["kernels"], build.tables["collectives"], strict=True)):
        moved = 150_000 * rank * (-1) ** at
        kernel["end_ns"] += moved
        row["end_ns"] += moved


def test_what_it_did_more_than_the_others_explains_it_wherever_it_lies() -> None:
    """Rank 1 loads data 4 ms longer than the others, then all compute alike until the collective."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def load_then_compute(build: TraceBuilder, rank: int) -> None:
        first = STEP + 500.0  # where the first collective ends
        late = LATE if rank == 1 else 0.0
        build.op(name, first + 100, first + 600 + late)
        build.kernel("gemm", first + 700 + late, first + 9_000 + late)

    (found,) = rank_sets(rank_set([[0.0, 0.0, 0.0], [0.0, LATE, 0.0]], extra=load_then_compute))
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
        return [one.rank for one in lateness_of(found).stragglers]

    assert hosted(9_000) == []
    assert hosted(11_000) == [1]


def test_collectives_of_the_host_are_told_from_those_of_the_device_beside_them() -> None:
    """A collective on a device has no host span: its row must not stand for the last span of the trace."""

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
