"""Formulas op by op: against XLA's own cost analysis where that is right, by hand where it is not."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.analyzers.hlo.cost_text import ADD, cost, op_cost, op_text

SQUARE = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
WINDOW = "dim_labels=b01f_01io->b01f"
ROWS = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"

SAME_AS_XLA: dict[str, tuple[list[str], str]] = {
    "add": (["f32[8,16]"] * 2, "f32[8,16] add(%p0, %p1)"),
    "integers": (["s32[8,16]"] * 2, "s32[8,16] add(%p0, %p1)"),
    "convert": (["f32[8,16]"], "bf16[8,16] convert(%p0)"),
    "select": (["pred[8]", "f32[8]", "f32[8]"], "f32[8] select(%p0, %p1, %p2)"),
    "clamp": (["f32[8]"] * 3, "f32[8] clamp(%p0, %p1, %p2)"),
    "compare": (["f32[8,16]"] * 2, "pred[8,16] compare(%p0, %p1), direction=LT"),
    "is-finite": (["f32[8]"], "pred[8] is-finite(%p0)"),
    "remainder": (["f32[8]"] * 2, "f32[8] remainder(%p0, %p1)"),
    "exponential": (["f32[8]"], "f32[8] exponential(%p0)"),
    "tanh": (["f32[8]"], "f32[8] tanh(%p0)"),
    "logistic": (["f32[8]"], "f32[8] logistic(%p0)"),
    "erf": (["f32[8]"], "f32[8] erf(%p0)"),
    "rsqrt": (["f32[8]"], "f32[8] rsqrt(%p0)"),
    "cbrt": (["f32[8]"], "f32[8] cbrt(%p0)"),
    "power": (["f32[8]"] * 2, "f32[8] power(%p0, %p1)"),
    "atan2": (["f32[8]"] * 2, "f32[8] atan2(%p0, %p1)"),
    "dot": (["f32[8,16]", "f32[16,4]"], f"f32[8,4] dot(%p0, %p1), {SQUARE}"),
    "batched dot": (
        ["f32[3,8,16]", "f32[3,16,4]"],
        "f32[3,8,4] dot(%p0, %p1), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1}",
    ),
    "convolution": (
        ["f32[2,10,10,3]", "f32[3,3,3,8]"],
        f"f32[2,8,8,8] convolution(%p0, %p1), window={{size=3x3}}, {WINDOW}",
    ),
    "feature groups": (
        ["f32[2,10,10,4]", "f32[3,3,2,8]"],
        "f32[2,5,5,8] convolution(%p0, %p1), window={size=3x3 stride=2x2 pad=1_1x1_1}, "
        f"{WINDOW}, feature_group_count=2",
    ),
    "batch groups": (
        ["f32[4,10,10,4]", "f32[3,3,4,8]"],
        f"f32[2,8,8,8] convolution(%p0, %p1), window={{size=3x3}}, {WINDOW}, batch_group_count=2",
    ),
    "dilated input": (
        ["f32[2,5,5,4]", "f32[3,3,4,8]"],
        f"f32[2,9,9,8] convolution(%p0, %p1), window={{size=3x3 pad=1_1x1_1 lhs_dilate=2x2}}, {WINDOW}",
    ),
    "dilated kernel": (
        ["f32[2,11,11,4]", "f32[3,3,4,8]"],
        f"f32[2,7,7,8] convolution(%p0, %p1), window={{size=3x3 rhs_dilate=2x2}}, {WINDOW}",
    ),
    "reduce": (["f32[8,16]", "f32[]"], "f32[8] reduce(%p0, %p1), dimensions={1}, to_apply=%add"),
    "reduce-window": (
        ["f32[8,16]", "f32[]"],
        "f32[7,15] reduce-window(%p0, %p1), window={size=2x2}, to_apply=%add",
    ),
    "scatter": (
        ["f32[100,8]", "s32[5,1]", "f32[5,8]"],
        f"f32[100,8] scatter(%p0, %p1, %p2), {ROWS}, to_apply=%add",
    ),
    "gather": (
        ["f32[100,8]", "s32[5,1]"],
        "f32[5,8] gather(%p0, %p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1,8}",
    ),
    "slice": (["f32[100,8]"], "f32[5,8] slice(%p0), slice={[0:5], [0:8]}"),
    "broadcast": (["f32[8]"], "f32[8,16] broadcast(%p0), dimensions={0}"),
    "transpose": (["f32[8,16]"], "f32[16,8] transpose(%p0), dimensions={1,0}"),
    "pad": (["f32[8,16]", "f32[]"], "f32[10,16] pad(%p0, %p1), padding=1_1x0_0"),
    "concatenate": (["f32[8,16]"] * 2, "f32[16,16] concatenate(%p0, %p1), dimensions={0}"),
    "copy": (["f32[8,16]"], "f32[8,16] copy(%p0)"),
    "all-reduce": (["f32[8,16]"], "f32[8,16] all-reduce(%p0), replica_groups={{0,1,2,3}}, to_apply=%add"),
}


@functools.cache
def xla() -> Any:
    jax = pytest.importorskip("jax")
    private = pytest.importorskip("jaxlib._jax")
    text = pytest.importorskip("jaxlib._hlo").hlo_module_from_text
    client = jax.devices("cpu")[0].client
    return lambda module: private.hlo_module_cost_analysis(client, text(module))


@pytest.mark.jax
@pytest.mark.parametrize("name", SAME_AS_XLA)
def test_same_as_xlas_own_analysis(name: str):
    parameters, op = SAME_AS_XLA[name]
    text = op_text(parameters, op, ADD if "to_apply" in op else "")
    stated = xla()(text)
    ours = cost(text).total
    assert ours.flops == stated.get("flops", 0)
    assert ours.transcendentals == stated.get("transcendentals", 0)
    assert ours.bytes == stated["bytes accessed"]
    assert ours.exact


@pytest.mark.jax
def test_xla_counts_a_loop_once_and_we_as_often_as_it_runs():
    jax = pytest.importorskip("jax")

    def ten_dots(x: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (carry @ x, None), x, None, length=10)[0]

    text = jax.jit(ten_dots).lower(jax.ShapeDtypeStruct((64, 64), "float32")).compile().as_text()
    each = 2 * 64**3
    assert xla()(text)["flops"] == pytest.approx(each, rel=0.01)
    assert sum(cost(text).total.products.values()) == 10 * each


def flops(parameters: list[str], op: str) -> int | None:
    return op_cost(parameters, op, ADD if "to_apply" in op else "").flops


def test_window_reduction_does_not_add_padding():
    # a cumulative sum of 16 in one window: output o adds o+1 numbers, o additions; XLA says 15 for each
    assert (
        flops(["f32[16]", "f32[]"], "f32[16] reduce-window(%p0, %p1), window={size=16 pad=15_0}, to_apply=%add") == 120
    )


def test_slices_read_and_update_what_they_touch():
    taken = op_cost(
        ["f32[100,8]", "s32[]", "s32[]"], "f32[5,8] dynamic-slice(%p0, %p1, %p2), dynamic_slice_sizes={5,8}"
    )
    assert (taken.once.bytes_read, taken.once.bytes_written) == (160 + 8, 160)
    put = op_cost(["f32[100,8]", "f32[5,8]", "s32[]", "s32[]"], "f32[100,8] dynamic-update-slice(%p0, %p1, %p2, %p3)")
    assert (put.once.bytes_read, put.once.bytes_written) == (160 + 8, 160)


def test_an_operand_used_twice_is_read_once():
    assert op_cost(["f32[8]"], "f32[8] multiply(%p0, %p0)").once.bytes_read == 32


def test_sort_along_its_dimension():
    comparator = """
