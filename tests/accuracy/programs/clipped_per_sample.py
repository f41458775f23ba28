"""Private training: the gradient of each sample is clipped before they are added."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = list(model.parameters())
for _ in range(16):
    x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
    total = [torch.zeros_like(weight) for weight in weights]
    for i in range(64):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, weights)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        for sum_, gradient in zip(total, gradients):
            sum_ += gradient / norm.clamp(min=1)
    for weight, sum_ in zip(weights, total):
        weight.grad = sum_ / 64 + 0.01 * torch.randn_like(weight)
    optimizer.step()
