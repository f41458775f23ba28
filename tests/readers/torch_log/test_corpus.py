"""Real logs, from torch of 2024 to 2025: all are read, with the same results as tlparse."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.readers.torch_log import reader as torch_log_reader
from perfscope.analyzers.readers.torch_log.reader import read, read_log
from perfscope.analyzers.registry import load_rule
from perfscope.model.compile_log import CompileLog
from tests.conftest import corpus_files
from tests.readers.torch_log.logs import TlparseSummary, tlparse

pytestmark = pytest.mark.corpus
LOGS = corpus_files("tlparse", "*.log.gz")


def agrees(log: CompileLog, told: TlparseSummary) -> None:
    """Equal where both count the same; each difference is one of tlparse's rules, and asserted as such."""
    made = told.artifacts
    # tlparse counts neither string records, nor damaged ones apart: a wrong payload is "ok" and "fail_payload_md5"
    assert log.records + log.corrupt == told.stats["ok"] + told.strings
    assert log.corrupt == told.stats.get("fail_payload_md5", 0)
    # the graph after inductor's passes has two names; some versions of torch write it under both
    names = ("inductor_post_grad_graph", "after_post_grad_graph")
    after = sum(max(held[name] for name in names) for held in told.by_compile.values())
    assert sum(graph.after_passes for graph in log.graphs) == after
    assert sum(one.traced_graphs for one in log.compiles) == made["dynamo_output_graph"]
    assert sum(one.complete for one in log.compiles) == made["compilation_metrics"]
    # of one compile id under which torch compiled twice (after a reset) tlparse keeps both in one folder
    ids = {key.split("_")[0] for key, held in told.by_compile.items() if held.keys() & {"dynamo_output_graph"}}
    assert ids == {one.compile_id for one in log.compiles if one.traced_graphs}
    if made["recompile_reasons"]:
        assert len(log.recompiles) == made["recompile_reasons"]
    else:  # tlparse does not count what has no reason
        assert not any(one.reasons for one in log.recompiles)
    failed = [(key, kind) for key, kind in told.failures if kind != "RestartAnalysis"]
    assert sorted((one.compile_id, one.fail_type) for one in log.compiles if one.fail_type) == sorted(
        (key.split("_")[0], kind) for key, kind in failed
    )
    assert sum(len(one.restart_reasons) for one in log.compiles) == len(told.failures) - len(failed)
    # frames that failed without a message (recompile limit) are breaks here, failures there
    unsaid = [
        key
        for key, _ in failed
        if not any(
            held["dynamo_graph_break_reason"] for one, held in told.by_compile.items() if one.split("_")[0] == key
        )
    ]
    assert len(log.breaks) == made["dynamo_graph_break_reason"] + len(unsaid)
    begun = sum(one["ph"] == "B" for one in told.events)
    ended = sum(one["ph"] == "E" for one in told.events)
    unclosed = log.left_out.get("phases without their end", 0)
    assert len(log.phases) + unclosed == begun
    assert len(log.phases) + log.left_out.get("ends of phases without their begin", 0) == ended
    for result in ("hit", "miss", "bypass"):
        said = sum(value == result for one in log.compiles for value in one.caches.values())
        assert (
            said == made[f"fx_graph_cache_{result}"] + made[f"aotautograd_cache_{result}"]
            or made["aotautograd_cache_hash"]
        )


@pytest.mark.parametrize("path", [path for path in LOGS if "corrupted" not in path.name], ids=lambda path: path.name)
def test_each_log_says_what_tlparse_says(path: Path, tmp_path: Path) -> None:
    log = read_log(path)
    agrees(log, tlparse(path, tmp_path))
    assert not log.unknown
    assert log.compiles
    assert log.graphs
    assert log.kernels
    assert all(one.function and one.place and one.stack for one in log.compiles)
    assert all(one.start_ns and one.duration_ns for one in log.compiles)


