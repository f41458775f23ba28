"""A convolutional autoencoder; someone looked for a NaN last week."""

import torch
from torch import nn


def build():
    layers = []
    for _ in range(8):
        layers += [nn.Linear(96, 96), nn.SiLU()]
    return nn.Sequential(*layers)


def train(model, steps=40):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    with torch.autograd.detect_anomaly():
        for _ in range(steps):
            x = torch.randn(24, 96)
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss


torch.manual_seed(0)
print(f"{train(build()).item():.4f}")
