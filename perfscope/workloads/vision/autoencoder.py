"""The decoder of an autoencoder (VAE), with which samplers of latents make pictures: convolutions, no attention.

    python -m perfscope.workloads.vision.autoencoder
    python -m perfscope.workloads.vision.autoencoder --defect contiguous
    python -m perfscope.workloads.vision.autoencoder --defect float32 --size gpu

A call decodes a batch of latents. ``--seq`` is the number of positions of a latent, a square number, ``--dim`` the
number of features, ``--layers`` the number of doublings of the side. ``--steps`` is the number of calls.

Shapes: B pictures, C latent channels, D features, S side of a latent, R side of a picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.options import Options, Size, options_of, parser_of

SIZES = {
    "tiny": Size(batch=1, seq=16, dim=32, heads=8, layers=1),
    "cpu": Size(batch=2, seq=64, dim=64, heads=8, layers=2),
    "gpu": Size(batch=8, seq=4096, dim=512, heads=32, layers=3),
}
DEFECTS = {
    "contiguous": "keep weights and latents in the default layout, channels first",
    "float32": "keep the decoder in float32 in a program that samples in bfloat16",
}
LATENT = 4


class Residual(nn.Module):
    """Two convolutions with group norms: x_BDSS -> x_BDSS."""

    def __init__(self, features: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(groups, features) for _ in range(2))
        self.first, self.second = (nn.Conv2d(features, features, 3, padding=1) for _ in range(2))

    def forward(self, x_BDSS: torch.Tensor) -> torch.Tensor:
        """x_BDSS."""
        h_BDSS = self.first(F.silu(self.norm1(x_BDSS)))
        return x_BDSS + self.second(F.silu(self.norm2(h_BDSS)))


class Decoder(nn.Module):
    """Residual blocks and doublings of the side: latent_BCSS -> picture_B3RR."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.enter = nn.Conv2d(LATENT, size.dim, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(size.dim, size.heads) for _ in range(size.layers + 1))
        self.leave = nn.Conv2d(size.dim, 3, 3, padding=1)

    def forward(self, latent_BCSS: torch.Tensor) -> torch.Tensor:
        """picture_B3RR."""
        x_BDSS = self.blocks[0](self.enter(latent_BCSS))
        for block in self.blocks[1:]:
            x_BDSS = block(F.interpolate(x_BDSS, scale_factor=2.0))
        return self.leave(x_BDSS)


def decode(options: Options) -> list[float]:
    """Decodes ``options.steps`` batches; prints and returns the mean of each."""
    size, device = options.size, options.device
    side, dtype = math.isqrt(size.seq), getattr(torch, options.dtype)
    if "float32" in options.defects:
        dtype = torch.float32  # defect: none: twice the bytes, and half of the peak in TF32
    layout = torch.channels_last
    if "contiguous" in options.defects:
        layout = torch.contiguous_format  # defect: none: convolutions change the layout of what they read and write
    torch.manual_seed(options.seed)
    model = Decoder(size).to(device, dtype).to(memory_format=layout).eval()
    latents = [torch.randn(size.batch, LATENT, side, side) for _ in range(options.steps)]
    means = []
    with torch.inference_mode():
        for latent_BCSS in latents:
            picture_B3RR = model(latent_BCSS.to(device, dtype).to(memory_format=layout))
            means.append(picture_B3RR.float().square().mean())
    numbers: list[float] = torch.stack(means).tolist()
    print(*(f"{number:.4f}" for number in numbers))
    return numbers


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", ("vae",), SIZES, DEFECTS).parse_args(argv), SIZES)


if __name__ == "__main__":
    decode(parsed())
