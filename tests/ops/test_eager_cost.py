"""FLOPs and bytes of eager ops: against torch's own counter, against the op graph of real programs, by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.devices.tiles import Sizes
from perfscope.analyzers.ops.eager_cost import op_cost
from perfscope.analyzers.ops.kernels import canonical_dtype
from perfscope.analyzers.ops.op_call import OpCost
from tests.ops.kineto_calls import recorded

torch = pytest.importorskip("torch")

SIZES = st.integers(1, 64)


def cost_of(op: Any, *args: Any, **kwargs: Any) -> OpCost | None:
    return op_cost(*recorded(op, args, kwargs))


def counted(op: Any, *args: Any, **kwargs: Any) -> int:
    """FLOPs by ``torch.utils.flop_counter``, on tensors without data."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        op(*args, **kwargs)
    return int(counter.get_total_flops())


def meta(*shape: int, dtype: Any = None) -> Any:
    return torch.empty(shape, dtype=dtype or torch.bfloat16, device="meta")


@settings(max_examples=25, deadline=None)
@given(m=SIZES, k=SIZES, n=SIZES, b=st.integers(1, 8))
def test_products_count_what_torch_counts(m: int, k: int, n: int, b: int) -> None:
    aten = torch.ops.aten
    calls = [
        (aten.mm.default, (meta(m, k), meta(k, n))),
        (aten.addmm.default, (meta(n), meta(m, k), meta(k, n))),
        (aten.bmm.default, (meta(b, m, k), meta(b, k, n))),
        (aten.baddbmm.default, (meta(b, m, n), meta(b, m, k), meta(b, k, n))),
    ]
    for op, args in calls:
        cost = cost_of(op, *args)
        assert cost is not None
        assert (cost.flops, cost.dtype) == (counted(op, *args), "bfloat16")
        result = (b if len(args[-1].shape) == 3 else 1) * m * n
        assert cost.bytes == 2 * (sum(arg.numel() for arg in args) + result)


@settings(max_examples=40, deadline=None)
@given(
    axes=st.integers(1, 3), batch=st.integers(1, 4), groups=st.integers(1, 3), width=st.integers(1, 4),
    made=st.integers(1, 4), kernel=st.integers(1, 4), stride=st.integers(1, 3), padding=st.integers(0, 2),
    dilation=st.integers(1, 2), transposed=st.booleans(), size=st.integers(9, 16),
)  # fmt: skip
def test_convolutions_count_what_torch_counts(
    axes: int, batch: int, groups: int, width: int, made: int, kernel: int, stride: int, padding: int, dilation: int,
    transposed: bool, size: int,
) -> None:  # fmt: skip
    op = torch.ops.aten.convolution.default
    source = meta(batch, groups * width, *[size] * axes)
    weight = meta(*((groups * width, made) if transposed else (groups * made, width)), *[kernel] * axes)
    args = (source, weight, None, [stride] * axes, [padding] * axes, [dilation] * axes, transposed, [0] * axes, groups)
    cost = cost_of(op, *args)
    result = op(*args)
    assert cost is not None
    assert cost.flops == counted(op, *args)
    assert cost.bytes == 2 * (source.numel() + weight.numel() + result.numel())
    backward = torch.ops.aten.convolution_backward.default
    both = cost_of(backward, result, *args[:2], None, *args[3:], [True, True, False])
    assert both is not None
    assert both.flops == 2 * cost.flops
    assert both.bytes == 2 * (result.numel() + 2 * source.numel() + 2 * weight.numel())


@settings(max_examples=25, deadline=None)
@given(b=st.integers(1, 3), h=st.integers(1, 4), q=st.integers(1, 40), k=st.integers(1, 40), e=st.sampled_from([8, 64]))
def test_attention_counts_what_torch_counts(b: int, h: int, q: int, k: int, e: int) -> None:
    aten = torch.ops.aten
    query, key = meta(b, h, q, e), meta(b, h, k, e)
    forward = aten._scaled_dot_product_flash_attention.default
    expected = counted(forward, query, key, key)
    across = (query.transpose(1, 2), key.transpose(1, 2), key.transpose(1, 2))
    for cost in (
        cost_of(forward, query, key, key),
        cost_of(aten._flash_attention_forward.default, *across, None, None, q, k, 0.0, False, False),
        cost_of(aten._efficient_attention_forward.default, *across, None, None, None, q, k, 0.0, 0),
        cost_of(aten._scaled_dot_product_efficient_attention.default, query, key, key, None, True),
        cost_of(aten._scaled_dot_product_cudnn_attention.default, query, key, key, None, True),
    ):
        assert cost is not None
        assert (cost.kind, cost.flops) == ("attention", expected)
        assert cost.bytes == 2 * (2 * query.numel() + 2 * key.numel())


