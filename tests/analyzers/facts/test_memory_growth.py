"""Growth by step: a planted leak with its line, and everything that looks like one and is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.facts.memory_growth import MemoryGrowth, memory_growth, trend
from perfscope.analyzers.readers import kineto, torch_memory
from perfscope.analyzers.trace.memory_tables import MemoryCategory
from tests.analyzers.facts.memory_build import MemoryBuilder


def _steps(kept: list[int], *, capacity: int = -1, recorded: bool = True) -> MemoryGrowth:
    """Steps of 100 us: each makes and frees 500 B, and keeps ``kept[step]`` B for good (0: nothing)."""
    b = MemoryBuilder()
    b.row("devices", ordinal=0, name=b.code("GPU"), cores=1, memory_bytes=capacity)
    b._devices[0] = 0
    b.starts_with(10_000)
    address = 1
    for number, size in enumerate(kept):
        at = 100 * number
        if recorded:
            b.step(number, at, at + 100)
        else:
            b.annotation("Optimizer.step#SGD.step", at + 80, at + 90)
        b.python("train.py(3): main", at, at + 99)
        b.python("train.py(9): remember", at + 10, at + 20)
        b.op("aten::clone", at + 11, at + 19)
        if size:
            b.make(address, size, at + 12)
        b.make(address + 1, 500, at + 30)
        b.free(address + 1, at + 60)
        address += 2
    (growth,) = memory_growth(b.build())
    return growth


def test_a_leak_has_its_slope_line_and_end():
    growth = _steps([64] * 8, capacity=20_000)
    assert growth.growing
    assert growth.judged
    assert (growth.how, growth.warm_up, growth.slope_bytes, growth.sure) == ("recorded", 1, 64.0, 1.0)
    assert growth.live_bytes.tolist() == [10_000 + 64 * step for step in range(1, 9)]
    (leak,) = growth.leaks
    assert (leak.bytes_per_step, leak.steps, leak.blocks, leak.op) == (64, 6, 6, "aten::clone")
    assert leak.line is not None
    assert (leak.line.file, leak.line.line, leak.line.function) == ("train.py", 9, "remember")
    assert leak.category is MemoryCategory.UNKNOWN
    assert growth.steps_left == (20_000 - 10_512) // 64


def test_a_step_that_lets_all_go_does_not_grow():
    growth = _steps([0] * 8)
    assert not growth.growing
    assert (growth.slope_bytes, growth.leaks, growth.steps_left) == (0.0, (), None)


def test_a_cache_that_levels_off_is_no_leak():
    growth = _steps([64] * 6 + [0] * 6)
    assert not growth.growing
    assert growth.leaks == ()


def test_state_made_in_the_first_step_is_no_growth():
    growth = _steps([5000] + [0] * 7)
    assert not growth.growing
    assert growth.slope_bytes == 0.0


def test_a_few_steps_are_not_judged():
    growth = _steps([64] * 4)
    assert not growth.judged
    assert not growth.growing
    assert [leak.steps for leak in growth.leaks] == [2]  # but what they leave behind is there to see


def test_growth_by_optimizer_steps():
    growth = _steps([64] * 8, recorded=False)
    assert growth.how == "optimizer"
    assert growth.growing


def test_noise_does_not_hide_a_leak_and_is_none():
    rng = np.random.default_rng(3)
    noise = rng.integers(-20, 20, 40)
    slope, sure = trend(np.arange(40) * 64 + noise)
    assert slope == pytest.approx(64, abs=3)
    assert sure > 0.98
    slope, sure = trend(noise)
    assert abs(slope) < 1
    assert 0.3 < sure < 0.7


def test_trend_of_little():
    assert trend(np.array([5])) == (0.0, 0.0)
    assert trend(np.array([], np.int64)) == (0.0, 0.0)


def _loop(modules: bool) -> tuple[MemoryGrowth, ...]:
    """A loop without steps, known by its stacks: a batch, three equal layers in a module, a result that stays."""
    b = MemoryBuilder(recorded=frozenset({"memory", "memory_state"}))

    def frame(file: str, name: str, parent: int = -1, line: int = 1) -> int:
        rows = b.tables.setdefault("frames", [])
        rows.append({"file": b.code(file), "line": line, "name": b.code(name), "parent": parent})
        return len(rows) - 1

    main = frame("/home/me/serve.py", "<module>")
    batch = frame("/home/me/serve.py", "batch", main, line=4)
    called = frame("/x/site-packages/torch/nn/modules/module.py" if modules else "/home/me/m.py", "_call_impl", main)
    keep = frame("/home/me/serve.py", "keep", main, line=9)
    address = 1
    for number in range(8):
        at = 100 * number
        b.make(address, 32, at + 1, frame=batch)
        for layer in range(3):
            b.make(address + 1 + layer, 16, at + 10 + layer, frame=called)
        for offset in range(4):
            b.free(address + offset, at + 50 + offset)
        b.make(address + 4, 8, at + 60, frame=keep)
        address += 5
    return memory_growth(b.build())


def test_a_loop_without_steps_is_known_by_its_period():
    (growth,) = _loop(modules=True)
    assert (growth.how, len(growth.ends), growth.slope_bytes, growth.growing) == ("periodic", 8, 8.0, True)
    (leak,) = growth.leaks
    assert leak.line is not None
    assert (leak.line.function, leak.bytes_per_step) == ("keep", 8)


def test_layers_are_not_taken_for_steps():
    assert _loop(modules=False) == ()


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["medium512_train", "medium512_infer", "fragmented", "fwd_bf16_128", "fwd_fp32_128"])
def test_recordings_of_one_step_have_no_growth(corpus: Path, name: str):
    """Models of 12 and 24 equal layers: activations rise layer by layer, which is no growth step by step."""
    trace = torch_memory.read(corpus / "torch_mem" / f"assignment2-systems__{name}.pickle.gz")
    assert memory_growth(trace) == ()


@pytest.mark.parametrize("leaks", [True, False])
def test_a_real_loop(tmp_path: Path, leaks: bool):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []

    def train_step() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        optimizer.step()
        history.append(loss if leaks else loss.item())

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as made:
        for _ in range(9):
            train_step()
            made.step()
    path = tmp_path / "loop.pt.trace.json"
    made.export_chrome_trace(str(path))
    (growth,) = memory_growth(kineto.read(path))
    assert growth.growing is leaks
    if leaks:
        assert growth.slope_bytes == 4.0  # the loss is one float; backward let the rest go
        assert [leak.bytes_per_step for leak in growth.leaks] == [4]
    else:
        assert growth.leaks == ()
