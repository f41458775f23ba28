"""hung_collective: ranks that are stuck, that never came, that wait for each other, that call other things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.load import load
from perfscope.analyzers.trace import RECORDED, Trace
from tests.analyzers.dumps import dump, entry, written
from tests.build import TraceBuilder

TWO = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [1, 2]}


def outcome_of(traces: list[Trace]) -> Outcome:
    return analyze(traces, ["hung_collective"])["hung_collective"]


def judged(folder: Path, dumps: dict[int, dict[str, Any]]) -> Outcome:
    return outcome_of(load(written(folder, dumps)))


def test_the_rank_that_never_came_is_named_and_its_victims_are_not(tmp_path: Path) -> None:
    """0 waits for 1 in a pair, 1 waits for 3 in the world, 2 waits for 3: 3 waits for nobody."""
    dumps = {
        0: dump([entry(sequence=7, group="1"), entry(sequence=9)], TWO),
        1: dump([entry(sequence=9, frames=[{"filename": "/home/user/train.py", "line": 5, "name": "f"}])], TWO),
        2: dump([entry(sequence=9)], TWO),
        3: dump([], TWO),
    }
    (finding,) = judged(tmp_path, dumps).findings
    assert (finding.subject, finding.ranks, finding.severity) == ("ranks never came to a collective", (3,), "high")
    assert "rank 3 never came to all_reduce 1024 BFloat16 (number 9 of default_pg 0, 4 ranks)" in finding.title
    assert "3 ranks hang for it" in finding.title
    assert (finding.basis, finding.cost_ns) == ("structural", None)
    (row,) = finding.evidence
    assert (row["waiting_ranks"], row["own_calls_pending"], row["timeout_ns"]) == (3, 0, 600 * 10**9)


def test_a_rank_that_has_not_ended_what_others_ended_is_stuck(tmp_path: Path) -> None:
    """2 is stuck in number 8; the others ended it and wait for 2 at number 9."""
    rest = {rank: dump([entry(sequence=9)], TWO, status={"0": (9, 8)}) for rank in (0, 1, 3)}
    dumps = {**rest, 2: dump([entry(sequence=8)], TWO, status={"0": (8, 7)})}
    (finding,) = judged(tmp_path, dumps).findings
    assert (finding.subject, finding.ranks) == ("ranks are stuck in a collective that others have ended", (2,))
    assert "rank 2 has not ended all_reduce 1024 BFloat16 (number 8" in finding.title
    assert "which ranks 0, 1, 3 have ended, and 0 more since; 4 ranks hang" in finding.title


def test_a_broadcast_that_its_root_has_ended_makes_nobody_stuck(tmp_path: Path) -> None:
    dumps = {
        0: dump([entry("broadcast", 3, state="completed")]),
        1: dump([entry("broadcast", 3)]),
    }
    (finding,) = judged(tmp_path, dumps).findings
    assert finding.subject == "a collective that all have begun does not end"


def test_other_operations_and_other_sizes_are_named(tmp_path: Path) -> None:
    groups = {"0": [0, 1, 2]}
    for number, (name, sizes, what) in enumerate(
        [("all_gather", [[1024]], "operation"), ("all_reduce", [[512]], "size")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        usual = {rank: dump([entry(sequence=5)], groups) for rank in (0, 1)}
        findings = judged(folder, {**usual, 2: dump([entry(name, 5, sizes=sizes)], groups)}).findings
        (finding,) = [one for one in findings if one.subject == f"members of a group call another {what}"]
        assert finding.ranks == (2,)
        assert f"rank 2 calls {name} {sizes[0][0]} BFloat16 as number 5" in finding.title


def test_all_to_all_of_other_sizes_is_right(tmp_path: Path) -> None:
    dumps = {rank: dump([entry("all_to_all", 5, sizes=[[100 + rank, 8]], state="completed")]) for rank in (0, 1)}
    assert judged(tmp_path, dumps).status == "clean"


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    """Rank 1 is in the pair (0, 1), rank 0 already in the world with nobody else, and 1 is not there."""
    dumps = {
        0: dump([entry(sequence=4)], {"0": [0, 1], "1": [0, 1]}),
        1: dump([entry(sequence=7, group="1")], {"0": [0, 1], "1": [0, 1]}),
    }
    (finding,) = judged(tmp_path, dumps).findings
    assert (finding.subject, finding.ranks) == ("ranks wait for each other", (0, 1))


def test_a_receive_waits_for_its_send(tmp_path: Path) -> None:
    receive, send = entry("recv 0<-1", 3, between=True), entry("send 1->0", 3, between=True)
    (finding,) = judged(tmp_path, {0: dump([receive]), 1: dump([])}).findings
    assert finding.ranks == (1,)
    assert "rank 1 never came to recv" in finding.title
    both = tmp_path / "both"
    both.mkdir()
    (finding,) = judged(both, {0: dump([receive]), 1: dump([send])}).findings
    assert finding.subject == "a collective that all have begun does not end"


def test_a_rank_without_a_dump_is_named_where_nobody_else_is(tmp_path: Path) -> None:
    rest = {rank: dump([entry(sequence=9)], TWO) for rank in (0, 1, 2)}
    (finding,) = judged(tmp_path, rest).findings
    assert (finding.subject, finding.ranks) == ("ranks that others wait for left no dump", (3,))


def test_nothing_pending_is_clean(tmp_path: Path) -> None:
    dumps = {rank: dump([entry(state="completed"), entry(sequence=2, retired=True)]) for rank in (0, 1)}
    assert judged(tmp_path, dumps).status == "clean"


def test_one_dump_or_dumps_of_two_jobs_are_not_judged(tmp_path: Path) -> None:
    written(tmp_path, {0: dump([entry()]), 1: dump([])})
    one, other = load(tmp_path)
    assert "collect the dumps of all ranks" in (outcome_of([one]).reason or "")
    twice = outcome_of([one, other, one])
    assert (twice.status, "several dumps are of rank 0" in (twice.reason or "")) == ("abstained", True)
    assert outcome_of([TraceBuilder().build()]).reason == f"not recorded: {RECORDED['flight_record']}"


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "ranks", "subject"),
    [
        ("gpu_error_1st", (12, 14), "ranks are stuck in a collective that others have ended"),
        ("lock_gil_1st", (9, 14), "ranks never came to a collective"),
    ],
)
def test_the_faults_that_were_injected_are_found_and_nothing_else(
    corpus: Path, name: str, ranks: tuple[int, ...], subject: str
) -> None:
    (finding,) = outcome_of(load(corpus / "nccl_fr" / f"nvidia-resiliency-ext__{name}.tar.gz")).findings
    assert (finding.ranks, finding.subject) == (ranks, subject)
