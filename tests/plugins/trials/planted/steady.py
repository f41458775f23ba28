"""Nothing planted: a model with a wait in each step, as of a device that does the work."""

import time

import torch

torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
batch = torch.randn(8, 64)
for _ in range(20):
    loss = model(batch).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    time.sleep(0.05)
    optimizer.step()
