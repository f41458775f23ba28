"""Graph breaks and recompilations in torch.compile's log, in the forms of each version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.torch_log.breaks import clean_guard
from perfscope.analyzers.readers.torch_log.graph_text import parse as graph_of
from perfscope.analyzers.readers.torch_log.reader import read_log
from perfscope.analyzers.readers.torch_log.unit import parse as code_of
from perfscope.model.compile_log import CodeLine, LoggedRecompile
from tests.readers.torch_log.logs import LogText, log_of

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


def break_of(payload: str) -> Any:
    (found,) = log_of(LogText().at(0).event("dynamo", "B", 1000).artifact("dynamo_graph_break_reason", payload)).breaks
    return found


def test_a_break_with_explanation_hints_and_id() -> None:
    found = break_of(NEW_BREAK)
    assert found.reason == "Failed to trace builtin operator"
    assert found.explanation == "Dynamo does not know how to trace builtin operator `print`\nin two lines."
    assert found.hints == ("Avoid calling builtin `print`.", "Report it.")
    assert found.doc_id == "gb0059"
    assert found.place == CodeLine(file="/u/a.py", line=11, function="forward", code='print("hello")')
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


def test_a_break_in_a_frame_without_code_skipped_it() -> None:
    text = LogText().at(0).start(("/u/a.py", 4, "f")).artifact("dynamo_graph_break_reason", OLD_BREAK)
    (found,) = log_of(text.metrics(has_guarded_code=False)).breaks
    assert found.skipped_frame


def test_torch_2_8_calls_a_skipped_frame_guarded_code() -> None:
    text = (
        LogText()
        .at(0)
        .artifact("dynamo_graph_break_reason", OLD_BREAK)
        .metrics(has_guarded_code=True, guard_count=None)
    )
    text.at(1).artifact("dynamo_graph_break_reason", OLD_BREAK).metrics(has_guarded_code=True, guard_count=5)
    log = log_of(text)
    assert [one.has_code for one in log.compiles] == [False, True]
    assert [one.skipped_frame for one in log.breaks] == [True, False]


def test_torch_2_6_gives_a_frame_up_without_a_word() -> None:
    text = LogText().at(0).start(("/u/a.py", 4, "f")).metrics()
    text.at(0, 1).artifact("recompile_reasons", ["0/0: k == 0"]).add("bwd_compilation_metrics", {"duration_us": 483})
    log = log_of(text)
    (found,) = log.breaks
    assert (found.compile_id, found.reason, found.skipped_frame) == ("0/1", "cache_size_limit reached", True)
    assert found.place == log.compiles[0].place
    assert (log.compiles[1].complete, log.compiles[1].has_code, log.compiles[1].backward_ns) == (True, False, None)


def test_strings_of_the_program_are_not_shown() -> None:
    said = "Graph break in user code at /u/a.py:7\nReason: Unsupported: call ConstantVariable(str: 'pass\\'word') {}\n"
    assert break_of(said).reason == "Unsupported: call ConstantVariable(str: '...') {}"


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
    assert clean_guard(said) == (shown or said.split(": ", 1)[1])


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
    assert graph.nodes[0].place == CodeLine(file="/u/a b.py", line=10, function="f", code="y = g(x)")
    assert graph.nodes[3].place is None
    assert graph.nodes[4].place == CodeLine(file="/u/old.py", line=3, code="z")
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
    assert log.kernels[1].places == (CodeLine(file="/u/a.py", line=9, function="f", code="x @ y"),)


def test_nodes_in_both_passes_are_recomputed() -> None:
    body = "class G(torch.nn.Module):\n    def forward(self, {}):\n{}        return ({},)\n"
    exp = '        exp: "f32[4]" = torch.ops.aten.exp.default(primals_1)\n'
    forward = body.format('primals_1: "f32[4]"', exp, "exp")
    own = '        mul: "f32[4]" = torch.ops.aten.mul.Tensor(tangents_1, exp)\n'
    backward = body.format('primals_1: "f32[4]", tangents_1: "f32[4]"', exp + own, "mul")
    text = LogText().at(0).add("aot_forward_graph", None, forward).add("aot_backward_graph", None, backward)
    text.add("inductor_post_grad_graph", None, forward).add("inductor_output_code", {}, "# AOT ID: ['0_forward']")
    log = log_of(text)
    # the backward never ran, so inductor never compiled it
    assert [(one.direction, one.after_passes, one.recomputed) for one in log.graphs] == [("forward", True, ())]
    log = log_of(text.add("inductor_output_code", {}, "# AOT ID: ['0_backward']"))
    assert [(one.direction, one.after_passes, one.recomputed) for one in log.graphs] == [
        ("forward", True, ()),
        ("backward", False, ("exp",)),
    ]
    text = LogText().at(0).add("aot_forward_graph", None, forward).add("aot_backward_graph", None, backward)
    text.add("inductor_post_grad_graph", None, forward).add("inductor_output_code", {}, "# AOT ID: ['0_forward']")
    log = log_of(text.add("inductor_post_grad_graph", None, backward))
    assert [(one.direction, one.after_passes, one.recomputed) for one in log.graphs] == [
        ("forward", True, ()),
        ("backward", True, ("exp",)),
    ]


@pytest.mark.parametrize("final", [True, False])
def test_a_graph_of_inference_that_is_logged_as_a_forward_is_one_graph(final: bool) -> None:
    """Before torch 2.8 AOT autograd named it so; inductor's code identifies it."""
    graph = "class G(torch.nn.Module):\n    def forward(self, a):\n        return (a,)\n"
    text = LogText().at(0).add("aot_forward_graph", None, graph)
    if final:
        text.add("inductor_post_grad_graph", None, graph)
    log = log_of(text.add("inductor_output_code", {}, "# AOT ID: ['0_inference']"))
    assert [(one.compile_id, one.direction, one.after_passes) for one in log.graphs] == [("0/0", "inference", final)]


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


