"""The training loop of all workloads: a small language model around the block under study.

Shapes: B batch, L sequence, M = L + 1, D model features, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfscope.workloads.compile_defects import length_of, rate_of, stages_of
from perfscope.workloads.data import batches
from perfscope.workloads.kernel_defects import detour_of
from perfscope.workloads.options import Options, Size


class LanguageModel(nn.Module):
    """Embedding, ``size.layers`` blocks (x_BLD -> x_BLD) and a linear head: tokens_BL -> logits_BLV."""

    def __init__(self, block: Callable[[Size, str], nn.Module], options: Options) -> None:
        super().__init__()
        size = options.size
        self.defects = options.defects
        self.each, self.last = stages_of(options.compile_defect, options.compile_twin)
        self.embedding = nn.Embedding(size.vocab, size.dim)
        self.blocks = nn.ModuleList(block(size, options.variant) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.dim)
        self.head = nn.Linear(size.dim, size.vocab, bias=False)
        self.detour = detour_of(options.kernel_defect, options.kernel_twin, size.seq, size.dim)

    def forward(self, tokens_BL: torch.Tensor, rate: float | torch.Tensor = 0.0) -> torch.Tensor:
        """logits_BLV. ``rate`` is the dropout rate where the workload has dropout."""
        x_BLD = self.embedding(tokens_BL)
        for block in self.blocks:
            if "checkpoint" in self.defects:
                x_BLD = checkpoint(block, x_BLD, use_reentrant=False)  # defect: excess_remat: pays a second forward
            elif "checkpoint-reentrant" in self.defects:
                x_BLD = checkpoint(block, x_BLD, use_reentrant=True)  # defect: excess_remat: pays a second forward
            elif "checkpoint-nested" in self.defects:
                inner = functools.partial(checkpoint, block, use_reentrant=True)
                x_BLD = checkpoint(inner, x_BLD, use_reentrant=True)  # defect: excess_remat: a third forward
            else:
                x_BLD = block(x_BLD)
            x_BLD = self.each(x_BLD if self.detour is None else self.detour(x_BLD), rate)
        return self.head(self.norm(self.last(x_BLD, rate)))


def build(block: Callable[[Size, str], nn.Module], options: Options) -> nn.Module:
    """The model on its device. The same seed gives every variant the same weights."""
    torch.manual_seed(options.seed)
    model = LanguageModel(block, options)
    return model.to(device=options.device, dtype=getattr(torch, options.dtype))


def loss_of(
    model: Callable[..., torch.Tensor], tokens_BM: torch.Tensor, rate: float | torch.Tensor = 0.0
) -> torch.Tensor:
    """Cross-entropy of the next token in nats, a scalar."""
    logits_BLV = model(tokens_BM[:, :-1], rate)
    return F.cross_entropy(logits_BLV.flatten(0, 1).float(), tokens_BM[:, 1:].flatten())


def compiled(model: nn.Module, options: Options) -> Callable[..., torch.Tensor]:
    """The model through torch.compile."""
    program: Callable[..., torch.Tensor]
    if options.compile_defect == "shapes":
        program = torch.compile(model, dynamic=False, backend=options.backend)  # defect: dynamic_shape_churn
    else:
        dynamic = True if options.compile_twin == "shapes" else None
        program = torch.compile(model, dynamic=dynamic, backend=options.backend)
    return program


def inputs_of(tokens_BM: torch.Tensor, step: int, options: Options) -> tuple[torch.Tensor, float | torch.Tensor]:
    """Tokens and dropout rate of a step: what some defects of compiled programs change."""
    if "shapes" in (options.compile_defect, options.compile_twin):
        tokens_BM = tokens_BM[:, : length_of(step, options.size.seq) + 1]
    if options.compile_defect == "float-arg":
        return tokens_BM, rate_of(step)
    if options.compile_twin == "float-arg":
        return tokens_BM, torch.full((), rate_of(step), device=tokens_BM.device)
    return tokens_BM, 0.0


def train(block: Callable[[Size, str], nn.Module], options: Options) -> list[float]:
    """Trains ``options.steps`` steps, prints the loss of each and returns them."""
    torch.set_float32_matmul_precision("high")
    if "fp32" in options.defects:
        torch.set_float32_matmul_precision("highest")  # defect: full_precision_matmul: forbids TF32
    model = build(block, options)
    forward = compiled(model, options) if options.compile else model
    if "adam-loop" in options.defects:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)  # defect: unfused_optimizer
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses, total = [], 0.0
    for step, tokens_BM in enumerate(batches(options)):
        loss = loss_of(forward, *inputs_of(tokens_BM, step, options))
        loss.backward()
        if "item" in options.defects:
            total += loss.item()  # defect: host_sync: the host waits for the step it has just queued
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if "item" in options.defects:
        print(f"mean loss {total / options.steps:.4f}")
    return report(losses)


def report(losses: list[torch.Tensor]) -> list[float]:
    """Prints and returns the losses, read from the device once, after the last step."""
    values: list[float] = torch.stack(losses).tolist()
    for step, value in enumerate(values):
        print(f"step {step:3d}  loss {value:.4f}")
    return values
