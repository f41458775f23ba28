"""Four heads on one trunk, each with a backward pass of its own."""

import torch
from torch import nn

torch.manual_seed(0)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.heads = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)) for _ in range(4)
        )

    def forward(self, images):
        features = self.trunk(images)
        return [head(features) for head in self.heads]


model = MultiTask()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for _ in range(16):
    images = torch.randn(16, 3, 48, 48)
    outputs = model(images)
    optimizer.zero_grad()
    for output in outputs:
        criterion(output, torch.randint(0, 5, (16,))).backward(retain_graph=True)
    optimizer.step()
