"""accelerate: prepare and backward."""

import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.randn(256, 64), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    loss = (model(batch) - batch).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
print("done")
