"""`perfscope convert`: round trips of any model, files that are written whole, and checkpoints that are refused."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.__main__ import main
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.parity.checkpoints import (
    Checkpoint,
    check_target,
    narrowed,
    open_checkpoint,
    stored_bytes,
    widened,
    write_checkpoint,
)
from perfscope.plugins.parity.checkpoints.conversion import Conversion
from perfscope.plugins.parity.checkpoints.float8 import EXPONENT_BITS
from perfscope.plugins.parity.checkpoints.stored import STORAGE
from perfscope.plugins.parity.document import Kind, Weight
from perfscope.plugins.parity.heads import of_config, with_heads
from perfscope.plugins.parity.translation import MisfitError, translate

MODELS = Path(__file__).with_name("models.py")


def weight(name: str, *shape: int, kind: Kind = "", dtype: str = "float32", aliases: tuple[str, ...] = ()) -> Weight:
    return Weight(name=name, shape=shape, dtype=dtype, kind=kind, aliases=aliases)


def stored(weights: list[Weight], seed: int = 0) -> dict[str, np.ndarray]:
    """Bits at random, so that NaN, infinity and subnormal values are among them."""
    generator = np.random.default_rng(seed)
    return {
        each.name: np.frombuffer(generator.bytes(stored_bytes(each)), STORAGE[each.dtype]).reshape(each.shape)
        for each in weights
    }


def written(path: Path, weights: list[Weight], arrays: dict[str, np.ndarray], **options: Any) -> Path:
    write_checkpoint(path, weights, arrays.__getitem__, **{"torch": True, "shard_bytes": 1 << 30, **options})
    return path


def converted(source: Checkpoint, template: Checkpoint, target: Path, **options: Any) -> Path:
    translation = translate(
        source.weights, template.weights, a_is_torch=source.torch, b_is_torch=template.torch, **options
    )
    conversion = Conversion(source, translation)
    specs = conversion.specs(template.weights)
    write_checkpoint(target, specs, conversion.make, torch=template.torch, shard_bytes=200)
    return target


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@st.composite
def models(draw: st.DrawFn) -> tuple[list[Weight], list[Weight]]:
    """A decoder in PyTorch and in JAX: grouped queries, fused or not, experts, adapters, stacked on any axis, tied."""
    groups, per_group, width, layers, hidden, experts = (draw(st.integers(1, 3)) for _ in range(6))
    heads = groups * per_group
    dim, vocab = draw(st.integers(2, 7)), draw(st.integers(8, 9))
    fused_a, fused_b, gated, adapted, stacked, tied = (draw(st.booleans()) for _ in range(6))
    dtype, axis = draw(st.sampled_from(sorted(STORAGE))), draw(st.sampled_from([0, 1]))
    sizes = {"q": heads, "k": groups, "v": groups}
    total = sum(sizes.values())
    plain: list[Weight] = []
    for index in range(layers):
        at = f"model.layers.{index}"
        if fused_a:
            plain.append(weight(f"{at}.self_attn.qkv_proj.weight", total * width, dim, kind="linear", dtype=dtype))
        else:
            plain += [
                weight(f"{at}.self_attn.{name}_proj.weight", count * width, dim, kind="linear", dtype=dtype)
                for name, count in sizes.items()
            ]
        plain += [weight(f"{at}.self_attn.o_proj.weight", dim, heads * width, kind="linear", dtype=dtype)]
        if adapted:
            plain += [
                weight(f"{at}.self_attn.o_proj.lora_A.default.weight", 2, heads * width, kind="linear", dtype=dtype),
                weight(f"{at}.self_attn.o_proj.lora_B.default.weight", dim, 2, kind="linear", dtype=dtype),
                weight(f"{at}.self_attn.o_proj.lora_magnitude_vector.default.weight", dim, dtype=dtype),
            ]
        for expert in range(experts):
            inside = f"{at}.mlp.experts.{expert}"
            up = [("gate_up_proj", 2 * hidden)] if gated else [("gate_proj", hidden), ("up_proj", hidden)]
            plain += [weight(f"{inside}.{name}.weight", size, dim, kind="linear", dtype=dtype) for name, size in up]
            plain.append(weight(f"{inside}.down_proj.weight", dim, hidden, kind="linear", dtype=dtype))
        plain.append(weight(f"{at}.input_layernorm.weight", dim, dtype=dtype))
    aliases = ("lm_head.weight",) if tied else ()
    plain.append(weight("model.embed_tokens.weight", vocab, dim, kind="embedding", dtype=dtype, aliases=aliases))
    block: list[tuple[str, tuple[int, ...], bool]] = [
        ("attention/out/kernel", (heads, width, dim), False),
        ("norm1/scale", (dim,), False),
        ("mlp/experts/gate/kernel", (dim, hidden), True),
        ("mlp/experts/up/kernel", (dim, hidden), True),
        ("mlp/experts/down/kernel", (hidden, dim), True),
    ]
    if fused_b:
        block.append(("attention/qkv/kernel", (dim, total, width), False))
    else:
        block += [(f"attention/{name}/kernel", (dim, count, width), False) for name, count in
                  zip(("query", "key", "value"), sizes.values(), strict=True)]  # fmt: skip
    if adapted:
        block += [
            ("attention/out/lora_a", (heads, width, 2), False),
            ("attention/out/lora_b", (2, dim), False),
            ("attention/out/dora_scale", (dim,), False),
        ]
    other: list[Weight] = []
    for name, shape, by_expert in block:
        inside = (experts, *shape) if by_expert else shape
        if stacked:
            full = (layers, *inside) if axis == 0 else (inside[0], layers, *inside[1:])
            other.append(weight(f"decoder/layers/{name}", *full, dtype=dtype))
        else:
            other += [weight(f"decoder/layers_{index}/{name}", *inside, dtype=dtype) for index in range(layers)]
    other.append(weight("embedder/embedding", vocab, dim, dtype=dtype))
    if not tied:
        plain.append(weight("lm_head.weight", vocab, dim, kind="linear", dtype=dtype))
        other.append(weight("lm_head/kernel", dim, vocab, dtype=dtype))
    return plain, draw(st.permutations(other))


@given(models(), st.sampled_from([".safetensors", ".safetensors.index.json"]))
def test_checkpoints_of_any_model_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, model: tuple[list[Weight], list[Weight]], suffix: str
) -> None:
    plain, other = model
    folder, arrays = tmp_path_factory.mktemp("round"), stored(plain)
    source = Checkpoint(weights=tuple(plain), arrays=arrays, torch=True)
    there = converted(source, Checkpoint(weights=tuple(other), arrays={}, torch=False), folder / f"jax{suffix}")
    made = open_checkpoint(there)
    assert {each.name: (each.shape, each.dtype) for each in made.weights} == {
        each.name: (each.shape, each.dtype) for each in other
    }
    assert sorted(np.concatenate([made.arrays[each.name].ravel() for each in other]).tobytes()) == sorted(
        np.concatenate([array.ravel() for array in arrays.values()]).tobytes()
    )
    back = open_checkpoint(converted(made, source, folder / f"torch{suffix}"))
    assert set(back.arrays) == set(arrays)
    for name, array in arrays.items():
        assert same_bits(back.arrays[name], array), name


def in_jax(plain: list[Weight], other: list[Weight]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Arrays of both sides, as values that are all different."""
    numbers = iter(range(1, 1 << 20))
    given = {
        each.name: np.array([next(numbers) for _ in range(int(np.prod(each.shape)))], np.float64).reshape(each.shape)
        for each in plain
    }
    return given, translate(plain, other, a_is_torch=True, b_is_torch=False).to_b(given)


