"""What torch.compile trips over, and its twins: the same numbers, and what dynamo makes of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.workloads.options import COMPILE_DEFECTS, Options, parse

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SOURCE = Path(__file__).resolve().parents[2] / "perfscope" / "workloads" / "compile_defects.py"


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


def counted(asked: Options, capsys: pytest.CaptureFixture[str]) -> tuple[int, int, int]:
    """(graphs compiled, reasons of graph breaks, frames left to eager mode) over three steps, without inductor."""
    from torch._dynamo.utils import counters

    from perfscope.workloads import training

    counters.clear()
    module = importlib.import_module("perfscope.workloads.attention")
    model = training.build(module.Block, asked)
    dynamic = {"shapes": False}.get(asked.compile_defect or "", True if asked.compile_twin == "shapes" else None)
    forward = torch.compile(model, backend="eager", dynamic=dynamic)
    size = asked.size
    for step in range(3):
        tokens_BM = torch.randint(size.vocab, (size.batch, size.seq + 1), generator=torch.Generator().manual_seed(1))
        training.loss_of(forward, *training.inputs_of(tokens_BM, step, asked)).backward()
    capsys.readouterr()
    frames = counters["frames"]
    return counters["stats"]["unique_graphs"], len(counters["graph_break"]), frames["total"] - frames["ok"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMPILE_DEFECTS))
def test_a_twin_is_one_graph_compiled_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(options("--compile-twin", name), capsys) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMPILE_DEFECTS))
def test_a_defect_is_not(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    graphs, breaks, eager = counted(options("--compile-defect", name), capsys)
    assert (breaks > 0) == (name in {"print", "branch", "unsupported"})
    assert (eager > 0) == (name in {"print", "unsupported"})
    assert graphs == {"float-arg": 3, "shapes": 3, "opaque": 1}.get(name, graphs)


def test_each_defect_is_one_line_that_says_what_it_is() -> None:
    assert SOURCE.read_text().count("# defect:") == 5
    assert (SOURCE.parent / "training.py").read_text().count("# defect: dynamic_shape_churn") == 1
