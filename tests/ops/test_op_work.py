"""Categories of ops, and what the kernels of a recording say of them."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.ops.op_call import CostKind, OpCost
from perfscope.analyzers.ops.op_work import op_category, op_work, op_works
from perfscope.analyzers.predict.curve import Category
from perfscope.analyzers.readers.load import load_all
from tests.conftest import CORPUS


@pytest.mark.parametrize(
    ("name", "kind", "kernel", "category"),
    [
        ("aten::mm", "product", "", "product"),
        ("aten::_flash_attention_forward", "attention", "", "attention"),
        ("aten::_flash_attention_backward", "attention", "", "attention backward"),
        ("aten::convolution_backward", "convolution", "", "convolution backward"),
        ("aten::native_layer_norm", "memory", "", "norm"),
        ("aten::_fused_rms_norm_backward", "memory", "", "norm backward"),
        ("aten::native_batch_norm", "memory", "", "batch norm"),
        ("aten::linalg_vector_norm", "memory", "", "reduction"),
        ("triton_red_fused_add_native_layer_norm_0", "memory", "triton_red_fused_add_native_layer_norm_0", "reduction"),
        ("triton_poi_fused_native_layer_norm_1", "memory", "triton_poi_fused_native_layer_norm_1", "elementwise"),
        ("aten::_softmax", "memory", "", "softmax"),
        ("aten::cat", "memory", "", "join"),
        ("aten::embedding", "memory", "", "gather"),
        ("aten::add_", "memory", "void at::native::vectorized_elementwise_kernel<4, add>", "elementwise"),
        ("aten::copy_", "memory", "void at::native::elementwise_kernel<128, 4, copy>", "strided"),
        ("aten._to_copy.default", "memory", "", "elementwise"),
    ],
)
def test_categories(name: str, kind: CostKind, kernel: str, category: Category) -> None:
    assert op_category(name, kind, [kernel] if kernel else []) == category


def test_a_float32_product_is_in_the_precision_of_its_kernel() -> None:
    cost = OpCost(kind="product", flops=8, bytes=8, dtype="float32")
    assert op_work("aten::mm", cost, ["ampere_sgemm_128x64_tn"]).dtype == "float32"
    assert op_work("aten::mm", cost, ["ampere_s1688gemm_fp32_128x64_tn"]).dtype == "tf32"


@pytest.mark.corpus
def test_every_costed_kernel_belongs_to_one_call() -> None:
    path = CORPUS / "kineto" / "TraceLens__h100_bert-small.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    (trace,) = load_all(path)
    kernels = trace.rows["kernels"]
    works = op_works(trace)
    rows = [row for work in works for row in work.kernels]
    assert len(rows) == len(set(rows))
    assert sum(work.time_ns for work in works) == int((kernels["end_ns"] - kernels["start_ns"])[np.array(rows)].sum())
