"""Obstacles for torch.compile, and their twins: equal numbers, and dynamo's results."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from perfscope.workloads.options import COMPILE_DEFECTS, Options, parse

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("highest")


def defects() -> Any:
    return importlib.import_module("perfscope.workloads.compile_defects")


def activations(scale: float) -> Any:
    return scale * torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("name", ["print", "branch", "unsupported", "opaque"])
def test_a_stage_and_its_twin_compute_the_same(name: str, scale: float) -> None:
    defect, twin = defects().STAGES[name]
    results = []
    for stage in (defect, twin):
        x_BLD = activations(scale).requires_grad_()
        y_BLD = stage(x_BLD, 0.0)
        y_BLD.square().sum().backward()
        results.append((y_BLD.detach(), x_BLD.grad))
    torch.testing.assert_close(results[0], results[1])
    changes = name in ("unsupported", "opaque") or (name == "branch" and scale > 1)
    assert torch.equal(results[0][0], activations(scale)) != changes


def test_nobody_loud() -> None:
    x_BLD = -activations(1.0).abs()
    for stage in defects().STAGES["unsupported"]:
        torch.testing.assert_close(stage(x_BLD, 0.0), x_BLD)


def test_both_dropouts_draw_from_one_distribution() -> None:
    torch.manual_seed(0)
    x = torch.ones(1, 1000, 1000)
    for stage in defects().STAGES["float-arg"]:
        y = stage(x, torch.tensor(0.25) if stage is defects().drawing else 0.25)
        assert sorted(y.unique().tolist()) == pytest.approx([0, 4 / 3])
        # a million draws: the share of zeros has a standard deviation of 0.0004
        assert (y == 0).double().mean().item() == pytest.approx(0.25, abs=0.004)


def test_rates_and_lengths_end_somewhere() -> None:
    assert [defects().rate_of(step) for step in (0, 1, 1000)] == [0.1, pytest.approx(0.09), 0.0]
    assert [defects().length_of(step, 32) for step in (0, 1, 1000)] == [32, 31, 4]


def options(*arguments: str) -> Options:
    attention = importlib.import_module("perfscope.workloads.attention")
    return parse("", attention.VARIANTS, attention.SIZES, ["--size", "tiny", "--variant", "sdpa", *arguments])


def test_the_flags() -> None:
    assert not options().compile
    for name in COMPILE_DEFECTS:
        asked = options("--compile-defect", name)
        assert (asked.compile, asked.compile_defect, asked.compile_twin) == (True, name, None)
        assert options("--compile-twin", name).compile_twin == name
    with pytest.raises(SystemExit):
        options("--compile-defect", "print", "--compile-twin", "print")
