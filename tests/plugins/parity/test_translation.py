"""Weights between PyTorch state dicts and JAX pytrees: rules, orders, errors, and round trips of any model."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.parity.checkpoints.safetensors import read_safetensors
from perfscope.plugins.parity.document import Arrays, Kind, Weight
from perfscope.plugins.parity.errors import cosine, expected_error, max_ulp, relative_error, rounded
from perfscope.plugins.parity.layouts import layouts
from perfscope.plugins.parity.names import likeness, parse_name
from perfscope.plugins.parity.translation import Translation, translate


def weight(name: str, *shape: int, kind: Kind = "", aliases: tuple[str, ...] = ()) -> Weight:
    return Weight(name=name, shape=shape, dtype="float32", kind=kind, aliases=aliases)


def values(weights: list[Weight]) -> Arrays:
    """Every element of all weights is another number."""
    arrays, start = {}, 1
    for each in weights:
        size = int(np.prod(each.shape))
        arrays[each.name] = np.arange(start, start + size, dtype=np.float64).reshape(each.shape)
        start += size
    return arrays


def to_jax(torch: list[Weight], jax: list[Weight], options: tuple[str, ...] = ()) -> tuple[Translation, Arrays, Arrays]:
    translation = translate(torch, jax, a_is_torch=True, b_is_torch=False, options=options)
    given = values(torch)
    made = translation.to_b(given)
    assert {name: array.shape for name, array in made.items()} == {each.name: each.shape for each in jax}
    return translation, given, made


def test_a_linear_layer_is_transposed_and_its_bias_is_not() -> None:
    torch = [weight("fc.weight", 3, 5, kind="linear"), weight("fc.bias", 3)]
    _, given, made = to_jax(torch, [weight("fc/kernel", 5, 3), weight("fc/bias", 3)])
    np.testing.assert_array_equal(made["fc/kernel"], given["fc.weight"].T)
    np.testing.assert_array_equal(made["fc/bias"], given["fc.bias"])


def test_a_square_weight_lies_as_those_that_are_not_square() -> None:
    torch = [weight("a.weight", 4, 4, kind="linear"), weight("b.weight", 4, 6, kind="linear")]
    _, given, made = to_jax(torch, [weight("a/w", 4, 4), weight("b/w", 6, 4)])
    np.testing.assert_array_equal(made["a/w"], given["a.weight"].T)
    _, given, made = to_jax(torch, [weight("a/w", 4, 4), weight("b/w", 4, 6)])
    np.testing.assert_array_equal(made["a/w"], given["a.weight"])


def test_an_embedding_keeps_its_rows_and_a_convolution_gets_its_channels_last() -> None:
    torch = [weight("wte.weight", 7, 4, kind="embedding"), weight("conv.weight", 8, 3, 5, 5, kind="conv")]
    _, given, made = to_jax(torch, [weight("embed/embedding", 7, 4), weight("conv/kernel", 5, 5, 3, 8)])
    np.testing.assert_array_equal(made["embed/embedding"], given["wte.weight"])
    np.testing.assert_array_equal(made["conv/kernel"], given["conv.weight"].transpose(2, 3, 1, 0))


def test_query_key_and_value_become_one_weight_with_an_axis_for_them() -> None:
    torch = [weight(f"attn.{name}_proj.weight", 6, 4, kind="linear") for name in "qkv"]
    _, given, made = to_jax(torch, [weight("attn/qkv_DCHK", 4, 3, 2, 3)])
    for index, name in enumerate("qkv"):
        wanted = given[f"attn.{name}_proj.weight"].T.reshape(4, 2, 3)
        np.testing.assert_array_equal(made["attn/qkv_DCHK"][:, index], wanted)


def test_one_weight_of_three_projections_is_split() -> None:
    torch = [weight("attn.qkv.weight", 12, 5, kind="linear"), weight("attn.qkv.bias", 12)]
    jax = [weight(f"attn/{name}/{leaf}", *shape) for name in ("query", "key", "value") for leaf, shape in
           (("kernel", (5, 2, 2)), ("bias", (2, 2)))]  # fmt: skip
    translation, given, made = to_jax(torch, jax)
    np.testing.assert_array_equal(made["attn/key/kernel"], given["attn.qkv.weight"][4:8].T.reshape(5, 2, 2))
    np.testing.assert_array_equal(made["attn/value/bias"].ravel(), given["attn.qkv.bias"][8:])
    back = translation.to_a(made)
    np.testing.assert_array_equal(back["attn.qkv.weight"], given["attn.qkv.weight"])


def test_layers_are_stacked_in_the_order_of_their_numbers() -> None:
    torch = [weight(f"blocks.{index}.up.weight", 3, 2, kind="linear") for index in range(11)]
    _, given, made = to_jax(torch, [weight("blocks/up_DF", 11, 2, 3)])
    np.testing.assert_array_equal(made["blocks/up_DF"][10], given["blocks.10.up.weight"].T)


def test_a_tied_weight_goes_to_both_and_must_come_back_the_same() -> None:
    torch = [weight("embedding.weight", 6, 4, kind="embedding", aliases=("head.weight",))]
    translation, given, made = to_jax(torch, [weight("embedding", 6, 4), weight("head", 6, 4)])
    np.testing.assert_array_equal(made["embedding"], made["head"])
    np.testing.assert_array_equal(translation.to_a(made)["embedding.weight"], given["embedding.weight"])
    np.testing.assert_array_equal(translation.to_a(made, add=True)["embedding.weight"], 2 * given["embedding.weight"])
    with pytest.raises(DataError, match="tied"):
        translation.to_a({**made, "head": made["head"] + 1})
    alone = to_jax(torch, [weight("embedding", 6, 4)])[2]  # a model that uses the same array twice
    assert set(alone) == {"embedding"}


def test_weights_without_a_counterpart_are_one_line_that_names_them() -> None:
    torch = [weight("fc.weight", 3, 5, kind="linear"), weight("extra.weight", 9)]
    with pytest.raises(DataError) as error:
        translate(torch, [weight("fc/kernel", 5, 3), weight("other", 2, 2)], a_is_torch=True, b_is_torch=False)
    assert "A has extra.weight [9]; B has other [2, 2]; match them with --map" in str(error.value)
    assert "\n" not in str(error.value)
    translate(torch[:1], [weight("fc/kernel", 5, 3)], a_is_torch=True, b_is_torch=False)


def test_a_map_option_overrides_names_and_must_name_weights() -> None:
    torch = [weight("one.weight", 4, kind=""), weight("two.weight", 4)]
    jax = [weight("one", 4), weight("two", 4)]
    _, given, made = to_jax(torch, jax, ("one.weight=two", "two.weight=one"))
    np.testing.assert_array_equal(made["two"], given["one.weight"])
    with pytest.raises(UsageError, match="three is not a weight"):
        to_jax(torch, jax, ("one.weight=three",))


def test_names_without_anything_in_common_are_matched_by_order() -> None:
    torch = [weight("0.weight", 4, 4, kind="linear"), weight("2.weight", 4, 4, kind="linear")]
    translation, given, made = to_jax(torch, [weight("Dense_0/kernel", 4, 4), weight("Dense_1/kernel", 4, 4)])
    np.testing.assert_array_equal(made["Dense_1/kernel"], given["2.weight"].T)
    assert {mapping.by for mapping in translation.mappings()} == {"order"}


def test_norms_of_a_block_are_told_apart_by_name_though_all_have_one_shape() -> None:
    torch = [weight(f"layers.{i}.{n}.{p}", 4) for i in range(2) for n in ("input_layernorm", "post_attention_layernorm")
             for p in ("weight", "bias")]  # fmt: skip
    jax = [weight(f"blocks/{n}/{p}", 2, 4) for n in ("norm1", "norm2") for p in ("scale_D", "shift_D")]
    _, given, made = to_jax(torch, jax)
    np.testing.assert_array_equal(made["blocks/norm2/shift_D"][1], given["layers.1.post_attention_layernorm.bias"])


LINEAR = st.tuples(st.integers(1, 5), st.integers(1, 5))


@st.composite
def models(draw: st.DrawFn) -> tuple[list[Weight], list[Weight]]:
    """A transformer's weights in PyTorch and in JAX, of any sizes, fused or split, stacked or not, tied or not."""
    heads, width, layers, hidden = (draw(st.integers(1, 4)) for _ in range(4))
    dim, vocab = heads * width, draw(st.integers(2, 9))
    tied, stacked = draw(st.booleans()), draw(st.booleans())
    torch_fused, jax_fused = draw(st.booleans()), draw(st.booleans())
    torch, jax = [], []
    aliases = ("head.weight",) if tied else ()
    torch.append(weight("embedding.weight", vocab, dim, kind="embedding", aliases=aliases))
    for index in range(layers):
        at = f"blocks.{index}"
        fused = [weight(f"{at}.attn.qkv.weight", 3 * dim, dim, kind="linear"), weight(f"{at}.attn.qkv.bias", 3 * dim)]
        split = [
            each
            for name in "qkv"
            for each in (
                weight(f"{at}.attn.{name}_proj.weight", dim, dim, kind="linear"),
                weight(f"{at}.attn.{name}_proj.bias", dim),
            )
        ]
        torch += fused if torch_fused else split
        torch += [weight(f"{at}.attn.out_proj.weight", dim, dim, kind="linear"), weight(f"{at}.norm.weight", dim)]
        torch += [weight(f"{at}.up.weight", hidden, dim, kind="linear"), weight(f"{at}.up.bias", hidden)]
    block = [
        ("attn/out", (heads, width, dim)),
        ("norm/scale", (dim,)),
        ("up/kernel", (dim, hidden)),
        ("up/bias", (hidden,)),
    ]
    if jax_fused:
        block += [("attn/qkv/kernel", (dim, 3, heads, width)), ("attn/qkv/bias", (3, heads, width))]
    else:
        block += [(f"attn/{name}/kernel", (dim, heads, width)) for name in ("query", "key", "value")]
        block += [(f"attn/{name}/bias", (heads, width)) for name in ("query", "key", "value")]
    for name, shape in block:
        if stacked:
            jax.append(weight(f"blocks/{name}", layers, *shape))
        else:
            jax += [weight(f"blocks_{index}/{name}", *shape) for index in range(layers)]
    jax.append(weight("embedding", vocab, dim))
    if not tied:
        torch.append(weight("head.weight", vocab, dim, kind="linear"))
        jax.append(weight("head", dim, vocab))
    return torch, draw(st.permutations(jax))


