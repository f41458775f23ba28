"""Which rows a report has, and with which words."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.coverage import ONE_PROCESS, not_evaluated
from perfscope.analyzers.engine import Analysis, Step, TimedWindow, analyze
from perfscope.analyzers.memory.holders import NO_MEMORY
from perfscope.analyzers.registry import RULES
from perfscope.analyzers.savings import Spread
from perfscope.dashboards.report.blocks import Table
from perfscope.dashboards.report.renderers.values import FindingWords, finding_words, shown, span_text
from perfscope.dashboards.report.sections.devices import MOST_DEVICE_ROWS, fold_devices
from perfscope.dashboards.report.sections.findings import MOST_EVIDENCE, evidence_table
from perfscope.dashboards.report.summary import summarize
from perfscope.model.finding import Cell, Finding, Once, Outcome
from tests.build import EVERYTHING, TraceBuilder
from tests.memory.build import MemoryBuilder
from tests.report.analyses import BRANCH, HOST_SYNC, MS, analysis, device, source


def words(judged: Analysis) -> list[FindingWords]:
    return [finding_words(block) for block in summarize(judged).findings]


def cells(table: Table | None) -> list[dict[str, str]]:
    """Rows as they are shown, by title."""
    assert table is not None
    return [
        {head.title: shown(value, head) for value, head in zip(row, table.heads, strict=True)} for row in table.rows
    ]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2, 5"), ([2, 1, 2], "1-2"), (range(64), "0-63")]
)
def test_span_text(numbers: list[int], text: str) -> None:
    assert span_text(numbers) == text


@given(st.lists(st.integers(min_value=0, max_value=300), min_size=1))
def test_span_text_names_exactly_the_numbers(numbers: list[int]) -> None:
    named: set[int] = set()
    for part in span_text(numbers).split(", "):
        low, _, high = part.partition("-")
        named |= set(range(int(low), int(high or low) + 1))
    assert named == set(numbers)


def test_few_devices_have_a_row_each() -> None:
    rows = fold_devices([device(rank) for rank in range(MOST_DEVICE_ROWS)])
    assert [row.ranks for row in rows] == [str(rank) for rank in range(MOST_DEVICE_ROWS)]


def test_many_devices_that_are_alike_share_a_row_and_the_odd_one_stands_first() -> None:
    rows = fold_devices([device(rank, compute=160 - 30 * (rank == 37)) for rank in range(64)])
    assert [(row.ranks, row.count) for row in rows] == [("37", 1), ("0-36, 38-63", 63)]
    assert rows[0].idle_ns > rows[1].idle_ns


def test_many_different_devices_are_bounded_and_none_is_lost() -> None:
    rows = fold_devices([device(rank, compute=100 + rank) for rank in range(90)])
    assert len(rows) == MOST_DEVICE_ROWS
    assert sum(row.count for row in rows) == 90


def test_devices_of_different_span_are_not_folded() -> None:
    rows = fold_devices([device(rank, span=206 + 10 * (rank % 2)) for rank in range(20)])
    assert {row.span_ns for row in rows} == {206 * MS, 216 * MS}


def test_spread_says_which_it_is() -> None:
    assert Spread.of([]) is None
    few, many = Spread.of([3, 1, 2]), Spread.of(list(range(101)))
    assert few is not None
    assert (few.how, few.low_ns, few.median_ns, few.high_ns) == ("min-max", 1, 2, 3)
    assert many is not None
    assert (many.how, many.low_ns, many.median_ns, many.high_ns) == ("p10-p90", 10, 50, 90)


def test_share_is_of_the_step_time_at_the_top() -> None:
    steps = (
        Step(rank=0, number=0, duration_ns=69 * MS, traced=True),
        Step(rank=0, number=0, duration_ns=20 * MS, traced=False),
    )
    held = analysis(steps=steps)
    assert "step 20.0 ms (one, without a profiler)" in summarize(held).facts
    assert (words(held)[0].saves, words(held)[0].share) == ("6.90 ms", "34.5% of step")


def test_no_saving_exceeds_the_step() -> None:
    steps = (Step(rank=0, number=0, duration_ns=3 * MS, traced=False),)
    first = words(analysis(steps=steps))[0]
    assert (first.saves, first.share) == ("3.00 ms", "100.0% of step")


def test_what_is_paid_once_is_no_share_of_a_step() -> None:
    once = Finding(
        subject="s", title="t", severity="low", basis="measured", advice="a", cost_ns=868 * MS,
        once=Once(times=9, steps=60, last_step=9),
    )  # fmt: skip
    steps = (Step(rank=0, number=0, duration_ns=210 * MS, traced=False),)
    (first,) = words(
        analysis(steps=steps, outcomes=(Outcome(rule="recompilation", status="flagged", findings=(once,)),))
    )
    assert (first.saves, first.share) == ("868 ms once", "as long as 4.1 steps")


def test_savings_of_a_rank_with_another_step_are_shares_of_its_own() -> None:
    steps = tuple(
        Step(rank=rank, number=0, duration_ns=ns, traced=True)
        for rank, ns in ((0, 10 * MS), (1, 10 * MS), (2, 69 * MS), (3, 10 * MS))
    )
    held = analysis(steps=steps)
    (outcome,) = (outcome for outcome in held.outcomes if outcome.rule == "host_sync")
    finding = replace(outcome.findings[0], ranks=(2,))
    (first,) = words(replace(held, outcomes=(replace(outcome, findings=(finding,)),)))
    assert first.share == "10.0% of step of rank 2"


def test_a_window_is_that_of_the_rank_in_the_middle() -> None:
    windows = tuple(TimedWindow(rank=rank, duration_ns=(160 + 8 * rank) * MS, steps=4) for rank in range(3))
    facts = summarize(replace(analysis(steps=()), windows=windows)).facts
    assert "step 42.0 ms (mean of 4 without a profiler, waited for at both ends)" in facts
    assert not any("no steps in it" in fact for fact in facts)


@pytest.mark.parametrize(("host", "said"), [(40, False), (5, True)])
def test_a_window_is_said_beside_the_hosts_times_where_it_differs(host: int, said: bool) -> None:
    steps = (Step(rank=0, number=0, duration_ns=host * MS, traced=False),)
    windows = (TimedWindow(rank=0, duration_ns=164 * MS, steps=4),)
    facts = summarize(replace(analysis(steps=steps), windows=windows)).facts
    assert any("waited for at both ends" in fact for fact in facts) == said


def test_share_is_of_the_steps_of_the_ranks_that_show_it() -> None:
    steps = (
        Step(rank=0, number=0, duration_ns=69 * MS, traced=True),
        Step(rank=1, number=0, duration_ns=690 * MS, traced=True),
    )
    assert words(analysis(steps=steps))[0].share == "10.0% of step"


def test_without_steps_the_saving_is_over_the_whole_trace() -> None:
    finding = Finding(subject="s", title="t", severity="low", basis="measured", advice="a", cost_ns=int(20.6 * MS))
    outcome = Outcome(rule="host_sync", status="flagged", findings=(finding,))
    summary = summarize(analysis(steps=(), outcomes=(outcome,)))
    (row,) = map(finding_words, summary.findings)
    assert (row.saves, row.share) == ("20.6 ms in all", "10.0% of span")
    assert "no steps in it: savings are over the whole trace" in summary.facts


def test_a_saving_of_zero_is_a_time() -> None:
    finding = Finding(
        subject="s", title="t", severity="low", basis="measured", advice="a", cost_ns=0, cost_ns_per_step=0
    )
    (row,) = words(analysis(outcomes=(Outcome(rule="host_sync", status="flagged", findings=(finding,)),)))
    assert (row.saves, row.share) == ("0 ns", "0.0% of step")


def test_structural_findings_stand_last_and_abstentions_are_not_clean() -> None:
    summary = summarize(analysis())
    assert [block.finding for block in summary.findings if block not in summary.timed] == [BRANCH]
    assert summary.findings[-1].finding == BRANCH
    assert summary.clean == ("input_stall", "launch_bound")
    assert summary.abstained == (
        ("not recorded: collectives with their sizes", ("exposed_communication", "nvlink_stall")),
    )


def test_a_partly_blind_rule_is_said() -> None:
    outcome = Outcome(rule="host_sync", status="flagged", reason="rank 3: not recorded", findings=(HOST_SYNC,))
    assert summarize(analysis(outcomes=(outcome,))).partly == (("host_sync", "rank 3: not recorded"),)


def test_ranks_are_named_only_where_there_are_several_sources() -> None:
    assert words(analysis())[0].on_ranks == ""
    several = words(analysis(sources=(source(rank=0), source("b", 1))))
    assert several[0].on_ranks == " (rank 0)"


def test_notes_that_differ_in_numbers_only_are_said_once() -> None:
    sources = (
        *(source(f"{rank}.json", rank, notes=(f"{rank + 7:,} of 1,465 kernels are early",)) for rank in range(3)),
        source("3.json", 3, notes=("gloo on the host",)),
    )
    assert summarize(analysis(sources=sources)).remarks == (
        "note: 7 of 1,465 kernels are early (3 of 4 sources)",
        "note: gloo on the host (1 of 4 sources)",
    )


def test_counts_of_sources_are_summed() -> None:
    sources = (
        source("a", 0, events_unplaced=3, unplaced={"no device": 3}, repairs={"unescaped quotes": 1}),
        source(
            "b", 1, events_unplaced=2000, unplaced={"no device": 1999, "no time": 1}, repairs={"unescaped quotes": 1}
        ),
    )
    assert summarize(analysis(sources=sources)).remarks == (
        "unplaced: 2,003 of 240,690 events (2,002 no device; 1 no time)",
        "repaired: 2 unescaped quotes",
    )


def test_traces_that_may_be_of_different_jobs_are_pointed_out() -> None:
    sources = tuple(source(f"{index}.json", rank) for index, rank in enumerate((0, 1, 1, 0, 2)))
    assert summarize(analysis(sources=sources)).remarks == (
        "note: several traces of rank 0-1: judged as one job, which they may not be",
    )


@pytest.mark.parametrize(
    ("key", "value", "header", "cell"),
    [
        ("wait_ns", 1_200_000, "wait", "1.20 ms"),
        ("moved_bytes", 2048, "moved", "2.00 KiB"),
        ("bytes", 2048, "bytes", "2.00 KiB"),
        ("idle_share", 0.5, "idle share", "50.0%"),
        ("busy_percent", 12.34, "busy", "12.3%"),
        ("calls", 12, "calls", "12"),
        ("calls", 1_234_567, "calls", "1,234,567"),
        ("ratio", 0.123456, "ratio", "0.123"),
        ("name", "x", "name", "x"),
    ],
)
def test_evidence_carries_its_unit(key: str, value: str | float | None, header: str, cell: str) -> None:
    assert cells(evidence_table([{key: value}], {})) == [{header: cell}]


def test_evidence_is_capped_and_columns_that_hold_nothing_are_left_out() -> None:
    rows = tuple({"kernel": f"k{n}", "site": None, "group": "", "wait_ns": 0, "line": n if n == 3 else None}
                 for n in range(384))  # fmt: skip
    finding = Finding(subject="s", title="t", severity="low", basis="measured", advice="a", evidence=rows)
    table = (
        summarize(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),))).findings[0].evidence
    )
    assert [list(row) for row in cells(table)] == [["kernel", "wait", "line"]] * MOST_EVIDENCE
    assert table is not None
    assert table.left == 384 - MOST_EVIDENCE


@pytest.mark.parametrize(
    ("count", "shown"),
    [(2, ("rule_0", "rule_1")), (3, ("3 rules on XLA programs",)), (5, ("5 rules on XLA programs",))],
)
@pytest.mark.parametrize("whose", ["", "all sources: "])
def test_rules_on_xla_programs_are_one_phrase_where_none_ran(count: int, shown: tuple[str, ...], whose: str) -> None:
    reason = f"{whose}not recorded: the compiled XLA programs"
    outcomes = [
        Outcome(rule=f"rule_{number}", status="abstained", reason=reason, missing=("hlo",)) for number in range(count)
    ]
    other = Outcome(rule="straggler", status="abstained", reason="one rank")
    summary = summarize(analysis(outcomes=(*outcomes, other)))
    assert summary.abstained == (("one rank", ("straggler",)), (reason, shown))


@pytest.mark.parametrize("world", [None, 1, 8])
def test_rules_on_several_ranks_are_one_phrase_where_there_is_one_process(world: int | None) -> None:
    outcomes = tuple(
        Outcome(rule=rule, status="abstained", reason=f"{rule} has no log")
        for rule in ("hung_collective", "rank_divergence")
    )
    held = analysis(outcomes=outcomes)
    summary = summarize(replace(held, sources=(msgspec.structs.replace(held.sources[0], world_size=world),)))
    if world == 8:
        assert [rules for _, rules in summary.abstained] == [("hung_collective",), ("rank_divergence",)]
    else:
        phrase = "2 rules on jobs of several processes"
        assert summary.abstained == ((ONE_PROCESS, (phrase,)),)


ON_MEMORY = ("memory_fragmentation", "memory_leak", "oom_near", "peak_owner")


def reasons(*traces: MemoryBuilder, rules: tuple[str, ...] = tuple(RULES)) -> dict[str, tuple[str, ...]]:
    analysis: Analysis = analyze([trace.build() for trace in traces], rules)
    return dict(not_evaluated(analysis))


def unrecorded(rank: int = 0) -> MemoryBuilder:
    return MemoryBuilder(recorded=EVERYTHING - {"memory"}, rank=rank)


def test_without_memory_they_are_one_phrase() -> None:
    assert reasons(unrecorded())[NO_MEMORY] == ("4 rules on memory",)


def test_on_several_ranks_too() -> None:
    assert reasons(unrecorded(), unrecorded(1))[f"all sources: {NO_MEMORY}"] == ("4 rules on memory",)


def test_who_asked_for_one_sees_its_name() -> None:
    assert reasons(unrecorded(), rules=("memory_leak",)) == {NO_MEMORY: ("memory_leak",)}


def test_the_host_s_memory_is_no_memory_that_was_not_recorded() -> None:
    builder = MemoryBuilder()
    builder.make(1, 1 << 20, 1, device=-1)
    found = reasons(builder, rules=ON_MEMORY)
    assert NO_MEMORY not in found
    assert sum(len(rules) for rules in found.values()) == len(ON_MEMORY)


EPOCH_NS = 1_700_000_000_000_000_000


def test_a_moment_is_counted_from_the_beginning_of_its_trace() -> None:
    rows: list[dict[str, Cell]] = [
        {"source": "rank 0", "start_ns": EPOCH_NS + 1_500, "idle_ns": 20},
        {"source": "rank 3", "start_ns": EPOCH_NS + 9_500, "idle_ns": 10},
    ]
    assert cells(evidence_table(rows, {"rank 0": EPOCH_NS, "rank 3": EPOCH_NS + 9_000})) == [
        {"source": "rank 0", "since start": "1.50 us", "idle": "20 ns"},
        {"source": "rank 3", "since start": "500 ns", "idle": "10 ns"},
    ]


def test_columns_that_would_be_called_the_same_say_what_they_count() -> None:
    keys = ("at", "saved_ns", "launches", "saved_bytes", "moved_bytes")
    (row,) = cells(evidence_table([dict.fromkeys(keys, 1)], {}))
    assert list(row) == ["at", "saved time", "launches", "saved bytes", "moved"]


def test_without_a_known_beginning_no_moment_is_shown() -> None:
    assert cells(evidence_table([{"start_ns": EPOCH_NS, "idle_ns": 20}], {})) == [{"idle": "20 ns"}]
    assert evidence_table([{"start_ns": EPOCH_NS}], {}) is None


def _stalled(begin: float, rank: int | None) -> TraceBuilder:
    build = TraceBuilder(rank=rank)
    build.launched("a", begin, begin + 5, begin + 1000, correlation=1)
    build.launched("b", begin + 2998, begin + 3001, begin + 4000, correlation=2)
    return build


def _since(found: Analysis) -> list[str | None]:
    (block,) = [one for one in summarize(found).findings if one.rule == "host_bound"]
    return [row.get("since start") for row in cells(block.evidence)]


def test_one_trace_and_several_count_alike() -> None:
    begin_us = 5e9
    assert _since(analyze(_stalled(begin_us, None).build())) == ["1.00 ms"]
    ranks = [_stalled(begin_us, 0).build(), _stalled(begin_us + 50_000, 1).build()]
    assert _since(analyze(ranks)) == ["1.00 ms", "1.00 ms"]


def test_an_analysis_made_without_beginnings_is_still_shown() -> None:
    assert set(_since(replace(analyze(_stalled(0, None).build()), starts_ns=()))) == {None}
