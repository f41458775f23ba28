"""The log of torch.compile, record by record: what each kind says, in the forms of each version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.compile_log import CompileLog, Place
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.load import load, load_path
from perfscope.analyzers.readers.torch_log.build import read as read_bytes
from perfscope.analyzers.readers.torch_log.graph_text import parse as graph_of
from perfscope.analyzers.readers.torch_log.output_code import parse as code_of
from perfscope.analyzers.readers.torch_log.recompiles import guard
from perfscope.analyzers.readers.torch_trace import read_log, sniff
from tests.analyzers.readers.torch_logs import LogText

NEW_BREAK = """Graph break in user code at /u/a.py:11
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print`
      in two lines.
  Hint: Avoid calling builtin `print`.
  Hint: Report it.

  Developer debug context: builtin print [ConstantVariable(str: 'password')] True

 For more details about this graph break, please visit: https://meta-pytorch.github.io/x/gb/gb0059.html

User code traceback:
  File "/u/main.py", line 29, in <module>
    m(x).backward()
    ^^^^
  File "/u/a.py", line 11, in forward
    print("hello")

Traceback (most recent call last):
  File "/torch/_dynamo/symbolic_convert.py", line 1076, in wrapper
    return inner_fn(self, inst)
torch._dynamo.exc.Unsupported: Failed to trace builtin operator
"""
OLD_BREAK = """Graph break in user code at /u/a.py:7
Reason: Unsupported: call_method TensorVariable() item () {}
User code traceback:
  File "/u/a.py", line 7, in f
    return x.item()
"""
SKIP = """Graph break in user code at /u/a.py:21
Graph Break Reason: Failed to handle graph break gracefully. Skipping the function and falling back to eager. \
Graph break encountered:

Failed to trace builtin operator
  Hint: Avoid it.

*** While handling this graph break, another graph break occurred: ***

graph break in loop
  Explanation: in a loop.
  Hint: Move it out.

User code traceback:
  File "/u/a.py", line 21, in g
    print(i)
"""
FRAME_SKIP = """Graph break: skip: from user code at:
  File "/u/a.py", line 3, in h
    torch._dynamo.graph_break()

Traceback (most recent call last):
  File "/torch/_dynamo/convert_frame.py", line 9, in _compile
    raise
torch._dynamo.exc.Unsupported: Call to `torch._dynamo.graph_break()`
  Explanation: asked for.
"""
WONT = """WON'T CONVERT f /u/a.py line 4
========== TorchDynamo Stack Trace ==========
Traceback (most recent call last):
  File "/torch/_dynamo/x.py", line 1, in y
    raise
RuntimeError: fake tensors cannot do this

========== The above exception occurred while processing the following code ==========

  File "/u/a.py", line 6, in f
    return op(x)

==========
"""


def log_of(text: LogText) -> CompileLog:
    log = read_bytes(text.text().encode(), "x")
    assert log.corrupt == 0
    return log


def break_of(payload: str) -> Any:
    (found,) = log_of(LogText().at(0).event("dynamo", "B", 1000).artifact("dynamo_graph_break_reason", payload)).breaks
    return found


def test_a_break_with_explanation_hints_and_id() -> None:
    found = break_of(NEW_BREAK)
    assert found.reason == "Failed to trace builtin operator"
    assert found.explanation == "Dynamo does not know how to trace builtin operator `print`\nin two lines."
    assert found.hints == ("Avoid calling builtin `print`.", "Report it.")
    assert found.doc_id == "gb0059"
    assert found.place == Place(file="/u/a.py", line=11, function="forward", code='print("hello")')
    assert [(one.line, one.code) for one in found.stack] == [(29, "m(x).backward()"), (11, 'print("hello")')]
    assert not found.skipped_frame
    assert "password" not in repr(found)


@pytest.mark.parametrize(
    ("payload", "reason", "line", "skipped", "hints"),
    [
        (OLD_BREAK, "Unsupported: call_method TensorVariable() item () {}", 7, False, ()),
        (SKIP, "Failed to trace builtin operator", 21, True, ("Avoid it.", "Move it out.")),
        (FRAME_SKIP, "Call to `torch._dynamo.graph_break()`", 3, True, ()),
        (WONT, "fake tensors cannot do this", 6, True, ()),
        ("something new", "something new", None, False, ()),
    ],
)
def test_breaks_of_each_age(payload: str, reason: str, line: int | None, skipped: bool, hints: tuple[str, ...]) -> None:
    found = break_of(payload)
    assert (found.reason, found.place and found.place.line) == (reason, line)
    assert (found.skipped_frame, found.hints) == (skipped, hints)


def test_breaks_before_there_was_a_record_of_them() -> None:
    text = LogText().at(0, 0, 1).metrics(co_name="f", restart_reasons=["'skip function graph_break'"])
    text.at(1, 0, 1).metrics(co_name="torch_dynamo_resume_in_f_at_9", restart_reasons=["other"])
    text.at(2).metrics(co_name="torch_dynamo_resume_in_f_at_12").at(3).metrics(
        co_name="g", restart_reasons=["no resume"]
    )
    log = log_of(text)
    assert [(one.compile_id, one.reason, one.place.line, one.place.function) for one in log.breaks if one.place] == [
        ("0/0", "skip function graph_break", 9, "f"),
        ("1/0", "other", 12, "f"),
    ]
    assert len(log.breaks) == 2
    assert [one.attempts for one in log.compiles] == [2, 2, 1, 1]


def test_a_recompile_limit_is_a_frame_that_stays_eager() -> None:
    text = LogText().at(0).start(("/u/a.py", 4, "f")).metrics()
    text.at(0, 1).artifact("recompile_reasons", "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12")
    said = "Dynamo recompile limit exceeded\n  Explanation: too many\n  Hint: mark it dynamic\n\n x/gb/gb0039.html"
    text.metrics(co_name=None, co_filename=None, co_firstlineno=None, fail_type="Unsupported", fail_reason=said)
    log = log_of(text)
    (found,) = log.breaks
    assert (found.reason, found.explanation, found.hints) == (
        "Dynamo recompile limit exceeded",
        "too many",
        ("mark it dynamic",),
    )
    assert (found.doc_id, found.skipped_frame, found.place) == ("gb0039", True, log.compiles[0].place)
    assert [(one.function, one.has_code) for one in log.compiles] == [("f", None), ("f", False)]
    (again,) = log.recompiles
    assert again.reasons == ("tensor 'x' size mismatch at index 0. expected 8, actual 12",)
    assert (again.function, again.place) == ("f", log.compiles[0].place)


def test_a_compilation_that_never_ended() -> None:
    text = LogText().at(0).event("dynamo", "B", 1000).event("inductor", "B", 1500)
    text.start(("/u/main.py", 9, "<module>"), ("/u/a.py", 4, "f"))
    (found,) = log_of(text).compiles
    assert (found.complete, found.duration_ns, found.function) == (False, None, "f")
    assert [(one.file, one.line) for one in found.stack] == [("/u/main.py", 9), ("/u/a.py", 4)]
    assert log_of(text).left_out == {"phases without their end": 2}


def test_an_id_used_again_after_a_reset_is_another_compilation() -> None:
    text = LogText()
    for function in ("f", "g"):
        text.at(0).start(("/u/a.py", 4, function)).metrics(co_name=function).add(
            "bwd_compilation_metrics", {"duration_us": 5}
        )
    log = log_of(text)
    assert [(one.compile_id, one.function, one.backward_ns) for one in log.compiles] == [
        ("0/0", "f", 5000),
        ("0/0", "g", 5000),
    ]


def test_times_of_old_and_new_metrics_have_one_name() -> None:
    old = LogText().at(0).metrics(entire_frame_compile_time_s=1.5, backend_compile_time_s=1.25, code_gen_time_s=None)
    new = (
        LogText()
        .at(0)
        .metrics(
            dynamo_cumulative_compile_time_us=1_500_000,
            aot_autograd_cumulative_compile_time_us=1_250_000,
            triton_compile_time_us=250_000,
            dynamo_config="{'secret': 'password'}",
        )
    )
    (first,), (second,) = log_of(old).compiles, log_of(new).compiles
    assert first.duration_ns == second.duration_ns == 1_500_000_000
    assert first.seconds_by_phase == {"entire_frame_compile": 1.5, "backend_compile": 1.25}
    assert second.seconds_by_phase == {**first.seconds_by_phase, "triton_compile": 0.25}
    assert second.start_ns == 1_790_000_000_000_000_000
    assert "password" not in repr(second)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 8", None),
        ("3/1: s == 0      # return x * s  # a.py:33 in k\nUser stack trace:\n  File", "s == 0"),
        ("0/0: L['mode'] == 'password'  # if mode", "L['mode'] == '...'"),
        ("0/0: L['mode'] in {'a', 'password'}", "L['mode'] in {'...', '...'}"),
        ("0/0: list(d.keys()) == ['password', \"it's\"]", "list(d.keys()) == ['...', '...']"),
        ("!2/0/0: k == 0", "k == 0"),
        (
            "0/0: ___check_type_id(s, 14), type=<class 'float'>  # x (HINT: type float)",
            "___check_type_id(s, 14), type=<class 'float'> (HINT: type float)",
        ),
    ],
)
def test_guards_are_shown_without_the_strings_in_them(said: str, shown: str | None) -> None:
    assert guard(said) == (shown or said.split(": ", 1)[1])


def test_older_logs_tell_recompilations_by_their_number() -> None:
    text = LogText().at(0).metrics().at(0, 1).metrics()
    assert [(one.compile_id, one.reasons) for one in log_of(text).recompiles] == [("0/1", ())]


def test_phases_nest_where_one_holds_the_other() -> None:
    text = LogText().at(0).event("dynamo", "B", 1000).event("backend", "B", 1200).event("gc", "X", 1250, dur=10.5)
    text.event("other thread", "B", 1300).event("backend", "E", 1400).event("dynamo", "E", 1500)
    text.event("other thread", "E", 1600).event("lost", "E", 1700).event("cache_miss", "i", 1100)
    log = log_of(text)
    shown = [(one.name, one.depth, one.parent) for one in log.phases]
    assert shown == [("dynamo", 0, None), ("backend", 1, 0), ("gc", 2, 1), ("other thread", 0, None)]
    assert log.phases[0].end_ns - log.phases[0].start_ns == 500_000
    assert log.phases[2].end_ns - log.phases[2].start_ns == 10_500
    assert {one.compile_id for one in log.phases} == {"0/0"}
    assert log.left_out == {"ends of phases without their begin": 1}


def test_local_times_become_the_epochs() -> None:
    text = LogText().at(0)
    text.artifact("recompile_reasons", ["0/0: early"])  # before any event told the zone
    text.ms = 999  # 16:13:21.000 local
    text.event("dynamo", "B", 1_000_000)  # 14:13:21 UTC
    text.ms += 500
    text.at(1, 1).artifact("recompile_reasons", ["1/0: late"])
    early, late = log_of(text).recompiles
    assert early.time_ns is None
    assert late.time_ns == 1_790_000_001_501_000_000


def test_a_graph_as_nodes() -> None:
    graph = graph_of("""class GraphModule(torch.nn.Module):
    def forward(
        self,
        primals_1: "f32[s27, 2*s27][2*s27, 1]cpu",  # PlainAOTInput(idx=0)
        primals_2: "Sym(s27)",
        tangents_1: "bf16[Mod(s27, 2), 3][3, 1]cuda:0",
    ):
         # File: /u/a b.py:10 in f, code: y = g(x)
        mul_1: "Sym(2*s27)" = primals_2 * 2;  primals_2 = None
        topk = torch.ops.aten.topk.default(primals_1, 4, 'primals_2')
        getitem: "i64[4][1]cpu" = topk[1];  topk = None

        # No stacktrace found for following nodes
        full: "b8[][]cpu" = torch.ops.aten.full.default([mul_1], 0, device = device(type='cpu'))
        # File: /u/old.py:3, code: z
        sub_graph = self.sub_graph
        add: "f32[]" = torch.ops.aten.add.Tensor(full, full)
        return [add, getitem, None]

    class inner(torch.nn.Module):
        def forward(self, a):
            b = torch.ops.aten.neg.default(a)
""")
    assert [(one.name, one.dtype, one.shape) for one in graph.inputs] == [
        ("primals_1", "float32", ("s27", "2*s27")),
        ("primals_2", None, ()),
        ("tangents_1", "bfloat16", ("Mod(s27, 2)", 3)),
    ]
    assert [(one.name, one.op, one.inputs, one.dtype) for one in graph.nodes] == [
        ("mul_1", "operator", ("primals_2",), None),
        ("topk", "aten.topk.default", ("primals_1",), None),
        ("getitem", "getitem", ("topk",), "int64"),
        ("full", "aten.full.default", ("mul_1",), "bool"),
        ("sub_graph", "get_attr", (), None),
        ("add", "aten.add.Tensor", ("full",), "float32"),
    ]
    assert graph.nodes[0].place == Place(file="/u/a b.py", line=10, function="f", code="y = g(x)")
    assert graph.nodes[3].place is None
    assert graph.nodes[4].place == Place(file="/u/old.py", line=3, code="z")
    assert graph.outputs == ("add", "getitem")


CODE = """# AOT ID: ['3_backward']
# Topologically Sorted Source Nodes: [a_1], Original ATen: [aten.silu, aten.mul]
# Source node to ATen node mapping:
#   a_1 => sigmoid, mul
# Graph fragment:
#   %mm : Tensor "f16[4]" = PlaceHolder[target=mm]
#   %sigmoid : [num_users=1] = call_function[target=torch.ops.aten.sigmoid.default](args = (%mm,), kwargs = {})
triton_poi_fused_silu_0 = async_compile.triton('triton_poi_fused_silu_0', '''
extern_kernels.hidden(1)
''', device_str='cuda')

# Source Nodes: [b], Original ATen: [aten.relu]
my_kernel_1 = async_compile.triton('triton_', '''x''')
cpp_fused_add_2 = async_compile.cpp_pybinding(['float*'], r'''
  cpp_fused_add_2(1);
''')
def call(args):
        # Topologically Sorted Source Nodes: [c], Original ATen: [aten.t, aten.mm]
        extern_kernels.mm(arg0_1, arg1_1, out=buf0)
        triton_poi_fused_silu_0.run(buf0, 4, stream=stream0)
        triton_poi_fused_silu_0.run(buf1, 4, stream=stream0)
        my_kernel_1.run(buf1, stream=stream0)
        cpp_fused_add_2(buf1)
        # Topologically Sorted Source Nodes: [d], Original ATen: [aten.sort]
        buf7 = torch.ops.aten.sort.stable(buf5, stable=False)
        assert_size_stride(buf7, (4,), (1,))
        buf8 = empty_strided_cpu((4,), (1,), torch.float32)
"""


def test_calls_of_output_code() -> None:
    code = code_of(CODE)
    assert code.direction == "backward"
    assert [(one.name, one.backend, one.ops) for one in code.calls] == [
        ("extern_kernels.mm", "extern", ("aten.t", "aten.mm")),
        ("triton_poi_fused_silu_0", "triton", ()),
        ("triton_poi_fused_silu_0", "triton", ()),
        ("my_kernel_1", "triton", ()),
        ("cpp_fused_add_2", "cpp", ()),
        ("torch.ops.aten.sort.stable", "extern", ("aten.sort",)),
    ]
    assert code.defined["triton_poi_fused_silu_0"].nodes == ("sigmoid", "mul")
    assert code.defined["my_kernel_1"].ops == ("aten.relu",)


def test_kernels_without_provenance_take_inductors_comments() -> None:
    text = LogText().at(0).metrics().add("inductor_output_code", {"filename": "x"}, CODE)
    kernels = {one.name: one for one in log_of(text).kernels}
    assert kernels["triton_poi_fused_silu_0"].calls == 2
    assert kernels["triton_poi_fused_silu_0"].ops == ("aten.sigmoid.default",)
    assert {one.direction for one in kernels.values()} == {"backward"}


def test_calls_that_inductor_numbers_are_kernels_of_their_own() -> None:
    code = "def call(args):\n" + "".join(
        f"    # [Provenance debug handles] extern_kernels.mm:{n}\n    extern_kernels.mm(a, b, out=c)\n" for n in (1, 2)
    )
    text = LogText().at(0).add("inductor_output_code", {"filename": "x"}, code)
    mapping = {"cppCodeToPost": {"extern_kernels.mm:1": ["mm"], "extern_kernels.mm:2": ["mm_1"]}, "version": 2.0}
    text.artifact("inductor_provenance_tracking_node_mappings", mapping)
    stacks = {
        "extern_kernels.mm:2": [
            '  File "/u/m.py", line 3, in g\n    g()\n  File "/u/a.py", line 9, in f\n    x @ y\n    ~~^~~'
        ]
    }
    text.artifact("inductor_provenance_tracking_kernel_stack_traces", stacks)
    log = log_of(text)
    assert log.has_provenance
    assert [(one.name, one.handle, one.calls, one.nodes) for one in log.kernels] == [
        ("extern_kernels.mm", "extern_kernels.mm:1", 1, ("mm",)),
        ("extern_kernels.mm", "extern_kernels.mm:2", 1, ("mm_1",)),
    ]
    assert log.kernels[1].places == (Place(file="/u/a.py", line=9, function="f", code="x @ y"),)


def test_nodes_in_both_passes_are_recomputed() -> None:
    body = "class G(torch.nn.Module):\n    def forward(self, {}):\n{}        return ({},)\n"
    exp = '        exp: "f32[4]" = torch.ops.aten.exp.default(primals_1)\n'
    forward = body.format('primals_1: "f32[4]"', exp, "exp")
    own = '        mul: "f32[4]" = torch.ops.aten.mul.Tensor(tangents_1, exp)\n'
    backward = body.format('primals_1: "f32[4]", tangents_1: "f32[4]"', exp + own, "mul")
    text = LogText().at(0).add("aot_forward_graph", None, forward).add("aot_backward_graph", None, backward)
    text.add("inductor_post_grad_graph", None, forward).add("inductor_output_code", {}, "# AOT ID: ['0_forward']")
    log = log_of(text)
    assert [(one.direction, one.after_passes, one.recomputed) for one in log.graphs] == [
        ("forward", True, ()),
        ("backward", False, ("exp",)),
    ]
    log = log_of(text.add("inductor_post_grad_graph", None, backward))
    assert [(one.direction, one.after_passes, one.recomputed) for one in log.graphs] == [
        ("forward", True, ()),
        ("backward", True, ("exp",)),
    ]


def test_answers_of_the_caches_by_pass() -> None:
    text = LogText().at(0)
    for direction, answer in (("forward", "hit"), ("backward", "miss")):
        text.add("inductor_output_code", {}, f"# AOT ID: ['0_{direction}']").artifact(
            f"fx_graph_cache_{answer}", {"key": "k"}
        )
    text.artifact("aotautograd_cache_bypass", {"cache_bypass_reason": "Unsupported\n call"})
    text.at(1).artifact("aotautograd_cache_hash", {"cache_state": "hit"}).artifact("fx_graph_cache_hash", {"key": "k"})
    first, second = log_of(text).compiles
    assert first.caches == {"fx_graph": "hit", "fx_graph_backward": "miss", "aotautograd": "bypass"}
    assert first.cache_reasons == {"aotautograd": "Unsupported call"}
    assert second.caches == {"aotautograd": "hit"}


def test_compiled_autograd_has_ids_of_its_own() -> None:
    text = LogText(compiled_autograd_id=2).metrics().at(0).metrics()
    assert [one.compile_id for one in log_of(text).compiles] == ["!2", "!2/0/0"]


def test_unknown_kinds_are_counted() -> None:
    log = log_of(LogText().at(0).add("news").add("news").metrics().add("describe_tensor"))
    assert (log.unknown, log.records) == ({"news": 2}, 4)


def test_python_json_that_is_no_json() -> None:
    line = 'V0921 16:13:20.000000 77 torch/x.py:3] {"compilation_metrics": {"co_name": "f\\ud800", "gc_time_us": NaN}, '
    log = read_bytes((line + '"frame_id": 0, "frame_compile_id": 0}\n').encode(), "x")
    assert (log.corrupt, [one.function for one in log.compiles]) == (0, ["f?"])


def test_a_rank_prefix_is_read() -> None:
    log = read_bytes(b"[rank3]:" + LogText().at(0).metrics().text().encode(), "x")
    assert (log.rank, log.corrupt) == (3, 0)


def test_a_folder_of_logs_is_a_trace_for_each(tmp_path: Path) -> None:
    for rank in (1, 0):
        LogText().at(0).metrics().write(tmp_path, f"dedicated_log_torch_trace_rank_{rank}_ab{rank}3.log")
    loaded = load_path(tmp_path)
    assert [trace.source.rank for trace in loaded.traces] == [0, 1]
    assert {trace.source.format for trace in loaded.traces} == {"torch_trace"}
    assert loaded.skipped == ()


def test_every_rule_can_meet_a_log_alone(tmp_path: Path) -> None:
    path = LogText().at(0).start(("/u/a.py", 4, "f")).metrics().write(tmp_path)
    (trace,) = load(path)
    trace.check()
    analysis = analyze([trace])
    assert analysis.findings() == ()
    assert not [outcome.reason for outcome in analysis if "Error" in (outcome.reason or "")]


def test_a_log_without_a_compilation_is_nothing_to_judge_by(tmp_path: Path) -> None:
    path = LogText().artifact("torch_version", {"pytorch_version": "2.13.0"}).write(tmp_path)
    (trace,) = load(path)
    assert trace.recorded == frozenset()
    assert any("no compilation in it" in note for note in trace.source.notes)
    assert {outcome.status for outcome in analyze([trace])} == {"abstained"}


def test_output_code_in_another_language_is_said(tmp_path: Path) -> None:
    log = log_of(LogText().at(0).add("inductor_output_code", {}, "#include <torch/csrc/inductor/cpp_wrapper/cpu.h>"))
    assert (log.kernels, log.left_out) == ((), {"output codes that are no Python": 1})


def test_text_logs_are_not_taken_for_it(tmp_path: Path) -> None:
    assert not sniff(tmp_path, b"V0921 16:13:20.000000 77 torch/x.py:3] [0/0] Graph break {x}\n")
    assert not sniff(tmp_path, b'{"traceEvents": []}')
    assert sniff(tmp_path, b"\n\n" + LogText().at(0).metrics().text().encode())


def test_the_rank_is_the_file_names_where_records_have_none(tmp_path: Path) -> None:
    path = LogText().at(0).metrics().write(tmp_path, "dedicated_log_torch_trace_rank_12_ab3x.log")
    assert read_log(path).rank == 12