def as_in_jax(given: Arrays, leaf: str, index: int) -> np.ndarray:
    """A leaf of one layer of `models`, flat, worked out from PyTorch's arrays without any rule."""
    at, (name, _, part) = f"blocks.{index}", leaf.removeprefix("attn/").partition("/")
    if name == "norm":
        return given[f"{at}.norm.weight"]
    if name == "up":
        return given[f"{at}.up.{'bias' if part == 'bias' else 'weight'}"].T.ravel()
    if name == "out":
        return given[f"{at}.attn.out_proj.weight"].T.ravel()
    kind = "bias" if part == "bias" else "weight"
    joined = given.get(f"{at}.attn.qkv.{kind}")
    if joined is None:
        joined = np.concatenate([given[f"{at}.attn.{one}_proj.{kind}"] for one in "qkv"])
    parts = joined if name == "qkv" else np.split(joined, 3)[("query", "key", "value").index(name)]
    return parts.T.ravel()


@settings(max_examples=40, deadline=None)
@given(models())
def test_weights_of_any_model_come_back_as_they_were(model: tuple[list[Weight], list[Weight]]) -> None:
    torch, jax = model
    translation, given, made = to_jax(torch, jax)
    for name, array in made.items():
        block, _, leaf = name.partition("/")
        if leaf:
            stack = enumerate(array) if block == "blocks" else [(int(block.removeprefix("blocks_")), array)]
            for index, layer in stack:
                np.testing.assert_array_equal(layer.ravel(), as_in_jax(given, leaf, index))
    back = translation.to_a(made)
    assert set(back) == set(given)
    for name, array in given.items():
        np.testing.assert_array_equal(back[name], array)
    other = translate(jax, torch, a_is_torch=False, b_is_torch=True)  # the same rules the other way round
    for name, array in other.to_b(made).items():
        np.testing.assert_array_equal(array, given[name])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["linear", "embedding", "conv", ""]), st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data()
)
def test_every_layout_has_an_inverse(kind: Kind, shape: list[int], data: st.DataObject) -> None:
    other = tuple(data.draw(st.permutations(shape)))
    array = np.arange(np.prod(shape)).reshape(shape)
    for layout in layouts(kind, tuple(shape), other):
        there = layout.forth(array)
        assert there.shape == other
        np.testing.assert_array_equal(layout.back(there), array)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "params/blocks_3/attention/query/kernel"),
        ("h.0.mlp.c_fc.bias", "blocks/0/ffn/up/bias"),
        ("blocks.1.norm1.weight", "layers_1/ln1/scale"),
    ],
)
def test_names_of_both_frameworks_mean_the_same(one: str, other: str) -> None:
    assert likeness(parse_name(one), parse_name(other)) == 2.0
    assert parse_name(one).indices == parse_name(other).indices


