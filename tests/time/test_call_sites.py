from __future__ import annotations

from msgspec.structs import replace

from perfscope.analyzers.time.sites import call_site, op_of
from perfscope.model.trace import MISSING
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder


def _row(trace, name: str, nth: int = 0) -> int:
    rows = [i for i, code in enumerate(trace.rows["slices"]["name"]) if trace.strings[code] == name]
    return rows[nth]


def test_the_innermost_frame_of_the_user_is_the_site_and_torchs_are_skipped():
    b = TraceBuilder()
    b.python("<built-in function perf_counter_ns>", -2, -1)
    b.python("train.py(1): <module>", 0, 100)
    b.python("train.py(20): step", 1, 99)
    b.python("nn.Module: Router_0", 2, 98)
    b.python("torch/nn/modules/module.py(1782): _call_impl", 3, 97)
    b.python("model.py(7): forward", 4, 96)
    b.python("<built-in method item of Tensor object at 0x7f>", 5, 95)
    b.op("aten::item", 6, 94)
    trace = b.build()
    site = call_site(trace, _row(trace, "aten::item"))
    assert (site.file, site.line, site.function, site.module) == ("model.py", 7, "forward", "Router_0")
    assert not site.exact
    assert site.line_is() == "where forward begins"


def test_the_line_of_a_function_that_was_running_already_is_where_it_stood():
    b = TraceBuilder()
    b.python("train.py(17): run", 0, 100)
    b.op("aten::add", 1, 2)
    b.python("<built-in function perf_counter_ns>", 10, 20)
    trace = b.build()
    assert call_site(trace, _row(trace, "aten::add")).line_is() == "where run was when recording began"
    b.python("train.py(8): late", 30, 40)
    b.op("aten::div", 31, 32)
    later = b.build()
    assert call_site(later, _row(later, "aten::div")).line_is() == "where late begins"


def test_a_call_has_the_line_that_ran_and_an_op_without_one_that_of_the_function():
    b = TraceBuilder()
    b.python("train.py(17): run", 0, 100)
    b.python("torch/_tensor.py(700): backward", 1, 20, call_line=23)
    b.python("<built-in method run_backward>", 2, 19, call_line=712)
    b.op("aten::mm", 3, 4)
    b.python("<built-in method item of Tensor object at 0x7f>", 30, 40, call_line=25)
    b.op("aten::item", 31, 32)
    b.op("aten::is_nonzero", 50, 51)
    b.python("train.py(8): inner", 60, 90, call_line=27)
    b.op("aten::div", 61, 62)
    trace = b.build()
    sites = {name: call_site(trace, _row(trace, f"aten::{name}")) for name in ("mm", "item", "is_nonzero", "div")}
    assert [(site.line, site.exact) for site in sites.values()] == [(23, True), (25, True), (17, False), (8, False)]
    assert (sites["item"].function, sites["item"].line_is()) == ("run", "the line that ran")
    assert sites["is_nonzero"].line_is() == "where run was when recording began"


def test_an_annotation_takes_the_line_of_an_op_inside_it_in_the_same_function():
    g = GraphBuilder()
    x = g.input((4,))
    g.op("randn", [x], file="tr.py", line=7, function="Slow.__getitem__")
    g.op("stack", [x], file="tr.py", line=12, function="Trainer.run")
    b = TraceBuilder(op_graph=g.graph(live=[]))
    b.python("tr.py(17): run", 0, 100)
    b.annotation("enumerate(DataLoader)#x", 10, 50)
    b.op("aten::randn", 11, 12)
    b.op("aten::stack", 20, 21)
    trace = b.build()
    site = call_site(trace, _row(trace, "enumerate(DataLoader)#x"))
    assert (site.line, site.exact, site.function) == (12, True, "Trainer.run")


def _backward(*, recompute: bool) -> TraceBuilder:
    b = TraceBuilder()
    b.python("<built-in function perf_counter_ns>", -2, -1)
    b.python("train.py(1): train", 0, 200)
    b.python("moe.py(41): forward", 10, 30)
    b.op("aten::mul", 11, 12, sequence=5, forward_thread=0)
    b.op("autograd::engine::evaluate_function: MulBackward0", 100, 150, sequence=5, forward_thread=1, tid=2)
    if recompute:
        b.python("block.py(9): again", 101, 149, tid=2)
    b.op("aten::item", 110, 120, tid=2)
    return b


def test_an_op_of_the_backward_pass_has_the_site_of_its_forward_op():
    trace = _backward(recompute=False).build()
    site = call_site(trace, _row(trace, "aten::item"))
    assert (site.file, site.line) == ("moe.py", 41)


def test_what_runs_again_in_the_backward_pass_keeps_its_own_frames():
    trace = _backward(recompute=True).build()
    assert call_site(trace, _row(trace, "aten::item")).file == "block.py"


def test_an_installed_package_is_the_site_only_where_the_user_has_none():
    package = "/v/lib/python3.11/site-packages/lib/a.py(5): run"
    for user, file in (("train.py(1): main", "train.py"), (None, "/v/lib/python3.11/site-packages/lib/a.py")):
        b = TraceBuilder()
        if user:
            b.python(user, 0, 100)
        b.python(package, 1, 99)
        b.op("aten::add", 2, 3)
        trace = b.build()
        assert call_site(trace, _row(trace, "aten::add")).file == file


def test_frames_that_do_not_cover_the_op_are_no_site():
    b = TraceBuilder()
    b.python("train.py(1): before", 0, 5)
    b.op("aten::add", 6, 7)
    trace = b.build()
    site = call_site(trace, _row(trace, "aten::add"))
    assert (site.file, site.line, site.line_is(), site.where().label()) == (None, None, None, "-")


