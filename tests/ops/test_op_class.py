"""Class of an op by its name: the classes that colours do not distinguish."""

from __future__ import annotations

import pytest

from perfscope.analyzers.ops import op_class


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "matrix product"),
        ("aten::_scaled_mm", "matrix product"),
        ("aten::cudnn_convolution", "convolution"),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", "convolution"),
        ("convert.3", "elementwise"),
        ("aten::_softmax", "softmax"),
        ("aten::native_layer_norm", "normalisation"),
        ("aten::embedding_dense_backward", "indexing"),
        ("aten::index_put_", "indexing"),
        ("aten::index_copy_", "indexing"),
        ("aten::copy_", "copy"),
        ("triton_poi_fused_add_mul_3", "elementwise"),
        ("triton_red_fused_mean_1", "reduction"),
        ("vllm::moe_forward", "mixture of experts"),
        ("aten::item", None),
        ("aten::removes", None),
    ],
)
def test_classes(name: str, kind: str | None) -> None:
    assert op_class(name) == kind
