"""Formulas op by op: against XLA's own cost analysis where that is right, by hand where it is not."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.cost.products import MAX_WINDOW_STEPS, WindowDim, valid_positions, window_dims
from perfscope.analyzers.hlo.cost.types import Product
from perfscope.analyzers.hlo.module import Instruction, Shape
from perfscope.analyzers.hlo.products import convolution_axes
from tests.hlo.modules import ADD_COMPUTATION, cost, op_cost, op_text
from tests.hlo_build import hlo_module

Dims = tuple[int, ...]

CASES: list[tuple[str, str, Dims, Dims, Dims]] = [
    ("bf_io->bf", "", (3, 5), (5, 7), (3, 7)),
    ("0bf_oi0->0bf", "{size=1}", (2, 3, 5), (7, 5, 1), (2, 3, 7)),
    ("01bf_01oi->01bf", "{size=2x4 stride=1x3 lhs_dilate=2x4}", (2, 4, 3, 5), (2, 4, 6, 5), (2, 4, 3, 6)),
    ("01fb_01oi->01fb", "{size=2x4 stride=2x4 pad=1_1x3_3 lhs_dilate=1x3 rhs_reversal=1x1}",
     (2, 4, 5, 3), (2, 4, 6, 5), (2, 4, 6, 3)),
    ("0fb_0io->bf0", "{size=2}", (2, 5, 3), (2, 5, 6), (3, 6, 1)),
    ("f01b2_2oi01->01b2f", "{size=1x1x2 pad=0_0x0_0x1_1 rhs_reversal=0x0x1}",
     (5, 3, 4, 6, 1), (2, 7, 5, 1, 1), (3, 4, 6, 2, 7)),
    ("02f1b_o02i1->1bf02", "{size=3x1x4}", (3, 4, 6, 5, 2), (7, 3, 4, 6, 1), (5, 2, 7, 1, 1)),
]  # fmt: skip
"""Labels and windows of recorded programs (``fixtures/programs-v5e``), over fewer elements."""


def convolution(labels: str, window: str, left: Dims, right: Dims, result: Dims) -> tuple[Instruction, list[Shape]]:
    def text(dims: Dims) -> str:
        return f"f32[{','.join(map(str, dims))}]"

    module = hlo_module(
        f"ENTRY %main (a: {text(left)}, b: {text(right)}) -> {text(result)} {{\n"
        f"  %a = {text(left)} parameter(0)\n"
        f"  %b = {text(right)} parameter(1)\n"
        f"  ROOT %c = {text(result)} convolution(%a, %b), "
        + (f"window={window}, " if window else "")
        + f"dim_labels={labels}\n}}"
    )
    return module.entry_computation().root, [Shape(dtype="f32", dims=left), Shape(dtype="f32", dims=right)]


def convolved(labels: str, window: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By XLA's own definition, in jax."""
    jax = pytest.importorskip("jax")
    fields = {key: value.split("x") for key, value in re.findall(r"(\w+)=([-\dx_]+)", window)}
    count = len(fields.get("size", []))
    lhs, rhs, out = re.split(r"_|->", labels)
    spatial = [str(at) for at in range(count)]
    specs = (
        tuple(map(lhs.index, ["b", "f", *spatial])),
        tuple(map(rhs.index, ["o", "i", *spatial])),
        tuple(map(out.index, ["b", "f", *spatial])),
    )
    for at, flip in enumerate(fields.get("rhs_reversal", [])):
        b = np.flip(b, rhs.index(str(at))) if flip == "1" else b
    pads = [tuple(map(int, text.split("_"))) for text in fields.get("pad", ["0_0"] * count)]
    return np.asarray(
        jax.lax.conv_general_dilated(
            a,
            b,
            window_strides=[int(text) for text in fields.get("stride", ["1"] * count)],
            padding=pads,
            lhs_dilation=[int(text) for text in fields.get("lhs_dilate", ["1"] * count)],
            dimension_numbers=jax.lax.ConvDimensionNumbers(*specs),
            precision="highest",
        )
    )


@pytest.mark.parametrize(("labels", "window", "left", "right", "result"), CASES, ids=[case[0] for case in CASES])
def test_the_product_by_its_axes_is_the_convolution(
    labels: str, window: str, left: Dims, right: Dims, result: Dims
) -> None:
    axes = convolution_axes(*convolution(labels, window, left, right, result))
    assert axes is not None
    generator = np.random.default_rng(0)
    a = generator.normal(size=left).astype(np.float32)
    b = generator.normal(size=right).astype(np.float32)
    shared = [name for name in axes.result if name in (*axes.left, *axes.right)]
    left_text, right_text, text = (
        "".join(chr(ord("a") + name) for name in part) for part in (axes.left, axes.right, shared)
    )
    product = np.einsum(f"{left_text},{right_text}->{text}", a, b).reshape(result)  # else axes of one element
    np.testing.assert_allclose(convolved(labels, window, a, b), product, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        ("0bf_0io->0bf", "{size=3}", (5, 2, 4), (3, 4, 6), (3, 2, 6)),  # a window that slides
        ("0bf_0io->0bf", "{size=2 stride=2}", (4, 2, 4), (2, 4, 6), (2, 2, 6)),  # patches
        ("0bf_0io->0bf", "{size=2 pad=0_1}", (2, 2, 4), (2, 4, 6), (2, 2, 6)),  # partly padding
        ("bf_io->fb", "", (3, 5), (5, 7), (3, 7)),  # axes of other lengths than the labels say
        ("bf_io", "", (3, 5), (5, 7), (3, 7)),
    ],
)
def test_other_convolutions_are_no_products(case: tuple[str, str, Dims, Dims, Dims]) -> None:
    assert convolution_axes(*convolution(*case)) is None


