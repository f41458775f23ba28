"""Functions left to eager mode: the time of their ops if a Python stack shows them, and cases that are no fallback."""

from __future__ import annotations

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.compile_log import CodeLine, CompileLog, GraphBreak
from perfscope.model.trace import RECORDED, Trace
from tests.build import EVERYTHING, TraceBuilder, replace
from tests.torch_compile.logs import (
    CPU,
    MODEL_FRAME,
    SECOND,
    STAGE_FRAME,
    compilation,
    graph_break,
    log_alone,
    with_log,
)

RULE = load_rule("eager_fallback")
BLOCK = CodeLine(file="/home/user/block.py", line=88, function="forward")
LOG = CompileLog(
    path="log",
    compiles=(
        compilation("0/0", has_code=False, graph_ops=None, traced_graphs=0, fail_type="Unsupported"),
        compilation(
            "1/0", 2.0, place=BLOCK, stack=(CodeLine(file=MODEL_FRAME.file, line=14, function="forward"), BLOCK)
        ),
    ),
    breaks=(graph_break("0/0", skipped_frame=True, hints=("Set capture_scalar_outputs.\nOr not.",)),),
)


def eager(recorded: frozenset[str], *, stack: bool, step_us: float = 1000.0) -> TraceBuilder:
    """``forward`` (100 to 500): an embedding, a compiled block, a norm and a product; then a loss of the caller's."""
    builder = TraceBuilder(recorded=recorded)
    builder.step(1, 0, step_us)
    if stack:
        builder.python("train.py(60): loss_of", 90, 700)
        builder.python("user/model.py(10): forward", 100, 500)
    builder.op("aten::embedding", 110, 140)
    builder.op("aten::index_select", 115, 135)
    builder.op("Torch-Compiled Region: 1/0", 150, 400)
    builder.op("CompiledFunction", 160, 390)
    builder.op("aten::layer_norm", 420, 440)
    builder.op("aten::linear", 450, 490)
    builder.op("aten::cross_entropy_loss", 600, 690)
    return builder


def detailed(*, step_us: float = 1000.0) -> Trace:
    """A trace without a stack, and a second recording that has one."""
    second = eager(CPU | {"python_stack"}, stack=True).build()
    return with_log(eager(CPU, stack=False, step_us=step_us), LOG, detail=second)


def test_own_ops_are_found_by_the_stack_of_a_second_recording():
    (finding,) = judge(RULE, detailed()).findings
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (100_000, 100_000, "measured")  # 30 and 70 us
    assert (finding.where.file, finding.where.line) == (STAGE_FRAME.file, STAGE_FRAME.line)
    assert (finding.subject, finding.severity) == ("forward in eager mode", "high")
    assert "Data-dependent branching" in finding.detail
    assert "1 function it calls is compiled" in finding.detail
    assert finding.advice.endswith("Hint from torch: Set capture_scalar_outputs.")
    assert [(row["what"], row["compile_id"]) for row in finding.evidence] == [("skipped", "0/0"), ("compiled", "1/0")]


def test_a_stack_in_the_trace_itself_does_as_well():
    (finding,) = judge(RULE, with_log(eager(CPU | {"python_stack"}, stack=True), LOG)).findings
    assert finding.cost_ns == 100_000


def test_the_threshold_is_a_thousandth_of_the_step():
    assert judge(RULE, detailed(step_us=100_000)).status == "flagged"
    assert judge(RULE, detailed(step_us=100_100)).status == "clean"


def test_a_frame_whose_ops_are_all_compiled_is_clean():
    builder = TraceBuilder(recorded=CPU | {"python_stack"})
    builder.step(1, 0, 1000)
    builder.python("user/model.py(10): forward", 100, 500)
    builder.op("Torch-Compiled Region: 1/0", 150, 400)
    assert judge(RULE, with_log(builder, LOG)).status == "clean"


def test_a_graph_break_is_no_fallback():
    log = replace(LOG, compiles=(compilation("0/0"),), breaks=(graph_break("0/0"),))
    assert judge(RULE, with_log(eager(CPU, stack=False), log)).status == "clean"


