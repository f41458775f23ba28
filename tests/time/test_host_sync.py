from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.account import step_accounts
from perfscope.analyzers.time.calls import base_name, blocking_calls, blocks_by_name, profiler_syncs
from perfscope.analyzers.time.rules import host_sync
from perfscope.model.compile_log import CodeLine, CompileLog, GraphBreak
from perfscope.model.finding import AbstainError
from perfscope.model.jax_log import HostRead
from perfscope.model.trace import CallKind, Source, Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.rules import judged_by


@pytest.mark.parametrize(
    ("name", "base"),
    [("cudaFree_v3020", "cudaFree"), ("cuMemcpyDtoH_v2", "cuMemcpyDtoH"), ("cudaMemcpy_ptds", "cudaMemcpy"),
     ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"), ("hipFree", "hipFree")],
)  # fmt: skip
def test_version_suffixes_are_no_part_of_a_name(name, base):
    assert base_name(name) == base


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cuCtxSynchronize", "hipMemcpyDtoH", "cudaFree", "synchronizeStream"]
)
def test_names_that_block(name):
    assert blocks_by_name(name)


@pytest.mark.parametrize(
    "name",
    ["cudaStreamWaitEvent", "cudaMemcpyAsync", "hipMemcpyAsync", "cuMemcpyDtoHAsync_v2", "cudaFreeAsync",
     "cudaLaunchKernel", "cudaEventQuery", "cudaGraphLaunch", "hipEventRecord"],
)  # fmt: skip
def test_names_that_do_not_block(name):
    assert not blocks_by_name(name)


def _with_device_wait(start: float, **around: tuple[float, float]) -> TraceBuilder:
    b = TraceBuilder()
    b.launched("a", 10, 20, 30, correlation=1)
    b.launched("b", 50, 60, 70, correlation=2)
    b.call("cudaDeviceSynchronize", start, start + 5, kind=CallKind.SYNC)
    for name, (begin, end) in around.items():
        b.op(name, begin, end)
    return b


@pytest.mark.parametrize("start", [2, 60])
def test_a_device_wait_before_or_after_all_launches_and_outside_ops_is_the_profilers(start):
    trace = _with_device_wait(start).build()
    assert len(profiler_syncs(trace)) == 1
    assert len(blocking_calls(trace)) == 0


@pytest.mark.parametrize("start", [20, 40])
def test_a_device_wait_between_launches_is_the_programs(start):
    trace = _with_device_wait(start).build()
    assert len(profiler_syncs(trace)) == 0
    assert len(blocking_calls(trace)) == 1


def test_a_device_wait_inside_an_op_is_the_programs():
    trace = _with_device_wait(60, op=(55, 80)).build()
    assert len(blocking_calls(trace)) == 1


def test_a_device_wait_in_a_frame_of_the_profiler_is_not():
    b = _with_device_wait(40)
    b.python("torch/autograd/profiler.py(419): __exit__", 35, 50)
    assert len(blocking_calls(b.build())) == 0


def test_a_stream_wait_is_never_the_profilers():
    b = TraceBuilder()
    b.call("cudaStreamSynchronize", 0, 5, kind=CallKind.SYNC)
    assert len(blocking_calls(b.build())) == 1


def read(step: int | None, *, line: int = 7, ready: bool | None = False, **more: Any) -> HostRead:
    told: dict[str, Any] = {
        "call": "float",
        "begin_ns": 0,
        "duration_ns": 2_000_000,
        "traced": False,
        "main_thread": True,
    }
    return HostRead(**{**told, "step": step, "file": "train.py", "line": line, "ready": ready, "bytes": 4, **more})


def trace(*reads: HostRead, recorded: frozenset[str] = frozenset({"host_reads"})) -> Trace:
    source = Source(path="x", format="run", rank=None, events_read=0, events_unplaced=0)
    return Trace(source=source, strings=[], rows={}, recorded=recorded, host_reads=reads)


def test_a_line_that_reads_in_every_step_is_named_with_its_wait() -> None:
    (found,) = host_sync.check(trace(*(read(step) for step in range(4))))
    assert found.where.label() == "train.py:7"
    assert (found.basis, found.cost_ns, found.severity) == ("structural", None, "medium")
    assert found.title == "`float` waits for the device in 4 of 4 calls, 2.00 ms per call (each step)"
    assert found.evidence == ({"call": "float", "reads": 4, "not_ready": 4, "wait_ns": 8_000_000, "bytes": 16},)


