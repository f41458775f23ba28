"""Statistics of a tensor on its device: smallest and largest value, and number of values that a format loses."""

from __future__ import annotations

from typing import Any

import torch

from perfscope.plugins.numerics.counting import distance
from perfscope.plugins.numerics.document import FORMATS

HALF = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float64, torch.float32, *HALF)


def plain(value: Any) -> torch.Tensor | None:
    """The dense values of this process in a tensor of 16 bits or more; ``None`` without any to examine."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS or value.layout != torch.strided:
        return None
    value = value.detach()
    local = getattr(value, "to_local", None)  # a DTensor
    value = value if local is None else local()
    return value if value.numel() and value.device.type != "meta" else None


def extremes(tensor: torch.Tensor) -> torch.Tensor:
    """(smallest, largest) in float64, or float32 if the device lacks it; NaN if any value is NaN."""
    return torch.stack(torch.aminmax(tensor)).to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def counts(tensor: torch.Tensor) -> torch.Tensor:
    """``COUNTS`` numbers over at most ``MOST_COUNTED`` values at equal distances, then the number of these values."""
    flat = tensor.reshape(-1)
    flat = flat[:: distance(flat.numel())]
    magnitudes = flat.abs()
    if magnitudes.dtype in HALF:
        magnitudes = magnitudes.float()
    finite = torch.isfinite(magnitudes)
    zero = magnitudes == 0
    numbers = [zero.sum()]
    for item in FORMATS:
        flushed = (magnitudes <= item.zero).sum() - numbers[0]
        numbers.append(((magnitudes > item.largest) & finite).sum())
        numbers.append(flushed)
        numbers.append((magnitudes < item.normal).sum() - numbers[0] - flushed)
    numbers.append(finite.sum())
    return torch.stack(numbers).to(torch.float32 if tensor.device.type == "mps" else torch.float64)