def test_a_missing_row_has_no_site():
    assert call_site(TraceBuilder().build(), MISSING).file is None


def test_op_of_is_the_innermost_op():
    b = TraceBuilder()
    b.op("aten::item", 0, 10)
    b.python("f.py(1): f", 1, 9)
    trace = b.build()
    assert op_of(trace, _row(trace, "f.py(1): f")) == "aten::item"
    assert op_of(trace, MISSING) is None


def _steps(b: TraceBuilder, per_step: list[list[tuple[str, str | None]]], pace: float) -> None:
    """Ops of each step 10 us apart (times ``pace``), each under a frame if one is given."""
    now = 0.0
    for number, ops in enumerate(per_step):
        begin = now
        for op, frame in ops:
            if frame:
                b.python(frame, now + 1 * pace, now + 9 * pace)
            b.op(op, now + 2 * pace, now + 8 * pace)
            now += 10 * pace
        b.step(number, begin, now)


def _pair(ours: list[list[str]], theirs: list[list[tuple[str, str | None]]]):
    """A trace without stacks, and another recording of it, five times slower, with stacks."""
    detail = TraceBuilder(path="detail.json")
    detail.code("shifts the codes of all strings")
    _steps(detail, theirs, 5.0)
    timing = TraceBuilder(recorded=EVERYTHING - {"python_stack"}, detail=detail.build())
    _steps(timing, [[(op, None) for op in step] for step in ours], 1.0)
    return timing.build()


def test_a_second_recording_gives_the_line_by_order_and_not_by_time():
    theirs = [[("aten::add", "a.py(1): f"), ("aten::item", "a.py(2): g"), ("aten::item", "a.py(3): h")]]
    trace = _pair([["aten::add", "aten::item", "aten::item"]] * 2, theirs)
    lines = [call_site(trace, _row(trace, "aten::item", nth)).line for nth in range(4)]
    assert lines == [2, 3, 2, 3]


def test_a_step_that_ran_the_same_ops_is_preferred():
    other = [("aten::nonzero", "x.py(9): other"), ("aten::item", "x.py(8): other")]
    same = [("aten::add", "a.py(1): f"), ("aten::item", "a.py(2): g")]
    trace = _pair([["aten::add", "aten::item"]], [other, same])
    assert call_site(trace, _row(trace, "aten::item")).line == 2


def test_recordings_that_cannot_be_aligned_give_no_line():
    trace = _pair([["aten::item"]], [[("aten::item", "a.py(1): f"), ("aten::item", "a.py(2): g")]])
    assert call_site(trace, _row(trace, "aten::item")).line is None


def test_the_op_inside_which_it_ran_is_part_of_the_key():
    detail = TraceBuilder()
    for start, line in ((0, 1), (100, 2)):
        detail.python(f"a.py({line}): f", start, start + 50)
        detail.op("aten::to" if line == 1 else "aten::sum", start + 1, start + 49)
        detail.op("aten::copy_", start + 2, start + 3)
    timing = TraceBuilder(detail=detail.build())
    timing.op("aten::sum", 0, 50)
    timing.op("aten::copy_", 1, 2)
    timing.op("aten::to", 100, 150)
    timing.op("aten::copy_", 101, 102)
    trace = timing.build()
    assert [call_site(trace, _row(trace, "aten::copy_", nth)).line for nth in (0, 1)] == [2, 1]


def _graph(*lines: int):
    g = GraphBuilder(device="cuda")
    x = g.input((4,))
    for line in lines:
        g.op("_local_scalar_dense", [x], file="moe.py", line=line, module="moe", host_read="item")
    return g.graph(live=[])


def test_the_op_graph_knows_the_line_that_ran():
    b = TraceBuilder(op_graph=_graph(41, 52))
    b.python("moe.py(30): forward", 0, 100)
    for start in (1, 20):
        b.op("aten::item", start, start + 10)
        b.op("aten::_local_scalar_dense", start + 1, start + 9)
    trace = b.build()
    site = call_site(trace, _row(trace, "aten::_local_scalar_dense", 1))
    assert (site.file, site.line, site.exact, site.line_is()) == ("moe.py", 52, True, "the line that ran")


def test_a_graph_with_another_number_of_the_op_is_not_trusted():
    b = TraceBuilder(op_graph=_graph(41, 52))
    b.python("moe.py(30): forward", 0, 100)
    b.op("aten::_local_scalar_dense", 1, 9)
    trace = b.build()
    site = call_site(trace, _row(trace, "aten::_local_scalar_dense"))
    assert (site.line, site.exact) == (30, False)


def test_what_a_kernel_calls_inside_is_not_counted_as_dispatched():
    g = GraphBuilder()
    x = g.input((4,))
    g.op("_to_copy", [x], file="a.py", line=1)
    g.op("copy_", [x], file="a.py", line=2)
    b = TraceBuilder(op_graph=g.graph(live=[]))
    b.op("aten::_to_copy", 0, 10)
    b.op("aten::copy_", 1, 9)
    b.op("aten::copy_", 20, 30)
    trace = b.build()
    assert [call_site(trace, _row(trace, "aten::copy_", nth)).line for nth in (0, 1)] == [1, 2]


def test_sites_of_equal_place_are_equal():
    b = TraceBuilder()
    b.python("a.py(1): f", 0, 10)
    b.op("aten::add", 1, 2)
    b.op("aten::add", 3, 4)
    trace = b.build()
    first, second = (call_site(trace, _row(trace, "aten::add", nth)) for nth in (0, 1))
    assert first == second != replace(first, line=2)