def test_elements_that_are_read_one_after_the_other_are_copied_at_once() -> None:
    (found,) = host_sync.check(trace(*(read(step, call="index") for step in range(3) for _ in range(16))))
    assert "np.asarray(x)" in found.advice


def test_a_read_inside_a_library_is_told_apart_and_has_another_fix() -> None:
    own = [read(step) for step in range(4)]
    inner = [read(step, call="block_until_ready", library="equinox/_jit.py:271") for step in range(4)]
    plain, found = host_sync.check(trace(*own, *inner))
    assert plain.where == found.where
    assert found.title.startswith("`block_until_ready` in equinox waits in 4 of 4 calls")
    assert "equinox/_jit.py:271" in found.detail
    assert "`equinox`" in found.advice != plain.advice


def test_a_read_each_fifth_step_is_told_per_call() -> None:
    (found,) = host_sync.check(
        trace(*(read(step, ready=step == 0, duration_ns=492_000_000) for step in range(0, 20, 5)))
    )
    assert found.title == "`float` waits for the device in 3 of 4 calls, 492 ms per call (every 5th step)"
    assert found.severity == "low"


def test_a_read_each_twentieth_step_is_clean() -> None:
    assert list(host_sync.check(trace(*(read(step) for step in range(0, 60, 20))))) == []


def test_a_read_in_one_of_many_steps_that_were_watched_is_clean() -> None:
    seldom = msgspec.structs.replace(trace(read(21), read(21)), step_times_ns=(1_000_000,) * 28)
    assert list(host_sync.check(seldom)) == []
    (found,) = host_sync.check(msgspec.structs.replace(seldom, step_times_ns=(1_000_000,) * 4))
    assert found.title.endswith("(every 4th step)")


def test_an_occasional_log_stays_clean() -> None:
    often = [read(step) for step in range(10)]
    assert len(list(host_sync.check(trace(*often, *(read(step, line=19) for step in range(4)))))) == 1
    assert len(list(host_sync.check(trace(*often, *(read(step, line=19) for step in range(5)))))) == 2


@pytest.mark.parametrize(("line", "findings"), [(9, 1), (10, 2)])
def test_reads_of_near_lines_are_one_finding(line: int, findings: int) -> None:
    steps = range(4)
    found = list(host_sync.check(trace(*(read(s) for s in steps), *(read(s, line=line) for s in steps))))
    assert len(found) == findings
    assert sum(int(finding.evidence[0]["reads"] or 0) for finding in found) == 8
    assert [finding.where.line for finding in found] == [7, 10][:findings]
    assert found[0].title.endswith(", lines 7 to 9") == (findings == 1)


def test_reads_of_near_lines_in_another_rhythm_or_function_are_not_joined() -> None:
    often = [read(step) for step in range(10)]
    seldom = [read(step, line=8) for step in range(0, 10, 2)]
    elsewhere = [read(step, line=8, function="other") for step in range(10)]
    assert [len(list(host_sync.check(trace(*often, *more)))) for more in (seldom, elsewhere)] == [2, 2]


def test_reads_of_ready_arrays_are_low_and_other_threads_and_set_up_are_left_out() -> None:
    (found,) = host_sync.check(trace(read(0, ready=True), read(1, ready=True)))
    assert found.severity == "low"
    assert found.title == "`float` reads an array that is ready in 2 calls, 2.00 ms per call (each step)"
    assert list(host_sync.check(trace(read(None), read(0, main_thread=False)))) == []


def test_without_a_word_of_reads_it_abstains() -> None:
    with pytest.raises(AbstainError, match="no other evidence"):
        host_sync.check(trace(recorded=frozenset()))


RULE = load_rule("host_sync")
STEP = 1000.0


_judge = judged_by("host_sync")


def _one_wait(idle: float, *, wait_until: float = 105.0, op: str = "aten::_local_scalar_dense") -> TraceBuilder:
    """A step of 1 ms: work until 100 us, a wait from 50 us, then ``idle`` us of nothing, then work again."""
    b = TraceBuilder()
    b.step(1, 0, STEP)
    b.python("<built-in function perf_counter_ns>", -2, -1)
    b.python("train.py(80): step", 0, STEP)
    b.launched("work", 1, 10, 100, correlation=1)
    b.op(op, 49, wait_until + 1)
    b.call("cudaStreamSynchronize", 50, wait_until, kind=CallKind.SYNC)
    b.launched("next", 100 + idle - 2, 100 + idle, STEP, correlation=2)
    return b


