"""Planted: cycles are made in every step while many objects live. The twin freezes them before its loop."""

import gc
import sys

import torch


class Record:
    def __init__(self) -> None:
        self.itself = self


twin = "--twin" in sys.argv
torch.manual_seed(0)
index = [{"number": number, "name": [number]} for number in range(15_000)]
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(8, 16)
for step in range(30):
    if twin and step == 2:
        gc.collect()
        gc.freeze()
    for _ in range(3):
        kept = [Record() for _ in range(2_000)]
    gc.collect()  # a library that wants its memory back
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
