"""The whole validation set after every sixth step, one sample at a time."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
train_x, train_y = torch.randn(48, 64, 256), torch.randint(0, 10, (48, 64))
valid_x, valid_y = torch.randn(400, 256), torch.randint(0, 10, (400,))


def validate():
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in zip(valid_x, valid_y, strict=True):
            correct += (model(x[None]).argmax(1) == y).sum()
    model.train()
    return correct / len(valid_x)


accuracies = []
for step, (x, y) in enumerate(zip(train_x, train_y, strict=True)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 6 == 5:
        accuracies.append(validate())
print("done")
