"""The flags that the JAX workloads share: those of the PyTorch ones, with the defects that exist in JAX."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfscope.workloads import options as shared
from perfscope.workloads.options import Options, Size, add_kernel_flags, help_of

DEFECTS = {
    "float": "read the loss with float() in every step",
    "retrace": "pass the number of the step as a static Python int: every step traces and compiles again",
    "checkpoint": "recompute every block in the backward although its memory is not needed",
    "checkpoint-nested": "a checkpoint of all layers around those of each: recompute twice",
    "eager-update": "run AdamW outside of jit: every operation is a separate program, and none are fused",
    "leak": "keep the logits of every step on the device in a list that is never read",
    "no-donation": "keep the old weights and optimizer state in addition to the new ones",
    "fp32": "float32 logits at full precision on a device that has TF32 and bfloat16",
}

KERNEL_DEFECTS = {
    "order": "multiply the two matrices of an adapter with each other, before the activations",
    "logits": "logits of the whole vocabulary in memory, as without the flag; the twin has a part at a time",
}
"""Slower or larger kernels."""

POLICIES = {
    "none": "keep all that the backward needs",
    "full": "keep a block's input only and run all of it again, as --defect checkpoint",
    "dots": "keep products of activations with weights, run the rest again",
    "names": "keep what the block names; attention names the hidden layer after its gelu, which keeps as much as "
    "dots and still runs that product again",
}
"""Values of a block that ``jax.checkpoint`` keeps for the backward."""


def parser_of(
    description: str,
    variants: Sequence[str],
    sizes: Mapping[str, Size],
    defects: Mapping[str, str] = DEFECTS,
) -> argparse.ArgumentParser:
    """The flags of every JAX workload. ``sizes`` maps ``--size`` (``tiny``, ``cpu``, ``gpu``) to its numbers."""
    parser = shared.parser_of(description, variants, sizes, defects, accelerator="gpu")
    kept = f"what jax.checkpoint keeps of a block. {help_of(POLICIES)}"
    parser.add_argument("--policy", choices=POLICIES, help=kept)
    add_kernel_flags(parser, KERNEL_DEFECTS)
    return parser


def options_of(arguments: argparse.Namespace, sizes: Mapping[str, Size]) -> Options:
    """Options from the flags of ``parser_of``, as parsed."""
    return replace(
        shared.options_of(arguments, sizes, accelerator="gpu"),
        kernel_defect=arguments.kernel_defect,
        kernel_twin=arguments.kernel_twin,
        policy=arguments.policy or ("full" if "checkpoint" in arguments.defect else "none"),
    )


def parse(
    description: str, variants: Sequence[str], sizes: Mapping[str, Size], argv: Sequence[str] | None = None
) -> Options:
    """Options from the command line."""
    return options_of(parser_of(description, variants, sizes).parse_args(argv), sizes)
