"""Inference of linear layers with quantized weights.

    python -m perfscope.workloads.inference.quantized --variant int4-unpacked
    python -m perfscope.workloads.inference.quantized --variant int4

``int8`` and ``fp8``: rows are rounded to 8 bits too, and a kernel multiplies both as they are; ``int8-widened`` and
``fp8-widened`` convert the weights to bfloat16 in each call. ``int4``: a kernel unpacks weights of 4 bits on chip;
``int4-unpacked`` writes them to memory as float32 in each call. A kernel and its plain version compute the same.
``--batch`` is the number of rows, ``--dim`` that of inputs and outputs, ``--steps`` that of calls.

Shapes: T rows, D features, V features of the result, H = D / 2 bytes of a packed row, Q groups of features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from perfscope.workloads.kernels.quantized import int4_product, packed, quantized, scaled_product, unpacked
from perfscope.workloads.options import Options, Size, options_of, parser_of

VARIANTS = ("int8-widened", "int8", "fp8-widened", "fp8", "int4-unpacked", "int4")
EIGHT_BITS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
SIZES = {
    "tiny": Size(batch=8, seq=1, dim=128, heads=1, layers=2, vocab=64),
    "cpu": Size(batch=4, seq=1, dim=1024, heads=1, layers=4),
    "gpu": Size(batch=64, seq=1, dim=8192, heads=1, layers=8),
}


class EightBits(nn.Module):
    """A linear layer with a weight of 8 bits, by which rows of 8 bits are multiplied: x_TD -> y_TV."""

    def __init__(self, weight_VD: torch.Tensor, variant: str) -> None:
        super().__init__()
        name, _, plain = variant.partition("-")
        self.plain, self.dtype = bool(plain), EIGHT_BITS[name]
        self.weight_VD: torch.Tensor
        self.scale_V: torch.Tensor
        for name, value in zip(("weight_VD", "scale_V"), quantized(weight_VD, self.dtype), strict=True):
            self.register_buffer(name, value)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        """y_TV."""
        rows_TD, scale_T = quantized(x_TD, self.dtype)
        if not self.plain:
            return scaled_product(rows_TD, scale_T, self.weight_VD, self.scale_V).to(x_TD.dtype)
        wide_VD = self.weight_VD.to(torch.bfloat16)  # defect: constant_work: writes and reads twice the bytes
        y_TV = F.linear(rows_TD.to(torch.bfloat16), wide_VD)
        return (y_TV * scale_T[:, None] * self.scale_V).to(x_TD.dtype)


class FourBits(nn.Module):
    """A linear layer with a weight of 4 bits: x_TD -> y_TV."""

    def __init__(self, weight_VD: torch.Tensor, variant: str) -> None:
        super().__init__()
        self.plain = variant == "int4-unpacked"
        self.packed_VH: torch.Tensor
        self.scale_VQ: torch.Tensor
        for name, value in zip(("packed_VH", "scale_VQ"), packed(weight_VD), strict=True):
            self.register_buffer(name, value)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        """y_TV."""
        if not self.plain:
            return int4_product(x_TD, self.packed_VH, self.scale_VQ)
        return F.linear(x_TD, unpacked(self.packed_VH, self.scale_VQ).to(x_TD.dtype))


def build(options: Options) -> nn.Module:
    """The layers, each with a gelu after it. The same seed gives the variants of a format the same weights."""
    torch.manual_seed(options.seed)
    layer = FourBits if options.variant.startswith("int4") else EightBits
    dim = options.size.dim
    layers = (layer(2 * torch.randn(dim, dim) / dim**0.5, options.variant) for _ in range(options.size.layers))
    return nn.Sequential(*(part for one in layers for part in (one, nn.GELU()))).eval().to(options.device)


def infer(options: Options) -> list[float]:
    """Calls the layers ``options.steps`` times; prints and returns the mean of each row of the last result."""
    model = build(options)
    x_TD = torch.randn(options.size.batch, options.size.dim).to(options.device, getattr(torch, options.dtype))
    with torch.inference_mode():
        for _ in range(options.steps):
            y_TD = model(x_TD)
    means: list[float] = y_TD.float().mean(-1).tolist()
    print(*(f"{mean:.4f}" for mean in means))
    return means


def parsed(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    return options_of(parser_of(__doc__ or "", VARIANTS, SIZES, {}).parse_args(argv), SIZES)


if __name__ == "__main__":
    infer(parsed())
