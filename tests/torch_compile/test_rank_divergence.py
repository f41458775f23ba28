"""rank_divergence: more compilations, other graphs, other collectives, other caches; what must not be compared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.model.compile_log import CompileLog, Graph, GraphNode, LoggedRecompile
from perfscope.model.finding import Outcome
from perfscope.model.trace import RECORDED, Trace
from tests.build import EVERYTHING, TraceBuilder, replace
from tests.torch_compile.logs import MODEL, SECOND, START, compiled, log_trace

OPS = ("aten.mm.default", "aten.relu.default")
SIZE = "tensor 'x' size mismatch at index 0. expected 32, actual 33"


def log(ops: Sequence[str] = OPS, *, rows: int = 8, seconds: float = 2, again: bool = False) -> CompileLog:
    """One graph of ``ops``; ``again``: compiled a second time for another size."""
    nodes = tuple(GraphNode(name=f"n{index}", op=op, shape=(rows, 8)) for index, op in enumerate(ops))
    cache = {"fx_graph": "miss"}
    first = compiled(duration_ns=round(seconds * SECOND), caches=cache)
    found = CompileLog(
        path="x.log", compiles=(first,), graphs=(Graph(compile_id="0/0", direction="forward", nodes=nodes),)
    )
    if not again:
        return found
    return replace(
        found,
        compiles=(first, replace(first, compile_id="0/1", start_ns=START + 5 * SECOND)),
        graphs=(*found.graphs, replace(found.graphs[0], compile_id="0/1")),
        recompiles=(LoggedRecompile(compile_id="0/1", function="forward", place=MODEL, reasons=(SIZE,)),),
    )


def compared(*logs: CompileLog) -> Outcome:
    return outcome_of([log_trace(one, rank=rank) for rank, one in enumerate(logs)])


def outcome_of(traces: list[Trace]) -> Outcome:
    return analyze(traces, ["rank_divergence"])["rank_divergence"]


def test_a_rank_that_compiles_once_more_is_named_with_its_guard() -> None:
    (finding,) = compared(log(), log(), log(again=True), log()).findings
    assert finding.subject == "ranks compile different graphs"
    assert finding.detail.startswith("Rank 2 compiles forward (train.py:12, 10 ops) again and ranks 0, 1, 3 do not")
    assert SIZE in finding.detail
    assert (finding.ranks, finding.cost_ns, finding.basis) == ((2,), 2 * SECOND, "modelled")
    assert finding.where.label() == "/home/user/train.py:12"
    assert "mark_dynamic" in finding.advice
    assert [row["rank"] for row in finding.evidence] == [2, 0, 1, 3]


def test_its_moments_are_those_of_the_compilation_that_differs() -> None:
    """The second one of rank 1 alone: the others have no such one."""
    traces = []
    for rank, held in enumerate((log(), log(again=True), log())):
        built = TraceBuilder(rank=rank, recorded=EVERYTHING)
        built.step(1, START / 1_000, (START + 20 * SECOND) / 1_000)
        trace = built.build()
        trace = replace(trace, compile_log=replace(held, rank=rank))
        traces.append(trace)
    (finding,) = outcome_of(traces).findings
    (span,) = finding.spans
    assert (span.source, span.start_ns, span.end_ns) == (1, START + 5 * SECOND, START + 7 * SECOND)


def test_another_graph_is_found_though_as_many_were_compiled() -> None:
    (finding,) = compared(log(), log(("aten.mm.default", "aten.gelu.default"))).findings
    assert (finding.ranks, finding.cost_ns, finding.basis, finding.severity) == ((1,), None, "structural", "medium")
    hashes = {row["ops_hash"] for row in finding.evidence}
    assert len(hashes) == 2


def test_other_collectives_are_the_gravest() -> None:
    reduce, gather = "_c10d_functional.all_reduce.default", "_c10d_functional.all_gather_into_tensor.default"
    (finding,) = compared(log((reduce, gather)), log((gather, reduce)), log((reduce, gather))).findings
    assert (finding.subject, finding.severity, finding.ranks) == ("ranks compile different collectives", "high", (1,))
    assert f"Rank 1 calls {gather} as collective 1, where ranks 0, 2 call {reduce}" in finding.detail


def test_waiting_for_a_collective_is_no_collective() -> None:
    reduce, wait = "_c10d_functional.all_reduce.default", "_c10d_functional.wait_tensor.default"
    (finding,) = compared(log((reduce, wait)), log((reduce,))).findings
    assert finding.subject == "ranks compile different graphs"


def test_ranks_of_other_sizes_and_times_are_clean() -> None:
    assert compared(log(rows=8, seconds=2), log(rows=9, seconds=2.9)).status == "clean"


def ran(*order: str | None, ops: tuple[str, ...] = ("aten.mm.default",)) -> CompileLog:
    """Two compilations, and the order in which their graphs ran."""
    return replace(log(ops, again=True), executed=order)


def test_graphs_that_run_in_another_order() -> None:
    first, second = (compilation.compile_id for compilation in ran().compiles)
    assert compared(ran(first, second), ran(first, second)).status == "clean"
    assert compared(ran(first, second), ran()).status == "clean"  # not recorded on one of them
    (finding,) = compared(ran(first, second), ran(second, first), ran(first, second)).findings
    assert (finding.subject, finding.severity, finding.ranks) == (
        "ranks run their graphs in another order",
        "medium",
        (1,),
    )
    assert (finding.basis, finding.cost_ns) == ("structural", None)
    assert "as call 1, where ranks 0, 2 run" in finding.detail
    (more,) = compared(ran(first, second), ran(first, second, first)).findings
    assert "nothing more" in more.detail


def test_the_order_of_graphs_with_collectives_is_grave() -> None:
    ops = ("_c10d_functional.all_reduce.default",)
    first, second = (compilation.compile_id for compilation in ran().compiles)
    (finding,) = compared(ran(first, second, ops=ops), ran(second, first, ops=ops)).findings
    assert (finding.subject, finding.severity) == ("ranks run their graphs in another order", "high")


def test_caches_matter_from_a_second_on() -> None:
    def warm(seconds: float) -> CompileLog:
        found = log(seconds=seconds)
        return replace(found, compiles=tuple(replace(one, caches={"fx_graph": "hit"}) for one in found.compiles))

    assert compared(log(seconds=2), warm(1.01)).status == "clean"
    (finding,) = compared(log(seconds=2), log(seconds=2), warm(1)).findings
    assert (finding.subject, finding.severity) == ("caches answer differently by rank", "low")
    assert "Rank 2 found fx_graph hit" in finding.detail
    assert finding.cost_ns == SECOND


def test_one_rank_or_unknown_ranks_cannot_be_compared() -> None:
    assert compared(log()).reason == "one rank: nothing to compare it with"
    unknown = outcome_of([log_trace(log()), log_trace(log(again=True))])
    assert (unknown.status, unknown.reason) == ("abstained", "the logs lack their ranks")
    twice = outcome_of([log_trace(log(), rank=1), log_trace(log(again=True), rank=1)])
    assert twice.status == "abstained"
    assert "several logs are of rank 1" in (twice.reason or "")


def test_without_a_log_it_abstains() -> None:
    outcome = outcome_of([TraceBuilder().build()])
    assert (outcome.status, outcome.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")


@pytest.mark.corpus
def test_the_ranks_of_the_corpus_agree_until_one_is_changed(corpus: Path) -> None:
    traces = [load_all(path)[0] for path in sorted((corpus / "tlparse").glob("*multi_rank_runtime*"))]
    assert [trace.source.rank for trace in traces] == [0, 1, 2, 3]
    assert outcome_of(traces).status == "clean"
    logged = traces[3].compile_log
    assert logged is not None
    # rank 3 without its last compilation, which took 1.3 s
    fewer = log_trace(replace(logged, compiles=logged.compiles[:-1], graphs=logged.graphs[:-1]), rank=3)
    (finding,) = outcome_of([*traces[:3], fewer]).findings
    assert finding.ranks == (3,)
    assert finding.subject == "ranks compile different collectives"


PROGRAM = """
import torch, torch.distributed as dist
from torch._inductor.debug import record_and_log_graph_execution_order

