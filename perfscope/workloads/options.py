"""The flags that the workloads share, and the sizes of ``--size``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

DEFECTS = {
    "item": "read the loss with .item() in every step",
    "pageable": "copy each batch from pageable memory, and wait for it",
    "loader": "tokenise in the training process while the device waits",
    "adam-loop": "one AdamW update per parameter instead of one fused launch",
    "checkpoint": "recompute every block in the backward although its memory is not needed",
    "checkpoint-reentrant": "the same with the older, reentrant form",
    "checkpoint-nested": "the older form inside of another: recompute every block twice",
    "fp32": "float32 matrix products at full precision on a device that has TF32 and bfloat16",
}

COMPILE_DEFECTS = {
    "print": "print a value in the loop over the blocks",
    "branch": "choose by `if` on a value of the activations",
    "unsupported": "use an op whose output shape depends on data, which dynamo does not capture",
    "float-arg": "anneal a dropout rate that is a Python float: a new value, a new compilation",
    "shapes": "feed sequences of ever new length to a model compiled for fixed shapes",
    "opaque": "call a kernel of one's own between two pointwise ops, which inductor then cannot fuse",
}
"""Each implies ``--compile``; the code is in ``compile_defects.py``."""

BACKENDS = ("inductor", "aot_eager", "eager")
"""Backends of the graphs that dynamo finds: ``eager`` runs them as they are, without compile time."""

KERNEL_DEFECTS = {
    "order": "multiply the two matrices of an adapter with each other, before the activations",
    "layout": "add tables that lie in memory with their features first",
}
"""Slower kernels, as many of them; the code is in ``kernel_defects.py``."""

MEMORY_DEFECTS = {
    "leak": "keep a metric of every step with its graph",
    "fragment": "grow a bank of features by concatenation, and keep a few tokens of every step in addition",
}
"""Defects of ``transformer``; the code is in ``memory_defects.py``."""

POLICIES = {
    "none": "keep all that the backward needs",
    "full": "keep a block's input only and run all of it again",
    "selective": "keep the results of products of matrices and of attention, and run the rest again",
}
"""Values of a block that ``torch.utils.checkpoint`` keeps for the backward (``transformer``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Shape of model and data: L tokens a sequence, B sequences a batch, D features, H heads or experts."""

    batch: int
    seq: int
    dim: int
    heads: int
    layers: int
    vocab: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run of a workload, as asked on its command line."""

    variant: str
    size: Size
    steps: int = 12
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    compile_defect: str | None = None
    compile_twin: str | None = None
    backend: str = "inductor"
    """One of ``BACKENDS``."""
    kernel_defect: str | None = None
    kernel_twin: str | None = None
    defects: frozenset[str] = frozenset()
    seed: int = 0
    twins: frozenset[str] = frozenset()
    """Defects of memory whose computation is to be done without the defect."""
    policy: str = "none"
    """One of the framework's ``POLICIES``."""
    reentrant: bool = False
    """The older form of checkpointing, with policy ``full``."""


def parser_of(
    description: str,
    variants: Sequence[str],
    sizes: Mapping[str, Size],
    defects: Mapping[str, str] = DEFECTS,
    *,
    accelerator: str = "cuda",
) -> argparse.ArgumentParser:
    """The flags of every workload. ``sizes`` maps ``--size`` (``tiny``, ``cpu``, ``gpu``) to its numbers.

    ``accelerator``: the framework's name for the device of size ``gpu``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--defect", choices=defects, action="append", default=[], help=help_of(defects))
    parser.add_argument(
        "--size", choices=sizes, default="cpu", help=f"gpu: on {accelerator} in bfloat16, unless said otherwise"
    )
    parser.add_argument("--steps", type=int, default=12)
    others = ", tpu" if accelerator == "gpu" else ""
    parser.add_argument("--device", help=f"cpu, {accelerator}, {accelerator}:1{others} ...")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--seed", type=int, default=0)
    for name in Size.__slots__:
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS if name == "vocab" else None)
    return parser


def add_kernel_flags(parser: argparse.ArgumentParser, defects: Mapping[str, str]) -> None:
    """The flags of slower kernels."""
    slower = parser.add_mutually_exclusive_group()
    slower.add_argument("--kernel-defect", choices=defects, help=help_of(defects))
    slower.add_argument("--kernel-twin", choices=defects, help="the same computation without the defect")


def options_of(arguments: argparse.Namespace, sizes: Mapping[str, Size], *, accelerator: str = "cuda") -> Options:
    """Options from the flags of ``parser_of``, as parsed."""
    preset = sizes[arguments.size]
    numbers = {
        name: getattr(preset, name) if (own := getattr(arguments, name)) is None else own for name in Size.__slots__
    }
    large = arguments.size == "gpu"
    return Options(
        variant=arguments.variant,
        size=Size(**numbers),
        steps=arguments.steps,
        device=arguments.device or (accelerator if large else "cpu"),
        dtype="float32" if "fp32" in arguments.defect else arguments.dtype or ("bfloat16" if large else "float32"),
        defects=frozenset(arguments.defect),
        seed=arguments.seed,
    )


def parse(
    description: str, variants: Sequence[str], sizes: Mapping[str, Size], argv: Sequence[str] | None = None
) -> Options:
    """Options from the command line, with those of torch.compile and of slower kernels."""
    parser = parser_of(description, variants, sizes)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--compile-defect", choices=COMPILE_DEFECTS, help=f"compile, and {help_of(COMPILE_DEFECTS)}")
    either.add_argument(
        "--compile-twin", choices=COMPILE_DEFECTS, help="compile the same computation without the defect"
    )
    parser.add_argument("--compile-backend", choices=BACKENDS, default=BACKENDS[0], help="of torch.compile")
    add_kernel_flags(parser, KERNEL_DEFECTS)
    arguments = parser.parse_args(argv)
    return replace(
        options_of(arguments, sizes),
        compile=arguments.compile or arguments.compile_defect is not None or arguments.compile_twin is not None,
        compile_defect=arguments.compile_defect,
        compile_twin=arguments.compile_twin,
        backend=arguments.compile_backend,
        kernel_defect=arguments.kernel_defect,
        kernel_twin=arguments.kernel_twin,
    )


def help_of(effects: Mapping[str, str]) -> str:
    """``name: what it does; ...`` for the help of a flag."""
    return "; ".join(f"{name}: {what}" for name, what in effects.items())