def test_grouped_queries_of_a_fused_weight_are_split_as_the_other_side_has_them() -> None:
    plain = [weight(f"layers.{index}.qkv_proj.weight", 16, 3, kind="linear") for index in range(2)]
    other = [
        weight(f"layers/{name}/kernel", 2, 3, heads, 2) for name, heads in (("query", 4), ("key", 2), ("value", 2))
    ]
    given, made = in_jax(plain, other)
    fused = given["layers.1.qkv_proj.weight"]
    np.testing.assert_array_equal(made["layers/query/kernel"][1], fused[:8].T.reshape(3, 4, 2))
    np.testing.assert_array_equal(made["layers/key/kernel"][1], fused[8:12].T.reshape(3, 2, 2))
    np.testing.assert_array_equal(made["layers/value/kernel"][1], fused[12:].T.reshape(3, 2, 2))


def test_the_fused_weight_of_gpt2_is_in_out_and_is_split_along_its_outputs(tmp_path: Path) -> None:
    names = {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_proj.weight": (4, 4), "h.0.mlp.c_fc.weight": (4, 16)}
    arrays = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in names.items()}
    file = written(tmp_path / "gpt2.safetensors", [weight(name, *shape) for name, shape in names.items()], arrays)
    opened = open_checkpoint(file)
    assert {each.kind for each in opened.weights} == {"linear_in_out"}
    other = [weight(f"h/0/attn/{name}/kernel", 4, 2, 2) for name in ("query", "key", "value")]
    other += [weight("h/0/attn/out/kernel", 2, 2, 4), weight("h/0/mlp/up/kernel", 4, 16)]
    made = translate(opened.weights, other, a_is_torch=True, b_is_torch=False).to_b(arrays)
    np.testing.assert_array_equal(made["h/0/attn/key/kernel"].reshape(4, 4), arrays["h.0.attn.c_attn.weight"][:, 4:8])
    np.testing.assert_array_equal(made["h/0/attn/out/kernel"].reshape(4, 4), arrays["h.0.attn.c_proj.weight"])
    linear = written(tmp_path / "nano.safetensors", [weight("h.0.attn.c_attn.weight", 12, 4)],
                     {"h.0.attn.c_attn.weight": np.zeros((12, 4), np.float32)})  # fmt: skip
    assert open_checkpoint(linear).weights[0].kind == "linear"