def test_the_backward_of_attention_is_five_products_for_two() -> None:
    aten = torch.ops.aten
    query, lse = meta(2, 4, 32, 64), meta(2, 4, 32)
    across = query.transpose(1, 2)
    forward = cost_of(aten._scaled_dot_product_flash_attention.default, query, query, query)
    assert forward is not None
    backward = [
        cost_of(aten._scaled_dot_product_flash_attention_backward.default, *[query] * 5, lse, None, None, 32, 32, 0.0,
                False, lse, lse),
        cost_of(aten._flash_attention_backward.default, *[across] * 5, lse, None, None, 32, 32, 0.0, False, lse, lse),
        cost_of(aten._scaled_dot_product_efficient_attention_backward.default, *[query] * 4, None, query, lse, lse, lse,
                0.0, [True] * 4, False),
        cost_of(aten._efficient_attention_backward.default, *[across] * 4, None, across, None, None, 32, 32, lse, 0.0,
                lse, lse, 0, False),
        cost_of(aten._scaled_dot_product_cudnn_attention_backward.default, *[query] * 5, lse, lse, lse, None, None,
                None, 32, 32, 0.0, False),
    ]  # fmt: skip
    for cost in backward:
        assert cost is not None
        assert 2 * cost.flops == 5 * forward.flops


