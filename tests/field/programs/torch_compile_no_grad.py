"""torch: a compiled model, evaluated under no_grad."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 256)
).to(device)
model = torch.compile(model.eval())
with torch.no_grad():
    for _ in range(12):
        scores = model(torch.randn(32, 256, device=device)).softmax(-1)
print("done")
