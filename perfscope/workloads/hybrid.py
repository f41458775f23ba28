"""State space and attention layers in one model: each `attention` layer follows ``RATIO`` layers of `ssm`.

    python -m perfscope.workloads.hybrid --variant fused
    python -m perfscope.workloads.hybrid --variant scan
    python -m perfscope.workloads.hybrid --variant kernels --size gpu

Jamba (Lieber et al. 2024) is built like this, with 7 state space layers per attention layer. ``--layers`` counts groups
of ``RATIO`` + 1 layers. ``--heads`` is the number of heads and the number of states.
"""

from __future__ import annotations

from torch import nn

from perfscope.workloads import attention, ssm
from perfscope.workloads.options import Size, parse
from perfscope.workloads.training import train

PARTS = {
    "fused": ("parallel", "sdpa"),
    "scan": ("scan", "sdpa"),
    "naive": ("parallel", "naive"),
    "kernels": ("selective", "triton"),
}
"""Variants of `ssm` and of `attention`. ``scan`` and ``naive`` have the defect of one of them."""
VARIANTS = tuple(PARTS)
SIZES = {
    "tiny": Size(batch=4, seq=64, dim=32, heads=4, layers=1, vocab=64),
    "cpu": Size(batch=2, seq=256, dim=128, heads=4, layers=1),
    "gpu": Size(batch=8, seq=1024, dim=2048, heads=16, layers=4, vocab=32_000),
}
RATIO = 3
"""State space layers per attention layer."""


def group(size: Size, variant: str) -> nn.Module:
    """``RATIO`` state space layers and an attention layer: x_BLD -> x_BLD."""
    recurrence, attend = PARTS[variant]
    return nn.Sequential(*(ssm.Block(size, recurrence) for _ in range(RATIO)), attention.Block(size, attend))


if __name__ == "__main__":
    train(group, parse(__doc__ or "", VARIANTS, SIZES))
