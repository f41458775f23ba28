"""Library calls whose arithmetic is known, as XLA writes them; counts derived by hand."""

from __future__ import annotations

import json

import pytest

from tests.analyzers.hlo.cost_text import op_cost

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
