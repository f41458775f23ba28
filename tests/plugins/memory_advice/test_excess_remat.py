"""Flagged; just below the threshold; the near miss; abstained; and the texts of the finding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.judge import judge_paths
from perfscope.analyzers.memory.holders import SCARCE_SHARE
from perfscope.analyzers.ops.recompute import recompute_regions, recomputed_ops
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Finding, Outcome
from perfscope.model.trace import MemoryAction, Trace
from perfscope.plugins.memory_advice.remat_bargain import Bargain, remat_bargain
from perfscope.plugins.memory_advice.simulate import keep_all, simulate, todays
from perfscope.plugins.memory_advice.step_model import StepModel
from perfscope.plugins.memory_advice.step_model_torch import torch_step_model
from tests.build import EVERYTHING, TraceBuilder
from tests.plugins.memory_advice.steps import checkpointed, layers, value

NODE_PREFIX = "autograd::engine::evaluate_function: "


def checkpointed_trace(*, sequence: int = 9) -> Trace:
    t = TraceBuilder()
    t.op("aten::relu", 0, 5, sequence=1, forward_thread=0, external_id=1)
    t.kernel("relu", 5, 9, external_id=1)
    t.op(NODE_PREFIX + "CheckpointFunctionBackward", 20, 60, tid=2, external_id=2)
    t.op("aten::relu", 22, 30, tid=2, sequence=sequence, forward_thread=0 if sequence >= 0 else -1,
         external_id=3)  # fmt: skip
    t.op("aten::clamp_min", 23, 29, tid=2, external_id=4)
    t.op("aten::detach", 30, 31, tid=2)
    t.op(NODE_PREFIX + "ReluBackward0", 32, 50, tid=2, external_id=5)
    t.op("aten::threshold_backward", 34, 40, tid=2, external_id=6)
    t.kernel("clamp", 40, 47, external_id=4)
    t.kernel("threshold", 50, 61, external_id=6)
    return t.build()


def test_a_rerun_forward_and_what_it_calls_counts_but_not_the_backward_it_feeds():
    (region,) = recompute_regions(checkpointed_trace())
    assert region.time.sum_ns == 7_000
    assert len(region.ops) == 1


def test_ordinary_backward_ops_have_no_sequence_number_of_their_own():
    assert recompute_regions(checkpointed_trace(sequence=-1)) == ()


def test_in_a_double_backward_every_op_builds_a_graph():
    t = TraceBuilder()
    t.op(NODE_PREFIX + "MmBackward0", 20, 60, tid=2, sequence=1, forward_thread=1)
    t.op("MmBackward0", 21, 59, tid=2, sequence=1, forward_thread=1)
    t.op("aten::mm", 22, 30, tid=2, sequence=9, forward_thread=0)
    t.op("aten::mm", 40, 50, tid=2, sequence=10, forward_thread=0)
    t.op("aten::copy_", 41, 49, tid=2)
    assert recompute_regions(t.build()) == ()


def test_a_backward_that_applies_a_function_repeats_nothing():
    t = TraceBuilder(recorded=EVERYTHING - {"shapes"})
    t.op(NODE_PREFIX + "_AlltoAllSingleBackward", 20, 60)
    t.op("_AlltoAllSingle", 22, 40, sequence=5, forward_thread=0, external_id=1)
    t.kernel("ncclSendRecv", 30, 90, external_id=1, communication=True)
    assert recompute_regions(t.build()) == ()


def test_without_an_accelerator_the_ops_stand_for_their_kernels():
    t = TraceBuilder(recorded=frozenset({"host_ops", "autograd"}))
    t.op(NODE_PREFIX + "AddBackward0", 20, 60)
    t.op("aten::relu", 22, 30, sequence=9, forward_thread=0)
    t.op("aten::add", 31, 32)
    (region,) = recompute_regions(t.build())
    assert region.time.exposed_ns == 8_000


@pytest.mark.corpus
def test_resnet_with_checkpointing_gives_the_time_below_the_checkpoint_frames(corpus: Path):
    from perfscope.analyzers.readers.kineto.reader import read

    trace = read(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz")
    regions = trace.fact(recompute_regions)
    assert len(regions) == 12
    assert sum(len(region.ops) for region in regions) == 267
    assert sum(region.time.sum_ns for region in regions) == 4_209_958  # 4,209.96 us in the file's microseconds


@pytest.mark.corpus
def test_of_resnet_the_repeated_work_is_on_the_critical_path(corpus: Path):
    analysis = judge_paths([corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz"], ["excess_remat"]).analysis
    ((_, finding),) = analysis.findings()
    assert finding.path_ns == finding.cost_ns
    assert finding.cost_ns is not None
    assert finding.cost_ns == 1_062_154  # its time while nothing else runs: the device bounds the step


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["param__linear_kineto", "HolisticTraceAnalysis__ns_resolution_rank0",
                                  "HolisticTraceAnalysis__nccl_data", "astra-sim__megatron_kineto_0",
                                  "torchrec__sst_long_a2a_optimizer_4_44237__rank0"])  # fmt: skip
def test_training_without_checkpointing_recomputes_nothing(corpus: Path, name: str):
    from perfscope.analyzers.readers.kineto.reader import read

    trace = read(corpus / "kineto" / f"{name}.json.gz")
    assert "autograd" in trace.recorded
    assert not len(trace.fact(recomputed_ops))


RELU_NODE = "autograd::engine::evaluate_function: ReluBackward0"


def outcome(trace: Trace) -> Outcome:
    return judge(load_rule("excess_remat"), trace)


def step(recompute_us: float, *, sequence: int = 9, under_communication: float = 0,
         recorded: frozenset[str] = EVERYTHING) -> TraceBuilder:  # fmt: skip
    """A step of 1,000 us whose backward runs a relu again for ``recompute_us``."""
    t = TraceBuilder(recorded=recorded)
    t.step(0, 0, 1000)
    t.python("train.py(30): block", 0, 12)
    t.op("aten::relu", 1, 10, sequence=1, forward_thread=0, shapes="[[4,8]]", external_id=1)
    t.kernel("relu", 10, 20, external_id=1)
    t.python("model.py(12): forward", 99, 140, tid=2)
    t.op(RELU_NODE, 100, 130, tid=2)
    t.op("aten::relu", 101, 120, tid=2, sequence=sequence, forward_thread=0, shapes="[[4,8]]", external_id=2)
    t.op("aten::threshold_backward", 121, 122, tid=2)
    t.kernel("relu", 200, 200 + recompute_us, external_id=2)
    if under_communication:
        t.kernel("ncclAllReduce", 200, 200 + under_communication, stream=9, communication=True)
    return t


def test_flagged_with_time_share_and_line():
    (finding,) = outcome(step(40).build()).findings
    assert finding.cost_ns == finding.cost_ns_per_step == 40_000
    assert finding.basis == "measured"
    assert (finding.where.file, finding.where.line) == ("model.py", 12)
    assert "was not recorded" in finding.advice
    assert finding.evidence[0]["recompute_ns"] == 40_000


def test_just_below_the_threshold_is_clean():
    assert outcome(step(9.9).build()).status == "clean"
    assert outcome(step(10).build()).status == "flagged"


def test_what_communication_hides_is_said_and_not_charged():
    (finding,) = outcome(step(40, under_communication=25).build()).findings
    assert finding.cost_ns == 15_000
    assert "25.0 us of it hidden" in finding.detail


def test_a_backward_without_a_rerun_is_clean():
    assert outcome(step(40, sequence=-1).build()).status == "clean"


def test_free_memory_is_said_where_it_was_recorded():
    t = step(40)
    t.tables["devices"][0]["memory_bytes"] = 80 << 30
    t.row("memory", time_ns=5, thread=t.thread(1), op=-1, on_device=True, ordinal=0, address=1, bytes=1 << 30,
          allocated_bytes=60 << 30, reserved_bytes=64 << 30, action=int(MemoryAction.ALLOCATE))  # fmt: skip
    (finding,) = outcome(t.build()).findings
    assert "20.0 GiB of 80.0 GiB were free" in finding.advice


def test_abstains_without_autograd_numbers():
    told = outcome(step(40, recorded=EVERYTHING - {"autograd"}).build())
    assert told.status == "abstained"
    assert "autograd" in (told.reason or "")


@pytest.mark.corpus
def test_resnet_names_the_recompute_time(corpus: Path):
    from perfscope.analyzers.readers.kineto.reader import read

    found = outcome(read(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz")).findings
    assert sum(int(row["recompute_ns"] or 0) for finding in found for row in finding.evidence) == 4_209_958
    assert "4.21 ms" in found[0].detail


ADDMM_NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def recorded(model: StepModel, *, regions: int = 4) -> Trace:
    """A step of 1,000 us that runs each of ``regions`` regions again for 20 us."""
    t = TraceBuilder()
    t.step(0, 0, 1000)
    t.op("aten::relu", 1, 10, sequence=1, forward_thread=0, shapes="[[4,8]]")
    for index in range(regions):
        begin = 100 + 50 * index
        t.op(ADDMM_NODE, begin, begin + 40, tid=2)
        t.op("aten::relu", begin + 1, begin + 21, tid=2, sequence=9 + index, forward_thread=0, shapes="[[4,8]]",
             external_id=index + 1)  # fmt: skip
        t.op("aten::addmm", begin + 30, begin + 35, tid=2)
        t.kernel("relu", begin + 300, begin + 320, external_id=index + 1)
    trace = t.build()
    trace.seed(torch_step_model, model)
    return trace


def judged(model: StepModel, *, regions: int = 4) -> tuple[Finding, ...]:
    return judge(load_rule("excess_remat"), recorded(model, regions=regions)).findings


def bargain(model: StepModel) -> Bargain:
    found = recorded(model).fact(remat_bargain)
    assert found is not None
    return found


def capacity_for(peak: float) -> int:
    """Size of a device on which ``peak`` bytes may be used."""
    return round(peak / SCARCE_SHARE) + 1


PLAIN = layers(4, gradient=30)
KEPT = simulate(PLAIN, keep_all(PLAIN)).peak_bytes
FULL = simulate(PLAIN, ("full",) * 4).peak_bytes


def with_policies(model: StepModel, policies: Sequence[str]) -> StepModel:
    """The step as if it had been recorded with these policies."""
    regions = tuple(replace(region, today=policy) for region, policy in zip(model.regions, policies, strict=True))
    return replace(model, regions=regions)


def needed_checkpoints() -> StepModel:
    """Checkpointed only as much as needed, on a device that has just the room."""
    best = bargain(checkpointed(PLAIN)).better
    assert best is not None
    return replace(with_policies(PLAIN, best.policies), capacity_bytes=capacity_for(best.peak_bytes))


def count(model: StepModel) -> int:
    return sum(policy != "keep" for policy in todays(model))


def test_headroom_charges_all_of_it() -> None:
    (finding,) = judged(replace(checkpointed(PLAIN), capacity_bytes=capacity_for(KEPT)))
    assert finding.cost_ns == 80_000
    assert "off a peak that has room" in finding.detail
    assert "Take the checkpointing away" in finding.advice


def test_memory_that_is_needed_is_no_finding() -> None:
    model = needed_checkpoints()
    assert bargain(model).verdict == "needed"
    assert bargain(model).avoidable == 0
    assert judged(model, regions=count(model)) == ()
    assert judged(replace(model, capacity_bytes=None), regions=count(model)) != ()


def test_another_choice_with_as_low_a_peak_dominates() -> None:
    """The last layer's values are made again just when everything else is still there."""
    found = bargain(checkpointed(PLAIN))
    assert found.verdict == "dominated"
    assert found.better is not None
    assert found.better.policies[-1] == "keep"
    assert found.better.peak_bytes <= found.today.peak_bytes
    (finding,) = judged(checkpointed(PLAIN))
    still = found.better.simulation.recompute_ns / found.today.recompute_ns
    assert 0 < still < 0.9
    assert finding.cost_ns == round(80_000 * (1 - still))
    assert "has as low a peak" in finding.detail
    assert "checkpoint_wrapper" in finding.advice


