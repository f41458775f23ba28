"""Memories of traces as a section: exact sums, ranks folded, bounded, and never in the way of a finding."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.engine import analyze, conclude, examine
from perfscope.analyzers.judge import judge_paths
from perfscope.analyzers.memory.holders import UNSEEN
from perfscope.analyzers.memory.trace_memories import Memory
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import chosen_rules
from perfscope.analyzers.sections import memory as section_module
from perfscope.analyzers.sections.memory import MOST_RANKS, memory_section
from perfscope.dashboards.report import render
from perfscope.model.memory import KnownBy, MemoryPhase
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory
from tests.memory.build import MemoryBuilder

GIB = 1 << 30

of_trace = importlib.import_module("perfscope.analyzers.memory.trace_memories")
"""The module: the package exports its function under the same name."""


def of_rank(rank: int, *, size: int = 100, capacity: int | None = None) -> Trace:
    """A step that holds ``size`` at its peak, and 1000 that were there before, on ``cuda:<rank>``."""
    b = MemoryBuilder(rank=rank, path=f"rank{rank}.json")
    b.starts_with(1000, device=rank)
    b.step(4, 0, 200)
    b.python("train.py(3): main", 0, 199)
    b.op("aten::mm", 10, 20, sequence=1, forward_thread=0)
    b.make(1, size, 15, device=rank, reserved_bytes=3000)
    b.op("autograd::engine::evaluate_function: MmBackward0", 70, 90, sequence=1, forward_thread=1)
    b.free(1, 80, device=rank, reserved_bytes=3000)
    b.device(rank)
    if capacity is not None:
        b.tables["devices"][-1]["memory_bytes"] = capacity
    return b.build()


def sums(memory: Memory) -> None:
    assert sum(one.bytes for one in memory.by_category) + memory.unseen_bytes == memory.peak_bytes
    for holders in (memory.by_module, memory.by_line):
        assert sum(one.bytes for one in holders.rows) + holders.left_bytes == memory.peak_bytes
    if memory.picture is not None:
        assert int(memory.picture.total.max()) == memory.peak_bytes


def test_the_peak_and_what_is_known_of_it() -> None:
    (entry,) = memory_section([of_rank(0, capacity=10_000)]).entries
    memory = entry.worst
    sums(memory)
    assert (memory.label, memory.peak_bytes, memory.unseen_bytes, memory.step) == ("cuda:0", 1100, 1000, 4)
    assert (memory.phase, memory.op, entry.others) == (MemoryPhase.FORWARD, "aten::mm", ())
    assert memory.line is not None
    assert (memory.line.file, memory.line.line) == ("train.py", 3)
    (activation,) = memory.by_category
    assert (activation.category, activation.bytes, activation.known_by) == (
        MemoryCategory.ACTIVATION, 100, KnownBy.PHASE,
    )  # fmt: skip
    assert activation.place == memory.line
    assert [one.name for one in memory.by_line.rows] == [UNSEEN, "train.py:3"]
    assert memory.reserved is not None
    assert (memory.reserved.peak_bytes, memory.reserved.excess_bytes) == (3000, 1900)
    assert memory.reserved.fragmentation == pytest.approx(1900 / 3000)
    assert (memory.capacity_bytes, memory.headroom_bytes) == (10_000, 7_000)


def test_ranks_are_one_entry_the_fullest_in_full() -> None:
    traces = [of_rank(rank, size=100 + 10 * (rank == 5), capacity=10_000) for rank in range(8)]
    (entry,) = memory_section(traces).entries
    assert (entry.worst.rank, entry.worst.label, entry.source) == (5, "cuda:5", 5)
    assert [one.rank for one in entry.others] == [5, 0, 1, 2, 3, 4, 6, 7]
    assert {one.headroom_bytes for one in entry.others} == {7_000}
    many = memory_section([of_rank(rank) for rank in range(MOST_RANKS + 3)]).entries[0]
    assert (len(many.others), many.others_left) == (MOST_RANKS, 3)


def test_lines_beyond_the_bound_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_trace, "MOST_HOLDERS", 2)
    b = MemoryBuilder()
    for line in range(5):
        b.python(f"train.py({line + 1}): main", 10 * line, 10 * line + 9)
        b.make(line + 1, 100 - line, 10 * line + 1)
    (entry,) = memory_section([b.build()]).entries
    sums(entry.worst)
    assert (len(entry.worst.by_line.rows), entry.worst.by_line.left) == (2, 3)
    assert entry.worst.by_line.left_bytes == 98 + 97 + 96


def test_where_most_bytes_have_no_line_none_is_named() -> None:
    b = MemoryBuilder()
    b.make(1, 1000, 1, category=2)
    b.python("train.py(1): main", 5, 9)
    b.make(2, 4, 6, category=2)
    (category,) = memory_section([b.build()]).entries[0].worst.by_category
    assert (category.place, category.place_bytes) == (None, 1000)


def test_memories_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section_module, "MOST_MEMORIES", 1)
    b = MemoryBuilder()
    b.make(1, 10, 1)
    b.make(2, 5, 2, device=-1)
    found = memory_section([b.build()])
    assert [one.worst.space for one in found.entries] == ["device"]
    assert found.entries_left == 1


def test_what_breaks_is_said_and_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Trace) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(section_module, "trace_memories", broken)
    found = analyze([of_rank(0), of_rank(1)], ["host_sync"])
    assert found.memory.problems == ("the memory could not be summed up: ValueError: no such thing",)
    assert len(found.outcomes) == 1


def whole_and_slim_reports(traces: Sequence[Trace]) -> tuple[str, str]:
    """The report over whole traces, and over those that travelled."""
    rules = chosen_rules([])
    whole = [examine(trace, rules) for trace in traces]
    travelled = [replace(one, trace=pickle.loads(pickle.dumps(reduce_trace(one.trace)))) for one in whole]
    assert not any(len(one.trace.rows["memory"]) for one in travelled)
    return render(conclude(whole, rules), "json"), render(conclude(travelled, rules), "json")


def test_traces_that_were_cut_down_say_the_same() -> None:
    whole, travelled = whole_and_slim_reports([of_rank(rank, size=100 + rank) for rank in range(8)])
    assert whole == travelled
    assert '"by_category"' in whole


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["assignment2-systems__medium512_train", "assignment2-systems__fragmented"])
def test_snapshots_sum_up_and_travel(corpus: Path, name: str) -> None:
    (trace,) = load_all(corpus / "torch_mem" / f"{name}.pickle.gz")
    for entry in memory_section([trace]).entries:
        sums(entry.worst)
    whole, travelled = whole_and_slim_reports([trace])
    assert whole == travelled


@pytest.mark.slow
@pytest.mark.corpus
def test_a_pool_says_what_one_process_says(corpus: Path) -> None:
    files = sorted((corpus / "torch_mem").glob("assignment2-systems__fwd_*.pickle.gz"))
    assert len(files) == 2
    reports = [render(judge_paths(files, jobs=jobs, rules=[]).analysis, "json") for jobs in (1, 2)]
    assert reports[0] == reports[1]
    assert '"label": "cuda:0"' in reports[0]