def test_output_code_in_another_language_is_said(tmp_path: Path) -> None:
    log = log_of(LogText().at(0).add("inductor_output_code", {}, "#include <torch/csrc/inductor/cpp_wrapper/cpu.h>"))
    assert (log.kernels, log.left_out) == ((), {"output codes other than Python": 1})


COMMENT = "rate == 0.1  # return F.dropout(y, p=rate)  # defect: burnt in  # jobs/stages.py:80 in dropping"
INSIDE = f"0/1: {COMMENT} (nn/functional.py:1491 in dropout)"
STACK = (
    "0/0: rate == 0.2      # return F.dropout(y, p=rate)  # jobs/stages.py:80 in dropping\n"
    'User stack trace:\n  File "/home/u/train.py", line 42, in forward\n    x = self.each(x, rate)\n'
    '  File "/home/u/jobs/stages.py", line 80, in dropping\n    return F.dropout(y, p=rate)'
)


def recompile(folder: Path, payload: list[str] | str) -> LoggedRecompile:
    text = LogText().at(0, 1).artifact("recompile_reasons", payload).metrics()
    (found,) = read_log(text.write(folder)).recompiles
    return found


def test_the_line_stands_behind_the_guard(tmp_path: Path) -> None:
    found = recompile(tmp_path, [INSIDE])
    assert found.reasons == ("rate == 0.1",)
    assert found.guard_place is not None
    place = found.guard_place
    assert (place.file, place.line, place.function) == ("jobs/stages.py", 80, "dropping")
    assert place.code == "return F.dropout(y, p=rate)  # defect: burnt in"


def test_a_stack_has_the_whole_path(tmp_path: Path) -> None:
    alone, behind = recompile(tmp_path, STACK), recompile(tmp_path, [INSIDE, STACK])
    assert alone.guard_place is not None
    assert (alone.guard_place.file, alone.guard_place.line) == ("/home/u/jobs/stages.py", 80)
    assert behind.guard_place == alone.guard_place
    assert behind.reasons == ("rate == 0.1", "rate == 0.2")


def test_the_line_of_another_guard_is_not_the_first_ones(tmp_path: Path) -> None:
    found = recompile(tmp_path, ["0/1: tensor 'x' size mismatch at index 0. expected 4, actual 5", STACK])
    assert found.guard_place is None
