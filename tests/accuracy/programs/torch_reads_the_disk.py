"""A file per sample, read in the loop from the disk, as in a first epoch over data larger than memory."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

BATCH, STEPS = 8, 40
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
with tempfile.TemporaryDirectory(dir=".") as folder:
    files = [Path(folder, f"{number}.npy") for number in range(BATCH * STEPS)]
    for path in files:
        np.save(path, np.random.default_rng(0).standard_normal((512, 1024), np.float32))
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # as after a restart
    for step in range(STEPS):
        samples = [np.load(path)[:, 0] for path in files[step * BATCH : (step + 1) * BATCH]]
        x, y = torch.from_numpy(np.stack(samples)), torch.randint(0, 10, (BATCH,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
print("done")
