"""Categories of memory held against PyTorch's own, on real training runs with its profiler."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.model.memory import MemoryPhase, MemoryTimeline
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory

SAME = ("ACTIVATION", "GRADIENT", "INPUT", "OPTIMIZER_STATE")
"""Categories in which every byte must agree with torch. Torch has no category for blocks that live in one phase only:
its TEMPORARY lives in one op, and it names the rest by origin (AUTOGRAD_DETAIL, ACTIVATION, PARAMETER)."""

ROOT_GRADIENT = 4
"""Bytes of the gradient of the loss itself, one float made between the two passes: an activation to torch."""


@dataclass(frozen=True)
class Profiled:
    name: str
    trace: Trace
    theirs: dict[int, list[tuple[int, str]]]
    """Address -> (allocated at ns, torch's category)."""
    parameters: int
    """Bytes."""
    steps: int
    passes: int
    """Number of forward and backward passes, over all steps."""

    def timeline(self) -> MemoryTimeline:
        (timeline,) = memory_timelines(self.trace)
        return timeline

    def torch_says(self, timeline: MemoryTimeline, row: int) -> str:
        """Chrome's times are those of torch, to a microsecond or so: the nearest allocation at that address."""
        start = int(timeline.blocks["start"][row])
        near = [(abs(at - start), name) for at, name in self.theirs.get(int(timeline.blocks["address"][row]), ())]
        return min(near)[1] if near and min(near)[0] < 5000 else "none"

    def agreement(self, rows: np.ndarray[Any, Any]) -> dict[tuple[str, str], int]:
        """(ours, torch's) -> bytes."""
        timeline = self.timeline()
        found: dict[tuple[str, str], int] = defaultdict(int)
        for row in rows.tolist():
            ours = MemoryCategory(int(timeline.blocks["category"][row])).name
            found[ours, self.torch_says(timeline, row)] += int(timeline.blocks["bytes"][row])
        return found


def _perceptron(checkpointed: bool = False) -> tuple[Any, Callable[[], tuple[Any, Any]]]:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

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
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if checkpointed else block(x)
            return self.head(x)

    return Net(), lambda: (torch.randn(256, 64), torch.randint(0, 10, (256,)))


def _convolutions() -> tuple[Any, Callable[[], tuple[Any, Any]]]:
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 64, 10),
    )  # fmt: skip
    return model, lambda: (torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,)))


@pytest.fixture(scope="module", params=[
    "adamw", "checkpointed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "accumulated")),
])  # fmt: skip
def profiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """Two steps, the optimizer's first among them."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler._memory_profiler import Action, TensorKey

    if os.environ.get("OMP_NUM_THREADS") is None:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = request.param
    model, batch = _convolutions() if kind == "sgd" else _perceptron(kind == "checkpointed")
    kept = {"lr": 0.01, "momentum": 0.9} if kind == "sgd" else {"lr": 0.001}
    optimizer = (torch.optim.SGD if kind == "sgd" else torch.optim.AdamW)(model.parameters(), **kept)
    micro = 3 if kind == "accumulated" else 1

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(micro):
            x, y = batch()
            torch.nn.functional.cross_entropy(model(x), y).backward()
        if kind == "accumulated":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as made:
        for _ in range(2):
            step()
            made.step()
    own = made._memory_profile()
    theirs: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for time, action, (key, version), _ in own.timeline:
        if action == Action.CREATE and isinstance(key, TensorKey):
            found = own._categories.get(key, version)
            theirs[key.storage.ptr].append((time, "none" if found is None else found.name))
    path = tmp_path_factory.mktemp("memory") / "train.pt.trace.json"
    made.export_chrome_trace(str(path))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return Profiled(
        name=kind, trace=kineto_reader.read(path), theirs=theirs, parameters=size, steps=2, passes=2 * micro
    )


def _made(timeline: MemoryTimeline) -> np.ndarray[Any, Any]:
    """Blocks made in the recording, without repeated work, which torch does not count as activation."""
    return np.flatnonzero(~timeline.blocks["before"] & (timeline.blocks["phase"] != MemoryPhase.RECOMPUTE))


def test_torchs_own_categories(profiled: Profiled):
    agreement = profiled.agreement(_made(profiled.timeline()))
    for name in SAME:
        wrong = {key: size for key, size in agreement.items() if key[0] == name and key[1] != name}
        assert wrong == {}, name
        assert agreement[name, name] > 0, name
    # of what torch calls a gradient or state nothing is anything else here
    for name in ("GRADIENT", "OPTIMIZER_STATE"):
        assert {key[0] for key, size in agreement.items() if key[1] == name and size} == {name}
    unknown = sum(size for key, size in agreement.items() if key[0] == "UNKNOWN")
    assert unknown == ROOT_GRADIENT * profiled.passes


def test_gradients_and_state_take_what_the_parameters_take(profiled: Profiled):
    agreement = profiled.agreement(_made(profiled.timeline()))
    assert agreement["GRADIENT", "GRADIENT"] == profiled.steps * profiled.parameters
    state = agreement["OPTIMIZER_STATE", "OPTIMIZER_STATE"]
    if profiled.name == "sgd":
        assert state == profiled.parameters  # momentum
    else:
        assert 2 * profiled.parameters < state < 2 * profiled.parameters + 1000  # two moments, and counters of steps


def test_at_the_peak_bytes_of_each_category_are_torchs(profiled: Profiled):
    timeline = profiled.timeline()
    agreement = profiled.agreement(np.intersect1d(timeline.alive_at(timeline.peak()[0]), _made(timeline)))
    ours: dict[str, int] = defaultdict(int)
    theirs: dict[str, int] = defaultdict(int)
    for (mine, torchs), size in agreement.items():
        ours[mine] += size
        theirs[torchs] += size
    for name in ("GRADIENT", "INPUT", "OPTIMIZER_STATE"):
        assert ours[name] == theirs[name], name
    assert theirs["ACTIVATION"] - ours["ACTIVATION"] in (0, ROOT_GRADIENT)


def test_recomputed_activations_are_told_from_saved_ones(profiled: Profiled):
    blocks = profiled.timeline().blocks
    again = blocks["phase"] == MemoryPhase.RECOMPUTE
    assert again.any() == (profiled.name == "checkpointed")
    if profiled.name == "checkpointed":
        back = blocks["bytes"][again & (blocks["category"] == MemoryCategory.ACTIVATION)].sum()
        saved = blocks["bytes"][~again & (blocks["category"] == MemoryCategory.ACTIVATION)].sum()
        assert back > saved  # three blocks of a model whose inputs alone are kept


def test_modules_and_lines_of_a_real_run(profiled: Profiled):
    timeline = profiled.timeline()
    blocks = timeline.blocks
    saved = blocks["category"] == MemoryCategory.ACTIVATION
    modules = {timeline.text(int(code)) for code in blocks["module"][saved]}
    if profiled.name == "sgd":
        assert "Sequential_0.BatchNorm2d_0" in modules
    else:
        assert any(name.startswith("Net_0.Block_1.Linear_") for name in modules)
        functions = {timeline.lines[index].function for index in blocks["line"][saved].tolist() if index >= 0}
        assert "forward" in functions
    assert {Path(line.file).name for line in timeline.lines} == {Path(__file__).name}
