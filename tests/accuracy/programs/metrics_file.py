"""Writes its metrics to disk in each step and makes sure that they are there."""

import json
import os
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = open(os.path.join(tempfile.mkdtemp(), "metrics.jsonl"), "w")
rows = []
for step in range(40):
    loss = nn.functional.cross_entropy(model(torch.randn(64, 64)), torch.randint(0, 8, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rows += [{"step": step, "lr": 0.1, "tag": f"layer{n}", "value": n * 0.1} for n in range(400)]
    log.seek(0)
    json.dump(rows, log)
    log.flush()
    os.fsync(log.fileno())
print("done")
