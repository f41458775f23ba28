"""Activation checkpointing in PyTorch: of each block, of nothing, or of all but the matrix products."""

from __future__ import annotations

import functools
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.plugins.trials.interventions.root_modules import RootModules, repeated_blocks
from perfscope.profiler.patching import wrap

SAVED_OPS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention")
"""Names in ``torch.ops.aten`` of ops that are expensive to compute again."""


def _blocks(application: Application) -> None:
    """Recompute the forward of each of several blocks of one class in the backward pass."""

    def found(modules: list[Any]) -> None:
        from torch.utils.checkpoint import checkpoint

        for root in modules:
            for kind, blocks in repeated_blocks(root):
                for block in blocks:
                    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
                application.changed(f"{len(blocks)} {kind} of {type(root).__name__} are checkpointed")

    RootModules(found=found)


def _off(application: Application) -> None:
    """Make ``torch.utils.checkpoint.checkpoint`` call the function and keep its activations."""
    from torch.utils import checkpoint as module

    ours = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")

    def make(_original: Any) -> Any:
        def checkpoint(function: Any, *arguments: Any, **named: Any) -> Any:
            application.changed(f"{_name(function)} is not checkpointed")
            return function(*arguments, **{name: value for name, value in named.items() if name not in ours})

        return checkpoint

    wrap(module, "checkpoint", make)


def _selective(application: Application) -> None:
    """Keep matrix products and attention in the program's checkpoints."""
    import torch
    from torch.utils import checkpoint as module

    saved = [getattr(torch.ops.aten, name).default for name in SAVED_OPS if hasattr(torch.ops.aten, name)]
    contexts = functools.partial(module.create_selective_checkpoint_contexts, saved)

    def make(original: Any) -> Any:
        def checkpoint(function: Any, *arguments: Any, **named: Any) -> Any:
            if "context_fn" in named:
                application.left(f"{_name(function)}: the program sets its own policy")
                return original(function, *arguments, **named)
            application.changed(f"{_name(function)} keeps its matrix products")
            named["use_reentrant"] = False
            return original(function, *arguments, context_fn=contexts, **named)

        return checkpoint

    wrap(module, "checkpoint", make)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


BLOCKS = Intervention(
    name="checkpoint-blocks",
    title="activations of each block computed again",
    family="checkpointing",
    framework="torch",
    answers=("missing_remat", "oom_near", "peak_owner"),
    may_change="Nothing; it takes time and gives memory.",
    code="hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)",
    apply=_blocks,
)
OFF = Intervention(
    name="checkpoint-off",
    title="activations kept, not computed again",
    family="checkpointing",
    framework="torch",
    answers=("excess_remat",),
    may_change="Nothing; more memory.",
    code="hidden = block(hidden)  # without torch.utils.checkpoint.checkpoint",
    apply=_off,
)
SELECTIVE = Intervention(
    name="checkpoint-selective",
    title="matrix products kept, the rest computed again",
    family="checkpointing",
    framework="torch",
    answers=("excess_remat",),
    may_change="Nothing; more memory.",
    code="contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])\n"
    "hidden = checkpoint(block, hidden, use_reentrant=False, context_fn=contexts)",
    apply=_selective,
)