def test_a_line_that_also_ends_graphs_is_one_finding() -> None:
    log = replace(
        LOG,
        compiles=(*LOG.compiles, compilation("2/0")),
        breaks=(*LOG.breaks, graph_break("2/0"), graph_break("2/0", place=replace(STAGE_FRAME, line=70))),
    )
    (fallback,) = judge(RULE, log_alone(log)).findings
    assert [row["what"] for row in fallback.evidence] == ["skipped", "compiled", "ends a graph"]
    (other,) = judge(load_rule("graph_break"), log_alone(log)).findings
    assert (fallback.where.line, other.where.line) == (STAGE_FRAME.line, 70)


def test_a_frame_with_nothing_to_compile_is_no_fallback():
    log = replace(LOG, compiles=(compilation("0/0", has_code=False, graph_ops=0, traced_graphs=0),), breaks=())
    assert judge(RULE, log_alone(log)).status == "clean"


def test_without_a_stack_it_is_structural():
    for trace in (with_log(eager(CPU, stack=False), LOG), log_alone(LOG)):
        (finding,) = judge(RULE, trace).findings
        assert (finding.basis, finding.cost_ns, finding.severity) == ("structural", None, "medium")


def test_a_frame_at_its_limit_is_named_by_its_own_line():
    skip = GraphBreak(compile_id="0/8", reason="Dynamo recompile limit exceeded", doc_id="gb0039", skipped_frame=True)
    log = CompileLog(path="log", compiles=(compilation("0/0"), compilation("0/8", 9.0, has_code=False)), breaks=(skip,))
    (finding,) = judge(RULE, log_alone(log)).findings
    assert "its limit of compilations is reached" in finding.detail
    assert (finding.where.file, finding.where.line) == (MODEL_FRAME.file, MODEL_FRAME.line)
    assert "recompile_limit only moves it" in finding.advice


def test_kernels_of_an_accelerator_count_while_nothing_else_runs():
    builder = eager(EVERYTHING, stack=True)
    builder.launched("embedding", 112, 120, 150, correlation=1)
    builder.launched("block", 200, 210, 420, correlation=2)
    builder.launched("norm", 425, 430, 470, correlation=3)
    builder.launched("product", 455, 470, 530, correlation=4)
    (finding,) = judge(RULE, with_log(builder, LOG)).findings
    # the rule's bound is 170: kernels 30 + 40 + 60, 30 of the 60 us idle after the embedding (its host time), and 10
    # from 420 to the norm; replayed, the block is launched at 170 and ends the device's work at 390 instead of 530
    assert finding.cost_ns == finding.path_ns == 140_000
    assert "lost time of the device" in finding.detail


def test_inner_frames_are_those_reached_through_it():
    other = compilation(
        "2/0", 3.0, place=BLOCK, stack=(CodeLine(file="/home/user/eval.py", line=3, function="score"), BLOCK)
    )
    (finding,) = judge(RULE, log_alone(replace(LOG, compiles=(*LOG.compiles, other)))).findings
    assert [row["compile_id"] for row in finding.evidence if row["what"] == "compiled"] == ["1/0"]
    assert LOG.compiles[1].duration_ns == SECOND


def test_without_the_log_or_a_compilation_it_abstains():
    without = judge(RULE, eager(CPU, stack=False).build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")
    assert judge(RULE, log_alone(CompileLog(path="log"))).reason == "nothing was compiled"


def test_frames_of_one_name_at_one_line_are_one_finding_with_the_time_of_both():
    outer = CodeLine(file="/home/user/outer.py", line=5, function="forward")
    frame = compilation("3/0", 5.0, has_code=False, place=outer, graph_ops=None, traced_graphs=0)
    log = replace(LOG, compiles=(*LOG.compiles, frame), breaks=(*LOG.breaks, graph_break("3/0", skipped_frame=True)))
    builder = eager(CPU | {"python_stack"}, stack=True)
    builder.python("user/outer.py(5): forward", 720, 800)
    builder.op("aten::add", 730, 750)
    (finding,) = judge(RULE, with_log(builder, log)).findings
    assert finding.cost_ns == 120_000
    assert [row["compile_id"] for row in finding.evidence if row["what"] == "skipped"] == ["0/0", "3/0"]
