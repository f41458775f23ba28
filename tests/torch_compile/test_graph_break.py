"""Lines that end graphs: their time between graphs, on a CPU and with an accelerator, and what they are not."""

from __future__ import annotations

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.compile_log import CodeLine, CompileLog
from perfscope.model.trace import RECORDED, CallKind
from tests.build import EVERYTHING, TraceBuilder, replace
from tests.torch_compile.logs import (
    AFTER_TRACE_S,
    CPU,
    MODEL_FRAME,
    STAGE_FRAME,
    compilation,
    graph_break,
    log_alone,
    with_log,
)

RULE = load_rule("graph_break")
RESUME = CodeLine(file=MODEL_FRAME.file, line=12, function="torch_dynamo_resume_in_forward_at_11")
BEFORE = -AFTER_TRACE_S
LOG = CompileLog(
    path="log",
    compiles=(compilation("0/0"), compilation("1/0", 2.0, place=RESUME, function=RESUME.function)),
    breaks=(graph_break("0/0"),),
)


def broken(builder: TraceBuilder, at: float = 0.0, ids: tuple[str | None, str | None] = ("0/0", "1/0")) -> None:
    """A frame of 400 us whose first graph ends after 200 us; 110 us of it are between or after graphs."""
    names = [f"Torch-Compiled Region: {one}" if one else "Torch-Compiled Region" for one in ids]
    builder.op(names[0], at + 100, at + 500)
    builder.op("CompiledFunction", at + 120, at + 300)
    builder.annotation("## Call CompiledFxGraph abc ##", at + 130, at + 290)
    builder.op("aten::item", at + 310, at + 330)
    builder.op("aten::_local_scalar_dense", at + 312, at + 328)
    builder.op("TorchDynamo Cache Lookup", at + 335, at + 340)
    builder.op(names[1], at + 340, at + 480)
    builder.op("CompiledFunction", at + 360, at + 450)


def on_cpu(step_us: float = 1000.0) -> TraceBuilder:
    builder = TraceBuilder(recorded=CPU)
    builder.step(1, 0, step_us)
    broken(builder)
    return builder


def test_the_time_outside_of_graphs_is_the_cost():
    (finding,) = judge(RULE, with_log(on_cpu(), LOG)).findings
    # 300 to 340 and 480 to 500 in the frame, 340 to 360 and 450 to 480 in its continuation; 100 to 120 in no break
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (110_000, 110_000, "measured")
    assert (finding.where.file, finding.where.line) == (STAGE_FRAME.file, STAGE_FRAME.line)
    assert (finding.subject, finding.severity) == ("graph break in branching", "high")
    assert "Data-dependent branching" in finding.detail
    assert "1 wait for a value" in finding.detail
    assert "torch.where" in finding.advice
    (row,) = finding.evidence
    assert str(row["doc"]).endswith("/gb/gb0170.html")
    assert (row["compile_id"], row["compile_ns"], row["line_host_ns"]) == ("0/0", 1_000_000_000, 110_000)


def test_the_threshold_is_a_thousandth_of_the_step():
    assert judge(RULE, with_log(on_cpu(110_000.0), LOG)).status == "flagged"
    assert judge(RULE, with_log(on_cpu(110_100.0), LOG)).status == "clean"


def test_one_line_is_one_finding_however_many_frames_tell_of_it():
    branching = compilation("2/0", 4.0, place=STAGE_FRAME, function="branching")
    log = replace(
        LOG,
        compiles=(*LOG.compiles, branching),
        breaks=(graph_break("0/0"), graph_break("2/0"), graph_break("0/0", reason="another attempt")),
    )
    (finding,) = judge(RULE, with_log(on_cpu(), log)).findings
    assert [row["compile_id"] for row in finding.evidence] == ["0/0", "2/0", "0/0"]
    assert finding.cost_ns == 110_000


def test_compiling_is_neither_cost_nor_step():
    compiling = compilation("1/1", BEFORE + 325e-6, 10e-6, place=RESUME, function=RESUME.function)
    log = replace(LOG, compiles=(*LOG.compiles, compiling))
    (finding,) = judge(RULE, with_log(on_cpu(), log)).findings
    assert finding.cost_ns == 100_000  # 325 to 335 us is compiling
    long = compilation("2/0", BEFORE + 0.01, 0.09)  # most of a step of 110.1 ms
    assert judge(RULE, with_log(on_cpu(110_100.0), LOG)).status == "clean"
    slow = with_log(on_cpu(110_100.0), replace(LOG, compiles=(*LOG.compiles, long)))
    assert judge(RULE, slow).status == "flagged"


def test_two_lines_share_no_time():
    other = CodeLine(file=MODEL_FRAME.file, line=14, function="forward")
    log = replace(LOG, breaks=(graph_break("0/0"), graph_break("1/0", other, stack=(other,))))
    found = judge(RULE, with_log(on_cpu(), log)).findings
    assert {finding.where.line: finding.cost_ns for finding in found} == {STAGE_FRAME.line: 60_000, 14: 50_000}


