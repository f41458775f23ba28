"""FLOPs per op: against torch's own counter where it counts, and against products worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
from perfscope.profiler.torch.op_graph.flops import FORMULAS, MOVES_DATA, attended_pairs, attention_flops, flops_of

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch


def counted(program: Any) -> dict[str, list[int | None]]:
    """FLOPs by op, of the ops that are no views, straight from the table."""
    capture = OpGraphCapture()
    capture.start(0)
    program()
    capture.stop()
    table = capture._table
    assert table is not None
    found: dict[str, list[int | None]] = {}
    for op in range(len(table)):
        if not table._ops["view"][op]:
            found.setdefault(table._texts[table._ops["name"][op]], []).append(table._ops["flops"][op])
    return found


def total(program: Any) -> int:
    return sum(flops or 0 for row in counted(program).values() for flops in row)


PROGRAMS = {
    "linear": lambda: torch.nn.Linear(5, 7)(torch.ones(3, 5)).sum().backward(),
    "matmul": lambda: torch.ones(2, 3, 4) @ torch.ones(2, 4, 5),
    "baddbmm": lambda: torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "conv2d": lambda: torch.nn.Conv2d(4, 6, 3, padding=1)(torch.ones(2, 4, 5, 5, requires_grad=True)).sum().backward(),
    "conv transposed": lambda: (
        torch.nn.ConvTranspose2d(4, 6, 3, stride=2)(torch.ones(2, 4, 5, 5, requires_grad=True)).sum().backward()
    ),
    "grouped conv": lambda: torch.nn.Conv1d(4, 8, 3, groups=2)(torch.ones(2, 4, 9)),
    "no formula": lambda: torch.ones(3).sin(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_many_as_torch_counts(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        PROGRAMS[name]()
    assert total(PROGRAMS[name]) == counter.get_total_flops()


def test_gradients_of_a_grouped_convolution_cost_as_much_as_its_forward() -> None:
    # torch.utils.flop_counter forgets the groups in the gradient of the weight, so it is no oracle here.
    found = counted(grouped_convolution)
    assert found["aten.convolution_backward.default"] == [2 * found["aten.convolution.default"][0]]  # type: ignore[operator]
    assert found["aten.convolution.default"] == [2 * 2 * 8 * 7 * 3 * 2]  # 2 FLOPs, B, C_out, L_out, taps, C_in / groups


def grouped_convolution() -> None:
    torch.nn.Conv1d(4, 8, 3, groups=2)(torch.ones(2, 4, 9, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu(causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    found = counted(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward())
    pairs = 2 * 3 * (8 * 9 // 2 if causal else 64)
    assert found["aten._scaled_dot_product_flash_attention_for_cpu.default"] == [2 * pairs * (4 + 4)]
    assert found["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"] == [2 * pairs * 5 * 4]


def test_full_attention_is_what_torch_counts_on_a_gpu() -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    query, key, value = (2, 8, 16, 32), (2, 4, 24, 32), (2, 4, 24, 48)
    assert attention_flops(query, key, value, causal=False) == sdpa_flop_count(query, key, value)
    gradient = (2, 8, 16, 48)
    backward = attention_flops(query, key, value, causal=False, backward=True)
    assert backward == sdpa_backward_flop_count(gradient, query, key, value)


@given(st.integers(1, 12), st.integers(1, 12))
def test_causal_pairs_are_those_of_the_mask(queries: int, keys: int) -> None:
    mask = torch.ones(queries, keys, dtype=torch.bool).tril()
    assert attended_pairs(queries, keys, causal=True) == int(mask.sum())
    assert attended_pairs(queries, keys, causal=False) == queries * keys


def test_a_grouped_product_is_the_sum_of_its_groups() -> None:
    x, weights = torch.ones(16, 32, dtype=torch.bfloat16), torch.ones(2, 32, 8, dtype=torch.bfloat16)
    ends = torch.tensor([4, 16], dtype=torch.int32)
    found = counted(lambda: torch._grouped_mm(x, weights, offs=ends))
    by_hand = sum(2 * rows * 32 * 8 for rows in (4, 12))
    assert found["aten._grouped_mm.default"] == [by_hand]


def test_moving_data_costs_none_and_unknown_stays_unknown() -> None:
    found = counted(lambda: (torch.ones(4, 4).t().contiguous() * 2).exp())
    assert found["aten.clone.default"] == found["aten.ones.default"] == [0]
    assert found["aten.mul.Tensor"] == found["aten.exp.default"] == [None]


def test_scaled_products_are_products() -> None:
    a, b = torch.empty(16, 32), torch.empty(32, 8)
    arguments = {"self": a, "mat2": b}
    assert flops_of("aten._scaled_mm.default", arguments.get, ()) == 2 * 16 * 32 * 8


def test_every_name_is_an_op_of_torch() -> None:
    absent = [name for name in (*FORMULAS, *MOVES_DATA) if not hasattr(torch.ops.aten, name.removeprefix("aten."))]
    assert absent == []
