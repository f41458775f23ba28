"""Planted: the workers of the DataLoader end after each epoch and start again. The twin lets them stay."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    twin = "--twin" in sys.argv
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(torch.randn(32, 64)), batch_size=8, num_workers=2, persistent_workers=twin)
    for _ in range(10):
        for (batch,) in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
