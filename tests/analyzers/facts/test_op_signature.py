"""Shapes and dtypes as profilers write them."""

from __future__ import annotations

import pytest

from perfscope.analyzers.facts.op_signature import TensorSpec, broadcast, parse_inputs, promoted


def test_scalars_are_left_out_and_lists_flattened():
    found = parse_inputs("[[4, 8], [], [[2], [3]], []]", '["float", "Scalar", "c10::BFloat16", ""]')
    assert found == (
        TensorSpec(shape=(4, 8), dtype="float32"),
        TensorSpec(shape=(2,), dtype="bfloat16"),
        TensorSpec(shape=(3,), dtype="bfloat16"),
    )
    assert [tensor.bytes for tensor in found] == [128, 4, 6]


@pytest.mark.parametrize("text", ["", "not json", "{}", "[1, null, {}]", '[["a"]]'])
def test_what_is_no_list_of_shapes_gives_nothing(text: str):
    assert parse_inputs(text, '["float", "float", "float"]') == ()


def test_shapes_broadcast_and_dtypes_promote_as_torch_does():
    assert broadcast(((4, 1), (8,), ())) == (4, 8)
    assert broadcast(((0, 1), (4,))) == (0, 4)
    half, brain, zero_dim = (
        TensorSpec(shape=(2,), dtype="float16"),
        TensorSpec(shape=(2,), dtype="bfloat16"),
        TensorSpec(shape=(), dtype="float64"),
    )
    assert promoted((half, zero_dim)) == "float16"
    assert promoted((half, brain)) == "float32"
    assert promoted(()) == ""
