"""Avoidable contents of a peak: each kind built by hand, with its twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.memory.holders import UNSEEN, PeakHolders, memory_holders
from perfscope.analyzers.memory.rules import peak_owner
from perfscope.analyzers.memory.trace_memories import trace_memories
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.readers.torch_memory import reader as torch_memory_reader
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Finding, Outcome, Where
from perfscope.model.memory import MemoryPhase
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory
from tests.build import EVERYTHING
from tests.graphs import GraphBuilder
from tests.memory.build import MemoryBuilder
from tests.model.test_op_graph import with_storages
from tests.rules import judged_by


def _sums(peak: PeakHolders) -> None:
    for grouping in (peak.by_category, peak.by_module, peak.by_line, peak.by_op):
        assert sum(holder.bytes for holder in grouping) == peak.bytes
        assert [holder.bytes for holder in grouping] == sorted((holder.bytes for holder in grouping), reverse=True)
    assert peak.bytes == peak.timeline.peak()[1]


def _model() -> MemoryBuilder:
    b = MemoryBuilder()
    b.starts_with(1000)
    b.step(4, 0, 200)
    b.python("train.py(3): main", 0, 199)
    b.python("nn.Module: Net_0", 1, 60)
    for layer in range(3):
        at = 10 + 10 * layer
        b.python(f"nn.Module: Block_{layer}", at, at + 9)
        b.op("aten::linear", at + 1, at + 8, sequence=layer, forward_thread=0)
        b.op("aten::empty", at + 2, at + 4)
        b.make(layer + 1, 100, at + 3)
    b.op("autograd::engine::evaluate_function: AddmmBackward0", 70, 90, sequence=2, forward_thread=1)
    b.make(9, 40, 75)
    b.free(3, 80)
    return b


def test_groupings_of_the_peak():
    (peak,) = memory_holders(_model().build())
    _sums(peak)
    assert (peak.bytes, peak.unseen_bytes, peak.position) == (1340, 1000, 75_000)
    assert (peak.phase, peak.step) == (MemoryPhase.BACKWARD, 4)
    modules = {holder.name: (holder.bytes, holder.members, holder.blocks) for holder in peak.by_module}
    assert modules == {UNSEEN: (1000, 1, 0), "Net_*.Block_*": (340, 3, 4)}
    ops = {holder.name: holder.bytes for holder in peak.by_op}
    assert ops[UNSEEN] == 1000
    assert ops["aten::linear"] == 300  # not aten::empty, which only hands out
    assert [(holder.name, holder.bytes) for holder in peak.by_line] == [(UNSEEN, 1000), ("train.py:3", 340)]
    assert peak.line is not None
    assert peak.line.function == "main"


def test_numbers_of_a_name_that_are_no_part_of_it_stay():
    b = MemoryBuilder()
    for number, name in enumerate(("conv2d.weight", "layers.3.fc1", "layers.12.fc1", "jit(f)/block_7/dot")):
        b.row("tensors", name=b.code("x"), module=b.code(name), on_device=False, ordinal=-1, address=number + 1,
              bytes=8, category=1)  # fmt: skip
    b.make(50, 1, 1, device=-1)
    (peak,) = memory_holders(b.build())
    assert {holder.name for holder in peak.by_module} == {"conv2d.weight", "layers.*.fc1", "jit(f)/block_*/dot", None}


def test_unknown_owners_are_one_nameless_row():
    b = MemoryBuilder()
    b.make(1, 10, 1)
    b.make(2, 30, 2)
    (peak,) = memory_holders(b.build())
    assert [(holder.name, holder.bytes, holder.blocks) for holder in peak.by_category] == [(None, 40, 2)]
    _sums(peak)


@pytest.mark.corpus
def test_the_peak_of_a_recorded_training_step(corpus: Path):
    """12.4 GB at its peak: 5.1 GB of parameters and moments, and 7.1 GB that wait for the backward pass."""
    trace = torch_memory_reader.read(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz")
    (peak,) = memory_holders(trace)
    _sums(peak)
    assert peak.bytes == 12_426_629_128
    held = {holder.name: holder.bytes for holder in peak.by_category}
    assert held["activation"] == 7_126_253_568
    assert peak.phase is MemoryPhase.BACKWARD
    lines = [holder.line for holder in peak.by_line if holder.line is not None]
    assert all("site-packages/torch" not in line.file for line in lines)


def test_rows_that_sum_up_blocks_count_as_many():
    b = MemoryBuilder(recorded=frozenset({"memory_state"}))
    b.row("frames", file=b.code("train.py"), line=3, name=b.code("init"), parent=-1)
    for count, size, frame in ((148, 4096, 0), (2, 512, 0), (5, 64, -1)):
        b.row("held", on_device=True, ordinal=0, address=0, bytes=size, count=count, state=0, segment=-1, frame=frame,
              category=1, kind=b.code("buffer"))  # fmt: skip
    trace = b.build()
    (peak,) = memory_holders(trace)
    _sums(peak)
    assert [(holder.name, holder.bytes, holder.blocks) for holder in peak.by_category] == [("parameter", 4672, 155)]
    assert [(holder.name, holder.blocks) for holder in peak.by_line] == [("train.py:3", 150), (None, 5)]
    assert [holder.blocks for holder in (*peak.by_op, *peak.by_module)] == [155, 155]
    (memory,) = trace.fact(trace_memories).memories
    assert [one.blocks for one in memory.by_category] == [155]


def test_tensors_that_were_summed_up_count_as_many():
    b = MemoryBuilder()
    for name, address, size, count in (("a.weight", 8, 100, 1), ("7 smaller ones", 0, 70, 7)):
        b.row("tensors", name=b.code(name), module=b.code("a"), on_device=False, ordinal=-1, address=address,
              bytes=size, count=count, category=1)  # fmt: skip
    b.make(50, 1, 1, device=-1)
    (peak,) = memory_holders(b.build())
    assert {holder.name: holder.blocks for holder in peak.by_category} == {"parameter": 8, None: 1}


RULE = load_rule("peak_owner")
MIB = 1 << 20
EVALUATE = "autograd::engine::evaluate_function: "


outcome_of = judged_by("peak_owner")


def kinds(outcome: Outcome) -> set[str]:
    return {finding.subject.partition(" at the peak")[0] for finding in outcome.findings}


def finding_of_kind(outcome: Outcome, kind: str) -> Finding:
    return next(finding for finding in outcome.findings if finding.subject.startswith(kind))


def step(b: MemoryBuilder, at: float) -> None:
    """Forward from 0 to 20, backward from 30 to 50, optimizer from 60 to 70."""
    b.op("aten::linear", at, at + 20, sequence=1, forward_thread=0)
    b.op(f"{EVALUATE}AddmmBackward0", at + 30, at + 50, sequence=1, forward_thread=1)
    b.annotation("Optimizer.step#AdamW.step", at + 60, at + 70)


def optimizer(name: str, size: int = 10 * MIB) -> MemoryBuilder:
    """Activations of 40 MiB, and in the optimizer 35 MiB of state plus the result of an op with that name."""
    b = MemoryBuilder()
    for number in range(2):
        at = 100 * number
        step(b, at)
        b.python("train.py(7): step", at + 60, at + 71)
        b.op(name, at + 62, at + 66)
        if not number:
            b.make(1, 35 * MIB, 1, category=int(MemoryCategory.OPTIMIZER_STATE))
        b.make(2, 5 * MIB, at + 5)
        b.free(2, at + 40)
        b.make(3, size, at + 63)
        b.free(3, at + 67)
    return b


def test_temporaries_of_a_foreach_optimizer() -> None:
    (finding,) = outcome_of(optimizer("aten::_foreach_sqrt")).findings
    assert finding.subject == "temporaries of the optimizer at the peak of the device"
    # 35 + 10 at the peak; without the 10 the 35 + 5 of the forward pass are the peak
    assert finding.cost_bytes == 5 * MIB
    assert "hold 10.0 MiB of the peak of 45.0 MiB; without them it falls to 40.0 MiB" in finding.detail
    assert (finding.where.file, finding.where.line, finding.severity) == ("train.py", 7, "medium")
    assert "fused=True" in finding.advice
    assert finding.evidence[0] == {
        "held_bytes": 10 * MIB, "blocks": 1, "file": "train.py", "line": 7, "op": "aten::_foreach_sqrt", "name": None,
    }  # fmt: skip


def test_temporaries_of_one_parameter_are_clean() -> None:
    assert outcome_of(optimizer("aten::sqrt")).status == "clean"


def test_what_is_not_the_peak_is_clean() -> None:
    """5 MiB and 35 are as high as the forward pass: without them nothing falls."""
    assert outcome_of(optimizer("aten::_foreach_sqrt", 5 * MIB)).status == "clean"


def test_a_saving_below_two_percent_is_clean() -> None:
    def of(size: int) -> Outcome:
        b = MemoryBuilder()
        step(b, 0)
        b.op("aten::_foreach_sqrt", 62, 66)
        b.make(1, 98 * MIB, 1, category=int(MemoryCategory.PARAMETER))
        b.make(3, size, 63)
        b.free(3, 67)
        return outcome_of(b)

    assert of(2 * MIB - 512).status == "clean"
    assert of(2 * MIB).status == "flagged"


def gradients(freed: float | None, *, accumulates: bool = False) -> MemoryBuilder:
    """Gradients of 8 MiB that are let go at ``freed`` in each step; activations of 20 MiB."""
    b = MemoryBuilder()
    for number in range(3):
        at = 100 * number
        b.op("aten::linear", at, at + 20, sequence=1, forward_thread=0)
        b.op(f"{EVALUATE}AddmmBackward0", at + 30, at + 50, sequence=1, forward_thread=1)
        if not accumulates or number == 2:
            b.annotation("Optimizer.step#AdamW.step", at + 60, at + 70)
        b.make(2, 20 * MIB, at + 5)
        b.free(2, at + 40)
        if freed is not None or not number:
            b.make(3, 8 * MIB, at + 45)
        if freed is not None:
            b.free(3, at + freed)
    return b


def test_gradients_that_outlive_the_optimizer() -> None:
    (finding,) = outcome_of(gradients(None)).findings
    assert finding.subject.startswith("gradients of the step before")
    # made within the first backward pass, and present with the activations of the second and third step
    assert finding.cost_bytes == 8 * MIB
    assert "set_to_none=True" in finding.advice


def test_gradients_that_are_set_to_none_are_clean() -> None:
    assert outcome_of(gradients(80)).status == "clean"


def test_gradients_that_are_added_up_over_steps_are_needed() -> None:
    assert outcome_of(gradients(None, accumulates=True)).status == "clean"


def loss(*, half: bool, chunks: int = 1) -> MemoryBuilder:
    """A head whose logits take 64 MiB in float32, their copy, log-softmax and gradients; 100 MiB of parameters."""
    b = MemoryBuilder()
    b.make(1, 100 * MIB, 0, category=int(MemoryCategory.PARAMETER))
    b.python("model.py(21): loss_of", 1, 35)
    size = 64 * MIB // chunks
    logits = size // 2 if half else size
    for number in range(chunks):
        at = 2 + 100 * number
        b.op("aten::mm", at, at + 4, sequence=1, forward_thread=0)
        b.make(10, logits, at + 1)
        if half:
            b.op("aten::_to_copy", at + 5, at + 7)
            b.make(11, size, at + 6)
        b.op("aten::_log_softmax", at + 8, at + 12, sequence=2, forward_thread=0)
        b.make(12, size, at + 9)
        b.op(f"{EVALUATE}LogSoftmaxBackward0", at + 30, at + 50, sequence=2, forward_thread=1)
        b.op("aten::_log_softmax_backward_data", at + 31, at + 40)
        b.make(13, size, at + 32)
        for address in (12, 13, 10):
            b.free(address, at + 60 + address)
        if half:
            b.free(11, at + 75)
        b.annotation("Optimizer.step#AdamW.step", at + 80, at + 90)
    return b


def test_logits_and_their_copies() -> None:
    finding = finding_of_kind(outcome_of(loss(half=True)), "logits")
    # bf16 32, float32 64, log-softmax 64, gradient 64
    assert finding.cost_bytes == (32 + 3 * 64) * MIB
    assert finding.where.line == 21
    assert "chunk(8)" in finding.advice
    assert {row["op"] for row in finding.evidence} == {
        "aten::mm", "aten::_to_copy", "aten::_log_softmax", "aten::_log_softmax_backward_data",
    }  # fmt: skip


def test_float32_logits_have_no_copy() -> None:
    assert finding_of_kind(outcome_of(loss(half=False)), "logits").cost_bytes == 3 * 64 * MIB


def test_a_loss_in_chunks_is_clean() -> None:
    assert outcome_of(loss(half=False, chunks=128)).status == "clean"


def unread_value(*, reads: bool, freed: int = 90) -> MemoryBuilder:
    """``h`` of 8 MiB is read by ``exp`` and lives to the end; ``reads``: the backward pass reads it, too.

    ``freed``: when all values are freed; a backward pass begins at 60.
    """
    g = GraphBuilder()
    x = g.input((4,))
    h = g.op("mul", [x, x], phase="forward", file="net.py", line=5)
    y = g.op("exp", [h], phase="forward")
    g.op("div", [y, h if reads else x], phase="backward")
    graph = with_storages(g.graph(), (16, None, None), (8 * MIB, 0, 3), (8 * MIB, 1, 3), (8 * MIB, 2, 3))
    b = MemoryBuilder(op_graph=graph)
    b.step(3, 0, 100)
    for index, (name, at) in enumerate((("aten::mul", 10), ("aten::exp", 20), ("aten::div", 40))):
        b.op(name, at, at + 8, sequence=index + 1, forward_thread=0)
        b.make(index + 1, 8 * MIB, at + 1)
    b.op(f"{EVALUATE}DivBackward0", 60, 95, sequence=2, forward_thread=1)
    for address in (1, 2, 3):
        b.free(address, freed + address)
    return b


@pytest.mark.parametrize(("freed", "words"), [(90, "return the loss alone"), (55, "until the function returns")])
def test_the_fix_of_a_value_that_is_not_read_again_depends_on_when_it_is_freed(freed: int, words: str) -> None:
    finding = finding_of_kind(outcome_of(unread_value(reads=False, freed=freed)), "values that are not read any more")
    assert words in finding.advice


def test_what_no_op_reads_again() -> None:
    finding = finding_of_kind(outcome_of(unread_value(reads=False)), "values that are not read any more")
    assert finding.cost_bytes == 8 * MIB
    assert (finding.where.op, finding.where.line) == ("aten::mul", 5)


def test_what_the_backward_pass_reads_is_needed() -> None:
    assert outcome_of(unread_value(reads=True)).status == "clean"


def logits_kept_until(until: float, *, state: bool = False) -> MemoryBuilder:
    """Logits of 10 MiB that live ``until``; ``state``: the op graph shows that the next step reads them."""
    graph = None
    if state:
        g = GraphBuilder()
        g.op("tanh", [g.input((4,))], file="rnn.py", line=9)
        graph = with_storages(g.graph(), (16, None, None), (10 * MIB, 0, None))
    b = MemoryBuilder(op_graph=graph)
    b.make(1, 30 * MIB, 0, category=int(MemoryCategory.PARAMETER))
    b.python("rnn.py(9): forward", 1, 299)
    for number in range(3):
        at = 100 * number
        b.op("aten::linear", at + 1, at + 20, sequence=1, forward_thread=0)
        b.op("aten::tanh", at + 4, at + 8)
        b.op(f"{EVALUATE}TanhBackward0", at + 30, at + 50, sequence=1, forward_thread=1)
        b.annotation("Optimizer.step#AdamW.step", at + 60, at + 70)
        b.make(10 + number, 10 * MIB, at + 5)
        if until < 100:
            b.free(10 + number, at + until)
        elif number:
            b.free(9 + number, at + until - 100)
    return b


def test_values_of_the_step_before() -> None:
    (finding,) = outcome_of(logits_kept_until(125)).findings
    assert finding.subject.startswith("values of the step before")
    assert finding.cost_bytes == 10 * MIB
    assert "del loss, logits" in finding.advice


def test_values_that_go_with_their_step_are_clean() -> None:
    assert outcome_of(logits_kept_until(80)).status == "clean"


def test_state_that_the_next_step_reads_is_needed() -> None:
    assert outcome_of(logits_kept_until(125, state=True)).status == "clean"


def test_without_ops_and_stacks_it_abstains() -> None:
    b = MemoryBuilder()
    b.make(1, 10 * MIB, 1)
    b.free(1, 5)
    outcome = outcome_of(b)
    assert outcome.status == "abstained"
    assert "neither ops nor stacks" in (outcome.reason or "")


def test_memory_of_the_detail_pass_is_judged() -> None:
    outer = MemoryBuilder(recorded=EVERYTHING - {"memory"})
    outer.step(1, 0, 10)
    outer.detail = optimizer("aten::_foreach_sqrt").build()
    outcome = outcome_of(outer)
    assert kinds(outcome) == {"temporaries of the optimizer"}
    assert outcome.findings[0].where.line == 7


def test_devices_of_one_process_with_the_same_finding_are_one() -> None:
    b = optimizer("aten::_foreach_sqrt")
    for number in range(2):
        at = 100 * number
        if not number:
            b.make(11, 35 * MIB, 1, device=1, category=int(MemoryCategory.OPTIMIZER_STATE))
        b.make(13, 20 * MIB, at + 63, device=1)
        b.free(13, at + 67, device=1)
    (finding,) = outcome_of(b).findings
    assert "the peak of 55.0 MiB" in finding.detail
    assert finding.detail.endswith("1 more device.")
    assert finding.cost_bytes == 20 * MIB


def test_ranks_with_the_same_finding_are_one_whatever_their_device() -> None:
    traces = []
    for rank in range(2):
        b = MemoryBuilder(rank=rank)
        step(b, 0)
        b.python("train.py(7): step", 60, 71)
        b.op("aten::_foreach_sqrt", 62, 66)
        b.make(1, 35 * MIB, 1, device=rank, category=int(MemoryCategory.OPTIMIZER_STATE))
        b.make(3, 10 * MIB, 63, device=rank)
        b.free(3, 67, device=rank)
        traces.append(b.build())
    (finding,) = analyze(traces, ["peak_owner"])["peak_owner"].findings
    assert finding.ranks == (0, 1)


def recorded(folder: Path, attention: Any, optimizer_of: Any) -> Trace:
    """Two steps of one attention layer under torch's profiler, on the CPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 192)
    head = torch.nn.Linear(64, 32)
    steps = optimizer_of([*layer.parameters(), *head.parameters()])
    data = torch.randn(2, 4, 256, 64)
    path = folder / "trace.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=2, active=2, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        profile_memory=True, record_shapes=True, with_stack=True,
    ) as profiler:  # fmt: skip
        for _ in range(4):
            q, k, v = layer(data).split(64, -1)
            loss = head(attention(q, k, v)).pow(2).mean()
            loss.backward()
            steps.step()
            steps.zero_grad()
            del loss, q, k, v
            profiler.step()
    (trace,) = load_all(path)
    return trace


