"""Sizes that the programs of both frameworks share. It imports neither of them."""

from __future__ import annotations

from perfscope.workloads.options import Size

SAVED = {
    "tiny": Size(batch=2, seq=16, dim=192, heads=2, layers=2, vocab=512),
    "cpu": Size(batch=4, seq=64, dim=256, heads=4, layers=4, vocab=8192),
    "gpu": Size(batch=8, seq=1024, dim=2048, heads=16, layers=16, vocab=32_000),
}
"""Models whose weights and optimizer are saved: large for their steps."""
HELD_OUT = 8
"""Batches of an evaluation."""
