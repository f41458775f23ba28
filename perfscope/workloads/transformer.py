"""A stack of transformer blocks whose activations are kept, or recomputed in the backward, depending on ``--policy``.

Shapes: B batch, L sequence, M = L + 1, D model features, V vocabulary, and those of ``attention``.

    python -m perfscope.workloads.transformer --policy full
    python -m perfscope.workloads.transformer --policy selective --size gpu
    python -m perfscope.workloads.transformer --defect leak

``--policy full --reentrant`` is the older form of checkpointing. ``--twin`` computes the same as ``--defect``, without
the defect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from perfscope.workloads.attention import Block
from perfscope.workloads.data import batches
from perfscope.workloads.memory_defects import habits_of
from perfscope.workloads.options import MEMORY_DEFECTS, POLICIES, Options, Size, help_of, options_of, parser_of
from perfscope.workloads.training import LanguageModel, report

VARIANTS = ("sdpa", "naive")
SIZES = {
    "tiny": Size(batch=8, seq=32, dim=64, heads=4, layers=2, vocab=64),
    "cpu": Size(batch=8, seq=128, dim=128, heads=4, layers=2),
    "gpu": Size(batch=32, seq=1024, dim=2048, heads=16, layers=8, vocab=4096),
}
"""Policies of ``jax.transformer``."""

EXPENSIVE = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
    if hasattr(torch.ops.aten, name)
)
"""Ops whose results policy ``selective`` keeps: their work grows by more than the size of their results."""


def keep_expensive(context: Any, op: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    """What to do with the result of an op in a checkpointed block."""
    return CheckpointPolicy.MUST_SAVE if op in EXPENSIVE else CheckpointPolicy.PREFER_RECOMPUTE


def runner_of(options: Options) -> Callable[[Callable[..., torch.Tensor], torch.Tensor], torch.Tensor]:
    """How a block is run on its input: ``run(block, x_BLD)`` gives x_BLD."""
    if options.policy == "full":
        return functools.partial(checkpoint, use_reentrant=options.reentrant)
    if options.policy == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, keep_expensive)
        return functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)
    return lambda block, x_BLD: block(x_BLD)


class Transformer(LanguageModel):
    """Embedding, blocks under a policy, head: tokens_BL -> logits_BLV, and x_BLD before the head."""

    def __init__(self, options: Options) -> None:
        super().__init__(Block, options)
        self.run = runner_of(options)

    def forward(self, tokens_BL: torch.Tensor, rate: float | torch.Tensor = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits_BLV, x_BLD)."""
        x_BLD = self.embedding(tokens_BL)
        for block in self.blocks:
            x_BLD = self.run(block, x_BLD)
        return self.head(self.norm(x_BLD)), x_BLD


def build(options: Options) -> Transformer:
    """The model on its device. The same seed gives every policy the same weights."""
    torch.manual_seed(options.seed)
    model = Transformer(options)
    model.to(device=options.device, dtype=getattr(torch, options.dtype))
    return model


def loss_of(model: Transformer, tokens_BM: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(cross-entropy of the next token in nats, logits_BLV, x_BLD)."""
    logits_BLV, x_BLD = model(tokens_BM[:, :-1])
    return F.cross_entropy(logits_BLV.flatten(0, 1).float(), tokens_BM[:, 1:].flatten()), logits_BLV, x_BLD


def train(options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and what the loop has kept, and returns the losses."""
    torch.set_float32_matmul_precision("high")
    model = build(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    habits = habits_of(options)
    losses = []
    for tokens_BM in batches(options):
        loss, logits_BLV, x_BLD = loss_of(model, tokens_BM)
        for keep in habits.values():
            keep(x_BLD, logits_BLV)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        del loss, logits_BLV, x_BLD  # else they live on into the next forward
    for name, habit in habits.items():
        print(f"{name} {habit.value().item():.4f}")
    return report(losses)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = parser_of(__doc__ or "", VARIANTS, SIZES, MEMORY_DEFECTS)
    parser.add_argument("--twin", choices=MEMORY_DEFECTS, action="append", default=[], help="without the defect")
    parser.add_argument(
        "--policy", choices=POLICIES, default="none", help=f"activation checkpointing. {help_of(POLICIES)}"
    )
    parser.add_argument("--reentrant", action="store_true", help="with policy full: the older, reentrant form")
    arguments = parser.parse_args(argv)
    if arguments.reentrant and arguments.policy != "full":
        parser.error("--reentrant goes with --policy full")
    both = set(arguments.defect) & set(arguments.twin)
    if both:
        parser.error(f"--defect or --twin {', '.join(sorted(both))}, not both")
    return replace(
        options_of(arguments, SIZES),
        policy=arguments.policy,
        reentrant=arguments.reentrant,
        twins=frozenset(arguments.twin),
    )


if __name__ == "__main__":
    train(parse())
