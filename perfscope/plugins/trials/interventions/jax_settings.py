"""Settings of JAX and flags of XLA."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Facts, Intervention, needs_cuda, set_by_variable
from perfscope.profiler.patching import wrap

XLA_FLAGS = "XLA_FLAGS"
COMBINED_BYTES = 256 << 20
CACHE_FOLDER = "perfscope-jax-cache"

_BUFFERS = "--xla_gpu_graph_min_graph_size=2"
"""Flag for command buffers; XLA launches shorter sequences of kernels one by one."""
_COMBINED = " ".join(
    f"--xla_gpu_{kind}_combine_threshold_bytes={COMBINED_BYTES}"
    for kind in ("all_reduce", "all_gather", "reduce_scatter")
)


def _matmul_default(application: Application) -> None:
    """Use the platform's default precision, even if the program configures a higher one."""
    import jax

    name = "jax_default_matmul_precision"

    def make(original: Any) -> Any:
        def update(config: Any, setting: str, value: Any) -> Any:
            if setting == name and value not in (None, "default"):
                application.changed(f"{name} is 'default', not {value!r}")
                value = "default"
            return original(config, setting, value)

        return update

    before = getattr(jax.config, name, None)
    if before not in (None, "default"):
        jax.config.update(name, "default")
        application.changed(f"{name} is 'default', not {before!r}")
    wrap(type(jax.config), "update", make)


def _flags(added: str, facts: Facts) -> Mapping[str, str]:
    return {XLA_FLAGS: " ".join(filter(None, (facts.variables.get(XLA_FLAGS), added)))}


def _cache_variables(facts: Facts) -> Mapping[str, str]:
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(facts.variables.get("TMPDIR") or tempfile.gettempdir()) / f"{CACHE_FOLDER}-{user}"
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def _no_cache_yet(facts: Facts) -> str | None:
    return "the program has a compilation cache" if facts.variables.get("JAX_COMPILATION_CACHE_DIR") else None


MATMUL_DEFAULT = Intervention(
    name="jax-matmul-default",
    title="the platform's precision of matrix products",
    family="matmul precision",
    framework="jax",
    answers=("full_precision_matmul",),
    may_change="Products of float32 matrices keep fewer bits of the mantissa where the device has units for it.",
    code='jax.config.update("jax_default_matmul_precision", "default")',
    apply=_matmul_default,
)
COMPILATION_CACHE = Intervention(
    name="jax-cache",
    title="compiled programs kept on disk",
    family="compilation cache",
    framework="jax",
    answers=("warmup_compile", "compile_time"),
    may_change="Nothing.",
    code='jax.config.update("jax_compilation_cache_dir", "/path/to/cache")',
    applies=_no_cache_yet,
    environment=_cache_variables,
    apply=partial(set_by_variable, name="JAX_COMPILATION_CACHE_DIR"),
)
LATENCY_HIDING = Intervention(
    name="jax-latency-hiding",
    title="XLA's latency hiding scheduler",
    family="xla scheduler",
    framework="jax",
    answers=("exposed_communication", "blocking_collective"),
    may_change="The order in which a program runs; more memory at its peak.",
    code='XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true" python train.py',
    applies=needs_cuda,
    environment=partial(_flags, "--xla_gpu_enable_latency_hiding_scheduler=true"),
    apply=partial(set_by_variable, name=XLA_FLAGS),
)
TRITON_GEMM = Intervention(
    name="jax-triton-gemm",
    title="matrix products by Triton wherever it can",
    family="xla gemm",
    framework="jax",
    answers=("unfused_ops",),
    may_change="Sums of matrix products in another order.",
    code='XLA_FLAGS="--xla_gpu_triton_gemm_any=true" python train.py',
    applies=needs_cuda,
    environment=partial(_flags, "--xla_gpu_triton_gemm_any=true"),
    apply=partial(set_by_variable, name=XLA_FLAGS),
)
COMMAND_BUFFERS = Intervention(
    name="jax-command-buffers",
    title="kernels in command buffers (CUDA graphs) from two on",
    family="xla command buffers",
    framework="jax",
    answers=("launch_bound", "small_kernels"),
    may_change="Nothing; memory for the graphs.",
    code=f'XLA_FLAGS="{_BUFFERS}" python train.py',
    applies=needs_cuda,
    environment=partial(_flags, _BUFFERS),
    apply=partial(set_by_variable, name=XLA_FLAGS),
)
COMBINE_COLLECTIVES = Intervention(
    name="jax-combine-collectives",
    title="fewer, larger collectives",
    family="xla combiners",
    framework="jax",
    answers=("exposed_communication", "small_collectives"),
    may_change="The order of sums over devices; collectives begin later.",
    code='XLA_FLAGS="' + _COMBINED.replace(" ", "\n") + '" python train.py',
    applies=needs_cuda,
    environment=partial(_flags, _COMBINED),
    apply=partial(set_by_variable, name=XLA_FLAGS),
)
