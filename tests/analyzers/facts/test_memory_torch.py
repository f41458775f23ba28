"""Categories of memory held against PyTorch's own, on a real training run with its profiler."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.readers import kineto
from perfscope.analyzers.trace import Trace
from perfscope.analyzers.trace.memory_tables import MemoryAction, MemoryCategory

ALIKE = {
    MemoryCategory.ACTIVATION: {"ACTIVATION"},
    MemoryCategory.GRADIENT: {"GRADIENT"},
    MemoryCategory.INPUT: {"INPUT"},
}
"""Of these every byte must be what torch says. Torch has no word for what lives in one phase only: its TEMPORARY lives
in one op, and the rest of ours it calls by where the values come from (AUTOGRAD_DETAIL, ACTIVATION, PARAMETER)."""


def _model() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block(64) for _ in range(3))
            self.head = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Net()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[tuple[int, int], str], int]:
    """A trace of two steps, and for each block (address, allocated at ns) torch's own category; parameter bytes."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler._memory_profiler import Action, TensorKey

    if os.environ.get("OMP_NUM_THREADS") is None:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as made:
        for _ in range(2):
            step()
            made.step()
    own = made._memory_profile()
    categories = {}
    for time, action, (key, version), _ in own.timeline:
        if action == Action.CREATE and isinstance(key, TensorKey):
            found = own._categories.get(key, version)
            categories[key.storage.ptr, time] = "none" if found is None else found.name
    path = tmp_path_factory.mktemp("memory") / "train.pt.trace.json"
    made.export_chrome_trace(str(path))
    return kineto.read(path), categories, sum(p.numel() * p.element_size() for p in model.parameters())


def _theirs(categories: dict[tuple[int, int], str], address: int, start: int) -> str:
    """Chrome's times are rounded to the microsecond and shifted a little: the nearest allocation at that address."""
    near = [(abs(time - start), name) for (ptr, time), name in categories.items() if ptr == address]
    return min(near)[1] if near and min(near)[0] < 5000 else "none"


def test_torchs_own_categories(profiled: tuple[Trace, dict[tuple[int, int], str], int]):
    trace, categories, parameters = profiled
    (timeline,) = memory_timelines(trace)
    blocks = timeline.blocks
    agreement: dict[tuple[MemoryCategory, str], int] = defaultdict(int)
    for row in np.flatnonzero(~blocks["before"]).tolist():
        ours = MemoryCategory(int(blocks["category"][row]))
        theirs = _theirs(categories, int(blocks["address"][row]), int(blocks["start"][row]))
        agreement[ours, theirs] += int(blocks["bytes"][row])
    for ours, theirs in ALIKE.items():
        wrong = {key: size for key, size in agreement.items() if key[0] is ours and key[1] not in theirs}
        assert wrong == {}
        assert sum(size for key, size in agreement.items() if key[0] is ours) > 0
    # the first step makes AdamW's two moments of each parameter, and torch finds as many bytes of state
    state = sum(size for key, size in agreement.items() if key[0] is MemoryCategory.OPTIMIZER_STATE)
    assert state == sum(size for key, size in agreement.items() if key[1] == "OPTIMIZER_STATE")
    assert 2 * parameters <= state <= 2 * parameters + 4 * 1000  # and a step counter for each
    # of what torch calls a gradient nothing is anything else here
    assert {key[0] for key in agreement if key[1] == "GRADIENT"} == {MemoryCategory.GRADIENT}
    unknown = sum(size for key, size in agreement.items() if key[0] is MemoryCategory.UNKNOWN)
    assert unknown < 0.001 * sum(agreement.values())


def test_at_the_peak_bytes_of_each_category_are_torchs(profiled: tuple[Trace, dict[tuple[int, int], str], int]):
    trace, categories, _ = profiled
    (timeline,) = memory_timelines(trace)
    blocks = timeline.blocks
    rows = timeline.alive_at(timeline.peak()[0])
    ours: dict[str, int] = defaultdict(int)
    theirs: dict[str, int] = defaultdict(int)
    for row in rows.tolist():
        ours[MemoryCategory(int(blocks["category"][row])).name] += int(blocks["bytes"][row])
        theirs[_theirs(categories, int(blocks["address"][row]), int(blocks["start"][row]))] += int(blocks["bytes"][row])
    for name in ("GRADIENT", "INPUT", "OPTIMIZER_STATE"):
        assert ours[name] == theirs[name], name
    # torch counts the gradient of the loss itself, one float made between the two passes
    assert theirs["ACTIVATION"] - ours["ACTIVATION"] in (0, 4)


def test_modules_and_lines_of_a_real_run(profiled: tuple[Trace, dict[tuple[int, int], str], int]):
    trace, _, _ = profiled
    (timeline,) = memory_timelines(trace)
    blocks = timeline.blocks
    saved = blocks["category"] == MemoryCategory.ACTIVATION
    modules = {trace.text(int(code)) for code in blocks["module"][saved]}
    assert "Net_0.Block_2" in modules
    assert any(name.startswith("Net_0.Block_1.Linear_") for name in modules)
    functions = {timeline.lines[index].function for index in blocks["line"][saved].tolist() if index >= 0}
    assert "forward" in functions
    assert {Path(line.file).name for line in timeline.lines} == {Path(__file__).name}


def test_events_of_the_allocator_are_not_lost(profiled: tuple[Trace, dict[tuple[int, int], str], int]):
    trace, _, _ = profiled
    (timeline,) = memory_timelines(trace)
    made = trace.rows["memory"]["action"] == MemoryAction.ALLOCATE
    assert int(made.sum()) == int((~timeline.blocks["before"]).sum())
    assert timeline.unmatched == 0
