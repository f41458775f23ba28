"""Planted: every tenth batch takes long, and the workers are one batch ahead. The twin lets them be four ahead."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

SAMPLES, EVERY = 480, 80


class Samples(Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % EVERY == 0:
            time.sleep(0.2)  # another file is opened
        return torch.full((64,), float(index % 7))


if __name__ == "__main__":
    twin = "--twin" in sys.argv
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Samples(), batch_size=8, num_workers=1, prefetch_factor=8 if twin else 1)
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.02)  # a device that works
        optimizer.step()
