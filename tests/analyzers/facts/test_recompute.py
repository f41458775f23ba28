"""The autograd rule: what runs again, what only looks like it, and the known answer of a real trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.facts.recompute import recompute_regions, recomputed_ops
from perfscope.analyzers.trace import Trace
from tests.build import EVERYTHING, TraceBuilder

NODE = "autograd::engine::evaluate_function: "


def checkpointed(*, repeated_shape: str = "[[4,8]]", sequence: int = 9, recorded: frozenset[str] = EVERYTHING) -> Trace:
    t = TraceBuilder(recorded=recorded)
    t.op("aten::relu", 0, 5, sequence=1, forward_thread=0, shapes="[[4,8]]", external_id=1)
    t.kernel("relu", 5, 9, external_id=1)
    t.op(NODE + "CheckpointFunctionBackward", 20, 60, tid=2, external_id=2)
    t.op("aten::relu", 22, 30, tid=2, sequence=sequence, forward_thread=0 if sequence >= 0 else -1,
         shapes=repeated_shape, external_id=3)  # fmt: skip
    t.op("aten::clamp_min", 23, 29, tid=2, external_id=4)
    t.op(NODE + "ReluBackward0", 32, 50, tid=2, external_id=5)
    t.op("aten::threshold_backward", 34, 40, tid=2, external_id=6)
    t.kernel("clamp", 40, 47, external_id=4)
    t.kernel("threshold", 50, 61, external_id=6)
    return t.build()


def test_a_rerun_forward_and_what_it_calls_counts_but_not_the_backward_it_feeds():
    (region,) = recompute_regions(checkpointed())
    assert region.time.sum_ns == 7_000
    assert len(region.ops) == 1


def test_ordinary_backward_ops_have_no_sequence_number_of_their_own():
    assert recompute_regions(checkpointed(sequence=-1)) == ()


def test_a_double_backward_runs_ops_the_forward_did_not():
    assert recompute_regions(checkpointed(repeated_shape="[[8,8]]")) == ()
    blind = checkpointed(repeated_shape="[[8,8]]", recorded=EVERYTHING - {"shapes"})
    assert len(recompute_regions(blind)) == 1


def test_a_backward_that_applies_a_function_repeats_nothing():
    t = TraceBuilder(recorded=EVERYTHING - {"shapes"})
    t.op(NODE + "_AlltoAllSingleBackward", 20, 60)
    t.op("_AlltoAllSingle", 22, 40, sequence=5, forward_thread=0, external_id=1)
    t.kernel("ncclSendRecv", 30, 90, external_id=1, communication=True)
    assert recompute_regions(t.build()) == ()


def test_without_an_accelerator_the_ops_stand_for_their_kernels():
    t = TraceBuilder(recorded=frozenset({"host_ops", "autograd"}))
    t.op(NODE + "AddBackward0", 20, 60)
    t.op("aten::relu", 22, 30, sequence=9, forward_thread=0)
    (region,) = recompute_regions(t.build())
    assert region.time.exposed_ns == 8_000


@pytest.mark.corpus
def test_resnet_with_checkpointing_gives_the_time_below_the_checkpoint_frames(corpus: Path):
    from perfscope.analyzers.readers.kineto import read

    trace = read(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz")
    regions = trace.fact(recompute_regions)
    assert len(regions) == 12
    assert sum(len(region.ops) for region in regions) == 267
    assert sum(region.time.sum_ns for region in regions) == 4_209_958  # 4,209.96 us in the file's microseconds


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["param__linear_kineto", "HolisticTraceAnalysis__ns_resolution_rank0",
                                  "HolisticTraceAnalysis__nccl_data", "astra-sim__megatron_kineto_0",
                                  "torchrec__sst_long_a2a_optimizer_4_44237__rank0"])  # fmt: skip
def test_training_without_checkpointing_recomputes_nothing(corpus: Path, name: str):
    from perfscope.analyzers.readers.kineto import read

    trace = read(corpus / "kineto" / f"{name}.json.gz")
    assert "autograd" in trace.recorded
    assert not len(trace.fact(recomputed_ops))
