"""small_collectives: rows of small ones, single ones, large ones, dependent ones, sizes unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.model.finding import Outcome
from perfscope.model.trace import RECORDED, Trace
from tests.build import TraceBuilder
from tests.ranks.build import collective

LATENCY = 20.0


def outcome_of(*traces: Trace) -> Outcome:
    return analyze(traces, ["small_collectives"])["small_collectives"]


def build(
    count: int, *, elements: int = 256, apart: float = 5.0, span: float = 10_000.0, work: bool = False
) -> TraceBuilder:
    """``count`` small all-reduces of 20 us in a step of 10 ms, and a large one of 1 ms."""
    builder = TraceBuilder()
    builder.step(0, 0, span)
    builder.kernel("gemm", 0, 100)
    for index in range(count):
        start = 200 + index * (LATENCY + apart)
        collective(builder, start, start + LATENCY, elements=elements, dtype="Float", ranks=[0, 1])
        if work:
            builder.kernel("gemm", start, start + LATENCY)
    collective(builder, span - 1_100, span - 100, elements=25_000_000, dtype="Float", ranks=[0, 1])
    return builder


def test_a_row_of_small_ones_is_priced_at_a_latency_each() -> None:
    (finding,) = outcome_of(build(101).build()).findings
    assert finding.subject == "small collectives that could be bucketed"
    assert "101 small collectives could be 1" in finding.title
    assert "101 all_reduce of 1.00 KiB" in finding.detail
    assert (finding.basis, finding.cost_ns, finding.severity) == ("modelled", 100 * 20_000, "high")
    (row,) = finding.evidence
    assert (row["buckets"], row["latency_ns"], row["message_bytes"]) == (1, 20_000, 101 * 1024)


def test_the_latency_is_the_shortest_of_the_smallest() -> None:
    builder = build(100)
    for row, kernel in zip(builder.tables["collectives"][1:100], builder.tables["kernels"][2:101], strict=True):
        row["end_ns"] += 3_000
        kernel["end_ns"] += 3_000  # all but the first wait 3 us for another rank
    (finding,) = outcome_of(builder.build()).findings
    assert finding.cost_ns == 99 * 20_000


@pytest.mark.parametrize(
    ("count", "apart", "elements"),
    [
        (7, 5.0, 256),  # too few
        (100, 40.0, 256),  # each is separate: others' work may lie between
        (100, 5.0, 1_000_000),  # 4 MB are not small where 100 MB take a millisecond
    ],
)
def test_few_separate_or_large_ones_are_clean(count: int, apart: float, elements: int) -> None:
    assert outcome_of(build(count, apart=apart, elements=elements).build()).status == "clean"


def test_what_computing_hides_costs_nothing() -> None:
    assert outcome_of(build(100, work=True).build()).status == "clean"


def test_below_two_percent_of_the_steps_it_is_clean() -> None:
    assert outcome_of(build(11, span=10_000).build()).status == "flagged"  # 10 x 20 us of 10 ms
    assert outcome_of(build(11, span=10_100).build()).status == "clean"


def test_flat_tensors_need_not_be_back_to_back() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 10_000)
    for index in range(50):
        builder.op(
            "nccl:all_reduce", index * 100, index * 100 + 5, external_id=index, shapes="[[256]]", dtypes='["float"]'
        )
        builder.kernel("nccl", index * 100 + 40, index * 100 + 60, communication=True, external_id=index)
        builder.row("collectives", start_ns=(index * 100 + 40) * 1000, end_ns=(index * 100 + 60) * 1000,
                    name=builder.code("all_reduce"), kernel=index)  # fmt: skip
    (finding,) = outcome_of(builder.build()).findings
    assert finding.cost_ns == 49 * 20_000


def test_without_sizes_or_collectives_it_abstains() -> None:
    builder = TraceBuilder()
    collective(builder, 0, 20, elements=-1)
    assert "sizes of the collectives are not recorded" in (outcome_of(builder.build()).reason or "")
    assert outcome_of(TraceBuilder().build()).reason == f"not recorded: {RECORDED['collectives']}"


@pytest.mark.corpus
def test_tensor_parallel_activations_and_real_buckets_are_clean(corpus: Path) -> None:
    for name in ("astra-sim__megatron_kineto_0.json.gz", "HolisticTraceAnalysis__nccl_data.json.gz"):
        assert outcome_of(*load_all(corpus / "kineto" / name)).status == "clean"