def test_flagged_with_as_much_of_the_idle_time_as_the_wait_was_long():
    outcome = _judge(_one_wait(200))
    (finding,) = outcome.findings
    assert (outcome.status, finding.basis, finding.severity) == ("flagged", "measured", "high")
    assert (finding.cost_ns, finding.cost_ns_per_step) == (50_000, 50_000)
    assert (finding.where.op, finding.where.file, finding.where.line) == ("aten::_local_scalar_dense", "train.py", 80)
    assert "`.item()`" in finding.title
    assert finding.evidence[0]["wait_ns"] == 55_000
    assert finding.evidence[0]["line_is"] == "where step begins"


def test_the_rule_and_the_account_agree():
    b = _one_wait(200)
    b.launched("again", 310, 320, 400, correlation=12, stream=8)
    trace = b.build()
    (account,) = trace.fact(step_accounts)
    assert sum(finding.cost_ns or 0 for finding in judge(RULE, trace).findings) == account.total_ns["sync"] == 50_000


def test_a_wait_behind_the_last_step_is_none():
    b = TraceBuilder()
    b.step(1, 0, 300)
    b.launched("work", 1, 10, 300, correlation=1)
    b.op("aten::item", 301, 500)
    b.call("cudaStreamSynchronize", 302, 499, kind=CallKind.SYNC)
    b.launched("late", 900, 910, 950, correlation=2)
    assert _judge(b).status == "clean"


def test_the_threshold_is_one_percent_of_the_step():
    assert _judge(_one_wait(12.0, wait_until=101)).status == "flagged"
    assert _judge(_one_wait(11.9, wait_until=101)).status == "clean"


def test_a_wait_while_the_device_stays_busy_costs_nothing():
    b = TraceBuilder()
    b.step(1, 0, STEP)
    b.launched("work", 1, 10, 100, correlation=1)
    b.launched("behind", 5, 100, STEP, correlation=2)
    b.op("aten::item", 49, 500)
    b.call("cudaEventSynchronize", 50, 499, kind=CallKind.SYNC)
    assert _judge(b).status == "clean"


def test_harmless_waits_are_named_as_costing_nothing():
    b = _one_wait(200)
    b.launched("elsewhere", 400, 500, 900, correlation=9, stream=9)
    b.op("aten::nonzero", 501, 699)
    b.call("cudaStreamSynchronize", 510, 690, kind=CallKind.SYNC)
    (finding,) = _judge(b).findings
    assert "1 other waits (180 us of waiting) left the device busy: they cost nothing" in finding.detail
    assert [row["idle_ns"] for row in finding.evidence] == [50_000, 0]


def test_the_wait_of_a_data_loader_is_not_charged_to_the_wait_before_it():
    b = _one_wait(200)
    b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 110, 290)
    (finding,) = _judge(b).findings
    assert finding.cost_ns == 10_000


def test_the_profilers_own_wait_is_no_finding():
    b = TraceBuilder()
    b.step(1, 0, STEP)
    b.launched("work", 100, 110, 200, correlation=1)
    b.launched("late", 500, 510, 600, correlation=2)
    b.call("cudaDeviceSynchronize", 700, 900, kind=CallKind.SYNC)
    assert _judge(b).status == "clean"


def test_freeing_memory_gets_the_advice_for_memory():
    b = TraceBuilder()
    b.step(1, 0, STEP)
    b.launched("work", 1, 10, 100, correlation=1)
    b.op("aten::cat", 49, 106)
    b.call("cudaFree", 50, 105, kind=CallKind.MEMORY)
    b.launched("next", 298, 300, STEP, correlation=2)
    (finding,) = _judge(b).findings
    assert finding.title.startswith("cudaFree in aten::cat drains")
    assert "PYTORCH_CUDA_ALLOC_CONF" in finding.advice


def test_two_lines_are_two_findings_worst_first():
    b = TraceBuilder()
    b.step(1, 0, STEP)
    for number, (begin, idle) in enumerate(((100, 50), (400, 150))):
        b.python(f"moe.py({10 * (number + 1)}): f{number}", begin - 100, begin + 10)
        b.launched("work", begin - 99, begin - 95, begin, correlation=2 * number)
        b.op("aten::nonzero", begin - 50, begin + 5)
        b.call("cudaStreamSynchronize", begin - 49, begin + 4, kind=CallKind.SYNC)
        b.launched("next", begin + idle - 2, begin + idle, begin + idle + 1, correlation=2 * number + 1)
    assert [(f.cost_ns, f.where.line) for f in _judge(b).findings] == [(49_000, 20), (48_000, 10)]


