"""A defect and its twin compute the same numbers, forward and backward, from the same weights and inputs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from perfscope.workloads.options import DEFECTS, Options, Size

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Orders of summation differ, nothing else: a few ulp of float64, of float32, of bfloat16 (8 bits).
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2}
TWINS = [
    ("attention", "naive", "sdpa"),
    ("moe", "loop", "index_add"),
    ("ssm", "scan", "parallel"),
]


def workload(name: str) -> Any:
    return importlib.import_module(f"perfscope.workloads.{name}")


def tokens_of(size: Size) -> Any:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(size.vocab, (size.batch, size.seq + 1), generator=generator)


def numbers(name: str, variant: str, dtype: str, size: Size | None = None) -> tuple[Any, list[Any]]:
    """Loss and gradients of one step with the seed's weights."""
    from perfscope.workloads.training import build, loss_of

    module = workload(name)
    options = Options(variant=variant, size=size or module.SIZES["tiny"], dtype=dtype)
    model = build(module.Block, options)
    loss = loss_of(model, tokens_of(options.size))
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


def assert_same(left: tuple[Any, list[Any]], right: tuple[Any, list[Any]], tolerance: float) -> None:
    torch.testing.assert_close(left[0], right[0], rtol=tolerance, atol=0)
    for ours, theirs in zip(left[1], right[1], strict=True):
        distance = (ours - theirs).double().norm() / theirs.double().norm()
        assert distance <= tolerance


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "defect", "twin"), TWINS)
def test_a_defect_and_its_twin(name: str, defect: str, twin: str, dtype: str) -> None:
    assert_same(numbers(name, defect, dtype), numbers(name, twin, dtype), TOLERANCE[dtype])


def test_the_comparison_can_fail() -> None:
    loss, gradients = numbers("ssm", "scan", "float64")
    with pytest.raises(AssertionError):
        assert_same((loss, gradients), (loss, [2 * gradient for gradient in gradients]), TOLERANCE["float64"])


def test_the_grouped_product() -> None:
    # bfloat16 on both sides: the grouped product knows no other.
    loop, grouped = (numbers("moe", variant, "bfloat16") for variant in ("loop", "grouped_mm"))
    assert_same(loop, grouped, TOLERANCE["bfloat16"])


def experts_and_tokens() -> tuple[Any, Any]:
    moe = workload("moe")
    torch.manual_seed(0)
    return moe.Experts(moe.SIZES["tiny"]), torch.randn(32, moe.SIZES["tiny"].dim)


def test_an_expert_without_tokens() -> None:
    moe = workload("moe")
    experts, x_TD = experts_and_tokens()
    # Two of four experts take every token, at the capacity of 2 * 64 / 4 = 32 rows each, exactly.
    expert_TK, weight_TK = torch.tensor([[2, 0]] * 32), torch.rand(32, 2)
    expected = moe.loop(experts, x_TD, weight_TK, expert_TK)
    torch.testing.assert_close(moe.index_add(experts, x_TD, weight_TK, expert_TK), expected)
    grouped = moe.grouped_mm(experts, x_TD, weight_TK, expert_TK)
    torch.testing.assert_close(grouped, expected, rtol=TOLERANCE["bfloat16"], atol=TOLERANCE["bfloat16"])


def test_what_overflows_an_expert_is_dropped() -> None:
    moe = workload("moe")
    experts, x_TD = experts_and_tokens()
    expert_TK, weight_TK = torch.full((32, 2), 3), torch.ones(32, 2)  # 64 rows for the 32 places of one expert
    y_TD = moe.index_add(experts, x_TD, weight_TK, expert_TK)
    expected = moe.loop(experts, x_TD, weight_TK, expert_TK)
    torch.testing.assert_close(y_TD[:16], expected[:16])
    assert (y_TD[16:] == 0).all()


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9])
def test_the_doubling_scan_at_any_length(length: int) -> None:
    ssm = workload("ssm")
    a, u = torch.rand(2, length, 3, 4, dtype=torch.float64), torch.randn(2, length, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(ssm.parallel(a, u), ssm.scan(a, u))


@pytest.mark.slow
def test_flex_forward() -> None:
    from perfscope.workloads.training import build, loss_of

    attention = workload("attention")
    losses = []
    for variant in ("naive", "flex"):
        options = Options(variant=variant, size=attention.SIZES["tiny"])
        with torch.no_grad():
            losses.append(loss_of(build(attention.Block, options), tokens_of(options.size)))
    torch.testing.assert_close(losses[1], losses[0], rtol=TOLERANCE["float32"], atol=0)


def trained(capsys: pytest.CaptureFixture[str], name: str, *defects: str, steps: int = 3) -> list[float]:
    from perfscope.workloads.training import train

    module = workload(name)
    options = Options(variant=module.VARIANTS[1], size=module.SIZES["tiny"], steps=steps, defects=frozenset(defects))
    losses: list[float] = train(module.Block, options)
    assert capsys.readouterr().out.count("step ") == steps
    return losses


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_a_defect_changes_no_number(capsys: pytest.CaptureFixture[str], defect: str) -> None:
    plain, defective = trained(capsys, "attention"), trained(capsys, "attention", defect)
    # The fused optimizer rounds in another order; every other defect repeats the same arithmetic.
    assert defective == pytest.approx(plain, rel=1e-5 if defect == "adam-loop" else 0)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", ["attention", "moe", "ssm"])
def test_it_learns(capsys: pytest.CaptureFixture[str], name: str) -> None:
    losses = trained(capsys, name, steps=12)
    assert losses[-1] < losses[0] - 0.1
    torch.set_float32_matmul_precision("highest")
