"""Rules on memory that could not look are one phrase, and keep their names where they have reasons of their own."""

from __future__ import annotations

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.facts.memory_judged import NO_MEMORY
from perfscope.analyzers.rules import RULES
from perfscope.dashboards.reports.abstained import could_not_look
from tests.build import EVERYTHING
from tests.memory.build import MemoryBuilder

ON_MEMORY = ("memory_fragmentation", "memory_leak", "oom_near", "peak_owner")


def reasons(*traces: MemoryBuilder, rules: tuple[str, ...] = tuple(RULES)) -> dict[str, tuple[str, ...]]:
    analysis: Analysis = analyze([trace.build() for trace in traces], rules)
    return dict(could_not_look(analysis))


def unrecorded(rank: int = 0) -> MemoryBuilder:
    return MemoryBuilder(recorded=EVERYTHING - {"memory"}, rank=rank)


def test_without_memory_they_are_one_phrase() -> None:
    assert reasons(unrecorded())[NO_MEMORY] == ("4 rules on memory",)


def test_on_several_ranks_too() -> None:
    assert reasons(unrecorded(), unrecorded(1))[f"all sources: {NO_MEMORY}"] == ("4 rules on memory",)


def test_who_asked_for_one_sees_its_name() -> None:
    assert reasons(unrecorded(), rules=("memory_leak",)) == {NO_MEMORY: ("memory-leak",)}


def test_the_host_s_memory_is_no_memory_that_was_not_recorded() -> None:
    builder = MemoryBuilder()
    builder.make(1, 1 << 20, 1, device=-1)
    found = reasons(builder, rules=ON_MEMORY)
    assert NO_MEMORY not in found
    assert sum(len(rules) for rules in found.values()) == len(ON_MEMORY)