def written_out(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / 8).softmax(-1) @ v


@pytest.mark.torch
def test_attention_of_a_real_program(tmp_path: Path) -> None:
    """The reported remaining peak, at best, is not higher than that of the fused form, which is clean."""
    torch = pytest.importorskip("torch")
    defective = recorded(tmp_path, written_out, lambda tensors: torch.optim.SGD(tensors, lr=0.1))
    finding = finding_of_kind(judge(RULE, defective), "attention scores")
    (timeline,) = defective.fact(memory_timelines)
    saved = finding.cost_bytes or 0
    assert saved > 2 * 4 * 256 * 256 * 4  # the kept weights; the backward pass also has their gradients
    twin = recorded(
        tmp_path, torch.nn.functional.scaled_dot_product_attention, lambda tensors: torch.optim.SGD(tensors, lr=0.1)
    )
    (fused,) = twin.fact(memory_timelines)
    assert timeline.peak()[1] - saved <= fused.peak()[1] <= 1.1 * (timeline.peak()[1] - saved)
    assert "attention scores" not in kinds(judge(RULE, twin))


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fragmented", {"attention scores", "logits and their copies"}),
        ("medium512_train", {"attention scores"}),
        ("medium512_infer", {"attention scores"}),
        ("tiny", {"attention scores"}),
        ("fwd_bf16_128", set()),
        ("fwd_fp32_128", set()),
    ],
)
def test_snapshots_of_the_corpus(corpus: Path, name: str, found: set[str]) -> None:
    (trace,) = load_all(corpus / "torch_mem" / f"assignment2-systems__{name}.pickle.gz")
    outcome = judge(RULE, trace)
    assert outcome.status == ("flagged" if found else "clean")
    assert kinds(outcome) == found
    (timeline,) = trace.fact(memory_timelines)
    for finding in outcome.findings:
        held = sum(int(row["held_bytes"] or 0) for row in finding.evidence)
        assert 0 < (finding.cost_bytes or 0) <= held <= timeline.peak()[1]


