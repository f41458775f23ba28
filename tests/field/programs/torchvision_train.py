"""torchvision: the training loop of its reference script, on random images."""

import torch
import torchvision

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
images = torchvision.datasets.FakeData(48, (3, 32, 32), 10, torchvision.transforms.ToTensor())
loader = torch.utils.data.DataLoader(images, batch_size=4, shuffle=True)
model = torchvision.models.resnet18(num_classes=10).to(device)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

model.train()
for image, target in loader:
    image, target = image.to(device), target.to(device)
    loss = criterion(model(image), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