def test_frames_that_compile_whole_are_clean():
    assert judge(RULE, with_log(on_cpu(), replace(LOG, breaks=()))).status == "clean"


def test_a_break_that_no_recorded_step_runs_into_is_clean():
    builder = TraceBuilder(recorded=CPU)
    builder.step(1, 0, 1000)
    broken(builder, ids=("7/0", "8/0"))
    assert judge(RULE, with_log(builder, LOG)).status == "clean"
    outside = TraceBuilder(recorded=CPU)
    outside.step(1, 1000, 2000)
    broken(outside)
    broken(outside, 1000, ("7/0", "8/0"))
    assert judge(RULE, with_log(outside, LOG)).status == "clean"


def test_after_a_recompilation_another_id_runs_the_line():
    builder = TraceBuilder(recorded=CPU)
    builder.step(1, 0, 1000)
    broken(builder, ids=("0/1", "1/0"))
    log = replace(LOG, compiles=(*LOG.compiles, compilation("0/1", 9.0)), breaks=(*LOG.breaks, graph_break("0/1")))
    (finding,) = judge(RULE, with_log(builder, log)).findings
    assert finding.cost_ns == 110_000


def test_breaks_that_torch_makes_around_an_optimizer_step_are_clean():
    update = CodeLine(file="/home/user/train.py", line=9, function="update", code="opt.step()")
    wrapper = CodeLine(
        file="/venv/lib/python3.12/site-packages/torch/optim/lr_scheduler.py", line=166, function="wrapper"
    )
    use_grad = replace(wrapper, file="/venv/lib/python3.12/site-packages/torch/optim/optimizer.py", line=79)
    called = graph_break("0/0", update, doc_id="gb0007", stack=(update,))
    inside = graph_break("1/0", use_grad, doc_id="gb0025", stack=(update, wrapper, use_grad))
    log = replace(LOG, breaks=(called, inside))
    assert judge(RULE, with_log(on_cpu(), log)).status == "clean"
    elsewhere = replace(called, place=replace(update, line=8), stack=(replace(update, line=8),))
    assert judge(RULE, with_log(on_cpu(), replace(log, breaks=(elsewhere, inside)))).status == "flagged"
    branch = replace(called, doc_id="gb0170")
    assert judge(RULE, with_log(on_cpu(), replace(log, breaks=(branch, inside)))).status == "flagged"


def test_frames_left_to_eager_mode_are_another_rules():
    log = replace(LOG, breaks=(graph_break("0/0", skipped_frame=True),))
    assert judge(RULE, with_log(on_cpu(), log)).status == "clean"


@pytest.mark.parametrize("how", ["log alone", "no ids", "graphs leave no mark"])
def test_without_the_time_it_is_structural(how: str):
    builder = TraceBuilder(recorded=CPU)
    builder.step(1, 0, 1000)
    if how == "no ids":
        broken(builder, ids=(None, None))
    elif how == "graphs leave no mark":
        builder.op("Torch-Compiled Region: 0/0", 100, 500)
    trace = log_alone(LOG) if how == "log alone" else with_log(builder, LOG)
    (finding,) = judge(RULE, trace).findings
    assert (finding.basis, finding.cost_ns, finding.cost_ns_per_step) == ("structural", None, None)
    assert finding.where.line == STAGE_FRAME.line


def test_a_break_of_a_frame_that_the_log_does_not_name():
    log = CompileLog(path="log", compiles=(compilation("0/0"),), breaks=(graph_break("7/0", None, stack=()),))
    (finding,) = judge(RULE, log_alone(log)).findings
    assert (finding.subject, finding.where.line) == ("graph break in a frame", None)


def on_device(*, waits: bool) -> TraceBuilder:
    """Before the break 100 us of work are queued; the next graph launches at 400."""
    builder = TraceBuilder(recorded=EVERYTHING)
    builder.step(1, 0, 1000)
    broken(builder)
    builder.launched("first", 150, 160, 320 if waits else 600, correlation=1)
    if waits:
        builder.call("cudaStreamSynchronize", 314, 322, kind=CallKind.SYNC)
    builder.launched("second", 400, 410 if waits else 600, 800, correlation=2)
    return builder


def test_a_queue_that_stays_full_hides_the_break():
    assert judge(RULE, with_log(on_device(waits=False), LOG)).status == "clean"


def test_a_wait_makes_the_device_idle_until_the_next_graph():
    (finding,) = judge(RULE, with_log(on_device(waits=True), LOG)).findings
    assert finding.cost_ns == 90_000  # from 320 to 410
    assert "the device loses" in finding.detail
    assert finding.evidence[0]["line_sync_wait_ns"] == 8_000


def test_without_the_log_or_a_compilation_it_abstains():
    without = judge(RULE, on_cpu().build())
    assert (without.status, without.reason) == ("abstained", f"not recorded: {RECORDED['compile_log']}")
    nothing = judge(RULE, log_alone(CompileLog(path="log")))
    assert (nothing.status, nothing.reason) == ("abstained", "nothing was compiled")
