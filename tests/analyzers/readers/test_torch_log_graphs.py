"""Graphs, output code, kernels and caches in torch.compile's log."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.compile_log import Place
from perfscope.analyzers.readers.torch_log.graph_text import parse as graph_of
from perfscope.analyzers.readers.torch_log.output_code import parse as code_of
from tests.analyzers.readers.torch_logs import LogText, log_of


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


def test_output_code_in_another_language_is_said(tmp_path: Path) -> None:
    log = log_of(LogText().at(0).add("inductor_output_code", {}, "#include <torch/csrc/inductor/cpp_wrapper/cpu.h>"))
    assert (log.kernels, log.left_out) == ((), {"output codes that are no Python": 1})
