"""Small problems for the planner."""

from __future__ import annotations

from perfscope.analyzers.devices import parse_target
from perfscope.plugins.plan.assumptions import scenarios
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.evaluate import Problem
from perfscope.plugins.plan.fabric import Fabric

DENSE = Decoder(name="dense", layers=8, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn=4096, vocab=32000)
EXPERTS = Decoder(
    name="experts", layers=6, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn=2048, vocab=8192, gated=False,
    experts=8, experts_per_token=2, expert_ffn=1024, dense_layers=1,
)  # fmt: skip


def problem(
    model: Decoder = DENSE, target: str = "h100x8", batch: int = 32, sequence: int = 2048, memory: str | None = None
) -> Problem:
    """A problem with all assumptions open."""
    return Problem(
        model=model, target=parse_target(target, memory), global_batch=batch, sequence=sequence, scenarios=scenarios(),
        fabric=Fabric(),
    )  # fmt: skip
