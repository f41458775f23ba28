"""The section on torch.compile: bounded, ranks side by side, and never in the way of the findings."""

from __future__ import annotations

import pytest

from perfscope.analyzers import compile_section as home
from perfscope.analyzers.compile_log import CompiledKernel, CompileLog, GraphBreak, Place, Recompile
from perfscope.analyzers.compile_section import MOST_OPS, MOST_PLACES, MOST_ROWS, NO_COMPILE, compile_section
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.trace import Trace
from tests.analyzers.compiled import SECOND, compiled, log_trace, phase
from tests.build import TraceBuilder


def rank_trace(rank: int | None, seconds: float = 1.0, frames: int = 1) -> Trace:
    log = CompileLog(
        path=f"rank{rank}.log",
        compiles=tuple(compiled(f"{n}/0", place=Place(file="/u/t.py", line=n)) for n in range(frames)),
        phases=(phase("dynamo", 0, seconds),),
    )
    return log_trace(log, rank=rank)


def test_nothing_was_compiled() -> None:
    assert compile_section([TraceBuilder().build()]) == NO_COMPILE
    assert compile_section([log_trace(CompileLog(path="x.log"))]) == NO_COMPILE
    assert analyze(TraceBuilder().build(), rules=[]).compile == NO_COMPILE


def test_the_lists_are_those_of_the_rank_that_compiled_longest() -> None:
    section = compile_section([rank_trace(0), rank_trace(1, 3.0, frames=2), rank_trace(2)])
    assert [(one.label, one.rank, one.frames, one.total_ns) for one in section.ranks] == [
        ("rank 0", 0, 1, SECOND), ("rank 1", 1, 2, 3 * SECOND), ("rank 2", 2, 1, SECOND),
    ]  # fmt: skip
    assert section.ranks[0].counts() == section.ranks[2].counts() != section.ranks[1].counts()
    assert section.detail is not None
    assert (section.detail_label, len(section.detail.frames)) == ("rank 1", 2)


def test_logs_without_a_rank_are_numbered() -> None:
    assert [one.label for one in compile_section([rank_trace(None), rank_trace(None)]).ranks] == [
        "source 0",
        "source 1",
    ]


def test_long_lists_are_bounded_and_counted() -> None:
    many = 3 * MOST_ROWS
    places = tuple(Place(file="/u/t.py", line=n) for n in range(many))
    log = CompileLog(
        path="x.log",
        compiles=tuple(compiled(f"{n}/0", place=places[n]) for n in range(many)),
        breaks=tuple(GraphBreak(compile_id=f"{n}/0", reason="r", place=places[n]) for n in range(many)) * 2,
        recompiles=tuple(
            Recompile(compile_id=f"{n}/0", function="f", place=places[n], reasons=("k == 1",)) for n in range(many)
        ),
        kernels=tuple(
            CompiledKernel(
                name=f"triton_poi_fused_{n}", backend="triton", compile_id="0/0", direction="forward",
                ops=tuple(f"aten.op{index}" for index in range(2 * MOST_OPS)), places=places,
            )
            for n in range(many)
        ),
    )  # fmt: skip
    section = compile_section([log_trace(log)])
    detail = section.detail
    assert detail is not None
    assert {len(rows) for rows in (detail.frames, detail.break_rows, detail.recompile_rows, detail.kernels)} == {
        MOST_ROWS
    }
    assert set(section.left.values()) == {many - MOST_ROWS}
    assert sum(row.count for row in detail.break_rows) + section.left_records["breaks"] == len(log.breaks)
    assert sum(row.count for row in detail.recompile_rows) + section.left_records["recompiles"] == len(log.recompiles)
    assert (len(detail.kernels[0].ops), len(detail.kernels[0].places)) == (MOST_OPS, MOST_PLACES)


def test_what_breaks_is_said_and_costs_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Trace) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(home, "compile_summary", broken)
    held = analyze(rank_trace(0), rules=["host_sync"])
    assert held.compile.detail is None
    assert held.compile.problems == ("what torch.compile did could not be summed up: KeyError: 'odd'",)
    assert [outcome.rule for outcome in held.outcomes] == ["host_sync"]
