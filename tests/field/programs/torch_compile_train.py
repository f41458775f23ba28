"""torch: torch.compile inside the program, a training loop."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 256)
).to(device)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(12):
    batch = torch.randn(32, 256, device=device)
    loss = (compiled(batch) - batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
