"""Compiled models under capture: dynamo makes the same graphs of them, as often as without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.programs import captured, only, passes, plain, write

pytestmark = pytest.mark.torch

SLICED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers[:2]:  # a new list of modules, as in models of transformers
            x = layer(x).relu()
        return {"out": x}

torch.manual_seed(0)
model = torch.compile(Model(), backend="eager", fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(16):
    loss = model(torch.randn(4, 8))["out"].square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model(torch.ones(2, 8))
from torch._dynamo.utils import counters
print(dict(counters["frames"]), dict(counters["stats"]), loss.item().hex())
"""


def test_dynamo_compiles_as_often_as_without_capture(tmp_path: Path) -> None:
    program = write(tmp_path, SLICED)
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain(program, cwd=tmp_path).stdout
    assert passes(only(tmp_path))["detail"].state == "recorded"
