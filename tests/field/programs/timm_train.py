"""timm: a vision transformer with timm's own optimizer and schedule."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

device = "cuda" if torch.cuda.is_available() else "cpu"
model = timm.create_model(
    "vit_tiny_patch16_224", pretrained=False, img_size=32, patch_size=8, depth=2, num_classes=10
).to(device)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=12)
loss_function = LabelSmoothingCrossEntropy()

model.train()
for update in range(12):
    images = torch.randn(4, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (4,), device=device)
    loss = loss_function(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step_update(update)
print("done")
