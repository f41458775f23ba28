"""The variants of a JAX workload compute the same numbers, on awkward shapes too, and the same ones every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfscope.workloads.jax.options import POLICIES, parse
from tests.workloads.jax.numbers import assert_same, jax_numbers, options, variants, workload

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

PLAIN = {"window": "window-naive", "shared": "shared-naive", "ssd-chunked": "ssd-scan", "ssd": "ssd-scan"}
"""Variant of other numbers than the first one's: its plain version."""
PAIRS = [
    (name, variant)
    for name in ("attention", "moe", "ssm")
    for variant in variants(name)[1:]
    if variant not in PLAIN.values()
]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "variant"),
    [pair if pair == ("ssm", "associative") else pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS],
)
def test_a_defect_and_its_twin(name: str, variant: str, dtype: str) -> None:
    plain = PLAIN.get(variant, variants(name)[0])
    assert_same(jax_numbers(name, variant, dtype), jax_numbers(name, plain, dtype), dtype)


def test_the_comparison_can_fail() -> None:
    numbers = jax_numbers("ssm", "scan", "float32")
    for name in ("loss", "logits", "['embedding_VD']"):
        with pytest.raises(AssertionError):
            assert_same(numbers | {name: numbers[name] * 1.1}, numbers, "float32")
    with pytest.raises(AssertionError):
        assert_same(numbers | {"logits": numbers["logits"] * np.nan}, numbers, "float32")


def qkv_of(length: int, features: int = 8) -> list[Any]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal((2, 3, length, features), np.float32) for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "scale"), [(1, 1.0), (64, 1.0), (100, 1.0), (70, 30.0), (70, -30.0)])
def test_attention_at_any_length_and_scale(length: int, scale: float) -> None:
    # 100 is a block of 64 and a rest: the padded keys must stay unseen.
    attention = workload("attention")
    q, k, v = qkv_of(length)
    expected = attention.naive_attention(scale * q, scale * k, v)
    # Sums of 100 float32 terms, values of order 1; scores of order 1000 and their exponentials are right to 1e-4.
    allowed = 1e-5 if scale == 1 else 1e-3
    for variant in ("blocked", "pallas"):
        attend = attention.attention_of(variant, attention.SIZES["tiny"])
        found = jax.jit(attend)(scale * q, scale * k, v)
        np.testing.assert_allclose(found, expected, rtol=allowed, atol=allowed)


@pytest.mark.parametrize(("platform", "target"), [("cuda", "triton"), ("rocm", "triton"), ("tpu", "tpu_custom_call")])
def test_the_kernel_lowers_to_one_call_on_an_accelerator(platform: str, target: str) -> None:
    from jax import export

    calls = ("__gpu$xla.gpu.triton", "tpu_custom_call")
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in calls]
    shape = jax.ShapeDtypeStruct((2, 2, 128, 64), "bfloat16")
    attend = jax.jit(workload("attention").pallas_attention)
    try:
        exported = export.export(attend, platforms=[platform], disabled_checks=allowed)(shape, shape, shape)
    except RuntimeError as error:  # jax 0.12 asks the GPU for its kind
        pytest.skip(f"this jax lowers the kernel only where a GPU is: {error}")
    lines = [line for line in exported.mlir_module().splitlines() if "custom_call @" in line]
    assert len(lines) in (1, 2), "jax 0.6 also writes the branch of other platforms"
    assert all(target in call for call in lines)


def experts_and_tokens() -> tuple[Any, Any]:
    moe = workload("moe")
    size, generator = moe.SIZES["tiny"], np.random.default_rng(0)
    experts = moe.Block(size, "ragged").initial(generator)["experts"]
    return experts, generator.standard_normal((32, size.dim), np.float32)


def dispatched(variant: str, weight_TK: Any, expert_TK: Any) -> Any:
    experts, x_TD = experts_and_tokens()
    return jax.jit(workload("moe").DISPATCH[variant])(experts, x_TD, weight_TK, expert_TK)


def test_an_expert_without_tokens() -> None:
    # Two of four experts take every token, at the capacity of 2 * 64 / 4 = 32 rows each, exactly.
    weight_TK = np.random.default_rng(0).random((32, 2), np.float32)
    expert_TK = np.array([[2, 0]] * 32, np.int32)
    expected = dispatched("ragged", weight_TK, expert_TK)
    assert np.abs(expected).max() > 0.1
    for variant in ("einsum", "scatter", "grouped"):
        np.testing.assert_allclose(dispatched(variant, weight_TK, expert_TK), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["einsum", "scatter"])
def test_what_overflows_an_expert_is_dropped(variant: str) -> None:
    weight_TK, expert_TK = np.ones((32, 2), np.float32), np.full((32, 2), 3, np.int32)  # 64 rows for 32 places
    expected, y_TD = (np.asarray(dispatched(item, weight_TK, expert_TK)) for item in ("ragged", variant))
    np.testing.assert_allclose(y_TD[:16], expected[:16], rtol=1e-4, atol=1e-5)
    assert (y_TD[16:] == 0).all()
    assert (expected[16:] != 0).any()


def trained(*defects: str, steps: int = 2, **more: str) -> list[float]:
    from perfscope.workloads.jax.training import train

    asked = options("ssm", "scan", steps=steps, defects=frozenset(defects), **more)
    losses: list[float] = train(workload("ssm").Block, asked)
    return losses


@pytest.mark.slow
def test_a_defect_changes_no_number_and_a_seed_gives_the_same_ones(capsys: pytest.CaptureFixture[str]) -> None:
    long = trained(steps=12)
    assert long[-1] < long[0] - 0.1
    plain = long[:2]
    printed = [f"step   0  loss {plain[0]:.4f}", f"step   1  loss {plain[1]:.4f}"]
    assert capsys.readouterr().out.splitlines()[:2] == printed
    assert trained("float", "fp32") == plain
    assert capsys.readouterr().out.startswith(f"mean loss {sum(plain) / 2:.4f}\n")
    assert trained("leak") == trained("no-donation") == plain
    # Recomputed values are fused with others, and so rounded at other places; the bias correction of AdamW is a
    # constant of the program instead of a float32 exponential.
    assert trained("checkpoint") == pytest.approx(plain, rel=1e-6)
    assert trained("checkpoint-nested") == pytest.approx(plain, rel=1e-6)
    assert trained("eager-update") == pytest.approx(plain, rel=1e-6)
    assert trained("retrace") == pytest.approx(plain, rel=1e-6)
    assert trained(kernel_defect="order") == pytest.approx(trained(kernel_twin="order"), rel=1e-5)
    for policy in POLICIES:
        assert trained(policy=policy) == pytest.approx(plain, rel=1e-6)


def test_the_seed_decides_the_weights() -> None:
    from perfscope.workloads.jax.training import LanguageModel

    def weights(variant: str, seed: int) -> Any:
        return jax.tree.leaves(LanguageModel(workload("moe").Block, options("moe", variant, seed=seed)).initial())

    ours, other_variant, other_seed = weights("einsum", 0), weights("ragged", 0), weights("einsum", 1)
    assert all((left == right).all() for left, right in zip(ours, other_variant, strict=True))
    assert not all((left == right).all() for left, right in zip(ours, other_seed, strict=True))


def test_the_flag() -> None:
    module = workload("attention")
    asked = {argument: parse("", module.VARIANTS, module.SIZES, argument.split()).policy for argument in (
        "--size tiny", "--defect checkpoint", "--policy names", "--policy dots --defect checkpoint")}  # fmt: skip
    assert list(asked.values()) == ["none", "full", "names", "dots"]
