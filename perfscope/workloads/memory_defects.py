"""Data that a training loop keeps from step to step: two habits that eat memory, each with a twin that does not.

Shapes: B batch, L sequence, D model features, V vocabulary, T = B * L tokens of a step, S steps.
"""

from __future__ import annotations

import torch

from perfscope.workloads.options import Options

SAMPLED = 64
"""Every so many tokens of a sequence one is kept."""


def entropy_of(logits_BLV: torch.Tensor) -> torch.Tensor:
    """Mean entropy of the predicted distributions in nats, a scalar that carries its graph."""
    return -(logits_BLV.softmax(-1) * logits_BLV.log_softmax(-1)).sum(-1).mean()


class Entropies:
    """The entropy of every step, to be plotted at the end."""

    def __init__(self, defective: bool) -> None:
        self.defective = defective
        self.kept: list[torch.Tensor] = []

    def __call__(self, x_BLD: torch.Tensor, logits_BLV: torch.Tensor) -> None:
        """Adds a step. ``backward()`` is never called on a metric, so the tensors saved in its graph are not freed."""
        if self.defective:
            self.kept.append(entropy_of(logits_BLV))  # defect: memory_leak: two tensors BLV stay for every step
        else:
            self.kept.append(entropy_of(logits_BLV).detach())

    def value(self) -> torch.Tensor:
        """Their mean."""
        return torch.stack(self.kept).detach().mean()


class Bank:
    """The features of every token seen, and some tokens of each step in addition.

    The bank has a new size in each step, larger than every hole of the earlier banks; and the additional tokens land in
    those holes, so that a caching allocator can never give them back.
    """

    def __init__(self, defective: bool, steps: int) -> None:
        self.defective, self.steps, self.seen = defective, steps, 0
        self.bank_TD: torch.Tensor | None = None
        self.samples: list[torch.Tensor] = []
        self.samples_SBLD: torch.Tensor | None = None

    def __call__(self, x_BLD: torch.Tensor, logits_BLV: torch.Tensor) -> None:
        """Adds a step."""
        x_TD, sample_BLD = x_BLD.detach().flatten(0, 1), x_BLD.detach()[:, ::SAMPLED]
        if self.defective:
            before_TD = x_TD[:0] if self.bank_TD is None else self.bank_TD
            self.bank_TD = torch.cat((before_TD, x_TD))  # defect: memory_fragmentation: a new size
            self.samples.append(sample_BLD.clone())
        else:
            if self.bank_TD is None or self.samples_SBLD is None:
                self.bank_TD = x_TD.new_empty(self.steps * x_TD.shape[0], x_TD.shape[1])
                self.samples_SBLD = sample_BLD.new_empty(self.steps, *sample_BLD.shape)
            self.bank_TD[self.seen * x_TD.shape[0] : (self.seen + 1) * x_TD.shape[0]] = x_TD
            self.samples_SBLD[self.seen] = sample_BLD
        self.seen += 1

    def value(self) -> torch.Tensor:
        """Mean of what is in the bank, plus the mean of the samples."""
        samples = torch.stack(self.samples) if self.samples_SBLD is None else self.samples_SBLD
        assert self.bank_TD is not None
        return self.bank_TD.float().mean() + samples.float().mean()


def habits_of(options: Options) -> dict[str, Entropies | Bank]:
    """Objects that the loop keeps of each step, by name of the defect: empty without a defect and twin."""
    habits: dict[str, Entropies | Bank] = {}
    if "leak" in options.defects | options.twins:
        habits["entropy"] = Entropies("leak" in options.defects)
    if "fragment" in options.defects | options.twins:
        habits["bank"] = Bank("fragment" in options.defects, options.steps)
    return habits