def test_a_causal_kernel_visits_half_and_a_packed_one_has_no_cost() -> None:
    aten = torch.ops.aten
    query = meta(1, 2, 64, 16)
    full, half = (
        cost_of(aten._scaled_dot_product_flash_attention.default, query, query, query, 0.0, causal)
        for causal in (False, True)
    )
    assert full is not None
    assert half is not None
    assert half.flops == full.flops * (64 * 65 // 2) // (64 * 64)
    packed, lengths = meta(128, 2, 16), torch.empty(3, dtype=torch.int32, device="meta")
    op = aten._flash_attention_forward.default
    assert cost_of(op, packed, packed, packed, lengths, lengths, 64, 64, 0.0, True, False) is None


def test_scaled_and_grouped_products() -> None:
    aten = torch.ops.aten
    left, right = meta(64, 32, dtype=torch.float8_e4m3fn), meta(16, 32, dtype=torch.float8_e4m3fn).t()
    scale = meta(1, dtype=torch.float32)
    cost = cost_of(aten._scaled_mm.default, left, right, scale, scale, out_dtype=torch.bfloat16)
    assert cost == OpCost(
        kind="product",
        flops=2 * 64 * 32 * 16,
        bytes=64 * 32 + 16 * 32 + 8 + 2 * 64 * 16,
        dtype="float8_e4m3fn",
        sizes=Sizes(batch=1, rows=64, columns=16, inner=32),
    )
    groups, ends = meta(4, 32, 8), torch.empty(4, dtype=torch.int32, device="meta")
    grouped = cost_of(aten._grouped_mm.default, meta(64, 32), groups, ends)
    assert grouped is not None
    assert grouped.flops == 2 * 64 * 32 * 8


def test_what_a_product_is_added_to_is_read_unless_beta_is_zero_and_out_is_the_result() -> None:
    aten = torch.ops.aten
    b, left, right = meta(8, 16), meta(8, 4), meta(4, 16)
    read, unread = (cost_of(aten.addmm.default, b, left, right, beta=beta) for beta in (1.0, 0.0))
    assert read is not None
    assert unread is not None
    assert read.bytes - unread.bytes == 2 * 8 * 16
    assert cost_of(aten.mm.out, left, right, out=b) == cost_of(aten.mm.default, left, right)


def elementwise(name: str, shapes: object, dtypes: object, strides: object = ()) -> int:
    cost = op_cost(name, json.dumps(shapes), json.dumps(dtypes), json.dumps(list(strides)), elementwise=True)  # type: ignore[call-overload]
    assert cost is not None
    assert (cost.kind, cost.flops) == ("memory", 0)
    return cost.bytes


def test_elementwise_ops_read_operands_once_and_write_the_result() -> None:
    assert elementwise("aten::add", [[8, 16], [16], []], ["float", "float", "Scalar"]) == 4 * (128 + 16 + 128)
    assert elementwise("aten::add_", [[8, 16], [8, 16], []], ["float", "float", "Scalar"]) == 4 * 3 * 128
    assert elementwise("aten::mul", [[128], [128]], ["c10::BFloat16", "float"]) == 2 * 128 + 4 * 128 + 4 * 128
    assert elementwise("aten::eq", [[128], []], ["float", "Scalar"]) == 4 * 128 + 128
    assert elementwise("aten::copy_", [[8, 4], [8, 4], []], ["float", "c10::Half", "Scalar"]) == 32 * 6
    assert elementwise("aten::fill_", [[8, 4], []], ["float", "Scalar"]) == 128
    expanded = elementwise("aten::copy_", [[8, 4], [8, 4]], ["float", "float"], [[4, 1], [0, 1]])
    assert expanded == 4 * (32 + 4)
    assert elementwise("aten::exp", [[128], [128]], ["float", "float"]) == 2 * 4 * 128  # out=


def test_only_ops_of_aten_are_elementwise_by_their_kernels() -> None:
    assert op_cost("MyFunction", "[[8]]", '["float"]', elementwise=True) is None
    assert op_cost("aten::frobnicate", "[[8]]", '["float"]') is None


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "values", "moved"),
    [
        ("aten::native_layer_norm", [[8, 64], [], [64], [64], []], ["float", "ScalarList", "float", "float", "Scalar"],
         [], 4 * (2 * 512 + 128)),
        ("aten::_softmax", [[8, 64], [], []], ["c10::Half", "Scalar", "Scalar"], ["", "-1", "False"], 2 * 2 * 512),
        ("aten::_softmax", [[8, 64], [], []], ["c10::Half", "Scalar", "Scalar"], ["", "-1", "True"], 6 * 512),
        ("aten::sum", [[8, 64], [], [], []], ["float", "ScalarList", "Scalar", ""], [], 4 * 512),
        ("aten::index_select", [[1000, 64], [], [8]], ["float", "Scalar", "long int"], ["", "0", ""], 64 + 8 * 64 * 8),
        ("aten::embedding_dense_backward", [[2, 4], [2], [], [], []], ["float", "long int", *["Scalar"] * 3],
         ["", "", "10", "-1", "False"], 32 + 16 + 160),
        ("triton_poi_fused_add_0", [[8, 64], [1000, 64], []], ["float", "float", "Scalar"], ["", "", "512"],
         4 * 2 * 512),
        # 2 x 10 of 16 scores are read in half precision, all are written
        ("ScaledUpperTriangMaskedSoftmax", [[2, 4, 4], []], ["c10::Half", "Scalar"], [], 2 * 20 + 2 * 32),
        ("_C::fused_add_rms_norm", [[8, 64], [8, 64], [64], []], ["float"] * 3 + ["Scalar"], [], 4 * 4 * 512),
        ("aiter::rms_norm", [[8, 64], [64], []], ["float", "float", "Scalar"], [], 4 * (2 * 512 + 64)),
        ("aiter::add_rmsnorm", [*[[8, 64]] * 4, [64], []], ["float"] * 5 + ["Scalar"], [], 4 * (4 * 512 + 64)),
        ("sgl_kernel::silu_and_mul", [[8, 64], [8, 128]], ["float"] * 2, [], 4 * 3 * 512),
        ("sglang::store_cache", [[8, 64], [8, 64], [1000, 64], [1000, 64], [8]], ["float"] * 4 + ["long int"], [],
         4 * 4 * 512),
        ("aten::max_pool2d_with_indices", [[2, 4, 8, 8], *[[]] * 5], ["float", *["ScalarList"] * 4, "Scalar"],
         ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"], 4 * 512 + 12 * 128),
        ("aten::max_pool2d_with_indices_backward", [[2, 4, 4, 4], [2, 4, 8, 8], *[[]] * 5, [2, 4, 4, 4]],
         ["float", "float", *["ScalarList"] * 4, "Scalar", "long int"], [], 4 * 128 + 4 * 512 + 8 * 128),
    ],
)  # fmt: skip
def test_work_bounded_by_memory(name: str, shapes: Any, dtypes: Any, values: Any, moved: int) -> None:
    cost = op_cost(name, json.dumps(shapes), json.dumps(dtypes), "", json.dumps(values))
    assert cost is not None
    assert (cost.kind, cost.bytes, cost.dtype) == ("memory", moved, canonical_dtype(dtypes[0]))