def test_a_peak_elsewhere_is_not_lowered() -> None:
    """The optimizer makes copies after the backward, larger than all activations."""
    model = checkpointed(PLAIN)
    update = value(5_000, model.length, model.length + 1)
    larger = replace(model, values=(*model.values, update), length=model.length + 1)
    assert bargain(larger).verdict == "elsewhere"
    (finding,) = judged(larger)
    assert "the peak lies elsewhere" in finding.detail
    assert finding.cost_ns == 80_000


def test_checkpointing_one_layer_that_gains_nothing_did_not_lower_the_peak() -> None:
    model = layers(1, gradient=30)
    region = replace(model.regions[0], today="full")
    single = replace(model, regions=(region,))
    assert bargain(single).verdict == "not lowered"
    (finding,) = judged(single, regions=1)
    assert "does not lower the peak" in finding.detail


def test_some_regions_fit() -> None:
    room = (KEPT + FULL) // 2
    model = replace(needed_checkpoints(), capacity_bytes=capacity_for(room))
    found = bargain(model)
    assert found.verdict == "headroom for some"
    assert found.better is not None
    assert found.better.peak_bytes <= room
    (finding,) = judged(model, regions=count(model))
    assert 0 < (finding.cost_ns or 0) < 20_000 * count(model)


def test_unknown_capacity_is_said_and_the_rest_judged() -> None:
    model = replace(needed_checkpoints(), capacity_bytes=None)
    assert bargain(model).verdict == "capacity unknown"
    (finding,) = judged(model, regions=count(model))
    assert "whether that memory would be free is not known" in finding.detail
    assert "was not recorded" in finding.advice


def test_evidence_tells_what_each_region_buys() -> None:
    (finding,) = judged(with_policies(PLAIN, ("full", "full", "full", "keep")), regions=3)
    by_region = {row["region"]: row for row in finding.evidence}
    assert set(by_region) == {f"Model.blocks.{index}" for index in range(3)}
    assert all(row["held_bytes"] == 140 for row in finding.evidence)
    assert all(row["form"] == "non-reentrant" for row in finding.evidence)
    assert max(int(row["bought_bytes"] or 0) for row in finding.evidence) > 0


@pytest.mark.parametrize(
    ("asked_by", "form"), [("CheckpointFunctionBackward", "reentrant"), ("AddmmBackward0", "selective")]
)
def test_forms_are_told_apart(asked_by: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ADDMM_NODE", f"autograd::engine::evaluate_function: {asked_by}")
    (finding,) = judged(checkpointed(PLAIN, selective=form == "selective"))
    assert {row["form"] for row in finding.evidence} == {form}


def test_nothing_checkpointed_is_no_bargain() -> None:
    assert recorded(PLAIN).fact(remat_bargain) is None