def test_a_weight_and_a_bias_are_never_alike() -> None:
    assert likeness(parse_name("fc.weight"), parse_name("fc/bias")) == 0.0


def test_errors_of_known_arrays() -> None:
    reference = np.array([3.0, 4.0])
    assert relative_error(np.array([3.0, 4.5]), reference) == pytest.approx(0.1)
    assert relative_error(np.array([3.0]), reference) is None
    assert relative_error(np.array([np.nan, 4.0]), reference) is None
    assert relative_error(np.zeros(2), np.zeros(2)) == 0.0
    assert cosine(-reference, reference) == pytest.approx(-1.0)
    next_up = np.nextafter(np.float32(4.0), np.float32(5.0))
    assert max_ulp(np.array([3.0, next_up], np.float32), reference, "float32") == 1.0
    assert max_ulp(np.array([3.0, 4.0625]), reference, "bfloat16") == 2.0  # 4.0 has steps of 1/32


def test_the_expected_error_grows_with_the_square_root_of_the_reduction_length() -> None:
    assert expected_error("float32", 0, 40_000) / expected_error("float32", 0, 10_000) == pytest.approx(2, rel=1e-3)
    assert expected_error("bfloat16", 4, 0) == pytest.approx(2 * 2 * 2**-8)
    # a bfloat16 product of any length is rounded once
    assert expected_error("bfloat16", 1, 10_000) == pytest.approx(expected_error("bfloat16", 1, 0), rel=1e-3)


