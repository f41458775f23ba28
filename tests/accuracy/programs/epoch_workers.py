"""A small data set, many short epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 64), torch.randint(0, 5, (96,)))
    loader = DataLoader(data, batch_size=24, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for epoch in range(20):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