dist.init_process_group("gloo")

@torch.compile
def first(x): return (x * 2).sin()

@torch.compile
def second(x): return (x + 1).cos()

x = torch.ones(8)
with record_and_log_graph_execution_order():
    for number in range(3):
        swapped = dist.get_rank() == 1 and number == 1
        for function in (second, first) if swapped else (first, second):
            function(x)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_real_program_whose_ranks_run_their_graphs_in_another_order(tmp_path: Path) -> None:
    """Without torch's caches; graphs from them have no ids, and then the order is unknown."""
    program, logs = tmp_path / "program.py", tmp_path / "logs"
    program.write_text(PROGRAM)
    paths = {"TORCH_TRACE": str(logs), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]

    def findings(**more: str) -> Outcome:
        shutil.rmtree(logs, ignore_errors=True)
        subprocess.run(command, env={**os.environ, **paths, **more}, check=True, capture_output=True, timeout=300)
        return outcome_of([load_all(path)[0] for path in sorted(logs.iterdir())])

    (finding,) = findings(TORCHINDUCTOR_FORCE_DISABLE_CACHES="1").findings
    assert (finding.subject, finding.ranks) == ("ranks run their graphs in another order", (1,))
    assert "as call 3" in finding.detail
    findings()
    assert findings().status == "clean"  # all of it from the cache
    assert "calls of graphs in order, some without" in " ".join(
        note for path in logs.iterdir() for note in load_all(path)[0].source.notes
    )
