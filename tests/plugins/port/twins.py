"""Training steps of the workloads, of size ``tiny``, in both frameworks."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from perfscope.workloads.options import Options


def tokens(options: Options) -> np.ndarray:
    size = options.size
    return np.random.default_rng(0).integers(0, size.vocab, (size.batch, size.seq + 1))


def torch_twin(name: str, variant: str) -> Any:
    """A step without arguments, already run once."""
    import torch

    from perfscope.workloads import training

    workload = importlib.import_module(f"perfscope.workloads.{name}")
    options = Options(variant=variant, size=workload.SIZES["tiny"])
    model = training.build(workload.Block, options)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    batch = torch.from_numpy(tokens(options))

    def step() -> None:
        training.loss_of(model, batch).backward()
        adam.step()
        adam.zero_grad()

    step()
    return step


def jax_twin(name: str, variant: str) -> tuple[Any, tuple[Any, ...]]:
    """A jitted step and its arguments."""
    import jax

    from perfscope.workloads.jax import attention, training

    workload = importlib.import_module(f"perfscope.workloads.jax.{name}")
    options = Options(variant=variant, size=workload.SIZES["tiny"])
    block = attention.Block if name == "transformer" else workload.Block
    model = training.LanguageModel(block, options)
    step = jax.jit(training.step_of(model), donate_argnums=0)
    return step, (training.start(model), tokens(options).astype(np.int32))
