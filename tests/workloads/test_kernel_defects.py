"""Slower kernels and their twins: the same numbers by as many ops."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from perfscope.workloads.options import KERNEL_DEFECTS, Options, parse

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SOURCE = Path(__file__).resolve().parents[2] / "perfscope" / "workloads" / "kernel_defects.py"


def options(*arguments: str) -> Options:
    attention = importlib.import_module("perfscope.workloads.attention")
    return parse("", attention.VARIANTS, attention.SIZES, ["--size", "tiny", "--variant", "sdpa", *arguments])


def step(asked: Options) -> tuple[Any, dict[str, Any], list[str]]:
    """Loss, gradients by parameter, and the names of the ops of one step in float64."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from perfscope.workloads import training

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model = training.build(importlib.import_module("perfscope.workloads.attention").Block, asked).double()
    size = asked.size
    tokens_BM = torch.randint(size.vocab, (size.batch, size.seq + 1), generator=torch.Generator().manual_seed(1))
    with Names() as names:
        loss = training.loss_of(model, tokens_BM)
        loss.backward()
    return loss.detach(), {name: one.grad for name, one in model.named_parameters() if one.requires_grad}, names.seen


@pytest.mark.parametrize("name", sorted(KERNEL_DEFECTS))
def test_both_compute_the_same(name: str) -> None:
    defect, twin = step(options("--kernel-defect", name)), step(options("--kernel-twin", name))
    torch.testing.assert_close(defect[0], twin[0], rtol=1e-5, atol=0)
    assert defect[1].keys() == twin[1].keys()
    for key, slope in twin[1].items():
        torch.testing.assert_close(defect[1][key], slope, rtol=1e-3, atol=1e-7)
    plain = step(options())
    assert plain[0] != twin[0]


def test_tables_are_added_by_the_same_ops_however_they_lie() -> None:
    defect, twin = step(options("--kernel-defect", "layout")), step(options("--kernel-twin", "layout"))
    assert defect[2] == twin[2]


def test_only_the_layout_of_the_tables_differs() -> None:
    kernels = importlib.import_module("perfscope.workloads.kernel_defects")
    torch.manual_seed(0)
    slow = kernels.Positions(16, 8, True)
    torch.manual_seed(0)
    fast = kernels.Positions(16, 8, False)
    assert torch.equal(slow.tables_SLD, fast.tables_SLD)
    assert (slow.tables_SLD.stride(), fast.tables_SLD.stride()) == ((128, 1, 16), (128, 8, 1))


def test_the_flags() -> None:
    for name in KERNEL_DEFECTS:
        assert options("--kernel-defect", name).kernel_defect == name
        assert options("--kernel-twin", name).kernel_twin == name
    with pytest.raises(SystemExit):
        options("--kernel-defect", "order", "--kernel-twin", "order")
    assert options("--compile-backend", "eager").backend == "eager"


def test_each_defect_is_one_line_that_says_what_it_is() -> None:
    assert SOURCE.read_text().count("# defect:") == len(KERNEL_DEFECTS)