@pytest.mark.corpus
def test_scores_of_every_layer_are_counted(corpus: Path) -> None:
    """24 layers of 16 heads and 512 x 512 scores for a batch of 4, in float32."""
    (trace,) = load_all(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz")
    finding = finding_of_kind(judge(RULE, trace), "attention scores")
    assert finding.evidence[0]["held_bytes"] == 24 * 4 * 16 * 512 * 512 * 4
    assert finding.evidence[0]["blocks"] == 24


@pytest.mark.corpus
def test_a_snapshot_of_one_moment_abstains(corpus: Path) -> None:
    (trace,) = load_all(corpus / "torch_mem" / "LLM-inference__oom_nohistory.pickle.gz")
    outcome = judge(RULE, trace)
    assert outcome.status == "abstained"
    assert "a single moment" in (outcome.reason or "")


def test_a_line_that_leaks_is_left_to_memory_leak() -> None:
    trace = optimizer("aten::_foreach_sqrt").build()
    (finding,) = peak_owner.check_rest(trace, ())
    leak = replace(finding, subject="growth")
    assert list(peak_owner.check_rest(trace, [("memory_leak", leak)])) == []
    assert len(list(peak_owner.check_rest(trace, [("host_sync", leak)]))) == 1
    elsewhere = replace(leak, where=Where(file="train.py", line=8))
    assert len(list(peak_owner.check_rest(trace, [("memory_leak", elsewhere)]))) == 1


def test_values_that_a_leak_keeps_are_left_to_memory_leak() -> None:
    """A graph that every step keeps holds the activations, at lines that the leak does not name."""
    trace = logits_kept_until(125).build()
    (finding,) = peak_owner.check_rest(trace, ())
    leak = replace(finding, where=Where(file="train.py", line=8))
    assert list(peak_owner.check_rest(trace, [("memory_leak", leak)])) == []