%less (a: f32[], b: f32[]) -> pred[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}
"""
    # 4 rows of 1,000: 4 * 1000 * 10 comparisons
    row = op_cost(["f32[4,1000]"], "f32[4,1000] sort(%p0), dimensions={1}, to_apply=%less", comparator)
    assert row.flops == 40_000


def test_transforms_and_solvers():
    assert flops(["c64[4,64]"], "c64[4,64] fft(%p0), fft_type=FFT, fft_length={64}") == 4 * 5 * 64 * 6
    assert flops(["f32[4,64]"], "c64[4,33] fft(%p0), fft_type=RFFT, fft_length={64}") == 4 * 5 * 64 * 6 // 2
    assert flops(["c64[4,33]"], "f32[4,64] fft(%p0), fft_type=IRFFT, fft_length={64}") == 4 * 5 * 64 * 6 // 2
    assert flops(["f32[2,9,9]"], "f32[2,9,9] cholesky(%p0), lower=true") == 2 * 9**3 // 3
    # n(n-1)/2 multiply-adds and n divisions a column: n^2
    assert flops(["f32[8,8]", "f32[8,4]"], "f32[8,4] triangular-solve(%p0, %p1), left_side=true") == 8 * 8 * 4


def test_complex_products_are_four_times_the_work():
    assert flops(["c64[8,16]", "c64[16,4]"], f"c64[8,4] dot(%p0, %p1), {SQUARE}") == 4 * 1024


def test_ragged_products_meet_one_matrix_a_row():
    common = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
    rows = flops(["f32[64,16]", "f32[4,16,32]", "s32[4]"], f"f32[64,32] ragged-dot(%p0, %p1, %p2), {common}")
    assert rows == 2 * 64 * 16 * 32
    common = "lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}, rhs_group_dims={}"
    weights = flops(["f32[64,16]", "f32[64,32]", "s32[4]"], f"f32[4,16,32] ragged-dot(%p0, %p1, %p2), {common}")
    assert weights == 2 * 64 * 16 * 32


def test_precision_and_the_wider_type_are_kept():
    row = op_cost(
        ["bf16[8,16]", "f32[16,4]"], f"f32[8,4] dot(%p0, %p1), {SQUARE}, operand_precision={{default,highest}}"
    )
    assert [(kind.dtype, kind.precision) for kind in row.once.products] == [("f32", "highest")]
    row = op_cost(["f32[8,16]", "f32[16,4]"], f"f32[8,4] dot(%p0, %p1), {SQUARE}, algorithm=dot_bf16_bf16_f32_x3")
    assert [(kind.dtype, kind.precision) for kind in row.once.products] == [("f32", "dot_bf16_bf16_f32_x3")]


@pytest.mark.parametrize(
    "op",
    [
        "f32[8] future-op(%p0)",
        "f32[8] rng-bit-generator(%p0), algorithm=rng_default",
        "f32[8] custom-call(%p0), custom_call_target=\"mine\"",
        "f32[8] convolution(%p0, %p0), dim_labels=nonsense",
        "f32[8] dot(%p0, %p0), lhs_contracting_dims={7}",
        "f32[8] sort(%p0), dimensions={3}",
        "f32[8] fft(%p0), fft_type=FFT, fft_length={0}",
        "f32[8] reduce(%p0, %p0), dimensions={0}",
        "f32[8] topk()",
    ],
)  # fmt: skip
def test_what_has_no_formula_is_unknown_and_never_zero(op: str):
    row = op_cost(["f32[8]"], op)
    assert row.flops is None
    assert not row.once.exact


def test_a_top_k_is_at_least_one_comparison_an_element():
    row = op_cost(["f32[8,100]"], "(f32[8,4], s32[8,4]) topk(%p0), k=4, largest=true")
    assert row.flops == 800
    assert not row.once.exact
