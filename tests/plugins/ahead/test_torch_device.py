"""Replacements of ``torch.cuda`` in a planned program: a class for each class, so that annotations and checks work."""

from __future__ import annotations

import sys

import pytest

from perfscope.model.errors import DataError
from tests import warm

PROGRAM = """
import torch
from perfscope.plugins.ahead.torch.cuda import FakeCuda

FakeCuda(
    name="H100", count=1, memory_bytes=80 << 30, cores=132, capability=(9, 0), on_device=lambda tensor: None
).install()

class Prefetcher:  # as libraries annotate it
    def __init__(self, stream: torch.cuda.Stream | None = None, event: "torch.cuda.Event | None" = None) -> None:
        self.stream = stream or torch.cuda.current_stream()

def seeded(generator: torch.Generator | list[torch.Generator] | None = None) -> None: ...

class OwnStream(torch.cuda.Stream):
    pass

class OwnEvent(torch.cuda.Event):
    pass

for module in (torch.cuda, torch.cpu):
    assert isinstance(module.Stream, type) and isinstance(module.Event, type)
assert isinstance(Prefetcher().stream, torch.cuda.Stream)
side = OwnStream(priority=-1)
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() is side
assert torch.cuda.current_stream() is torch.cuda.default_stream()
assert isinstance(side.record_event(), torch.cuda.Event) and isinstance(OwnEvent(enable_timing=True), torch.cuda.Event)
assert isinstance(torch.Generator(device="cuda"), torch.Generator)
with torch.cuda.device(0):
    assert not torch.cuda.is_current_stream_capturing() and not torch.cuda.current_stream().is_capturing()
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.current_stream() is torch.cuda.current_stream()
    assert torch.accelerator.device_count() == 1 and torch.accelerator.current_device_index() == 0
    assert torch.cuda.device_count() == 1 and torch.cuda.get_device_properties(0).multi_processor_count == 132
"""


COPIES = """
import copy, torch
from perfscope.plugins.ahead.torch.fake_tensors import FakeWorld

world = FakeWorld()
world.install()
with world.mode:
    metric = torch.tensor(2.0)
    metric.note = "kept"
    shared = {"a": metric, "b": metric}
    copied = copy.deepcopy(shared)
    assert copied["a"] is copied["b"] and copied["a"] is not metric
    assert float(copied["a"]) == 2.0 and copied["a"].note == "kept"
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    average = copy.deepcopy(model)
    assert len(list(average.parameters())) == 4 and len(list(average.buffers())) == 3
    model(torch.randn(8, 4)).sum().backward()
    with torch.no_grad():
        for mean, new in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(new, 0.1)
    image = torch.zeros(3, 8, dtype=torch.uint8).numpy()
    assert image.shape == (3, 8) and image.dtype == "uint8"
assert [value.what for value in world.made_up()] == ["numpy"]
"""


@pytest.mark.slow
def test_tensors_without_data_are_copied_and_what_stands_for_a_class_is_a_class() -> None:
    """In one process: most of its time goes to loading torch."""
    pytest.importorskip("torch")
    both = [sys.executable, "-c", COPIES + PROGRAM]
    done = warm.run(both, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_torch_without_an_interface_is_one_clear_sentence() -> None:
    pytest.importorskip("torch")
    from perfscope.plugins.ahead.torch import compat

    compat.check()
    with pytest.raises(
        DataError, match=r"torch programs cannot be planned: torch .* has no torch\._gone\.part;"
    ) as gone:
        compat.check({"gone": "torch._gone.part"})
    assert "\n" not in str(gone.value)
