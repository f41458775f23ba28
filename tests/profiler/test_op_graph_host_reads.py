"""Where an accelerator would stall the host, and where it would not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.profiler.op_graphs import Net, named, train_step

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch


def read_item(x: Any) -> None:
    x.sum().item()


def read_float(x: Any) -> None:
    float(x.sum())


def branch(x: Any) -> None:
    if x.sum():
        pass


def negate(x: Any) -> None:
    assert not (x.sum() < 0)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (read_item, "item"),
        (read_float, "item"),
        (lambda x: bool(x.sum()), "item"),
        (lambda x: F.one_hot(x.long(), x[0, 0].int().item() + 1), "item"),
        (branch, "bool"),
        (negate, "bool"),
        (torch.nonzero, "nonzero"),
        (lambda x: torch.where(x > 0), "nonzero"),
        (lambda x: x[x > 0], "boolean index"),
        (lambda x: torch.masked_select(x, x > 0), "masked_select"),
        (torch.unique, "unique"),
        (lambda x: torch.equal(x, x + 0), "equal"),
        (lambda x: torch.repeat_interleave(x, torch.tensor([1, 2]), dim=0), "repeat_interleave"),
    ],
)
def test_host_reads(record: Any, program: Any, reason: str) -> None:
    x = torch.ones(2, 3)
    assert [op.host_read for op in record(lambda: program(x)).ops if op.host_read] == [reason]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.where(x > 0, x, 0),
        lambda x: torch.repeat_interleave(x, torch.tensor([1, 2]), dim=0, output_size=3),
        lambda x: x.masked_fill(x > 0, 1),
        lambda x: x.to("cpu", torch.float64),
        lambda x: F.one_hot(x.long(), 3),  # checks its input, on the CPU alone
    ],
)
def test_what_the_host_need_not_wait_for(record: Any, program: Any) -> None:
    x = torch.ones(2, 3)
    assert not [op.host_read for op in record(lambda: program(x)).ops if op.host_read]


def test_step_counters_of_the_optimizer_live_on_the_host(record: Any) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False, fused=False)
    graph = record(lambda: train_step(net, optimizer, torch.randn(2, 8)))
    reads = named(graph, "_local_scalar_dense")
    assert {op.phase for op in reads} == {"optimizer"}
    assert {op.host_read for op in reads} == {None}


def test_data_loading_stays_on_the_host(record: Any) -> None:
    class Numbers(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return torch.ones(3).nonzero()

    graph = record(lambda: list(torch.utils.data.DataLoader(Numbers())))
    assert {op.host_read for op in named(graph, "nonzero")} == {None}