NUMBERS = {
    "lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"], "lhs_batch_dimensions": [],
    "rhs_batch_dimensions": [],
}  # fmt: skip
PRECISION = {"operand_precision": ["DEFAULT", "HIGHEST"], "algorithm": "ALG_UNSET"}
GEMM = {"gemm_backend_config": {"dot_dimension_numbers": NUMBERS, "precision_config": PRECISION, "epilogue": "DEFAULT"}}


def call(target: str, shape: str, config: object, more: str = "") -> str:
    written = f", backend_config={json.dumps(config)}" if config else ""
    operands = more.partition("|")[0] or "%p0, %p1"
    return f'{shape} custom-call({operands}), custom_call_target="{target}"{more.partition("|")[2]}{written}'


@pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"])
def test_cublas(target: str):
    # 64 x 32 results, 128 multiply-adds each; 4 MiB of scratch is neither read nor written
    dtype = "f8e4m3fn" if target.endswith("f8") else "bf16"
    row = op_cost([f"{dtype}[64,128]", f"{dtype}[128,32]"], call(target, "(bf16[64,32], s8[4194304])", GEMM))
    assert row.flops == 2 * 64 * 32 * 128
    assert [(kind.dtype, kind.precision) for kind in row.once.products] == [(dtype, "highest")]
    width = 1 if dtype.startswith("f8") else 2
    assert (row.once.bytes_read, row.once.bytes_written) == ((64 * 128 + 128 * 32) * width, 64 * 32 * 2)


def test_cublas_without_its_configuration_is_unknown():
    assert op_cost(["f32[4,4]"] * 2, call("__cublas$gemm", "f32[4,4]", {})).flops is None


@pytest.mark.parametrize(
    ("target", "shapes", "result"),
    [
        # 2 images of 10x10, 3 -> 8 features, 3x3, outputs 8x8: the same products in all three directions
        ("__cudnn$convForward", ["f32[2,10,10,3]", "f32[3,3,3,8]"], "f32[2,8,8,8]"),
        ("__cudnn$convBackwardInput", ["f32[2,8,8,8]", "f32[3,3,3,8]"], "f32[2,10,10,3]"),
        ("__cudnn$convBackwardFilter", ["f32[2,10,10,3]", "f32[2,8,8,8]"], "f32[3,3,3,8]"),
    ],
)
def test_cudnn_convolution(target: str, shapes: list[str], result: str):
    labels = "%p0, %p1|, window={size=3x3}, dim_labels=b01f_01io->b01f"
    row = op_cost(shapes, call(target, f"({result}, u8[1024])", {}, labels))
    assert row.flops == 2 * (2 * 8 * 8 * 8) * 27


def attention(mask: str, **more: object) -> dict[str, object]:
    return {
        "cudnn_fmha_backend_config": {
            "mask_type": mask,
            "intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "4", "64", "64"]},
            **more,
        }
    }


FORWARD = {"bmm1_dot_dimension_numbers": {"lhs_contracting_dimensions": ["3"]}}


