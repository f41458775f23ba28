"""Polls a queue of jobs; between batches it waits a moment."""

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16)).eval()


def next_job(number):
    time.sleep(0.02)
    return torch.randn(32, 256)


with torch.no_grad():
    for number in range(60):
        job = next_job(number)
        result = model(job)
print(result.shape)
