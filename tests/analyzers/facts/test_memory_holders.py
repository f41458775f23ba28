"""Who holds the peak: every grouping sums to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.facts.memory_holders import UNSEEN, PeakHolders, memory_holders
from perfscope.analyzers.facts.trace_memories import trace_memories
from perfscope.analyzers.memory.timeline import MemoryPhase
from perfscope.analyzers.readers import kineto, torch_memory
from tests.analyzers.facts.memory_build import MemoryBuilder


def _sums(peak: PeakHolders) -> None:
    for grouping in (peak.by_category, peak.by_module, peak.by_line, peak.by_op):
        assert sum(holder.bytes for holder in grouping) == peak.bytes
        assert sum(holder.share for holder in grouping) == pytest.approx(1.0)
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
    assert {holder.name: holder.bytes for holder in peak.by_prefix} == {"Net_*": 340, "Net_*.Block_*": 340}
    ops = {holder.name: holder.bytes for holder in peak.by_op}
    assert ops[UNSEEN] == 1000
    assert ops["aten::linear"] == 300  # not aten::empty, which only hands out
    assert [(holder.name, holder.bytes) for holder in peak.by_line] == [(UNSEEN, 1000), ("train.py:3", 340)]
    assert peak.line is not None
    assert peak.line.function == "main"
    largest = peak.largest[0]
    assert (largest.bytes, largest.module, largest.op, largest.step) == (100, "Net_0.Block_0", "aten::linear", 4)


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
@pytest.mark.parametrize("name", ["TraceLens__h100_bert-small", "TraceLens__h100_qwen1.5-0.5b"])
def test_recorded_traces(corpus: Path, name: str):
    peaks = memory_holders(kineto.read(corpus / "kineto" / f"{name}.json.gz"))
    for peak in peaks:
        _sums(peak)
    assert peaks[0].unseen_bytes > 0
    assert peaks[0].op is not None
    assert peaks[0].line is not None


@pytest.mark.corpus
def test_the_peak_of_a_recorded_training_step(corpus: Path):
    """12.4 GB at its peak: 5.1 GB of parameters and moments, and 7.1 GB that wait for the backward pass."""
    trace = torch_memory.read(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz")
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
    assert {holder.name: holder.blocks for holder in peak.by_prefix} == {"a": 8}