def test_experts_of_layers_are_stacked_on_both_axes() -> None:
    plain = [weight(f"layers.{i}.experts.{e}.w1.weight", 5, 4, kind="linear") for i in range(3) for e in range(2)]
    given, made = in_jax(plain, [weight("layers/experts/wi_0/kernel", 3, 2, 4, 5)])
    np.testing.assert_array_equal(made["layers/experts/wi_0/kernel"][2, 1], given["layers.2.experts.1.w1.weight"].T)
    plain.append(weight("layers.0.router.weight", 7, 4, kind="linear"))
    plain += [weight(f"layers.{i}.router.weight", 7, 4, kind="linear") for i in (1, 2)]
    second = [weight("layers/experts/wi_0/kernel", 2, 3, 4, 5), weight("layers/router/kernel", 4, 3, 7)]
    given, made = in_jax(plain, second)  # layers on the second axis, as in MaxText
    np.testing.assert_array_equal(made["layers/experts/wi_0/kernel"][1, 2], given["layers.2.experts.1.w1.weight"].T)
    np.testing.assert_array_equal(made["layers/router/kernel"][:, 2], given["layers.2.router.weight"].T)


def test_a_weight_with_one_axis_is_compared_with_stacks_that_have_more() -> None:
    plain = [weight(f"layers.{index}.decay", 3) for index in range(2)] + [weight("decay", 5)]
    given, made = in_jax(plain, [weight("layers/decay", 2, 3), weight("decay", 5)])
    np.testing.assert_array_equal(made["decay"], given["decay"])
    np.testing.assert_array_equal(made["layers/decay"][1], given["layers.1.decay"])


def test_factors_of_an_adapter_are_not_confused_where_both_are_square() -> None:
    plain = [weight(f"q_proj.lora_{letter}.default.weight", 4, 4, kind="linear") for letter in "AB"]
    other = [weight(f"q_proj/lora_{letter}/kernel", 4, 4) for letter in "ba"]
    given, made = in_jax(plain, other)
    np.testing.assert_array_equal(made["q_proj/lora_a/kernel"], given["q_proj.lora_A.default.weight"].T)
    np.testing.assert_array_equal(made["q_proj/lora_b/kernel"], given["q_proj.lora_B.default.weight"].T)


@pytest.mark.parametrize("dtype", sorted(STORAGE))
def test_stored_values_are_widened_and_narrowed_without_a_change(dtype: str) -> None:
    bits = stored([weight("x", 4096, dtype=dtype)])["x"]
    values = widened(bits, dtype)
    back = narrowed(values, dtype)
    numbers = ~np.isnan(values)
    assert same_bits(back[numbers], bits[numbers])
    assert np.isnan(widened(back, dtype)[~numbers]).all()


