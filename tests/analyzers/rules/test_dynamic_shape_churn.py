"""Functions compiled for each size of a tensor: which sizes, how many, and that no other rule counts them too."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from perfscope.analyzers.compile_log import CompileLog, GraphBreak
from perfscope.analyzers.engine import judge
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import RECORDED
from tests.analyzers.broken import MODEL, SECOND, log_alone, recompiled
from tests.build import TraceBuilder

RULE = load_rule("dynamic_shape_churn")


def sizes(*lengths: int, tensor: str = "tokens_BL", dimension: int = 1) -> list[str]:
    """What torch says where a length follows another."""
    return [
        f"tensor '{tensor}' size mismatch at index {dimension}. expected {before}, actual {after}"
        for before, after in pairwise(lengths)
    ]


def test_every_new_size_is_compiled_anew():
    (finding,) = judge(RULE, log_alone(recompiled(sizes(32, 31, 30, 29)))).findings
    assert (finding.cost_ns, finding.cost_ns_per_step) == (3 * SECOND, 3 * SECOND // 4)
    assert (finding.where.file, finding.where.line, finding.basis) == (MODEL.file, MODEL.line, "measured")
    assert finding.subject == "forward compiled for each size of tokens_BL in dimension 1"
    assert "4 sizes of tokens_BL.size()[1] (29, 30, 31, 32) in 3 steps" in finding.title
    assert "mark_dynamic(tokens_BL, 1, min=29, max=32)" in finding.advice
    assert [(row["step"], row["spent_ns"]) for row in finding.evidence] == [(1, SECOND), (2, SECOND), (3, SECOND)]


def test_the_limit_of_compilations_is_said_and_its_size_counted():
    log = recompiled(sizes(32, 31, 30, 29))
    given_up = replace(log.compiles[-1], has_code=False, traced_graphs=0)
    skip = GraphBreak(compile_id="0/3", reason="Dynamo recompile limit exceeded", doc_id="gb0039", skipped_frame=True)
    (finding,) = judge(RULE, log_alone(replace(log, compiles=(*log.compiles[:-1], given_up), breaks=(skip,)))).findings
    assert "then the limit of compilations is reached" in finding.title
    assert "4 sizes" in finding.title
    assert finding.cost_ns == 2 * SECOND


def test_the_threshold_is_three_sizes_in_two_steps():
    assert judge(RULE, log_alone(recompiled(sizes(32, 31, 30)))).status == "flagged"
    assert judge(RULE, log_alone(recompiled(sizes(32, 31)))).status == "clean"
    assert judge(RULE, log_alone(recompiled(sizes(32, 31, 32)))).status == "clean"
    assert judge(RULE, log_alone(recompiled(sizes(32, 31, 30), every=2))).status == "clean"


def test_sizes_compiled_in_the_first_step_are_warm_up():
    assert judge(RULE, log_alone(recompiled(sizes(32, 31, 30, 29), every=9, first=0))).status == "clean"


def test_each_frame_is_in_one_of_the_two_rules():
    other = load_rule("recompilation")
    churning, mixed = log_alone(recompiled(sizes(8, 7, 6))), ["rate == 0.1", "rate == 0.2"]
    assert judge(other, churning).status == "clean"
    few = log_alone(recompiled([*mixed, *sizes(8, 7, 6)]))  # half
    assert (judge(RULE, few).status, judge(other, few).status) == ("flagged", "clean")
    fewer = log_alone(recompiled([*mixed, "rate == 0.3", *sizes(8, 7, 6)]))
    assert (judge(RULE, fewer).status, judge(other, fewer).status) == ("clean", "flagged")


def test_without_steps_every_compilation_counts():
    log = replace(recompiled(sizes(32, 31, 30, 29)), steps=())
    (finding,) = judge(RULE, log_alone(log)).findings
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.severity) == (3 * SECOND, None, "high")


def test_older_guards_name_local_and_value_otherwise():
    guards = [f"L['x'].size()[0] == {size}" for size in (4, 5, 6)]
    (finding,) = judge(RULE, log_alone(recompiled(guards))).findings
    assert "3 sizes of x.size()[0] (4, 5, 6)" in finding.title


def test_without_the_log_or_a_compilation_it_abstains():
    without = judge(RULE, TraceBuilder().build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")
    assert judge(RULE, log_alone(CompileLog(path="log"))).reason == "nothing was compiled"
