"""Peaks of planned steps against sums by hand, and against torch's own count. Nothing is computed, nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.model.documents.torch_plan import PlanMemory, StepMemory
from tests.profiler.aot.test_torch_plan import only, planned

pytestmark = [pytest.mark.aot, pytest.mark.slow]

MIB = 1 << 20
SMALL = 64 << 10
"""Scalars and what else is no matrix."""

BY_HAND = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 1024, bias=False)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(64, 1024, 1024)
for number in range(8):
    x = data[number].to("cuda")
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""Every matrix has 4 MiB: two of weights, the input, what the layers make."""

INSIDE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return torch.relu(self.second(torch.sin(self.first(x)))).pow(2).sum()


model = torch.compile(Model().to("cuda"))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
x = torch.randn(1024, 1024, device="cuda")
for _ in range(8):
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FUSED_ATTENTION = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(1024, 1024, bias=False) for _ in range(3))

    def forward(self, x):
        split = (one(x).view(1, 1024, 8, 128).transpose(1, 2) for one in (self.query, self.key, self.value))
        return scaled_dot_product_attention(*split).pow(2).sum()


model = torch.compile(Model().to("cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(1024, 1024, device="cuda")
for _ in range(8):
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

DECORATED = INSIDE.replace("    def forward", "    @of_a_library\n    def forward").replace(
    "class Model",
    """
def of_a_library(method):
    def wrapper(*arguments):
        return method(*arguments)
    return wrapper


class Model""",
)
"""The same, where the line that runs its graphs is in no function called ``forward``."""


def memory_of(folder: Path, text: str) -> tuple[PlanMemory, StepMemory, StepMemory]:
    memory = only(planned(folder, text)).plan.memory
    assert memory is not None
    assert memory.eager is not None
    assert memory.planned is not None
    assert not memory.uncounted
    return memory, memory.eager, memory.planned


def matrices(step: StepMemory) -> dict[str, int]:
    """Matrices by category."""
    sums: dict[str, int] = {}
    for one in step.holders:
        sums[one.category] = sums.get(one.category, 0) + one.bytes // (4 * MIB)
    return {category: count for category, count in sums.items() if count}


def test_an_eager_step_by_hand(tmp_path: Path) -> None:
    _, eager, _ = memory_of(tmp_path, BY_HAND)
    # the backward of relu: two weights, the input, what relu gave (kept), the gradient of the second weight, that of
    # what relu gave, and what is made of it
    assert 0 <= eager.peak_bytes - 7 * 4 * MIB < SMALL
    assert eager.phase == "backward"
    assert eager.op == "aten.threshold_backward.default"
    assert (eager.file, eager.line) == ("train.py", 10)
    assert matrices(eager) == {"parameter": 2, "input": 1, "gradient": 1, "activation": 1, "temporary": 2}
    # it begins behind the optimizer's step: with the gradients and the input of the step before
    assert 0 <= eager.start_bytes - 5 * 4 * MIB < SMALL


def test_a_compiled_step_frees_and_takes_over_inside_its_graphs(tmp_path: Path) -> None:
    _, eager, compiled = memory_of(tmp_path, INSIDE)
    weights, state, given = 2, 4, 1
    least = weights + state + given
    assert compiled.graph is not None
    assert least * 4 * MIB < compiled.peak_bytes <= eager.peak_bytes
    held = matrices(compiled)
    assert (held["parameter"], held["optimizer_state"], held["input"]) == (2, 4, 1)
    assert held["activation"] > 0
    _, _, decorated = memory_of(tmp_path, DECORATED)
    assert matrices(decorated) == held
    assert decorated.phase == compiled.phase == "backward"


def test_the_results_of_one_call_are_all_there_when_it_returns(tmp_path: Path) -> None:
    _, _, compiled = memory_of(tmp_path, FUSED_ATTENTION)
    # the backward of attention: three weights, the input, queries, keys, values, what attention gave, the gradient of
    # that; and the gradients of queries, keys and values, before any of what it read is freed
    assert compiled.op is not None
    assert compiled.op.startswith("aten._scaled_dot_product_flash_attention")
    assert 0 <= compiled.peak_bytes - 12 * 4 * MIB < SMALL


def test_a_compiled_program_that_names_no_device_has_all_of_it_there(tmp_path: Path) -> None:
    _, eager, compiled = memory_of(tmp_path, INSIDE)
    without = INSIDE.replace('.to("cuda")', "").replace(', device="cuda"', "")
    assert "cuda" not in without
    _, eager_too, compiled_too = memory_of(tmp_path, without)
    assert eager_too.peak_bytes == eager.peak_bytes
    assert compiled_too.peak_bytes == compiled.peak_bytes
    assert matrices(compiled_too) == matrices(compiled)


def test_both_ways_agree_before_anything_runs(tmp_path: Path) -> None:
    memory, eager, compiled = memory_of(tmp_path, INSIDE)
    for step in (eager, compiled):
        assert 0 <= step.given_bytes - 3 * 4 * MIB < SMALL
    assert memory.eager is eager
    assert abs(compiled.start_bytes - eager.start_bytes) < SMALL
