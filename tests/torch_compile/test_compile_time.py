"""compile_time: cold and warm starts, what a cache refuses, recompilations left alone, ranks that all start cold."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.compile_log import CodeLine, CompileLog, Graph, GraphNode
from perfscope.model.finding import Outcome
from perfscope.model.trace import RECORDED, Trace
from tests.build import TraceBuilder, replace
from tests.torch_compile.logs import SECOND, START, compiled, log_trace, phase

RULE = load_rule("compile_time")
MISS = {"fx_graph": "miss", "aotautograd": "miss"}
HIT = {"fx_graph": "hit", "aotautograd": "hit"}
REASON = "SAC context_fn does not have a cache_hash attribute. "


def log(building: float, *, caches: dict[str, str] = MISS, compile_id: str = "0/0", **more: Any) -> CompileLog:
    """One compilation: 10 s of tracing, ``building`` s of g++, 3 s of AOT autograd."""
    return CompileLog(
        path="x.log",
        compiles=(compiled(caches=caches, **more),),
        phases=(
            phase("entire_frame_compile", 0, 13 + building, compile_id),
            phase("create_aot_dispatcher_function", 5, 8 + building, compile_id, parent=0),
            phase("compile_file", 8, 8 + building, None, parent=1),
        ),
    )


def judged(found: CompileLog, rank: int | None = None) -> Outcome:
    return judge(RULE, log_trace(found, rank=rank))


def test_a_cold_start_costs_what_a_cache_would_have_spared() -> None:
    (finding,) = judged(log(100)).findings
    assert finding.cost_ns == 103 * SECOND
    assert finding.cost_ns_per_step is None
    assert (finding.basis, finding.severity) == ("measured", "medium")
    assert finding.where.label() == "/home/user/train.py:12"
    assert "takes 113 s" in finding.detail
    assert "building kernels (C++ or Triton) takes 88.5%" in finding.detail
    assert (finding.evidence[0]["frame"], finding.evidence[0]["caches"]) == ("forward (train.py:12)", "each a miss")
    assert finding.evidence[0]["tracing_ns"] == 10 * SECOND
    assert "save_cache_artifacts" in finding.advice
    assert "COMPILE_THREADS" in finding.advice


def test_below_a_minute_it_is_clean() -> None:
    assert judged(log(56.9)).status == "clean"
    assert judged(log(57)).status == "flagged"
    assert judged(log(597)).findings[0].severity == "high"


def test_a_warm_start_is_clean_however_long_it_takes() -> None:
    assert judged(log(500, caches=HIT)).status == "clean"


@pytest.mark.parametrize(("times", "status"), [(2, "flagged"), (3, "clean")])
def test_what_recompilation_judges_is_left_to_it(times: int, status: str) -> None:
    names = [f"0/{number}" for number in range(times)]
    begins = [0, *(100 + 200 * number for number in range(times - 1))]
    phases = tuple(
        phase("compile_file", begin, begin + (150 if begin else 50), name)
        for begin, name in zip(begins, names, strict=True)
    )
    compiles = tuple(compiled(name, caches=MISS, start_ns=START + number) for number, name in enumerate(names))
    found = judged(CompileLog(path="x.log", compiles=compiles, phases=phases))
    assert found.status == status
    assert [finding.title for finding in found.findings] == ["2 of 2 compilations miss the caches"][: status != "clean"]


def test_settings_of_perfscope_are_named() -> None:
    (finding,) = judged(replace(log(100), settings=("provenance",))).findings
    assert "perfscope's own settings (provenance)" in finding.detail
    assert finding.severity == "low"


def test_without_phases_the_metrics_count() -> None:
    one = compiled(
        duration_ns=90 * SECOND, backward_ns=9 * SECOND, seconds_by_phase={"backend_compile": 61.0}, caches=MISS
    )
    (finding,) = judged(CompileLog(path="x.log", compiles=(one,))).findings
    assert finding.cost_ns == 70 * SECOND
    assert "takes 99.0 s" in finding.detail


def test_no_cache_at_all_is_said() -> None:
    (finding,) = judged(log(100, caches={})).findings
    assert "No cache was queried" in finding.advice


def test_a_repeated_block_is_worth_compiling_once() -> None:
    lines = [CodeLine(file="/home/user/train.py", line=number) for number in (20, 21, 22)]
    nodes = tuple(
        GraphNode(name=f"n{layer}{index}", op="aten.mm.default", shape=(8, 8), place=place)
        for layer in range(6)
        for index, place in enumerate(lines)
    )
    graph = Graph(compile_id="0/0", direction="forward", nodes=nodes)
    (finding,) = judged(replace(log(100), graphs=(graph,))).findings
    assert "83% of the graphs' ops repeat a block" in finding.advice
    once = replace(graph, nodes=nodes[:3])
    assert "made again" not in judged(replace(log(100), graphs=(once,))).findings[0].advice


def test_what_a_cache_refuses_is_paid_at_each_start() -> None:
    bypass = {"fx_graph": "bypass", "aotautograd": "bypass"}
    found = judged(log(20, caches=bypass, cache_reasons={"fx_graph": REASON, "aotautograd": REASON})).findings
    assert [(one.subject, one.cost_ns) for one in found] == [("not cacheable (fx_graph)", 23 * SECOND)]
    assert "cache_hash" in found[0].advice
    # the other cache alone: only its own 3 s are paid again
    hit = {"fx_graph": "hit", "aotautograd": "bypass"}
    assert judged(log(20, caches=hit, cache_reasons={"aotautograd": REASON})).status == "clean"


def ranks(*logs: CompileLog) -> list[Trace]:
    return [log_trace(one, rank=rank) for rank, one in enumerate(logs)]


def test_ranks_that_all_start_cold_could_share_one_compilation() -> None:
    found = analyze(ranks(log(100), log(101), log(102)), ["compile_time"])["compile_time"].findings
    shared = next(one for one in found if one.subject == "every rank compiles the same cold")
    assert (shared.ranks, shared.basis, shared.cost_ns) == ((0, 1, 2), "structural", None)
    assert [row["rank"] for row in shared.evidence] == [2, 1, 0]
    own = next(one for one in found if one.subject == "cold compilation")
    assert own.ranks == (0, 1, 2)


@pytest.mark.parametrize("second", [log(100, caches=HIT), log(100, function="other")])
def test_ranks_that_differ_do_not(second: CompileLog) -> None:
    found = analyze(ranks(log(100), second), ["compile_time"])["compile_time"].findings
    assert "every rank compiles the same cold" not in [one.subject for one in found]


def test_without_a_log_it_abstains() -> None:
    outcome = judge(RULE, TraceBuilder().build())
    assert (outcome.status, outcome.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")