@given(st.floats(allow_nan=False, width=32, min_value=-(2.0**100), max_value=2.0**100))
def test_rounding_to_bfloat16_takes_the_nearest(value: float) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wanted = np.float32(value).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert rounded(np.array([value], np.float32), "bfloat16")[0] == wanted


def safetensors(path: Path, arrays: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Path:
    header, data = {}, b""
    for name, (dtype, shape, raw) in arrays.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_safetensors_are_read_with_16_bit_dtypes_widened(tmp_path: Path) -> None:
    single = np.arange(6, dtype=np.float32).reshape(2, 3)
    half = (single.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    file = safetensors(
        tmp_path / "m.safetensors",
        {
            "fc.weight": ("F32", (2, 3), single.tobytes()),
            "wte.weight": ("BF16", (2, 3), half),
            "ids": ("I64", (1,), bytes(8)),
        },
    )
    weights, arrays = read_safetensors(file)
    assert [(each.name, each.dtype, each.kind) for each in weights] == [
        ("fc.weight", "float32", "linear"),
        ("wte.weight", "bfloat16", "embedding"),
    ]
    for array in arrays.values():
        np.testing.assert_array_equal(array, single)  # small whole numbers are bfloat16 numbers too


@pytest.mark.parametrize("content", [b"", b"\x05\0\0\0\0\0\0\0hello", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_safetensors_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(content)
    with pytest.raises(DataError, match="not a safetensors file"):
        read_safetensors(file)


@pytest.mark.parametrize(
    ("entries", "data"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 16]}}, bytes(16)),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, bytes(16)),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(16)),
        ({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}, bytes(8)),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}, bytes(8)),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, bytes(8)),
    ],
)
def test_a_header_that_does_not_describe_the_data_is_refused(tmp_path: Path, entries: dict, data: bytes) -> None:
    text = json.dumps(entries).encode()
    file = tmp_path / "m.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with pytest.raises(DataError):
        read_safetensors(file)


def test_a_name_that_stands_twice_in_a_header_is_refused(tmp_path: Path) -> None:
    entry = '"a":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'
    text = ("{" + entry % (0, 8) + "," + entry % (8, 16) + "}").encode()
    file = tmp_path / "m.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(DataError):
        read_safetensors(file)


def test_a_deep_header_and_a_pipe_are_one_line(tmp_path: Path) -> None:
    text = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    file = tmp_path / "m.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DataError, match="not a safetensors file"):
        read_safetensors(file)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_safetensors(tmp_path / "pipe")


def test_a_square_conv1d_is_turned_where_the_other_kernels_are() -> None:
    """GPT-2 of transformers is (in, out) in PyTorch and (out, in) in its Flax port."""
    plain = [
        Weight(name=f"h.0.{name}.weight", shape=shape, dtype="float32", kind="linear_in_out")
        for name, shape in (("attn.c_proj", (4, 4)), ("mlp.c_fc", (4, 16)))
    ]
    for shape, turned in (((16, 4), True), ((4, 16), False)):
        other = [
            Weight(name=name, shape=size, dtype="float32")
            for name, size in (("h/0/attn/c_proj/kernel", (4, 4)), ("h/0/mlp/c_fc/kernel", shape))
        ]
        values = {each.name: np.arange(math.prod(each.shape)).reshape(each.shape) for each in plain}
        made = translate(plain, other, a_is_torch=True, b_is_torch=False).to_b(values)
        square = values["h.0.attn.c_proj.weight"]
        np.testing.assert_array_equal(made["h/0/attn/c_proj/kernel"], square.T if turned else square)