def test_a_line_with_less_than_a_thousandth_gets_no_finding():
    for idle, findings in ((1.0, 2), (0.9, 1)):
        b = TraceBuilder()
        b.step(1, 0, STEP)
        b.launched("work", 1, 10, 100, correlation=1)
        b.op("aten::item", 49, 106)
        b.call("cudaStreamSynchronize", 50, 105, kind=CallKind.SYNC)
        b.launched("next", 298, 300, 395, correlation=2)
        b.op("aten::nonzero", 301, 395.2)
        b.call("cudaStreamSynchronize", 302, 395.1, kind=CallKind.SYNC)
        b.launched("last", 395 + idle, 397, STEP, correlation=3)
        assert len(_judge(b).findings) == findings


def test_devices_that_idle_side_by_side_are_not_added_up():
    b = _one_wait(200)
    b.launched("work", 2, 12, 90, correlation=11, device=1)
    b.launched("next", 308, 310, STEP, correlation=12, device=1)
    (finding,) = _judge(b).findings
    assert finding.cost_ns == 50_000


def test_abstains_where_most_idle_time_follows_unknown_launches():
    b = TraceBuilder()
    b.step(1, 0, STEP)
    b.kernel("a", 0, 100)
    b.kernel("b", 500, STEP)
    outcome = _judge(b)
    assert outcome.status == "abstained"
    assert "launch was not recorded" in (outcome.reason or "")


def test_abstains_without_runtime_calls():
    b = TraceBuilder(recorded=EVERYTHING - {"runtime_calls", "launch_links"})
    b.kernel("a", 0, 100)
    assert _judge(b).status == "abstained"


def test_abstains_where_the_profiler_records_launches_only():
    b = TraceBuilder(recorded=EVERYTHING - {"waiting_calls"})
    b.launched("a", 0, 5, 10, correlation=1)
    b.launched("b", 500, 510, 520, correlation=2)
    outcome = _judge(b)
    assert outcome.status == "abstained"
    assert "no calls that wait" in (outcome.reason or "")


def test_abstains_without_device_work_and_without_an_op_graph():
    b = TraceBuilder(recorded=frozenset({"host_ops"}))
    b.op("aten::item", 0, 10)
    assert _judge(b).status == "abstained"


def _cpu_run(*reads: tuple[str, str | None, int, str]) -> TraceBuilder:
    """A run on a CPU whose step runs these ops: (op, kind of read, line, phase)."""
    g = GraphBuilder()
    x = g.input((4,))
    g.op("mul", [x, x], file="moe.py", line=1, phase="forward")
    for op, kind, line, phase in reads:
        g.op(op, [x], file="moe.py", line=line, phase=phase, host_read=kind)
    b = TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=g.graph(live=[]))
    b.op("aten::mul", 0, 10)
    return b


def test_on_cpu_reads_are_structural_and_one_finding_a_line():
    reads: list[tuple[str, str | None, int, str]] = [("nonzero", "nonzero", 41, "forward")] * 8
    reads += [("_fused_adamw_", None, 50, "optimizer"), ("_local_scalar_dense", "item", 60, "other")]
    outcome = _judge(_cpu_run(*reads))
    assert outcome.status == "flagged"
    by_line = {finding.where.line: finding for finding in outcome.findings}
    assert set(by_line) == {41, 60}
    assert all(f.basis == "structural" and f.cost_ns is None and f.cost_ns_per_step is None for f in by_line.values())
    assert "8 times per step" in by_line[41].title
    assert (by_line[41].severity, by_line[60].severity) == ("medium", "low")
    assert "read after the step" in by_line[60].detail
    assert "read after the step" not in by_line[41].detail
    assert by_line[41].evidence[0]["reads_per_step"] == 8


@pytest.mark.parametrize(("lines", "found"), [((41, 42, 44), [41]), ((41, 44), [41, 44]), ((44, 42, 41), [44])])
def test_on_cpu_reads_of_near_lines_are_one_finding(lines: tuple[int, ...], found: list[int]) -> None:
    findings = _judge(_cpu_run(*(("_local_scalar_dense", "item", line, "other") for line in lines))).findings
    assert [finding.where.line for finding in findings] == found
    assert sum(int(finding.evidence[0]["reads_per_step"] or 0) for finding in findings) == len(lines)


