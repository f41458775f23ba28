"""Sets of ranks: jobs put together, collectives matched, clocks aligned, groups guessed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ranks.job import MOST_RANKS, jobs_of, locals_of, main_job
from perfscope.analyzers.ranks.matching import align, match
from perfscope.analyzers.ranks.sets import comparable, rank_sets, table_of
from perfscope.analyzers.sections.collectives import NO_COLLECTIVES, collectives_section
from perfscope.model.collectives import algorithm_of, bus_factor, element_size, operation_of
from perfscope.model.documents.run import missing_ranks
from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import Rows
from perfscope.model.trace.trace import Tables
from tests.build import TraceBuilder
from tests.ranks.build import KERNEL, collective, named, rank_set
from tests.ranks.planted import job_of

LATE = [[0.0, 100.0, 0.0, 0.0], [0.0, 0.0, 300.0, 0.0], [50.0, 0.0, 0.0, 20.0], [0.0, 0.0, 0.0, 500.0]]


def test_ranks_of_one_job_need_no_note() -> None:
    (found,) = rank_sets(rank_set(LATE))
    assert (found.job.ranks, found.job.world_size, found.job.missing, found.notes) == ((0, 1, 2, 3), 4, (), ())
    assert len(found.matching.matched) == 4
    assert [item.last for item in found.matching.matched] == [1, 2, 0, 3]
    assert all(item.complete and item.named for item in found.matching.matched)


def test_the_wait_is_the_duration_less_the_shortest() -> None:
    (found,) = rank_sets(rank_set(LATE, jitter_us=0))
    second = found.matching.matched[1]
    assert second.core_ns == 500_000
    assert [second.wait_ns(rank) for rank in range(4)] == [300_000, 300_000, 0, 300_000]


def test_a_missing_rank_is_said_and_the_others_are_matched() -> None:
    traces = rank_set(LATE)
    (found,) = rank_sets([traces[0], traces[1], traces[3]])
    assert found.job.missing == (2,)
    assert "1 of 4 ranks are missing (rank 2)" in found.notes[0]
    assert len(found.matching.matched) == 4
    assert not any(item.complete for item in found.matching.matched)


def test_a_collective_may_be_linked_with_a_kernel_that_is_not_marked() -> None:
    """As in a damaged export."""
    (trace, *_) = rank_set(LATE)
    kernels = trace.rows["kernels"]
    columns = {column.name: kernels[column.name].copy() for column in kernels.table.columns}
    columns["communication"][:] = False
    unmarked = replace(trace, rows=Tables({**trace.rows, "kernels": Rows(kernels.table, columns)}))
    assert [local.lane for local in locals_of(unmarked)] == [local.lane for local in locals_of(trace)]


def test_a_world_that_no_job_has_is_bounded() -> None:
    traces = [named(trace, world=2**63 - 1) for trace in rank_set(LATE)]
    (found,) = rank_sets(traces)
    assert len(found.job.missing) == MOST_RANKS - 4
    assert "9,223,372,036,854,775,807 ranks exceed any real job" in found.notes[0]
    assert (
        missing_ranks({0, 1}, 2**62)
        == f"ranks 2, 3, 4, 5, 6, 7, 8, 9 and {2**62 - 10:,} more of {2**62:,} left nothing here"
    )


def test_of_two_files_of_a_rank_the_one_beside_the_others_is_used() -> None:
    traces = rank_set(LATE)
    later = TraceBuilder(rank=1)
    collective(later, 900_000, 900_500, ranks=range(4), sequence=0)
    (found,) = rank_sets([*traces[:1], named(later.build(), world=4, path="later.json"), *traces[1:]])
    assert found.job.members[1].trace is traces[1]
    assert found.notes == ("2 files are of rank 1; rank1.json is used because it overlaps the other ranks in time",)


def test_mixed_jobs_are_judged_apart() -> None:
    small, large = rank_set([row[:2] for row in LATE]), rank_set(LATE)
    sets = rank_sets([*small, *large])
    assert [item.job.ranks for item in sets] == [(0, 1, 2, 3), (0, 1)]
    assert "traces of 2 jobs are mixed: world sizes 2, 4; each job is analyzed separately" in sets[0].notes
    hours = rank_set(LATE, clock_us=[3600e6] * 4)
    sets = rank_sets([*large, *hours])
    assert [len(item.matching.matched) for item in sets] == [4, 4]
    assert "recorded more than 60 s apart" in sets[0].notes[0]


def test_the_main_job_of_a_folder() -> None:
    large = rank_set(LATE)
    program = TraceBuilder(rank=None, recorded=frozenset({"hlo"})).build()
    assert main_job([*large, program]) == (0, 1, 2, 3, 4)  # one job: what has no time belongs to it
    assert main_job([program, program]) == (0, 1)
    later = rank_set([row[:2] for row in LATE], clock_us=[3600e6] * 2)
    assert main_job([*later, *large, program]) == (2, 3, 4, 5)
    node = [named(trace, world=8) for trace in large[:2]]
    other_node = [named(trace, world=8) for trace in rank_set(LATE, clock_us=[3600e6] * 4)[2:]]
    assert main_job([*node, *other_node]) == (0, 1, 2, 3)  # two hosts whose clocks differ
    alone = [named(trace, world=1) for trace in (large[0], large[0], large[1])]
    assert len(main_job(alone)) == 1
    run = replace(later[0], source=replace(later[0].source, format="run"))
    assert main_job([*large, run]) == (4,)


def test_streams_that_begin_in_one_nanosecond_are_told_apart_by_number() -> None:
    seen = []
    for streams in ((20, 24), (24, 20)):  # the order in the file
        build = TraceBuilder(rank=0)
        for stream in streams:
            collective(build, 100, 200, stream=stream, operation=f"of_{stream}")
        seen.append({local.operation: local.lane for local in locals_of(build.build())})
    assert seen[0] == seen[1]


def _alone(path: str, rank: int | None = None, *, group: tuple[int, ...] = ()) -> Trace:
    """A recording without a world size; ``group``: members of the process group of its collective."""
    build = TraceBuilder(rank=rank)
    build.kernel("work", 0, 100)
    if group:
        collective(build, 200, 300, ranks=group)
    return named(build.build(), path=path)


@pytest.mark.parametrize(
    ("traces", "together"),
    [
        ([_alone("bert.json"), _alone("resnet.json")], False),
        ([_alone("bert.json", 0), _alone("resnet.json", 1)], False),
        ([_alone("rank0.json", 0), _alone("rank1.json", 1)], True),
        ([_alone("rank0/trace.json", 0), _alone("rank1/trace.json", 1)], True),
        ([_alone("host_12.99.json"), _alone("host_13.98.json")], False),
        ([_alone("a_rank0.json", 0), _alone("b_rank1.json", 1)], False),
        ([_alone("a.json", 0, group=(0, 1)), _alone("b.json", 1, group=(0, 1))], True),
        ([_alone("a.json", 0, group=(0, 1)), _alone("b.json", 1, group=(0, 1, 2, 3))], False),
        ([_alone("a.json", group=(0,)), _alone("b.json", group=(0,))], False),
    ],
)
def test_without_a_world_size_only_names_of_ranks_or_a_process_group_make_a_job(
    traces: list[Trace], together: bool
) -> None:
    assert (len(main_job(traces)) == 2) is together


def test_a_recording_of_another_program_is_no_rank_of_a_job_beside_it() -> None:
    ranks = [named(trace, world=4) for trace in rank_set(LATE)]
    assert main_job([*ranks, _alone("bert.json")]) == (0, 1, 2, 3)
    strangers = [_alone("a.json", 0, group=(0, 1)), _alone("b.json", 1, group=(1, 2))]
    sets = jobs_of(strangers)
    assert [job.ranks for job in sets] == [(0,), (1,)]
    assert "no world size" in sets[0].notes[0]


def test_groups_of_one_name_with_other_members_are_no_job() -> None:
    one, other = TraceBuilder(rank=0), TraceBuilder(rank=1)
    for build, ranks in ((one, [0, 1]), (other, [0, 1, 2])):
        collective(build, 0, 100, ranks=ranks, sequence=1)
    with pytest.raises(AbstainError, match="these are not one job"):
        comparable([one.build(), other.build()])


def test_nothing_to_compare_with_is_said() -> None:
    traces = rank_set(LATE)
    with pytest.raises(AbstainError, match="a single rank"):
        comparable(traces[:1])
    unknown = [TraceBuilder(rank=None), TraceBuilder(rank=None)]
    for build in unknown:
        collective(build, 0, 100)
    with pytest.raises(AbstainError, match="lack their ranks"):
        comparable([build.build() for build in unknown])
    assert comparable([TraceBuilder().build()]) == ()
    assert rank_sets([]) == ()


def test_without_numbers_they_are_matched_in_order() -> None:
    (found,) = rank_sets(rank_set(LATE, recorded=False))
    assert [item.last for item in found.matching.matched] == [1, 2, 0, 3]
    assert "process groups of 4 collectives are not recorded" in found.notes[0]


def test_a_collective_launched_before_the_capture_does_not_shift_the_others() -> None:
    def one_more(build: TraceBuilder, rank: int) -> None:
        if rank != 2:
            collective(build, 10, 200, elements=1_000_000)  # no launch call

    (found,) = rank_sets(rank_set(LATE, recorded=False, extra=one_more))
    assert [item.index for item in found.matching.matched] == [-1, 0, 1, 2, 3]
    assert sorted(found.matching.matched[0].sides) == [0, 1, 3]
    assert [item.last for item in found.matching.matched[1:]] == [1, 2, 0, 3]


def sized(sizes: list[int], rank: int) -> Trace:
    build = TraceBuilder(rank=rank)
    for index, elements in enumerate(sizes):
        collective(build, 100 * index, 100 * index + 50, elements=elements)
    return named(build.build(), world=2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(0, 1000))
def test_sizes_find_the_place_of_a_capture_that_began_later(skipped: int, seed: int) -> None:
    sizes = random.Random(seed).sample(range(1, 10_000), 30)
    (job,) = jobs_of([sized(sizes, 0), sized(sizes[skipped:], 1)])
    found = match(job)
    assert (len(found.matched), found.alone, found.disagreeing) == (30 - skipped, skipped, 0)
    assert all(len({side.elements for side in item.sides.values()}) == 1 for item in found.matched)


def test_what_does_not_agree_is_counted_and_not_used() -> None:
    found = match(jobs_of([sized([1, 2, 3, 4, 5], 0), sized([1, 2, 9, 4, 5], 1)])[0])
    assert (len(found.matched), found.alone, found.disagreeing) == (4, 1, 1)
    assert found.notes[1:] == (
        "1 collectives are on one recorded rank only",
        "1 collectives differ in operation or size from the others at their place",
    )


def test_sends_are_counted_and_not_matched() -> None:
    one, other = TraceBuilder(rank=0), TraceBuilder(rank=1)
    for build, operation in ((one, "send"), (other, "recv")):
        collective(build, 0, 10, operation=operation, ranks=[0, 1])
    (found,) = rank_sets([one.build(), other.build()])
    assert (found.matching.matched, len(found.pairing.pairs)) == ((), 1)
    assert [group.axis for group in found.groups] == ["PP"]


def test_clocks_300_ms_apart_are_put_together() -> None:
    ahead = [0.0, 300_000.0, -170_000.0, 12.0]
    (found,) = rank_sets(rank_set(LATE, clock_us=ahead))
    assert found.clocks.offset_ns == {0: 0, 1: 300_001_000, 2: -170_000_000, 3: 13_000}
    assert found.clocks.worst_ns <= 1_000
    assert "clocks of the ranks are up to 470 ms apart" in found.notes[0]
    assert [item.last for item in found.matching.matched] == [1, 2, 0, 3]


def test_an_offset_below_its_uncertainty_is_none() -> None:
    traces = [TraceBuilder(rank=rank) for rank in range(2)]
    for index, apart in enumerate([5.0, -5.0, 9.0, -9.0, 2.0]):
        collective(traces[0], 100 * index, 100 * index + 50, ranks=[0, 1], sequence=index)
        collective(traces[1], 100 * index, 100 * index + 50 + apart, ranks=[0, 1], sequence=index)
    (found,) = rank_sets([build.build() for build in traces])
    assert found.clocks.offset_ns == {0: 0, 1: 0}
    assert 2_000 < found.clocks.worst_ns <= 9_000


def test_clocks_reach_ranks_over_others_and_name_those_they_do_not() -> None:
    builds = [TraceBuilder(rank=rank) for rank in range(5)]
    for index in range(4):
        for pair in ((0, 1), (2, 3)):
            for rank in pair:
                collective(
                    builds[rank], 1000 * index, 1000 * index + 100 + 7 * rank, ranks=pair, sequence=index, group="tp"
                )
        for pair in ((1, 3),):
            for rank in pair:
                collective(builds[rank], 1000 * index + 500, 1000 * index + 600 + 7 * rank, ranks=pair, sequence=index,
                           group="dp")  # fmt: skip
    collective(builds[4], 0, 1, ranks=[4], sequence=0, group="own")
    (job,) = jobs_of([build.build() for build in builds])
    clocks = align(match(job).matched, job.ranks)
    assert clocks.offset_ns == {0: 0, 1: 7_000, 2: 14_000, 3: 21_000}
    assert clocks.unreached == (4,)


def grouped(rank: int, operation: str, ranks: list[int], shape: str | None = None) -> Trace:
    build = TraceBuilder(rank=rank)
    build.op(f"nccl:{operation}", 0, 5, external_id=1, shapes=shape)
    build.kernel("ncclDevKernel", 10, 20, communication=True, external_id=1)
    build.row("collectives", start_ns=10_000, end_ns=20_000, name=build.code(operation), kernel=0,
              ranks=build.code(str(ranks)))  # fmt: skip
    return named(build.build(), world=8)


@pytest.mark.parametrize(
    ("operation", "ranks", "shape", "axis"),
    [
        ("all_reduce", [0, 1, 2, 3], "[[4, 2048, 4096]]", "TP"),
        ("all_reduce", [0, 4], "[[1000000]]", "DP"),
        ("_all_gather_base", [0, 4], None, "DP"),
        ("all_reduce", [0, 1], None, None),
        ("all_to_all", [0, 1, 2, 3], None, "EP"),
        ("broadcast", [0, 1, 2, 3], None, None),
    ],
)
def test_axes_are_guessed_from_use_and_stride(
    operation: str, ranks: list[int], shape: str | None, axis: str | None
) -> None:
    (found,) = rank_sets([grouped(rank, operation, ranks, shape) for rank in ranks])
    (group,) = found.groups
    assert (group.axis, group.ranks) == (axis, tuple(ranks))


@pytest.mark.parametrize("shape", ["[[9223372036854775808, 2]]", "[[4611686018427387904, 4]]", "[[-4]]"])
def test_a_shape_that_no_tensor_has_is_no_size(shape: str) -> None:
    (local,) = locals_of(grouped(0, "all_reduce", [0, 1], shape))
    assert local.elements is None


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("mesh_tp", "TP"), ("mesh_dp", "DP"), ("TENSOR_MODEL_PARALLEL_GROUP", "TP"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"), ("TENSOR_AND_DATA_PARALLEL_GROUP", None),
        ("DATA_PARALLEL_GROUP_WITH_CP", "DP"), ("EXPERT_MODEL_PARALLEL_GROUP", "EP"), ("fsdp", "DP"),
        ("default_pg", None), ("tp_dp", None), ("stop", None), ("step", None),
    ],
)  # fmt: skip
def test_what_the_program_calls_a_group_comes_first(description: str, axis: str | None) -> None:
    builds = [TraceBuilder(rank=rank) for rank in (0, 1)]
    for build in builds:
        collective(build, 0, 10, operation="broadcast", ranks=[0, 1], sequence=1, description=description)
    (found,) = rank_sets([build.build() for build in builds])
    (group,) = found.groups
    assert (group.axis, group.description) == (axis, description)


def test_two_groups_of_the_same_members_are_told_apart_by_name() -> None:
    builds = [TraceBuilder(rank=rank) for rank in (0, 1)]
    for rank, build in enumerate(builds):
        collective(build, 0, 100 - rank, ranks=[0, 1], sequence=1, group="0")
        collective(build, 200, 300, ranks=[0, 1], sequence=1, group="5", elements=7)
    (found,) = rank_sets([build.build() for build in builds])
    assert [item.sides[0].group for item in found.matching.matched] == ["0", "5"]
    assert [item.index for item in found.matching.matched] == [1, 1]
    other = TraceBuilder(rank=1)
    collective(other, 0, 99, ranks=[0, 1], sequence=1, group="3")  # an older torch: numbered on each rank for itself
    (found,) = rank_sets([builds[0].build(), other.build()])
    assert len(found.matching.matched) == 1


def test_names_of_every_spelling() -> None:
    names = ["_allgather_base", "allreduce", "all_reduce_coalesced", "_reduce_scatter_base", "all_to_allv", "nccl"]
    assert [operation_of(name) for name in names] == [
        "all_gather", "all_reduce", "all_reduce", "reduce_scatter", "all_to_all", "nccl",
    ]  # fmt: skip
    assert algorithm_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL128(x)") == ("RING", "LL128")
    assert algorithm_of("ncclKernel_AllReduce_RING_LL_Sum_float(x)") == ("RING", "LL")
    assert algorithm_of("ncclDevKernel_AllReduce_Sum_bf16_NVLS_TREE_SIMPLE") == ("NVLS_TREE", "SIMPLE")
    assert algorithm_of("ncclDevKernel_SendRecv") == (None, None)
    assert [element_size(name) for name in ("c10::Half", "Float", "long int", "Float8_e4m3fn", "Quaternion", None)] == [
        2, 4, 8, 1, None, None,
    ]  # fmt: skip
    assert [bus_factor(name, 8) for name in ("all_reduce", "all_gather", "broadcast", "barrier")] == [
        1.75, 0.875, 1.0, None,
    ]  # fmt: skip
    assert bus_factor("all_reduce", 1) is None


@pytest.mark.corpus
def test_the_real_sets_match_wholly(corpus: Path) -> None:
    (found,) = rank_sets(job_of(corpus, "torchrec__sst_sleep*"))
    assert (found.job.ranks, found.job.missing) == ((0, 1, 2, 3), ())
    assert [len(item.sides) for item in found.matching.matched] == [3, *[4] * 12]
    assert {item.operation for item in found.matching.matched[1:]} == {"all_to_all"}
    assert found.clocks.worst_ns < 50_000


LATE_TABLE = [[0.0, 100.0, 0.0, 0.0], [0.0, 0.0, 300.0, 0.0], [50.0, 0.0, 0.0, 20.0]]


def test_waits_and_cores_sum_to_the_durations() -> None:
    (found,) = rank_sets(rank_set(LATE_TABLE, jitter_us=0))
    table = table_of(found)
    (kind,) = table.kinds
    assert (kind.operation, kind.count, kind.core_ns, kind.axis) == ("all_reduce", 3, 1_500_000, "DP")
    assert (kind.algorithm, kind.protocol, kind.message_bytes) == ("RING", "LL", 2_000_000)
    assert kind.wait_ns == {0: 400_000, 1: 350_000, 2: 150_000, 3: 430_000}
    for total in table.ranks:
        assert total.wait_ns + total.core_ns == total.duration_ns == kind.duration_ns[total.rank]
        assert total.exposed_ns == total.duration_ns
    assert [total.last for total in table.ranks] == [1, 1, 1, 0]


def test_bandwidth_is_of_the_core() -> None:
    (found,) = rank_sets(rank_set(LATE_TABLE, jitter_us=0))
    (kind,) = table_of(found).kinds
    assert kind.algorithm_bandwidth == pytest.approx(2_000_000 / 500e-6)
    assert kind.bus_bandwidth == pytest.approx(1.5 * 2_000_000 / 500e-6)


@pytest.mark.parametrize(
    ("operation", "elements", "received", "message", "factor"),
    [
        ("_allgather_base", 1000, 4000, 4000, 0.75),
        ("_allgather_base", 1000, -1, 4000, 0.75),
        ("_reduce_scatter_base", 4000, 1000, 4000, 0.75),
        ("all_to_allv", 1000, 1000, 1000, 0.75),
        ("broadcast", 1000, 1000, 1000, 1.0),
        ("barrier", 1, 1, 1, None),
    ],
)
def test_messages_and_factors_are_those_of_nccl_tests(
    operation: str, elements: int, received: int, message: int, factor: float | None
) -> None:
    builds = [TraceBuilder(rank=rank) for rank in range(4)]
    for build in builds:
        collective(build, 0, 100, operation=operation, elements=elements, received=received, dtype="Float",
                   ranks=range(4), sequence=1)  # fmt: skip
    (found,) = rank_sets([build.build() for build in builds])
    (kind,) = table_of(found).kinds
    assert kind.message_bytes == 4 * message
    assert kind.bus_bandwidth == (None if factor is None else pytest.approx(factor * 4 * message / 100e-6))


def test_caveats_stand_beside_the_bandwidth() -> None:
    def kinds(kernel: str, device: str, members: int = 2) -> tuple[str, ...]:
        builds = [TraceBuilder(rank=rank) for rank in range(2)]
        for build in builds:
            build.device(0, device)
            collective(build, 0, 100, kernel=kernel, ranks=range(members), sequence=1)
        (found,) = rank_sets([build.build() for build in builds])
        return table_of(found).kinds[0].caveats

    assert kinds(KERNEL, "NVIDIA H100 80GB HBM3") == ()
    assert "NVLS reduces in the switch" in kinds("ncclDevKernel_AllReduce_Sum_bf16_NVLS_SIMPLE", "NVIDIA H200")[0]
    assert "only PCIe is known" in kinds(KERNEL, "NVIDIA L4")[0]
    assert "members of the group are missing" in kinds(KERNEL, "NVIDIA H100 80GB HBM3", members=4)[0]


def test_a_group_that_nobody_recorded_has_no_factor_while_ranks_are_missing() -> None:
    (found,) = rank_sets(rank_set(LATE_TABLE, recorded=False, world=8))
    (kind,) = table_of(found).kinds
    assert kind.algorithm_bandwidth is not None
    assert kind.bus_bandwidth is None
    assert "the group's members are not recorded" in kind.caveats[0]


def test_what_computing_hides_is_not_exposed() -> None:
    def busy(build: TraceBuilder, rank: int) -> None:
        build.kernel("gemm", 10_000, 10_250)

    (found,) = rank_sets(rank_set(LATE_TABLE, extra=busy, jitter_us=0))
    total = table_of(found).ranks[0]
    assert total.exposed_ns == total.duration_ns - 250_000


def test_the_section_needs_two_ranks_and_survives_what_breaks() -> None:
    traces = rank_set(LATE_TABLE)
    assert collectives_section(traces[:1]) == NO_COLLECTIVES
    section = analyze(traces, []).collectives
    (job,) = section.jobs
    assert (job.label, job.matched, job.unmatched, job.missing) == ("ranks 0-3 of 4", 3, 0, ())
    assert [total.rank for total in job.ranks] == [0, 1, 2, 3]
    broken = rank_set(LATE_TABLE)
    broken[1] = replace(broken[1], strings=())
    (problem,) = collectives_section(broken).problems
    assert "could not be summed up: IndexError" in problem


@pytest.mark.corpus
def test_every_collective_of_a_real_job_of_eight(corpus: Path) -> None:
    (found,) = rank_sets(job_of(corpus, "astra-sim__megatron_kineto_*"))
    assert (len(found.matching.matched), found.matching.alone, found.matching.disagreeing) == (84, 0, 0)
    table = table_of(found)
    assert [(kind.operation, kind.message_bytes, kind.count, kind.axis) for kind in table.kinds] == [
        ("all_reduce", 4 * 2048 * 4096 * 2, 81, "TP"),
        ("all_reduce", 4 * 2048 * 4, 3, "TP"),
    ]
    assert sum(kind.core_ns for kind in table.kinds) == 50_099_000
    waits = [191_092_000, 431_207_000, 363_226_000, 422_291_000, 445_141_000, 440_829_000, 213_747_000, 431_766_000]
    assert [rank.wait_ns for rank in table.ranks] == waits
    for rank in table.ranks:  # the kernels' own times, counted without the matching
        kernels = found.job.members[rank.rank].trace.rows["kernels"]
        kept = kernels["communication"]
        assert int((kernels["end_ns"] - kernels["start_ns"])[kept].sum()) == rank.wait_ns + rank.core_ns
    # a ring on NVLink 3 (300 GB/s a direction) reaches two thirds of it with LL at 64 MiB
    assert table.kinds[0].bus_bandwidth == pytest.approx(194.8e9, rel=1e-3)
