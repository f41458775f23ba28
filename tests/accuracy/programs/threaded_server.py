"""A scoring service: worker threads take requests from a pool."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(0)
ranker = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(192, 192), nn.GELU())]).eval()


def answer(request):
    with torch.inference_mode():
        scores = ranker(torch.randn(12, 192)).mean(1)
        return sorted(score.item() for score in scores)


with ThreadPoolExecutor(max_workers=2) as pool:
    answers = list(pool.map(answer, range(160)))
print(len(answers))