def test_on_cpu_reads_of_other_kinds_or_functions_are_not_joined() -> None:
    assert len(_judge(_cpu_run(("nonzero", "nonzero", 41, "forward"), ("item", "item", 41, "forward"))).findings) == 2
    g = GraphBuilder()
    for line, function in ((3, "loss"), (4, "accuracy")):
        g.op("item", [g.input((1,))], file="moe.py", line=line, function=function, host_read="item")
    b = TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=g.graph(live=[]))
    assert len(_judge(b).findings) == 2


@pytest.mark.parametrize(("tensors", "fix"), [(1, "x.tolist()"), (20, "add it to a tensor")])
def test_elements_of_one_tensor_are_read_at_once_and_results_of_a_loop_later(tensors: int, fix: str) -> None:
    g = GraphBuilder()
    values = [g.input((20,)) for _ in range(tensors)]
    for row in range(20):
        g.op("item", [g.view(values[row % tensors], (1,))], file="moe.py", line=41, host_read="item")
    (found,) = _judge(TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=g.graph(live=[]))).findings
    assert "20 times per step" in found.title
    assert fix in found.advice


def test_reads_inside_a_package_are_one_finding_with_its_line_of_most_reads():
    g = GraphBuilder()
    x = g.input((1,))
    for kind, line in (("bool", 10), ("item", 90), ("item", 90), ("item", 200)):
        g.op("item", [x], file="torchdiffeq/misc.py", line=line, host_read=kind)
    g.op("item", [x], file="train.py", line=10, host_read="item")
    graph = replace(g.graph(live=[]), libraries=frozenset({"torchdiffeq/misc.py"}))
    found = _judge(TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=graph)).findings
    inside, own = sorted(found, key=lambda finding: finding.where.file or "")
    assert (inside.where.file, inside.where.line, own.where.file) == ("torchdiffeq/misc.py", 90, "train.py")
    assert inside.title == "`torchdiffeq` reads a tensor on the host: 4 times per step, in 3 lines"
    assert "option of `torchdiffeq`" in inside.advice != own.advice


@pytest.mark.parametrize(("lines", "joined"), [((88, 89), True), ((88, 91), False)])
def test_the_idle_time_of_near_lines_is_their_sum(lines: tuple[int, int], joined: bool) -> None:
    g = GraphBuilder(device="cuda")
    b = TraceBuilder()
    b.step(1, 0, STEP)
    for number, line in enumerate(lines):
        begin = 100 + 300 * number
        g.op("_local_scalar_dense", [g.input((1,))], file="train.py", line=line, host_read="item")
        b.launched("work", begin - 99, begin - 95, begin, correlation=2 * number)
        b.op("aten::_local_scalar_dense", begin - 50, begin + 5)
        b.call("cudaStreamSynchronize", begin - 49, begin + 4, kind=CallKind.SYNC)
        b.launched("next", begin + 98, begin + 100, begin + 101, correlation=2 * number + 1)
    b.op_graph = g.graph(live=[])
    findings = _judge(b).findings
    assert len(findings) == (1 if joined else 2)
    assert sum(finding.cost_ns or 0 for finding in findings) == 98_000
    assert sum(finding.covers_ns["sync"] for finding in findings) == 98_000
    assert len({row["site"] for finding in findings for row in finding.evidence}) == 2
    assert findings[0].title.endswith(", lines 88 to 89") == joined


def test_the_range_check_of_one_hot_on_a_cpu_is_not_the_programs_read():
    g = GraphBuilder()
    x = g.input((4,), "int64")
    for line in (62, 62, 70):
        g.op("_local_scalar_dense", [x], file="moe.py", line=line, phase="forward", host_read="item")
    b = TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=g.graph(live=[]))
    b.op("aten::one_hot", 0, 10)
    for start in (1, 3, 20):
        b.op("aten::item", start, start + 1)
        b.op("aten::_local_scalar_dense", start, start + 0.5)
    assert [finding.where.line for finding in _judge(b).findings] == [70]


def test_on_cpu_a_read_of_what_was_made_without_an_input_is_no_wait_of_an_accelerator():
    g = GraphBuilder()
    loss = g.input((1,))
    places = g.op("randint", [], (4,), "int64", file="train.py", line=1)
    twice, mixed = g.op("add", [places, places], (4,)), g.op("add", [places, loss], (4,))
    for line, value in ((10, twice), (20, loss), (30, mixed)):
        g.op("_local_scalar_dense", [value], file="train.py", line=line, host_read="item")
    g.op("copy_", [places, loss])
    g.op("_local_scalar_dense", [places], file="train.py", line=40, host_read="item")
    b = TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=g.graph(live=[]))
    b.op("aten::mul", 0, 10)
    assert [finding.where.line for finding in _judge(b).findings] == [20, 30, 40]