def test_fused_attention():
    # 2 batches, 4 heads, 64 x 64 scores of size 32: two products
    shape, operands = "(bf16[2,4,64,32], u8[0])", "%p0, %p1, %p2|"
    inputs = ["bf16[2,4,64,32]"] * 3
    row = op_cost(inputs, call("__cudnn$fmhaSoftmax", shape, attention("NO_MASK", **FORWARD), operands))
    assert row.flops == 2 * (2 * 2 * 4 * 64 * 64 * 32)
    # causal: 64 + 63 + ... + 1 of 64 * 64 scores
    row = op_cost(inputs, call("__cudnn$fmhaSoftmax", shape, attention("CAUSAL", **FORWARD), operands))
    assert row.flops == 2 * (2 * 2 * 4 * (64 * 65 // 2) * 32)
    # a window of 16: 1 + 2 + ... + 16 for the first queries, 16 for each of the other 48
    windowed = attention("CAUSAL", sliding_window_length=16, **FORWARD)
    row = op_cost(inputs, call("__cudnn$fmhaSoftmax", shape, windowed, operands))
    assert row.flops == 2 * (2 * 2 * 4 * (136 + 48 * 16) * 32)
    row = op_cost(inputs, call("__cudnn$fmhaSoftmaxBackward", shape, attention("NO_MASK"), operands))
    assert row.flops == 5 * (2 * 2 * 4 * 64 * 64 * 32)
    assert op_cost(inputs, call("__cudnn$fmhaSoftmax", shape, {}, operands)).flops is None


def test_top_k_is_a_lower_bound():
    row = op_cost(["f32[8,100]"], call("TopK", "(f32[8,4], s32[8,4])", {}, "%p0|"))
    assert (row.flops, row.once.exact) == (800, False)


def test_a_pallas_kernel_is_unknown_unless_its_author_states_a_cost():
    plain = op_cost(["f32[8]"] * 2, call("tpu_custom_call", "f32[8]", {"custom_call_config": {"body": "TUzv"}}))
    assert plain.flops is None
    estimate = {"custom_call_config": {"cost_estimate": {"flops": "123", "transcendentals": "7"}}}
    stated = op_cost(["f32[8]"] * 2, call("tpu_custom_call", "f32[8]", estimate))
    assert (stated.flops, stated.once.transcendentals) == (123, 7)
    assert (stated.once.bytes_read, stated.once.bytes_written) == (64, 32), "operands and results"


def test_a_pallas_kernel_for_a_gpu_has_its_cost_as_attributes():
    text = call("__gpu$xla.gpu.triton", "f32[8]", {}, "%p0, %p1|")
    notes = 'frontend_attributes={perfscope_bytes="100",perfscope_flops="123",perfscope_transcendentals="7"}'
    row = op_cost(["bf16[8,4]", "s32[100]"], f"{text}, {notes}")
    assert (row.flops, row.once.transcendentals) == (123, 7)
    assert (row.once.bytes_read, row.once.bytes_written) == (100 - 32, 32)
    assert row.once.products == {Product("bf16"): 123}, "the peak of the operands that matrix units take"
    assert not row.is_product, "its author states no sizes of matrices"


@pytest.mark.parametrize("target", ["AllocateBuffer", "Sharding", "AssumeGatherIndicesInBound"])
def test_marks_cost_nothing(target: str):
    row = op_cost(["f32[8]"], call(target, "f32[8]", {}, "%p0|"))
    assert (row.flops, row.once.bytes) == (0, 0)


def test_moves_to_the_host_are_copies():
    row = op_cost(["f32[8]"], call("MoveToHost", "f32[8]{0:S(5)}", {}, "%p0|"))
    assert (row.flops, row.once.bytes_read, row.once.bytes_written, row.once.host_bytes) == (0, 32, 0, 32)


@pytest.mark.parametrize(
    "config",
    [
        {"gemm_backend_config": 3},
        {"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["x"]}}},
        {"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": "1"}}},
        {"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["9"]}}},
    ],
)
def test_a_configuration_that_makes_no_sense_is_unknown(config: object):
    assert op_cost(["f32[4,4]"] * 2, call("__cublas$gemm", "f32[4,4]", config)).flops is None


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
    text = op_text(parameters, op, ADD_COMPUTATION if "to_apply" in op else "")
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
    return op_cost(parameters, op, ADD_COMPUTATION if "to_apply" in op else "").flops


def test_window_reduction_does_not_add_padding():
    # a cumulative sum of 16 in one window: output o adds o+1 numbers, o additions; XLA counts 15 for each
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


def by_hand(window: WindowDim, inputs: int, outputs: int) -> int:
    span = range(0, inputs * window.lhs_dilate, window.lhs_dilate)
    return sum(
        (output * window.stride + element * window.rhs_dilate - window.pad_low) in span
        for output in range(outputs)
        for element in range(window.size)
    )


windows = st.builds(
    WindowDim,
    size=st.integers(0, 7),
    stride=st.integers(1, 7),
    pad_low=st.integers(-4, 9),
    lhs_dilate=st.integers(1, 8),
    rhs_dilate=st.integers(1, 4),
)


@given(windows, st.integers(0, 9), st.integers(0, 9))
def test_the_closed_form_counts_what_there_is(window: WindowDim, inputs: int, outputs: int):
    assert valid_positions(window, inputs, outputs) == by_hand(window, inputs, outputs)


def test_a_long_window_over_few_outputs_is_counted_the_other_way_round():
    # a sum over everything: one output, all positions on the input
    assert valid_positions(WindowDim(size=MAX_WINDOW_STEPS + 1), MAX_WINDOW_STEPS + 1, 1) == MAX_WINDOW_STEPS + 1


def test_sizes_that_nobody_could_go_through_are_unknown():
    assert valid_positions(WindowDim(size=2**60), 2**61, 2**60) is None
    assert valid_positions(WindowDim(size=3, stride=0), 5, 5) is None


def test_the_text_of_a_window():
    assert window_dims("{size=3x5 stride=2x1 pad=1_0x-1_2 lhs_dilate=1x2 rhs_dilate=3x1 rhs_reversal=1x1}") == (
        WindowDim(size=3, stride=2, pad_low=1, rhs_dilate=3),
        WindowDim(size=5, pad_low=-1, lhs_dilate=2),
    )
    assert window_dims("") == ()
    assert window_dims("{size=3x3 stride=2}") is None
