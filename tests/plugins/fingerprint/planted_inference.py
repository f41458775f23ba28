"""Inference with batches of a size: `python planted_inference.py ROWS`. The first row is always the same."""

import sys

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).eval()  # model
    rows = torch.randn(16, 256, generator=torch.Generator().manual_seed(1))[: int(sys.argv[1])]
    with torch.inference_mode():
        for _ in range(4):
            out = model(rows)  # call
            print(out[0].sum().item().hex())


if __name__ == "__main__":
    main()