def test_a_cpu_run_without_reads_is_clean():
    assert _judge(_cpu_run()).status == "clean"


def test_with_device_work_the_op_graph_gives_the_line_and_not_the_verdict():
    g = GraphBuilder(device="cuda")
    g.op("_local_scalar_dense", [g.input((1,))], file="train.py", line=88, host_read="item")
    b = _one_wait(200)
    b.op_graph = g.graph(live=[])
    (finding,) = _judge(b).findings
    assert (finding.where.line, finding.basis) == (88, "measured")
    assert finding.evidence[0]["line_is"] == "the line that ran"

    quiet = _one_wait(5, wait_until=101)
    quiet.op_graph = replace(g.graph(live=[]))
    assert _judge(quiet).status == "clean"


def _compiled(op: str = "aten::is_nonzero", steps: tuple[int, ...] = (0, 1), **log: Any) -> Trace:
    """Two steps of a compiled program on a CPU; in ``steps`` an op of ``forward`` reads a tensor."""
    b = TraceBuilder(recorded=frozenset({"host_ops", "python_stack", "steps", "compile_log"}))
    for number in range(2):
        begin = 1_000 * number
        b.step(number, begin, begin + 1_000)
        b.python("train.py(7): forward", begin + 10, begin + 500)
        b.op("aten::addmm", begin + 20, begin + 40)
        if number in steps:
            b.op(op, begin + 50, begin + 60)
            b.op("aten::_local_scalar_dense", begin + 52, begin + 58)
    return msgspec.structs.replace(b.build(), compile_log=CompileLog(path="log", **log))


def _broken(line: int, function: str = "forward") -> GraphBreak:
    return GraphBreak(
        compile_id="0/0", reason="branch", place=CodeLine(file="/home/me/train.py", line=line, function=function)
    )


def test_a_read_between_compiled_graphs_is_found_at_the_line_that_ends_the_graph():
    (finding,) = _judge(_compiled(breaks=(_broken(12),))).findings
    assert (finding.where.file, finding.where.line, finding.where.op) == ("train.py", 12, "aten::is_nonzero")
    assert (finding.basis, finding.cost_ns, finding.subject) == ("structural", None, "bool read")
    assert "torch.where" in finding.advice


@pytest.mark.parametrize("breaks", [(), (_broken(12), _broken(14)), (_broken(12, "loss"),)])
def test_without_one_line_that_ends_a_graph_there_the_function_is_named(breaks):
    (finding,) = _judge(_compiled(breaks=breaks)).findings
    assert finding.where.line == 7
    assert str(finding.evidence[0]["line_is"]).startswith("where forward ")


@pytest.mark.parametrize("trace", [_compiled(steps=()), _compiled(op="aten::add", steps=())])
def test_compiled_code_without_reads_is_clean(trace):
    assert _judge(trace).status == "clean"


def test_reads_of_an_optimizer_between_compiled_graphs_are_its_own():
    b = TraceBuilder(recorded=frozenset({"host_ops", "python_stack", "steps", "compile_log"}))
    b.step(0, 0, 1_000)
    b.python("train.py(7): train", 5, 900)
    b.annotation("Optimizer.step#Adam.step", 10, 500)
    b.op("aten::item", 20, 30)
    assert _judge(msgspec.structs.replace(b.build(), compile_log=CompileLog(path="log"))).status == "clean"


@pytest.mark.parametrize("on_device", [False, True])
def test_the_range_check_of_one_hot_is_a_read_on_a_device_alone(on_device: bool):
    b = TraceBuilder(recorded=frozenset({"host_ops", "python_stack", "steps", "compile_log"}))
    b.step(0, 0, 1_000)
    b.python("train.py(7): train", 5, 900)
    b.op("aten::one_hot", 10, 500)
    b.op("aten::item", 20, 30)
    if on_device:
        b.launched("kernel", 600, 605, 700, correlation=1)
    status = _judge(msgspec.structs.replace(b.build(), compile_log=CompileLog(path="log"))).status
    assert status == ("flagged" if on_device else "clean")
