"""The flags that the JAX workloads share: those of the PyTorch ones, with the defects that exist in JAX."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.workloads.options import Size

DEFECTS = {
    "float": "read the loss with float() in every step",
    "retrace": "pass the number of the step as a static Python int: every step traces and compiles anew",
    "checkpoint": "recompute every block in the backward although its memory is not needed",
    "checkpoint-nested": "a checkpoint of all layers around those of each: recompute twice",
    "eager-update": "run AdamW outside of jit: every operation is a program of its own, and none are fused",
    "leak": "keep the logits of every step on the device in a list that nobody reads",
    "no-donation": "keep the old weights and optimizer state beside the new ones",
    "fp32": "float32 logits at full precision on a device that has TF32 and bfloat16",
}

KERNEL_DEFECTS = {"order": "multiply the two matrices of an adapter with each other, before the activations"}
"""A slower kernel, as many of them."""

POLICIES = {
    "none": "keep all that the backward needs",
    "full": "keep a block's input only and run all of it again, as --defect checkpoint",
    "dots": "keep products of activations with weights, run the rest again",
    "names": "keep what the block names; attention names the hidden layer behind its gelu, which keeps as much as "
    "dots and still runs that product again",
}
"""What of a block ``jax.checkpoint`` keeps for the backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run of a workload, as asked on its command line."""

    variant: str
    size: Size
    steps: int = 12
    device: str = "cpu"
    dtype: str = "float32"
    defects: frozenset[str] = frozenset()
    seed: int = 0
    policy: str = "none"
    """One of ``POLICIES``."""
    kernel_defect: str | None = None
    kernel_twin: str | None = None


def parser_of(
    description: str,
    variants: Sequence[str],
    sizes: Mapping[str, Size],
    defects: Mapping[str, str] = DEFECTS,
) -> argparse.ArgumentParser:
    """The shared flags. ``sizes`` maps ``--size`` (``tiny``, ``cpu``, ``gpu``) to its numbers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    effects = "; ".join(f"{name}: {what}" for name, what in defects.items())
    parser.add_argument("--defect", choices=defects, action="append", default=[], help=effects)
    kept = "; ".join(f"{name}: {what}" for name, what in POLICIES.items())
    parser.add_argument("--policy", choices=POLICIES, help=f"what jax.checkpoint keeps of a block. {kept}")
    slower = parser.add_mutually_exclusive_group()
    said = "; ".join(f"{name}: {what}" for name, what in KERNEL_DEFECTS.items())
    slower.add_argument("--kernel-defect", choices=KERNEL_DEFECTS, help=said)
    slower.add_argument("--kernel-twin", choices=KERNEL_DEFECTS, help="the same computation without the defect")
    parser.add_argument("--size", choices=sizes, default="cpu", help="gpu: on gpu in bfloat16, unless said otherwise")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", help="cpu, gpu, gpu:1, tpu ...")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--seed", type=int, default=0)
    for name in Size.__slots__:
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS if name == "vocab" else None)
    return parser


def options_of(asked: argparse.Namespace, sizes: Mapping[str, Size]) -> Options:
    """Options from the flags of ``parser_of``, as parsed."""
    preset = sizes[asked.size]
    numbers = {name: getattr(preset, name) if (own := getattr(asked, name)) is None else own for name in Size.__slots__}
    large = asked.size == "gpu"
    return Options(
        variant=asked.variant,
        size=Size(**numbers),
        steps=asked.steps,
        device=asked.device or ("gpu" if large else "cpu"),
        dtype="float32" if "fp32" in asked.defect else asked.dtype or ("bfloat16" if large else "float32"),
        defects=frozenset(asked.defect),
        seed=asked.seed,
        kernel_defect=asked.kernel_defect,
        kernel_twin=asked.kernel_twin,
        policy=asked.policy or ("full" if "checkpoint" in asked.defect else "none"),
    )


def parse(
    description: str, variants: Sequence[str], sizes: Mapping[str, Size], argv: Sequence[str] | None = None
) -> Options:
    """Options from the command line."""
    return options_of(parser_of(description, variants, sizes).parse_args(argv), sizes)
