"""The models of the workloads for `perfscope parity`: PyTorch and JAX twins of size ``tiny``, of the same inputs.

    perfscope parity perfscope.workloads.twins:attention_torch perfscope.workloads.twins:attention_jax

Each function imports its own framework only.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from perfscope.workloads.options import Options, Size

SIZE = "tiny"


def tokens(size: Size) -> np.ndarray:
    """Token ids at random, (batch, sequence)."""
    return np.random.default_rng(0).integers(0, size.vocab, (size.batch, size.seq))


def torch_twin(name: str, variant: str) -> tuple[Any, tuple[Any, ...]]:
    """(module, inputs) of the PyTorch workload ``name``."""
    import torch

    from perfscope.workloads import training

    workload = importlib.import_module(f"perfscope.workloads.{name}")
    options = Options(variant=variant, size=workload.SIZES[SIZE])
    return training.build(workload.Block, options), (torch.from_numpy(tokens(options.size)),)


def jax_twin(name: str, variant: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """(function, parameters, inputs) of the JAX workload ``name``, on one device."""
    from perfscope.workloads.jax import attention, training

    workload = importlib.import_module(f"perfscope.workloads.jax.{name}")
    options = Options(variant=variant, size=workload.SIZES[SIZE])
    block = attention.Block if name == "transformer" else workload.Block  # that of a mesh computes the same
    model = training.LanguageModel(block, options)
    return model, model.initial(), (tokens(options.size).astype(np.int32),)


def attention_torch() -> tuple[Any, tuple[Any, ...]]:
    """Scores in memory, in PyTorch."""
    return torch_twin("attention", "naive")


def attention_jax() -> tuple[Any, Any, tuple[Any, ...]]:
    """Scores in memory, in JAX."""
    return jax_twin("attention", "naive")


def transformer_torch() -> tuple[Any, tuple[Any, ...]]:
    """Fused attention in PyTorch."""
    return torch_twin("transformer", "sdpa")


def transformer_jax() -> tuple[Any, Any, tuple[Any, ...]]:
    """Online softmax in JAX."""
    return jax_twin("transformer", "blocked")


def moe_torch() -> tuple[Any, tuple[Any, ...]]:
    """Experts with fixed room, in PyTorch."""
    return torch_twin("moe", "index_add")


def moe_jax() -> tuple[Any, Any, tuple[Any, ...]]:
    """Experts with fixed room, in JAX."""
    return jax_twin("moe", "scatter")


def ssm_torch() -> tuple[Any, tuple[Any, ...]]:
    """The recurrence by doubling, in PyTorch."""
    return torch_twin("ssm", "parallel")


def ssm_jax() -> tuple[Any, Any, tuple[Any, ...]]:
    """The recurrence by an associative scan, in JAX."""
    return jax_twin("ssm", "associative")