def test_a_damaged_record_is_counted_and_the_rest_read(corpus: Path, tmp_path: Path) -> None:
    whole = read_log(corpus / "tlparse" / "tlparse__simple.log.gz")
    path = corpus / "tlparse" / "tlparse__simple_corrupted_json.log.gz"
    trace = read(path)
    log = trace.compile_log
    assert log is not None
    assert (log.records, log.corrupt) == (whole.records - 1, 1)
    assert (log.compiles, log.graphs, log.kernels) == (whole.compiles, whole.graphs, whole.kernels)
    assert len(log.phases) == len(whole.phases) - 1
    assert log.left_out == {"phases without their end": 1}
    assert any("1 of 76 records" in note for note in trace.source.notes)
    told = tlparse(path, tmp_path)
    assert log.records + log.corrupt == told.stats["ok"] + told.strings + told.stats.get("fail_json", 0)


def test_ranks_are_told_apart(corpus: Path) -> None:
    traces = [read(path) for path in LOGS if "multi_rank" in path.name]
    assert [trace.source.rank for trace in traces] == [0, 1, 2, 3]
    assert all(trace.recorded == {"compile_log"} for trace in traces)


def test_cache_answers_of_compilations_under_one_id(corpus: Path) -> None:
    log = read_log(corpus / "tlparse" / "tlparse__cache_hit_miss.log.gz")
    answers = [(one.function, one.caches.get("fx_graph")) for one in log.compiles]
    wrapper = "_flex_attention_hop_wrapper"
    assert answers == [
        (wrapper, None),
        ("fn", "miss"),
        (wrapper, None),
        ("fn", "hit"),
        (wrapper, None),
        ("fn2", "miss"),
    ]
    reasons = {one.cache_reasons.get("aotautograd") for one in log.compiles if one.graph_ops == 2}
    assert all(reason and reason.startswith("Unsupported call_function target flex_attention.") for reason in reasons)
    assert [kernel.name for kernel in log.kernels] == ["triton_tem_fused_0"] * 3


def test_kernels_of_a_gpu_program_have_their_nodes_lines_and_compile_time(corpus: Path) -> None:
    log = read_log(corpus / "tlparse" / "tlparse__multi_rank_runtime_rank1.log.gz")
    assert log.has_provenance
    kernel = next(one for one in log.kernels if one.name == "triton_poi_fused_relu_1" and one.compile_id == "0/0")
    assert (kernel.backend, kernel.nodes, kernel.ops) == ("triton", ("relu",), ("aten.relu.default",))
    (place,) = kernel.places
    assert (place.line, place.function, place.code) == (114, "graph_two", "a = F.relu(a)")
    assert kernel.compile_ns == 246_411_000
    products = next(one for one in log.kernels if one.name == "extern_kernels.mm" and one.compile_id == "0/0")
    assert (products.calls, products.nodes) == (2, ("mm", "mm_1"))
    graph = next(one for one in log.graphs if one.compile_id == "0/0")
    node = next(one for one in graph.nodes if one.name == "convert_element_type_2")
    assert (node.op, node.inputs, node.dtype, node.shape) == (
        "prims.convert_element_type.default",
        ("mm",),
        "float32",
        (1024, 1024),
    )
    assert graph.outputs == ("relu",)


def test_nothing_of_configurations_or_runnable_programs_is_kept(corpus: Path) -> None:
    for path in LOGS:
        text = repr(read_log(path))
        for secret in ("TYPE_CHECKING", "torch._dynamo.config.", "fx_graph_runnable", "os.environ", "dynamo_config"):
            assert secret not in text, (path.name, secret)


RULES = ("graph_break", "eager_fallback", "recompilation", "dynamic_shape_churn")


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_only_what_is_there_is_found(path: Path) -> None:
    trace = torch_log_reader.read(path)
    found = {rule: judge(load_rule(rule), trace) for rule in RULES}
    assert all(outcome.status != "abstained" for outcome in found.values())
    flagged = {rule for rule, outcome in found.items() if outcome.findings}
    if "multi_rank" not in path.name:
        assert not flagged  # compiled once, or again after a reset
        return
    assert flagged == {"recompilation"}
    (finding,) = found["recompilation"].findings
    # a compiled closure made anew: seen in torch's own wrapper, called from one line of the program
    assert (Path(finding.where.file or "").name, finding.where.line) == ("test2.py", 164)
    assert "identity of fn changes: guard ___check_obj_id(fn" in finding.detail
    assert "Make fn once" in finding.advice
    assert finding.cost_ns is not None
    assert finding.cost_ns > 10**9