@pytest.mark.parametrize("dtype", sorted(EXPONENT_BITS))
def test_float8_is_that_of_ml_dtypes(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(256, dtype=np.uint8)
    known = bits.view(getattr(ml_dtypes, dtype)).astype(np.float32)
    np.testing.assert_array_equal(widened(bits, dtype), known)
    between = np.sort(known[np.isfinite(known)])
    given = np.concatenate([between, (between[1:] + between[:-1]) / 2, [-0.0, np.inf, -np.inf, 464.1, 1e9]])
    given = given.astype(np.float32)  # ml_dtypes rounds float64 to float32 first
    given = np.concatenate([given, np.nextafter(given, np.float32(0)), np.nextafter(given, np.float32(np.inf))])
    with np.errstate(over="ignore"):
        expected = given.astype(getattr(ml_dtypes, dtype)).view(np.uint8)
    np.testing.assert_array_equal(narrowed(given, dtype), expected)


def test_float8_weights_keep_their_bytes_in_every_format(tmp_path: Path) -> None:
    """Parts in both encodings become one array in the narrowest dtype that holds their values."""
    pytest.importorskip("torch")
    weights = [weight("a.weight", 16, 8, dtype="float8_e4m3fn"), weight("b.weight", 16, 8, dtype="float8_e5m2")]
    arrays = stored(weights)
    for suffix in (".pt", ".safetensors"):
        opened = open_checkpoint(written(tmp_path / f"w{suffix}", weights, arrays))
        assert [each.dtype for each in opened.weights] == ["float8_e4m3fn", "float8_e5m2"]
        assert all(same_bits(opened.arrays[name], array) for name, array in arrays.items())
    parts = [
        weight(f"{name}_proj.weight", 2, 4, kind="linear", dtype=dtype)
        for name, dtype in (("q", "float8_e4m3fn"), ("k", "float8_e4m3fn"), ("v", "float8_e5m2"))
    ]
    source = Checkpoint(weights=tuple(parts), arrays=stored(parts), torch=True)
    fused = Checkpoint(weights=(weight("qkv/kernel", 4, 6),), arrays={}, torch=False)
    made = open_checkpoint(converted(source, fused, tmp_path / "fused.safetensors"))
    assert made.weights[0].dtype == "float16"
    values = np.concatenate([widened(source.arrays[each.name], each.dtype) for each in parts]).T
    np.testing.assert_array_equal(made.arrays["qkv/kernel"].astype(np.float32), values)


def test_one_array_is_in_memory_at_a_time(tmp_path: Path) -> None:
    size, count = 1 << 17, 24
    weights = [weight(f"layers.{index}.up.weight", 256, size // 1024, kind="linear") for index in range(count)]
    arrays = {each.name: np.full(each.shape, index, np.float32) for index, each in enumerate(weights)}
    source = open_checkpoint(written(tmp_path / "a.safetensors.index.json", weights, arrays, shard_bytes=4 * size))
    other = [weight(f"layers_{index}/up/kernel", size // 1024, 256) for index in range(count)]
    template = Checkpoint(weights=tuple(other), arrays={}, torch=False)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    converted(source, template, tmp_path / "b.safetensors")
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak < 4 * size < count * size
    assert (open_checkpoint(tmp_path / "b.safetensors").arrays["layers_7/up/kernel"] == 7).all()


@pytest.mark.parametrize("name", ["a.safetensors", "a.safetensors.index.json"])
def test_a_checkpoint_that_could_not_be_completed_leaves_no_file(tmp_path: Path, name: str) -> None:
    weights = [weight("one", 8), weight("two", 8)]

    def make(name: str) -> np.ndarray:
        if name == "two":
            raise DataError("two is tied")
        return np.zeros(8, np.float32)

    with pytest.raises(DataError):
        write_checkpoint(tmp_path / name, weights, make, torch=True, shard_bytes=32)
    assert list(tmp_path.iterdir()) == []


def test_a_target_is_new_and_has_a_known_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()
    for name in ("a.safetensors", "b.json", "b.h5"):
        with pytest.raises(UsageError, match=name):
            check_target(tmp_path / name)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"x": "../x.safetensors"}}, "must be in its folder"),
        ({"weight_map": {"x": "gone.safetensors"}}, "no such file"),
        ({"weight_map": {"x": "x.safetensors", "y": "x.safetensors"}}, "y is not in x.safetensors"),
        ({"weights": {}}, "not an index"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_one_line(tmp_path: Path, index: Any, message: str) -> None:
    written(tmp_path / "x.safetensors", [weight("x", 2)], {"x": np.zeros(2, np.float32)})
    file = tmp_path / "m.safetensors.index.json"
    file.write_text(json.dumps(index))
    with pytest.raises(DataError, match=message):
        open_checkpoint(file)


def test_values_of_a_weight_that_is_tied_in_the_target_must_agree(tmp_path: Path) -> None:
    stored_twice = [weight("embed/embedding", 3, 2), weight("head/kernel", 2, 3)]
    arrays = {"embed/embedding": np.ones((3, 2), np.float32), "head/kernel": np.zeros((2, 3), np.float32)}
    source = Checkpoint(weights=tuple(stored_twice), arrays=arrays, torch=False)
    tied = weight("embed.weight", 3, 2, kind="embedding", aliases=("head.weight",))
    with pytest.raises(DataError, match=r"embed.weight is tied"):
        converted(source, Checkpoint(weights=(tied,), arrays={}, torch=True), tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["convert", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_a_map_is_written_and_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"x.weight": np.arange(16, dtype=np.float32).reshape(4, 4), "y.weight": np.ones((4, 4), np.float32)}
    a = written(tmp_path / "a.safetensors", [weight(name, 4, 4) for name in values], values)
    template = {name: np.zeros((4, 4), np.float32) for name in ("one/kernel", "two/kernel")}
    b = written(tmp_path / "b.safetensors", [weight(name, 4, 4) for name in template], template, torch=False)
    code, _, _ = run(capsys, a, b, "--map", "y.weight=one/kernel", "--write-map", tmp_path / "map.json")
    assert code == 0
    document = json.loads((tmp_path / "map.json").read_text())
    assert {(each["a"], each["b"]) for each in document["weights"]} == {
        ("x.weight", "two/kernel"),
        ("y.weight", "one/kernel"),
    }
    for each in document["weights"]:
        each["layout"] = "out, in"  # the other orientation of a square weight
    (tmp_path / "map.json").write_text(json.dumps(document))
    assert run(capsys, a, b, "--map", tmp_path / "map.json", "--to", tmp_path / "c.safetensors")[0] == 0
    made = open_checkpoint(tmp_path / "c.safetensors").arrays["two/kernel"]
    np.testing.assert_array_equal(made, np.arange(16).reshape(4, 4))


def test_all_weights_that_do_not_fit_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = [weight(f"layers.{index}.up.weight", 3, 4, dtype="bfloat16") for index in range(9)]
    b = [weight(f"layers.{index}.up.weight", 3, 5) for index in range(9)]
    files = [written(tmp_path / f"{name}.safetensors", each, stored(each)) for name, each in (("a", a), ("b", b))]
    code, out, err = run(capsys, *files, "--to", tmp_path / "c.safetensors")
    lines = err.strip().splitlines()
    assert (code, out, len(lines)) == (4, "", 19)
    assert lines[8] == (
        "only in CHECKPOINT: layers.8.up.weight [3, 4] bfloat16; the most alike is layers.0.up.weight [3, 5] float32"
    )
    assert "9 weights do not fit the model, and 9 of the model are not in it" in lines[-1]
    assert not (tmp_path / "c.safetensors").exists()


@pytest.mark.torch
def test_pickled_code_is_not_run_and_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = tmp_path / "ran"

    class Code:
        def __reduce__(self) -> Any:
            return (Path.touch, (marker,))

    file = tmp_path / "m.pt"
    file.write_bytes(pickle.dumps({"w": Code()}))
    code, _, err = run(capsys, file, file)
    assert code == 4
    assert err.count("\n") == 1
    assert f"{file}: not read as a checkpoint of tensors alone" in err
    assert not marker.exists()


@pytest.mark.torch
def test_a_state_dict_is_loaded_with_weights_only_and_keeps_its_ties(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tied = weight("embed.weight", 4, 2, kind="embedding", dtype="bfloat16", aliases=("head.weight",))
    weights = [tied, weight("norm.weight", 2)]
    arrays = {"embed.weight": narrowed(np.arange(8.0).reshape(4, 2), "bfloat16"), "norm.weight": np.ones(2, np.float32)}
    file = written(tmp_path / "m.pt", weights, arrays)
    state = torch.load(file, weights_only=True)
    assert set(state) == {"embed.weight", "head.weight", "norm.weight"}
    assert state["embed.weight"].dtype is torch.bfloat16
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()
    assert torch.equal(state["embed.weight"].float(), torch.arange(8.0).reshape(4, 2))
    torch.save({"model": state, "step": 3, "ids": torch.arange(2)}, tmp_path / "training.pt")
    opened = open_checkpoint(tmp_path / "training.pt")
    assert [(each.name, each.dtype, each.aliases) for each in opened.weights] == [
        ("embed.weight", "bfloat16", ("head.weight",)),
        ("norm.weight", "float32", ()),
    ]
    assert same_bits(opened.arrays["embed.weight"], arrays["embed.weight"])


def test_weights_of_both_sides_are_in_a_misfit() -> None:
    with pytest.raises(MisfitError) as error:
        translate([weight("a", 2)], [weight("b", 3)], a_is_torch=False, b_is_torch=True)
    assert ([each.name for each in error.value.a], [each.name for each in error.value.b]) == (["a"], ["b"])


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
def test_weights_of_a_model_are_converted_and_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, back = tmp_path / "jax.safetensors", tmp_path / "back.pt"
    assert run(capsys, f"{MODELS}:in_torch", f"{MODELS}:in_jax", "--to", there)[0] == 0
    code, out, _ = run(capsys, there, f"{MODELS}:in_torch", "--to", back, "--dtype", "bfloat16", "-v")
    assert code == 0
    assert "fc1/kernel -> fc1.weight (in, out, by name)" in out
    made, original = open_checkpoint(back), open_checkpoint(there)
    assert {each.dtype for each in made.weights} == {"bfloat16"}
    np.testing.assert_array_equal(made.arrays["fc2.weight"], narrowed(original.arrays["fc2/kernel"].T, "bfloat16"))


@st.composite
def alternating(draw: st.DrawFn) -> tuple[list[Weight], list[Weight], list[Weight]]:
    """Fused projections per head, their parts, and the parts one after the other; with a bias, stacked or not."""
    groups, per_group, width, layers, columns = (draw(st.integers(1, 3)) for _ in range(5))
    heads, queries = f"{groups * per_group}/{groups}", groups * per_group
    rows = (queries + 2 * groups) * width

    def fused(of: str) -> list[Weight]:
        return [
            replace(each, heads=of)
            for index in range(layers)
            for each in (weight(f"layers.{index}.attention.query_key_value.weight", rows, columns + 3, kind="linear"),
                         weight(f"layers.{index}.attention.query_key_value.bias", rows))
        ]  # fmt: skip

    sizes = {"q": queries * width, "k": groups * width, "v": groups * width}
    parts = [
        each
        for index in range(layers)
        for name, size in sizes.items()
        for each in (weight(f"layers.{index}.attention.{name}_proj.weight", size, columns + 3, kind="linear"),
                     weight(f"layers.{index}.attention.{name}_proj.bias", size))
    ]  # fmt: skip
    return fused(heads), fused("none"), parts


@settings(max_examples=60)
@given(alternating())
def test_heads_that_alternate_are_split_joined_and_reordered_and_come_back(
    model: tuple[list[Weight], list[Weight], list[Weight]],
) -> None:
    per_head, one_by_one, parts = model
    queries, groups = map(int, per_head[0].heads.split("/"))
    numbers = iter(range(1 << 20))
    given = {each.name: np.array([next(numbers) for _ in range(int(np.prod(each.shape)))], np.float64)
             .reshape(each.shape) for each in per_head}  # fmt: skip
    for target in (one_by_one, parts):
        there = translate(per_head, target, a_is_torch=True, b_is_torch=True)
        made = there.to_b(given)
        name = per_head[0].name
        blocks = given[name].reshape(groups, queries // groups + 2, -1, given[name].shape[1])
        wanted = [blocks[:, :-2], blocks[:, -2:-1], blocks[:, -1:]]
        wanted = [part.reshape(-1, given[name].shape[1]) for part in wanted]
        if target is parts:
            got = [made[f"layers.0.attention.{part}_proj.weight"] for part in "qkv"]
        else:
            got = np.split(made[name], np.cumsum([len(part) for part in wanted])[:-1])
        assert all(np.array_equal(one, other) for one, other in zip(got, wanted, strict=True))
        back = translate(target, per_head, a_is_torch=True, b_is_torch=True)
        for read in (there.to_a(made), back.to_b(made)):
            assert all(np.array_equal(read[name], value) for name, value in given.items())
        options = [f"{mapping.a}={mapping.b}" for mapping in there.mappings()]
        plain = [replace(each, heads="") for each in per_head]
        again = translate(
            plain, [replace(each, heads="") for each in target], a_is_torch=True, b_is_torch=True, options=options
        ).to_b(given)
        assert all(np.array_equal(again[name], value) for name, value in made.items())


def test_fused_weights_of_unknown_order_keep_the_order_of_the_other_side() -> None:
    plain = [replace(weight("h.0.query_key_value.weight", 24, 5, kind="linear"), heads="4/4")]
    given = {plain[0].name: np.arange(120.0).reshape(24, 5)}
    other = [weight("h/0/query_key_value/kernel", 5, 24)]
    made = translate(plain, other, a_is_torch=True, b_is_torch=False).to_b(given)[other[0].name]
    np.testing.assert_array_equal(made, given[plain[0].name].T)
    turned = translate(plain, with_heads(other, "none", "b"), a_is_torch=True, b_is_torch=False).to_b(given)
    np.testing.assert_array_equal(turned[other[0].name][:, :2], made[:, :2])
    np.testing.assert_array_equal(turned[other[0].name][:, 2:4], made[:, 6:8])  # the query of the second head


def test_heads_of_flax_kernels_and_of_configurations(tmp_path: Path) -> None:
    """A Flax port of GPT-NeoX keeps the order of PyTorch: (in, heads, 3, width)."""
    plain = [replace(weight("h.0.attn.query_key_value.weight", 24, 5, kind="linear"), heads="4/4")]
    given = {plain[0].name: np.arange(120, dtype=np.float32).reshape(24, 5)}
    flax = [weight("h/0/attn/query_key_value/kernel", 5, 4, 3, 2)]
    made = translate(plain, flax, a_is_torch=True, b_is_torch=False).to_b(given)
    np.testing.assert_array_equal(made[flax[0].name], given[plain[0].name].T.reshape(5, 4, 3, 2))
    assert of_config({"model_type": "gpt_neox", "num_attention_heads": 4}) == "4/4"
    falcon = {"model_type": "falcon", "num_attention_heads": 8, "num_kv_heads": 2, "multi_query": True}
    assert of_config(falcon) == "8/1"
    assert of_config({**falcon, "new_decoder_architecture": True}) == "8/2"
    assert of_config({"model_type": "llama", "num_attention_heads": 4}) == ""
    file = written(tmp_path / "m.safetensors", [replace(plain[0], heads="")], given)
    (tmp_path / "config.json").write_text('{"model_type": "bloom", "n_head": 4}')
    assert open_checkpoint(file).weights[0].heads == "4/4"
    (tmp_path / "config.json").write_text("[")
    assert open_checkpoint(file).weights[0].heads == ""


def test_heads_that_do_not_divide_are_one_line() -> None:
    plain = [weight("h.0.qkv_proj.weight", 24, 5, kind="linear"), weight("h.0.out.weight", 5, 5, kind="linear")]
    for text in ("0", "4/3", "x", "4/"):
        with pytest.raises(UsageError, match="give QUERY_HEADS"):
            with_heads(plain, text, "a")
    with pytest.raises(UsageError, match="no weight of that model is a fused"):
        with_heads(plain[1:], "4", "b")
    other = [weight(f"h/0/{name}/kernel", 5, 8) for name in ("q", "k", "v")] + [weight("h/0/out/kernel", 5, 5)]
    with pytest.raises(DataError, match=r"h.0.qkv_proj.weight: its 24 outputs do not divide into 5 query heads and 5"):
        translate(with_heads(plain, "5", "a"), other, a_is_torch=True, b_is_torch=False)
