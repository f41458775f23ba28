"""Planted: each sample is waited for on the main process. The twin has two workers."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

WAIT_S = 0.005


class Samples(Dataset):
    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(WAIT_S)  # a disk
        return torch.full((64,), float(index % 7))


if __name__ == "__main__":
    twin = "--twin" in sys.argv
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Samples(), batch_size=8, num_workers=2 if twin else 0, persistent_workers=twin)
    for batch in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
