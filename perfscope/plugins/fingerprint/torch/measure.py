"""Hash and sketch of a tensor, computed on its own device and left there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from perfscope.plugins.fingerprint.document import BUCKETS, mixed

LANES = 1 << 20
"""Words of 64 bits, or elements, that share a table of random numbers; longer tensors take it again."""


@dataclass(slots=True)
class Measured:
    """Recorded numbers of a tensor, on its device, later on the host."""

    hash: Any
    row: Any
    sketch: Any = None


class Tables:
    """Odd random numbers and random signs on each device.

    The hash is the sum, modulo 2^64, of a mixed product of each word with the odd number of its place. It does not
    depend on the order of the sum nor on strides, and a change of a single word always changes it.
    """

    def __init__(self) -> None:
        self._odd: dict[Any, torch.Tensor] = {}
        self._signs: dict[Any, torch.Tensor] = {}

    def measure(self, tensor: torch.Tensor, *, sketch: bool = True) -> Measured:
        """Hash and sketch of a dense tensor with at least one element. Without ``sketch`` the hash alone."""
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        tensor = tensor.resolve_neg()
        flat = tensor.contiguous().reshape(-1)
        hashed = self.hash(flat)
        if not sketch:
            return Measured(hashed, hashed)
        rows = tensor.shape[0] if tensor.dim() else 1
        row = hashed if rows == 1 else self.hash(tensor[0].contiguous().reshape(-1))
        return Measured(hashed, row, self._sketch(flat) if flat.is_floating_point() else None)

    def hash(self, flat: torch.Tensor) -> torch.Tensor:
        """Hash of a contiguous tensor of one axis: an integer of 64 bits."""
        words = _words(flat)
        odd = self._odd.get(words.device)
        if odd is None or odd.numel() < min(words.numel(), LANES):
            odd = self._odd[words.device] = _odd(words.numel()).to(words.device)
        total: torch.Tensor | None = None
        for number, part in enumerate(words.split(LANES)):
            product = (part >> 32).bitwise_xor_(part).mul_(odd[: part.numel()])
            product.bitwise_xor_(product >> 29)
            part_sum = product.sum()
            if number:
                part_sum = part_sum * _signed(mixed(number) | 1)
            total = part_sum if total is None else total + part_sum
        assert total is not None
        return total

    def _sketch(self, flat: torch.Tensor) -> torch.Tensor:
        """[sum, largest magnitude, sums of signed elements by their place modulo 8], in float64."""
        wide = torch.float32 if flat.device.type == "mps" else torch.float64
        values = flat.float() if flat.element_size() < 4 else flat
        key = values.device, values.dtype
        signs = self._signs.get(key)
        if signs is None or signs.numel() < min(values.numel(), LANES):
            signs = self._signs[key] = (1 - ((_odd(values.numel()) >> 17) & 2)).to(values)
        buckets: torch.Tensor | None = None
        for part in values.split(LANES):
            signed = part * signs[: part.numel()]
            rest = -signed.numel() % BUCKETS
            if rest:
                signed = torch.nn.functional.pad(signed, (0, rest))
            sums = signed.view(-1, BUCKETS).sum(0, dtype=wide)
            buckets = sums if buckets is None else buckets + sums
        assert buckets is not None
        low, high = torch.aminmax(values)
        largest = torch.maximum(high, -low).to(wide)
        return torch.cat([torch.stack([values.sum(dtype=wide), largest]), buckets])


def to_host(pending: list[Measured]) -> None:
    """Replace the numbers on devices by numbers of Python, with two transfers per device."""
    integers: dict[Any, list[torch.Tensor]] = {}
    sketches: dict[Any, list[torch.Tensor]] = {}
    for item in pending:
        integers.setdefault(item.hash.device, []).extend((item.hash, item.row))
        if item.sketch is not None:
            sketches.setdefault(item.sketch.device, []).append(item.sketch)
    hashes = {device: iter(torch.stack(items).tolist()) for device, items in integers.items()}
    rows = {device: iter(torch.stack(items).tolist()) for device, items in sketches.items()}
    for item in pending:
        device = item.hash.device
        item.hash, item.row = next(hashes[device]), next(hashes[device])
        if item.sketch is not None:
            sketch = next(rows[device])
            item.sketch = sketch if all(map(math.isfinite, sketch)) else None


def _words(flat: torch.Tensor) -> torch.Tensor:
    """The bits as integers of 64 bits, zeros after them."""
    size = flat.element_size()
    if flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0:
        return flat.view(torch.int64)
    count = flat.numel() * size
    padded = torch.zeros(-(-count // 8) * 8, dtype=torch.uint8, device=flat.device)
    padded[:count] = flat.view(torch.uint8)
    return padded.view(torch.int64)


def _odd(count: int) -> torch.Tensor:
    """The first odd random numbers, a power of two of them: SplitMix64 of their places."""
    size = min(LANES, max(4096, 1 << (count - 1).bit_length()))
    number = torch.arange(size, dtype=torch.int64) + _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        logical = (number >> shift) & ((1 << (64 - shift)) - 1)
        number = (number ^ logical) * _signed(factor)
    return number | 1


def _signed(number: int) -> int:
    """The integer of 64 bits with a sign that has the same bits."""
    return number - (1 << 64) if number >= 1 << 63 else number
