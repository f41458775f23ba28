"""Work grows with the trace and no faster: 1, 4 and 16 copies, counted in lines of Python and elements of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers import engine
from perfscope.analyzers.engine import conclude, examine
from perfscope.analyzers.ranks import hang_of
from perfscope.analyzers.readers.kineto.reader import read
from perfscope.analyzers.registry import chosen_rules
from perfscope.model import intervals
from perfscope.model.documents.flight_recorder import FlightRecord, RecordedCall, RecordedGroup
from perfscope.model.intervals import Int64, Intervals, _covered_before
from perfscope.model.trace import Trace
from tests.growth.replicated import Axis, replicated
from tests.growth.traces import training
from tests.growth.work import Work, counting
from tests.ranks.build import rank_set

COPIES = (1, 4, 16)
MOST_PER_DOUBLING = 2 * 1.3
"""n log n is 2.2 at these sizes; the square is 4."""
LEAST_LINES, LEAST_ELEMENTS = 10_000, 100_000
"""Least work of the largest trace: below it thresholds and fixed costs decide, and users do not notice."""


@contextmanager
def _rules_named(work: Work) -> Iterator[None]:
    """Count what each rule does under its name."""
    original: Callable[..., Any] = engine._over_programs

    def counted(rule: Any, *rest: Any) -> Any:
        with work.of(f"rule {rule.id}"):
            return original(rule, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_over_programs", counted)
        yield


def analysis_work(trace: Trace, copies: int, axis: Axis) -> Work:
    """Run all rules, their facts and the sections of the report."""
    many = replicated(trace, copies, axis)
    rules = chosen_rules(None)
    with counting() as work, _rules_named(work), work.of("engine"):
        analysis = conclude([examine(many, rules)], rules)
    assert not [outcome for outcome in analysis if "failed" in (outcome.reason or "")]
    return work


def steep(works: list[Work]) -> dict[str, str]:
    """What grows faster than allowed from the second to the third size (four times): lines or elements of each."""
    allowed = MOST_PER_DOUBLING**2
    found = {}
    for unit, least in (("lines", LEAST_LINES), ("elements", LEAST_ELEMENTS)):
        counts = [getattr(work, unit) for work in works]
        for what in counts[-1]:
            few, some, many = (count[what] for count in counts)
            if many >= least and many > allowed * some:
                found[what] = f"{few:,}, {some:,}, {many:,} {unit}"
    return found


def sizes(trace: Trace, axis: Axis) -> list[Work]:
    analysis_work(trace, 1, axis)  # what is computed once a process
    return [analysis_work(trace, copies, axis) for copies in COPIES]


@pytest.fixture(scope="module")
def trained() -> Trace:
    return training()


@pytest.mark.parametrize("axis", ["time", "streams", "devices", "threads"])
def test_rules_facts_and_sections_are_linear(trained: Trace, axis: Axis) -> None:
    assert steep(sizes(trained, axis)) == {}


@pytest.mark.parametrize(
    "axis", ["time", *(pytest.param(axis, marks=pytest.mark.slow) for axis in ("streams", "devices", "threads"))]
)
def test_a_real_trace_is_judged_in_linear_work(corpus: Path, axis: Axis) -> None:
    assert steep(sizes(read(corpus / "kineto" / "TraceLens__h100_bert-small.json.gz"), axis)) == {}


def test_ranks_of_a_job_are_compared_in_linear_work() -> None:
    rules = chosen_rules(None)

    def work_of(ranks: int) -> Work:
        judged = [examine(trace, rules) for trace in rank_set([[3.0 * (r % 3) for r in range(ranks)]] * 12)]
        with counting() as work, work.of("engine"):
            analysis = conclude(judged, rules)
        assert not [outcome for outcome in analysis if "failed" in (outcome.reason or "")]
        return work

    work_of(2)
    assert steep([work_of(ranks) for ranks in (4, 16, 64)]) == {}


def _hung(ranks: int, how: str) -> dict[int, FlightRecord]:
    """Dumps in which each rank receives from the next one, or all wait for the last, or one has not ended."""
    groups = (RecordedGroup(name="0", description="", ranks=tuple(range(ranks))),)
    records = {}
    for rank in range(ranks):
        call = RecordedCall(operation="all_reduce", sequence=1, group="0", state="started")
        if how == "ring":
            peer = ((rank + 1) % ranks, rank)
            call = replace(call, operation="recv", peer=peer)
        ended = how == "stuck" and rank > 0
        calls = () if how == "absent" and rank == ranks - 1 else (replace(call, state="completed") if ended else call,)
        records[rank] = FlightRecord(path="", rank=rank, version="2.9", groups=groups, calls=calls)
    return records


@pytest.mark.parametrize("how", ["ring", "absent", "stuck"])
def test_a_hang_is_explained_in_linear_work(how: str) -> None:
    def work_of(ranks: int) -> Work:
        records = _hung(ranks, how)
        with counting() as work, work.of("hang"):
            hang = hang_of(records)
        assert {"ring": len(hang.ring) == ranks, "absent": [rank for rank, _ in hang.absent] == [ranks - 1],
                "stuck": [stuck.rank for stuck in hang.stuck] == [0]}[how]  # fmt: skip
        return work

    assert steep([work_of(ranks) for ranks in (64, 256, 1024)]) == {}


def test_most_rules_find_something_to_judge(trained: Trace) -> None:
    rules = chosen_rules(None)
    outcomes = examine(trained, rules).outcomes
    assert sum(outcome.status == "flagged" for outcome in outcomes) >= 4
    assert sum(outcome.status != "abstained" for outcome in outcomes) >= 12


def test_a_running_sum_of_everything_for_each_small_call_is_found(
    trained: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def covered(busy: Intervals, starts: Any, ends: Any) -> Int64:
        return _covered_before(busy, np.asarray(ends, np.int64)) - _covered_before(busy, np.asarray(starts, np.int64))

    monkeypatch.setattr(intervals.covered, "__code__", covered.__code__)
    assert any("optimizer_steps" in what for what in steep(sizes(trained, "time")))
