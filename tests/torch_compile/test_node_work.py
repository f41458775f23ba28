"""FLOPs of nodes of logged graphs: the formulas of eager ops, from the printed call."""

from __future__ import annotations

import pytest

from perfscope.analyzers.readers.torch_log import graph_text
from perfscope.analyzers.torch_compile import node_flops

GRAPH = """
def forward(self, x: "f32[4, 8, 16, 16][1]cpu", w: "f32[32, 8, 3, 3][1]cpu", up: "f32[8, 32, 3, 3][1]cpu",
            a: "f32[6, 7]", b: "f32[7, 5]", c: "f32[5]", s: "f32[6, 6]", q: "f32[2, 3, 10, 4]", g: "f32[4, 32, 16, 16]",
            n: "f32[s0, 7]"):
    r: "{result}" = torch.ops.aten.{call};  x = None
    return (r,)
"""
FORWARD = 2 * 4 * 16 * 16 * 32 * 8 * 9


@pytest.mark.parametrize(
    ("call", "result", "flops"),
    [
        ("mm.default(a, b)", "f32[6, 5]", 2 * 6 * 5 * 7),
        ("addmm.default(c, a, b)", "f32[6, 5]", 2 * 6 * 5 * 7),
        ("mm.default(s, s)", "f32[6, 6]", 2 * 6 * 6 * 6),
        ("convolution.default(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)", "f32[4, 32, 16, 16]", FORWARD),
        # Every weight meets every position of the input, not of the four times larger result.
        ("convolution.default(x, up, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)", "f32[4, 32, 32, 32]", FORWARD),
        (
            "convolution_backward.default(g, x, w, [32], [1, 1], [1], [1], False, [0], 1, [False, True, True])",
            "",
            FORWARD,
        ),
        ("_scaled_dot_product_flash_attention_for_cpu.default(q, q, q, 0.0, True)", "", 2 * 2 * 3 * 55 * 8),
        ("_scaled_dot_product_flash_attention_for_cpu.default(q, q, q, 0.0, False)", "", 2 * 2 * 3 * 100 * 8),
        ("mm.default(n, b)", "f32[s0, 5]", None),
        ("mm.default(c, c)", "f32[5]", None),  # a log with fewer sizes than a matrix has
        ("sin.default(a)", "f32[6, 7]", None),
    ],
)
def test_flops_of_a_printed_call(call: str, result: str, flops: int | None) -> None:
    graph = graph_text.parse(GRAPH.format(call=call, result=result))
    (node,) = graph.nodes
    assert node_flops(node, {one.name: one for one in graph.inputs}) == flops
