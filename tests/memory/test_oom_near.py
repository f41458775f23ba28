"""Out of memory, retries, and no headroom: built memories of a device of known size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.memory import AllocatorCounters
from perfscope.model.trace import MISSING
from perfscope.model.trace.tables import MemoryAction, MemoryCategory
from tests.build import EVERYTHING
from tests.memory.build import MemoryBuilder

RULE = load_rule("oom_near")
GIB = 1 << 30


@dataclass
class DeviceBuilder(MemoryBuilder):
    """A device of 10 GiB."""

    capacity: int = 10 * GIB

    def device(self, ordinal: int = 0, name: str = "Test GPU", cores: int = 132) -> int:
        if ordinal not in self._devices:
            self._devices[ordinal] = self._add(
                "devices", ordinal=ordinal, name=self.code(name), cores=cores, memory_bytes=self.capacity
            )
        return self._devices[ordinal]


def holding(reserved: int, used: int | None = None, *, capacity: int = 10 * GIB) -> DeviceBuilder:
    """One block, at a line of the user's, with ``reserved`` bytes held from the driver."""
    builder = DeviceBuilder(capacity=capacity)
    builder.device()
    builder.python("train.py(12): step", 0, 100)
    builder.op("aten::mm", 5, 15)
    builder.make(1, reserved if used is None else used, 10, reserved_bytes=reserved)
    return builder


def outcome_of(builder: MemoryBuilder, counters: AllocatorCounters | None = None) -> Outcome:
    trace = builder.build()
    trace = replace(trace, allocator_counters=counters)
    return judge(RULE, trace)


def test_blocks_of_unknown_category_are_named_by_their_line() -> None:
    (finding,) = outcome_of(holding(9 * GIB)).findings
    assert finding.advice.startswith("Most is held by blocks of train.py:12 (9.00 GiB). ")


def test_nine_tenths_of_the_device_are_nearly_full() -> None:
    (finding,) = outcome_of(holding(9 * GIB)).findings
    assert finding.severity == "medium"
    assert (finding.where.file, finding.where.line, finding.where.op) == ("train.py", 12, "aten::mm")
    assert finding.evidence[0] == {"held_by": "train.py:12", "held_bytes": 9 * GIB, "blocks": 1}


def test_below_nine_tenths_it_is_clean() -> None:
    assert outcome_of(holding(9 * GIB - 1)).status == "clean"


def test_reserved_and_little_in_use_weighs_less() -> None:
    (finding,) = outcome_of(holding(9 * GIB, 4 * GIB)).findings
    assert finding.severity == "low"


def test_a_failed_allocation_is_told_with_its_size_and_line() -> None:
    builder = holding(8 * GIB, 5 * GIB)
    builder.python("model.py(40): forward", 20, 30)
    builder.op("aten::bmm", 21, 29)
    builder.event(MemoryAction.OUT_OF_MEMORY, 0, 2 * GIB, 25, reserved_bytes=8 * GIB)
    (finding,) = outcome_of(builder).findings
    assert finding.severity == "high"
    assert finding.cost_bytes == 2 * GIB
    assert (finding.where.file, finding.where.line) == ("model.py", 40)
    assert "expandable_segments:True" in finding.advice  # 3 GiB were free


def test_an_allocation_larger_than_all_that_is_free_is_no_matter_of_pieces() -> None:
    builder = holding(8 * GIB, 5 * GIB)
    builder.event(MemoryAction.OUT_OF_MEMORY, 0, 4 * GIB, 25, reserved_bytes=8 * GIB)
    (finding,) = outcome_of(builder).findings
    assert "expandable_segments" not in finding.advice


def test_retries_are_told_where_nothing_else_is() -> None:
    counters = AllocatorCounters(before={"num_alloc_retries": 1}, after={"num_alloc_retries": 3}, steps=5)
    (finding,) = outcome_of(holding(5 * GIB), counters).findings
    assert finding.severity == "high"


def test_failures_that_the_program_caught() -> None:
    counters = AllocatorCounters(before={}, after={"num_ooms": 2}, steps=5)
    (finding,) = outcome_of(holding(5 * GIB), counters).findings
    assert "2 allocations failed" in finding.title


def test_a_peak_before_the_recording_counts() -> None:
    counters = AllocatorCounters(before={}, after={"reserved_bytes.all.peak": 9 * GIB + 1}, steps=5)
    assert outcome_of(holding(5 * GIB), counters).status == "flagged"


def test_xla_is_judged_by_what_is_in_use_against_its_own_limit() -> None:
    counters = AllocatorCounters(
        before={}, after={"bytes_limit": 7 * GIB, "peak_bytes_in_use": 4 * GIB, "bytes_in_use": 1}, steps=5
    )
    assert outcome_of(holding(7 * GIB, 4 * GIB), counters).status == "clean"


def test_what_the_optimizer_will_add_is_told() -> None:
    builder = holding(9 * GIB, 4 * GIB)
    builder.make(2, 3 * GIB, 12, reserved_bytes=9 * GIB, category=int(MemoryCategory.PARAMETER))
    (finding,) = outcome_of(builder).findings
    assert "Adam adds up to 6.00 GiB" in finding.advice


def test_without_the_size_of_the_device_it_abstains() -> None:
    outcome = outcome_of(holding(9 * GIB, capacity=-1))
    assert outcome.status == "abstained"
    assert "memory size of cuda:0 was not recorded" in (outcome.reason or "")


@pytest.mark.parametrize(("size", "status"), [(9 * GIB, "flagged"), (GIB, "abstained")])
def test_sums_alone_show_a_full_device_and_never_that_there_is_room(size: int, status: str) -> None:
    """Events without addresses and totals leave out what was held before the recording."""
    b = DeviceBuilder(capacity=10 * GIB)
    b.device()
    for at, change in enumerate((size, -size)):
        action = MemoryAction.FREE if change < 0 else MemoryAction.ALLOCATE
        b.event(action, 0, change, at, allocated_bytes=MISSING)
    assert outcome_of(b).status == status


def test_the_host_is_not_judged() -> None:
    builder = MemoryBuilder()
    builder.make(1, 900 * GIB, 1, device=-1)
    outcome = outcome_of(builder)
    assert outcome.status == "abstained"
    assert "host" in (outcome.reason or "")


@pytest.mark.parametrize("rule", ["oom_near", "memory_leak", "memory_fragmentation", "peak_owner"])
def test_without_memory_rules_on_it_abstain(rule: str) -> None:
    outcome = judge(load_rule(rule), MemoryBuilder(recorded=EVERYTHING - {"memory"}).build())
    assert (outcome.status, outcome.reason) == ("abstained", "not recorded: allocator events")


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "status"), [("h100_qwen1.5-0.5b", "clean"), ("mi300_qwen1.5-0.5b", "abstained")])
def test_recorded_inference_has_room(corpus: Path, name: str, status: str) -> None:
    (trace,) = load_all(corpus / "kineto" / f"TraceLens__{name}.json.gz")
    assert judge(RULE, trace).status == status
