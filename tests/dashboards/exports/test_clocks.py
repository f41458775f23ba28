"""Ranks on one clock, where it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers.load import load
from perfscope.dashboards.exports.clocks import aligned, apart, moved
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.dashboards.exports.built import everything
from tests.dashboards.exports.same import TIMED, totals


def rank(number: int, *, clock: float) -> Trace:
    """Four all-reduces that both ranks leave together; ``clock``: how many us this rank's clock is ahead."""
    b = TraceBuilder(rank=number, path=f"rank{number}.json")
    for one in range(4):
        start, end = 1_000.0 * one + 100 * number + clock, 1_000.0 * one + 500 + clock
        b.kernel("ncclDevKernel_AllReduce_Sum", start, end, stream=9, communication=True, correlation=one)
        b.row("collectives", start_ns=round(start * 1000), end_ns=round(end * 1000), name=b.code("all_reduce"),
              kernel=one, group=b.code("0"), group_size=2, ranks=b.code("[0, 1]"), elements_in=64, elements_out=64,
              dtype=b.code("float"), sequence=one)  # fmt: skip
    return b.build()


def test_clocks_are_moved_only_when_asked() -> None:
    traces = (rank(0, clock=0), rank(1, clock=5_000))
    assert apart(traces) == [
        "the clocks of the ranks are up to 5.00 ms apart, and stay so: --align-clocks brings them to within 0 ns"
    ]
    (first, second), remarks = aligned(traces)
    assert remarks == ["clocks moved by up to 5.00 ms; they agree to within 0 ns"]
    assert first is traces[0]
    assert (second.rows["kernels"]["end_ns"] == first.rows["kernels"]["end_ns"]).all()
    assert (traces[1].rows["kernels"]["end_ns"] != first.rows["kernels"]["end_ns"]).all()


def test_only_moments_move() -> None:
    before = everything(base=10)
    after = moved(before, 77)
    after.check()
    found, expected = totals(after), totals(before)
    assert found == expected
    for table in TIMED:
        for column in before.rows[table].table.columns:
            held, given = after.rows[table][column.name], before.rows[table][column.name]
            by = 77 if column.name in ("start_ns", "end_ns", "time_ns") else 0
            if held.dtype.kind != "f":
                assert (held == given + held.dtype.type(by)).all(), (table, column.name)


def test_traces_of_no_job_stay(tmp_path: Path) -> None:
    trace = everything(rank=None)
    assert apart([trace]) == []
    assert aligned([trace]) == ((trace,), ["no collectives of several ranks to align clocks by: no clock was moved"])


@pytest.mark.corpus
def test_real_ranks(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(corpus / "kineto" / f"astra-sim__megatron_kineto_{one}.json.gz") for one in range(8)]
    target = tmp_path / "t.pftrace"
    assert run(["export", *files, "--to", "perfetto", "--no-findings", "--align-clocks", "-o", str(target)]) == 0
    assert "they agree to within" in capsys.readouterr().err
    ends = [trace.rows["collectives"]["end_ns"][-1] for trace in load(target)]
    assert max(ends) - min(ends) < 1_000_000
