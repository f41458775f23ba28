"""timm: evaluation without an optimizer."""

import timm
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = timm.create_model("resnet18", pretrained=False).to(device).eval()
with torch.inference_mode():
    for _ in range(10):
        logits = model(torch.randn(2, 3, 64, 64, device=device))
        prediction = logits.argmax(-1)
print("done")