def test_lists_of_an_optimizer() -> None:
    lists = json.dumps([[[4, 4], [4]]] * 4 + [[], [[], []]])
    kinds = json.dumps(["TensorList"] * 6)
    fused = op_cost("aten::_fused_adamw_", lists, kinds, list_dtype="float32")
    assert fused == OpCost(kind="memory", bytes=4 * (7 * 20 + 2), dtype="float32")
    pairs = json.dumps([[[4, 4], [4]], [[4, 4], [4]], []])
    lerp = op_cost(
        "aten::_foreach_lerp_", pairs, json.dumps(["TensorList", "TensorList", "Scalar"]), list_dtype="float32"
    )
    assert lerp == OpCost(kind="memory", bytes=4 * 3 * 20, dtype="float32")
    assert op_cost("aten::_fused_adamw_", lists, kinds) is None  # their dtype is not known


@given(text=st.text(max_size=30))
def test_text_that_is_no_recording_has_no_cost(text: str) -> None:
    for name in ("aten::mm", "aten::convolution", "aten::_flash_attention_forward", "aten::cat", "aten::index_select"):
        assert op_cost(name, text, text, text, text) is None or math.isfinite(op_cost(name, text, text).bytes)  # type: ignore[union-attr]


def test_a_sparse_factor_has_a_shape_and_no_strides_and_no_cost() -> None:
    shapes, dtypes = "[[2708,1433],[1433,16]]", '["float","float"]'
    assert op_cost("aten::mm", shapes, dtypes, "[[1433,1],[16,1]]") is not None
    assert op_cost("aten::mm", shapes, dtypes, "[[],[16,1]]") is None


def test_a_resized_image_is_written_in_its_other_size() -> None:
    shapes, dtypes = "[[1,2,4,4],[],[],[]]", '["float","ScalarList","Scalar","Scalar"]'
    found = op_cost("aten::upsample_nearest2d", shapes, dtypes, "", '["","[8, 8]","",""]')
    assert found == OpCost(kind="memory", bytes=4 * 2 * (16 + 64), dtype="float32")
    assert op_cost("aten::upsample_nearest2d", shapes, dtypes) is None


def test_heads_are_turned_in_place_by_a_row_of_the_table_for_each_position() -> None:
    shapes, dtypes = "[[8],[8,64],[8,32],[],[1000,8],[]]", '["long int","float","float","Scalar","float","Scalar"]'
    found = op_cost("_C::rotary_embedding", shapes, dtypes, "", '["","","","16","","True"]')
    half = 2 * 8 * 96 // 2  # of q and k, read and written: 8 of the 16 elements of a head
    assert found == OpCost(kind="memory", bytes=8 * 8 + 4 * half + 4 * 8 * 8, dtype="float32")
    assert op_cost("_C::rotary_embedding", shapes, dtypes) is None


def test_a_window_that_was_not_recorded_or_is_rounded_up_has_no_cost() -> None:
    shapes, dtypes = (
        "[[2,4,8,8],[],[],[],[],[]]",
        '["float","ScalarList","ScalarList","ScalarList","ScalarList","Scalar"]',
    )
    window = '["","[2, 2]","[]","[0, 0]","[1, 1]","%s"]'
    found = op_cost("aten::max_pool2d_with_indices", shapes, dtypes, "", window % "False")
    assert found == OpCost(kind="memory", bytes=4 * 512 + 12 * 128, dtype="float32")
    assert op_cost("aten::max_pool2d_with_indices", shapes, dtypes, "", window % "True") is None
    assert op_cost("aten::max_pool2d_with_indices", shapes, dtypes) is None


def test_group_norm_of_aiter_reads_and_writes_its_input() -> None:
    dtypes = '["c10::BFloat16","Scalar","c10::BFloat16","c10::BFloat16","Scalar"]'
    found = op_cost("aiter::_groupnorm_run", "[[1,128,64,64],[],[128],[128],[]]", dtypes)
    assert found == OpCost(kind="memory", bytes=2 * 2 * 128 * 64 * 64, dtype="bfloat16")


def test_sizes_of_products_convolutions_and_attention() -> None:
    aten = torch.ops.aten
    product = cost_of(aten.bmm.default, meta(3, 8, 4), meta(3, 4, 16))
    assert product is not None
    assert product.sizes == Sizes(batch=3, rows=8, columns=16, inner=4)
    vector = cost_of(aten.mv.default, meta(8, 4), meta(4))
    assert vector is not None
    assert vector.sizes is None
    windows = cost_of(aten.convolution.default, meta(2, 3, 8, 8), meta(16, 3, 3, 3), None, [1, 1], [1, 1], [1, 1],
                      False, [0, 0], 1)  # fmt: skip
    assert windows is not None
    assert windows.sizes == Sizes(batch=1, rows=2 * 8 * 8, columns=16, inner=27)
    assert windows.sizes.flops == windows.flops
